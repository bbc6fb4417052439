/* SPDX-License-Identifier: Apache-2.0 */
/* The port of a job controller: who is heard, who is refused and what refused peers are told, and how connections end. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/auth.h"
#include "common/clock.h"
#include "controller/run/listener.h"

#define PATIENCE_S 30
#define MANY 20

static const char secret[] = "0123456789abcdef0123456789abcdef", other[] = "fedcba9876543210fedcba9876543210";

/* What the owner of the port has seen. */
static struct {
	int hellos, accepted, messages, closed;
	struct run_connection *last; /* accepted last */
	json_t *hello, *message;     /* of the last */
	char why[128];
} seen;

static uv_loop_t loop;
static struct hspmd_auth *auth, *stranger;
static struct run_listener *server;
static int port;

static int on_hello(void *context, struct run_connection *peer, json_t *hello, uid_t who, json_t **welcome, struct hspmd_error *err)
{
	(void)context, (void)peer;
	seen.hellos++;
	assert_int_equal(who, getuid());
	*welcome = json_pack("{s:s}", "job", "7");
	return json_object_get(hello, "unwanted") ? hspmd_fail(err, "you are unwanted") : 0;
}

static void on_accepted(void *context, struct run_connection *peer, json_t *hello)
{
	(void)context;
	seen.accepted++;
	seen.last = peer;
	json_decref(seen.hello);
	seen.hello = json_incref(hello);
}

static void on_message(void *context, struct run_connection *peer, json_t *message)
{
	(void)context, (void)peer;
	seen.messages++;
	json_decref(seen.message);
	seen.message = json_incref(message);
}

static void on_closed(void *context, struct run_connection *peer, const char *why)
{
	(void)context, (void)peer;
	seen.closed++;
	snprintf(seen.why, sizeof seen.why, "%s", why);
}

static int open_server(void **state)
{
	static const struct run_listener_callbacks events = { on_hello, on_accepted, on_message, on_closed };
	struct hspmd_error err;
	(void)state;
	memset(&seen, 0, sizeof seen);
	uv_loop_init(&loop);
	auth = hspmd_auth_cookie(secret, &err);
	stranger = hspmd_auth_cookie(other, &err);
	server = run_listener_open(&loop, 0, true, auth, "7", &events, NULL, &err);
	if (!server)
		return -1;
	json_t *addresses = run_listener_addresses(server);
	assert_int_equal(json_array_size(addresses), 1);
	assert_int_equal(sscanf(json_string_value(json_array_get(addresses, 0)), "127.0.0.1:%d", &port), 1);
	json_decref(addresses);
	return 0;
}

static int close_server(void **state)
{
	(void)state;
	run_listener_close(server);
	uv_run(&loop, UV_RUN_DEFAULT);
	json_decref(seen.hello);
	json_decref(seen.message);
	hspmd_auth_destroy(auth);
	hspmd_auth_destroy(stranger);
	return uv_loop_close(&loop);
}

/* ---- a client */

static struct hspmd_stream *call(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	struct hspmd_stream *s = hspmd_stream_create(fd, HSPMD_WIRE_MAX, HSPMD_WIRE_MAX, NULL);
	assert_non_null(s);
	return s;
}

/* Lets the server run, and the client read, until the client has a message; NULL: the connection is closed. */
static json_t *next(struct hspmd_stream *s)
{
	for (double deadline = hspmd_now() + PATIENCE_S; hspmd_now() < deadline;) {
		json_t *m = hspmd_stream_next(s);
		if (m)
			return m;
		uv_run(&loop, UV_RUN_NOWAIT);
		struct pollfd p = { .fd = hspmd_stream_fd(s), .events = POLLIN };
		if (poll(&p, 1, 5) > 0 && hspmd_stream_read(s, NULL) <= 0)
			return hspmd_stream_next(s);
		hspmd_stream_flush(s, NULL);
	}
	fail_msg("no answer");
	return NULL;
}

/* Expects this type of message (NULL: the end of the connection), with these words in its text. */
static void expect(struct hspmd_stream *s, const char *type, const char *words)
{
	json_t *m = next(s);
	if (!type && m)
		fail_msg("expected the end, got %s", json_string_value(json_object_get(m, "type")));
	if (type && !m)
		fail_msg("expected %s, got the end", type);
	if (type)
		assert_string_equal(json_string_value(json_object_get(m, "type")), type);
	const char *text = json_string_value(json_object_get(m, "text"));
	if (words && (!text || !strstr(text, words)))
		fail_msg("expected \"%s\" in \"%s\"", words, text ? text : "");
	json_decref(m);
}

static void expect_refused(struct hspmd_stream *s, const char *words)
{
	expect(s, "refused", words);
	expect(s, NULL, NULL);
	hspmd_stream_destroy(s);
}

/* Lets the server run until the number is reached. */
static void wait_for(const int *number, int wanted)
{
	for (double deadline = hspmd_now() + PATIENCE_S; *number != wanted && hspmd_now() < deadline;)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(*number, wanted);
}

static void say(struct hspmd_stream *s, json_t *m)
{
	assert_int_equal(hspmd_stream_send(s, m, NULL), 0);
	json_decref(m);
}

static json_t *sealed_hello(const struct hspmd_auth *who, const char *nonce, json_t *content)
{
	json_t *sealed = hspmd_auth_seal(who, "hello", nonce, content, NULL);
	json_decref(content);
	return sealed;
}

static json_t *honest(void)
{
	return json_pack("{s:s, s:s, s:i}", "role", "controller", "nonce", "n", "job", 7);
}

/* Connects, and answers the challenge as `who` with this content, which is released. */
static struct hspmd_stream *greet(const struct hspmd_auth *who, json_t *content)
{
	struct hspmd_stream *s = call();
	json_t *challenge = next(s);
	assert_string_equal(json_string_value(json_object_get(challenge, "type")), "challenge");
	say(s, sealed_hello(who, json_string_value(json_object_get(challenge, "nonce")), content));
	json_decref(challenge);
	return s;
}

static struct hspmd_stream *known(void)
{
	struct hspmd_stream *s = greet(auth, honest());
	expect(s, "welcome", NULL);
	wait_for(&seen.accepted, seen.hellos);
	return s;
}

/* ---- tests */

static void test_who_proves_himself_is_heard(void **state)
{
	struct hspmd_error err;
	(void)state;
	struct hspmd_stream *s = known();
	json_t *expected = honest(), *ask = json_pack("{s:s}", "type", "ask"),
	       *report = json_pack("{s:s, s:i}", "type", "state", "step", 3);
	assert_true(json_equal(seen.hello, expected));
	run_connection_set_data(seen.last, &seen);
	assert_ptr_equal(run_connection_data(seen.last), &seen);
	say(s, json_incref(report));
	wait_for(&seen.messages, 1);
	assert_true(json_equal(seen.message, report));
	assert_int_equal(run_connection_send(seen.last, ask, &err), 0);
	expect(s, "ask", NULL);
	hspmd_stream_destroy(s);
	wait_for(&seen.closed, 1);
	assert_string_equal(seen.why, "the connection was closed");
	json_decref(expected);
	json_decref(report);
	json_decref(ask);
}

static void test_who_does_not_is_told_why_not(void **state)
{
	(void)state;
	expect_refused(greet(stranger, honest()), "does not know the job's cookie");
	expect_refused(greet(auth, json_pack("{s:s}", "role", "agent")), "no nonce");
	assert_int_equal(seen.hellos, 0);
	expect_refused(greet(auth, json_pack("{s:s, s:s, s:b}", "role", "agent", "nonce", "n", "unwanted", 1)), "you are unwanted");
	struct hspmd_stream *first = call(), *second = call();
	json_t *challenge = next(first);
	json_decref(next(second));
	say(second, sealed_hello(auth, json_string_value(json_object_get(challenge, "nonce")), honest()));
	expect_refused(second, "not an answer to this connection's challenge");
	say(first, json_pack("{s:s}", "type", "state"));
	expect_refused(first, "expected hello, got state");
	json_decref(challenge);
	assert_int_equal(seen.hellos, 1);
	assert_int_equal(seen.accepted + seen.messages + seen.closed, 0);
}

static void test_what_is_no_message_ends_the_connection(void **state)
{
	static const char large[] = "HSP1\x7f\xff\xff\xff", noise[] = "GET / HTTP/1.1\r\n\r\n";
	(void)state;
	struct hspmd_stream *a = call(), *b = call(), *c = known();
	json_decref(next(a));
	json_decref(next(b));
	assert_int_equal(write(hspmd_stream_fd(a), large, 8), 8);
	assert_int_equal(write(hspmd_stream_fd(b), noise, sizeof noise - 1), (ssize_t)sizeof noise - 1);
	expect_refused(a, "");
	expect_refused(b, "");
	assert_int_equal(seen.closed, 0);
	assert_int_equal(write(hspmd_stream_fd(c), noise, sizeof noise - 1), (ssize_t)sizeof noise - 1);
	wait_for(&seen.closed, 1);
	assert_string_not_equal(seen.why, "the connection was closed");
	hspmd_stream_destroy(c);
}

/* Strangers who say nothing, or half a message, or who leave. The owner hears of none. */
static void test_the_silent_are_cut(void **state)
{
	static const char half[] = { 'H', 'S', 'P', '1', 0, 0, 0, 20, '{' };
	(void)state;
	struct hspmd_stream *silent = call(), *slow = call(), *gone = call(), *honest_one = known();
	expect(silent, "challenge", NULL);
	expect(slow, "challenge", NULL);
	hspmd_stream_destroy(gone);
	assert_int_equal(send(hspmd_stream_fd(slow), half, sizeof half, 0), sizeof half);
	expect_refused(silent, "did not prove itself in time");
	expect_refused(slow, "did not prove itself in time");
	assert_int_equal(seen.hellos, 1);
	assert_int_equal(seen.closed, 0);
	hspmd_stream_destroy(honest_one);
}

/* So many silent strangers that no place for them is left: who proves himself is heard all the same. */
static void test_the_silent_keep_nobody_out(void **state)
{
	struct hspmd_stream *silent[300];
	(void)state;
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
		silent[i] = call();
		expect(silent[i], "challenge", NULL);
	}
	struct hspmd_stream *s = known();
	expect_refused(silent[0], "too many");
	for (size_t i = 1; i < sizeof silent / sizeof *silent; i++)
		hspmd_stream_destroy(silent[i]);
	assert_int_equal(seen.closed, 0);
	hspmd_stream_destroy(s);
}

/* A connection that its owner ends, at once or when all is sent, ends without a word to the owner. */
static void test_the_owner_ends_a_connection(void **state)
{
	struct hspmd_error err;
	(void)state;
	struct hspmd_stream *s = known();
	run_connection_close(seen.last);
	json_t *m = honest();
	assert_int_equal(run_connection_send(seen.last, m, &err), -1);
	json_decref(m);
	expect(s, NULL, NULL);
	hspmd_stream_destroy(s);
	assert_int_equal(seen.closed, 0);
}

/* More than the kernel's buffers take. */
static void send_much(void)
{
	struct hspmd_error err;
	static char text[900000];
	memset(text, 'x', sizeof text - 1);
	json_t *m = json_pack("{s:s, s:s}", "type", "long", "words", text);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(run_connection_send(seen.last, m, &err), 0);
	json_decref(m);
}

static void test_the_last_messages_arrive(void **state)
{
	(void)state;
	struct hspmd_stream *s = known();
	send_much();
	run_connection_drain(seen.last);
	for (int i = 0; i < MANY; i++)
		expect(s, "long", NULL);
	expect(s, NULL, NULL);
	hspmd_stream_destroy(s);
}

static void test_a_peer_that_takes_nothing_is_cut_in_the_end(void **state)
{
	(void)state;
	struct hspmd_stream *s = known();
	send_much();
	run_connection_drain(seen.last);
	wait_for(&seen.closed, 1);
	hspmd_stream_destroy(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_who_proves_himself_is_heard, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_who_does_not_is_told_why_not, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_what_is_no_message_ends_the_connection, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_the_silent_are_cut, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_the_silent_keep_nobody_out, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_the_owner_ends_a_connection, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_the_last_messages_arrive, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_a_peer_that_takes_nothing_is_cut_in_the_end, open_server, close_server),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
