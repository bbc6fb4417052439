/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld's server and hostile clients: forged, replayed, oversized, out of order, too many. Each loses its own connection, and nothing
 * else happens. */
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "controller/ctld_client/client.h"
#include "controller/ctld_client/protocol.h"
#include "controller/ctld/server.h"
#include "tests/unit/greeting.h"

static const char secret[] = "0123456789abcdef0123456789abcdef", other[] = "fedcba9876543210fedcba9876543210";

static uv_loop_t loop;
static struct hspmd_auth *auth, *stranger;
static struct ctld_server *server;
static int greeted, gone, messages, figures;
static struct greeting greeting; /* of the client that greeted last */

static int on_hello(void *context, uint32_t job, uid_t uid, struct hspmd_error *err)
{
	(void)context, (void)uid;
	greeted++;
	return job == 7 || job >= 1000 ? 0 : hspmd_fail(err, "job %u is not yours", job);
}

static int on_message(void *context, uint32_t job, json_t *message, struct hspmd_error *err)
{
	(void)context, (void)job;
	messages++;
	figures += json_object_get(message, "figures") != NULL;
	return json_object_get(message, "bad") ? hspmd_fail(err, "ill-formed") : 0;
}

static void on_gone(void *context, uint32_t job)
{
	(void)context, (void)job;
	gone++;
}

static json_t *on_query(void *context, uid_t uid, json_t *message, struct hspmd_error *err)
{
	(void)uid, (void)message, (void)err;
	(void)context;
	return json_pack("{s:s}", "type", "cluster");
}

static int open_server(void **state)
{
	static const struct ctld_handlers handlers = { on_hello, on_message, on_gone, on_query, NULL };
	struct hspmd_error err;
	(void)state;
	greeted = gone = messages = figures = 0;
	uv_loop_init(&loop);
	auth = hspmd_auth_cookie(secret, &err);
	stranger = hspmd_auth_cookie(other, &err);
	server = ctld_server_open(&loop, "127.0.0.1:0", auth, &handlers, &err);
	return server ? 0 : -1;
}

static int close_server(void **state)
{
	(void)state;
	ctld_server_close(server);
	uv_run(&loop, UV_RUN_DEFAULT);
	json_decref(greeting.hello);
	greeting.hello = NULL;
	hspmd_auth_destroy(auth);
	hspmd_auth_destroy(stranger);
	return uv_loop_close(&loop);
}

static struct hspmd_stream *call(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
		                  .sin_port = htons((uint16_t)ctld_server_port(server)),
		                  .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	struct hspmd_stream *s = hspmd_stream_create(fd, CTLD_FRAME, 8u << 20, NULL);
	assert_non_null(s);
	return s;
}

/* Runs the server until the next message; NULL: it closed the connection. */
static json_t *next(struct hspmd_stream *s)
{
	return client_next(&loop, s);
}

static void expect(struct hspmd_stream *s, const char *type)
{
	json_t *m = next(s);
	if (!type && m)
		fail_msg("expected the end, got %s", json_string_value(json_object_get(m, "type")));
	if (type)
		assert_string_equal(json_string_value(json_object_get(m, "type")), type);
	json_decref(m);
}

static json_t *hello(const struct hspmd_auth *who, const char *nonce, const char *role, int job)
{
	json_t *content = json_pack("{s:s, s:i, s:s}", "role", role, "job", job, "nonce", "n");
	return greeting_hello(&greeting, who, nonce, content);
}

/* Connects, and answers the challenge as `who`. */
static struct hspmd_stream *greet(const struct hspmd_auth *who, const char *role, int job)
{
	struct hspmd_stream *s = call();
	json_t *challenge = next(s);
	json_t *sealed = hello(who, json_string_value(json_object_get(challenge, "nonce")), role, job);
	assert_int_equal(hspmd_stream_send(s, sealed, NULL), 0);
	json_decref(challenge);
	json_decref(sealed);
	return s;
}

/* Expects the welcome for the last hello. */
static void expect_welcome(struct hspmd_stream *s)
{
	json_t *m = next(s);
	assert_string_equal(json_string_value(json_object_get(m, "type")), "welcome");
	assert_int_equal(greeting_welcomed(&greeting, auth, s, m), 0);
	json_decref(m);
}

static void say(struct hspmd_stream *s, json_t *m)
{
	hspmd_stream_send(s, m, NULL);
	json_decref(m);
}

static void test_who_proves_himself_is_heard(void **state)
{
	(void)state;
	struct hspmd_stream *s = greet(auth, "controller", 7);
	expect_welcome(s);
	json_t *ask = json_pack("{s:s}", "type", "ask");
	assert_int_equal(ctld_server_send(server, 7, ask), 0);
	assert_int_equal(ctld_server_send(server, 8, ask), -1);
	json_decref(ask);
	expect(s, "ask");
	say(s, json_pack("{s:i}", "bad", 1));
	expect(s, NULL);
	assert_int_equal(messages, 1);
	assert_int_equal(gone, 1);
	hspmd_stream_destroy(s);
}

/* A controller understands a daemon of another version: the names of messages are written out here, because they must never change. */
static void test_a_client_understands_the_names_on_the_wire(void **state)
{
	char where[64];
	struct hspmd_error err;
	(void)state;
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid(), ctld_server_port(server));
	struct ctld_client *client = ctld_client_create(where, 7, auth, &err);
	assert_non_null(client);
	json_t *messages_in[] = { json_pack("{s:s}", "type", "of a later version"),
		                  json_pack("{s:s, s:i, s:s, s:i}", "type", "ask", "id", 5, "command", "grow", "by", 1),
		                  json_pack("{s:s, s:f, s:f}", "type", "risk", "losses_per_node_s", 0.25, "together", 0.5) };
	json_t *request = NULL, *risk = NULL;
	bool sent = false;
	for (double deadline = hspmd_now() + 20; hspmd_now() < deadline && !(request && risk);) {
		ctld_client_process(client);
		uv_run(&loop, UV_RUN_NOWAIT);
		for (int i = 0; i < 3 && !sent && ctld_client_is_connected(client); i++)
			assert_int_equal(ctld_server_send(server, 7, messages_in[i]), 0);
		sent = ctld_client_is_connected(client);
		request = request ? request : ctld_client_next_request(client);
		risk = risk ? risk : ctld_client_next_risk(client);
		struct pollfd p = { .fd = ctld_client_fd(client), .events = POLLIN };
		poll(&p, 1, 5);
	}
	assert_true(json_equal(request, messages_in[1]));
	assert_true(json_equal(risk, messages_in[2]));
	assert_null(ctld_client_next_request(client));
	for (int i = 0; i < 3; i++)
		json_decref(messages_in[i]);
	json_decref(request);
	json_decref(risk);
	ctld_client_destroy(client);
}

/* An older daemon refuses states with a member that it does not know. */
static void test_figures_are_sent_only_if_asked_for(void **state)
{
	char where[64];
	struct hspmd_error err;
	json_t *ask = json_pack("{s:s}", "type", "figures"), *told = json_pack("{s:i, s:{s:i}}", "nodes", 1, "figures", "step", 1);
	bool sent = false;
	(void)state;
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid(), ctld_server_port(server));
	struct ctld_client *client = ctld_client_create(where, 7, auth, &err);
	assert_non_null(client);
	ctld_client_set_state(client, told);
	for (double deadline = hspmd_now() + 20; hspmd_now() < deadline && !figures;) {
		ctld_client_process(client);
		uv_run(&loop, UV_RUN_NOWAIT);
		if (messages && !sent) {
			assert_int_equal(figures, 0);
			assert_int_equal(ctld_server_send(server, 7, ask), 0);
			sent = true;
		}
		struct pollfd p = { .fd = ctld_client_fd(client), .events = POLLIN };
		poll(&p, 1, 5);
	}
	assert_int_equal(messages, 2);
	assert_int_equal(figures, 1);
	json_decref(ask);
	json_decref(told);
	ctld_client_destroy(client);
}

/* A client whose daemon hangs up closes the connection and says so, instead of reading its end for ever. */
static void test_a_client_notices_that_the_daemon_is_gone(void **state)
{
	char where[64];
	struct hspmd_error err;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	(void)state;
	assert_true(listener >= 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&at, size), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid(), ntohs(at.sin_port));
	struct ctld_client *client = ctld_client_create(where, 7, auth, &err);
	assert_non_null(client);
	ctld_client_process(client);
	assert_true(ctld_client_fd(client) >= 0);
	int other_end = accept(listener, NULL, NULL);
	assert_true(other_end >= 0);
	close(other_end);
	for (double deadline = hspmd_now() + 20; hspmd_now() < deadline && ctld_client_fd(client) >= 0;) {
		struct pollfd p = { .fd = ctld_client_fd(client), .events = POLLIN };
		poll(&p, 1, 5);
		ctld_client_process(client);
	}
	assert_int_equal(ctld_client_fd(client), -1);
	assert_non_null(strstr(ctld_client_last_error(client), "closed the connection"));
	ctld_client_destroy(client);
	close(listener);
}

static void test_forged_and_foreign_are_refused(void **state)
{
	(void)state;
	struct hspmd_stream *forged = greet(stranger, "controller", 7), *foreign = greet(auth, "controller", 8),
	                    *role = greet(auth, "king", 7);
	expect(forged, "refused");
	expect(foreign, "refused");
	expect(role, "refused");
	assert_int_equal(greeted, 1);
	assert_int_equal(gone, 0);
	hspmd_stream_destroy(forged);
	hspmd_stream_destroy(foreign);
	hspmd_stream_destroy(role);
}

static void test_replayed_is_refused(void **state)
{
	(void)state;
	struct hspmd_stream *first = call(), *second = call();
	json_t *challenge = next(first);
	json_t *sealed = hello(auth, json_string_value(json_object_get(challenge, "nonce")), "controller", 7);
	json_decref(challenge);
	json_decref(next(second));
	say(second, sealed);
	expect(second, "refused");
	assert_int_equal(greeted, 0);
	hspmd_stream_destroy(first);
	hspmd_stream_destroy(second);
}

static void test_oversized_and_gibberish_are_cut(void **state)
{
	(void)state;
	static const char large[] = "HSP1\x7f\xff\xff\xff", noise[] = "GET / HTTP/1.1\r\n\r\n";
	struct hspmd_stream *a = call(), *b = call();
	json_decref(next(a));
	json_decref(next(b));
	assert_int_equal(write(hspmd_stream_fd(a), large, 8), 8);
	assert_int_equal(write(hspmd_stream_fd(b), noise, sizeof noise - 1), (ssize_t)sizeof noise - 1);
	expect(a, "refused");
	expect(a, NULL);
	expect(b, "refused");
	expect(b, NULL);
	assert_int_equal(ctld_server_counts(server).unauthenticated, 0);
	hspmd_stream_destroy(a);
	hspmd_stream_destroy(b);
}

/* One client sends nothing, one sends half a message. */
static void test_the_slow_are_cut(void **state)
{
	static const char half[] = { 'H', 'S', 'P', '1', 0, 0, 0, 20, '{' };
	(void)state;
	struct hspmd_stream *silent = call(), *slow = call();
	expect(silent, "challenge");
	expect(slow, "challenge");
	assert_int_equal(send(hspmd_stream_fd(slow), half, sizeof half, 0), sizeof half);
	assert_int_equal(ctld_server_counts(server).unauthenticated, 2);
	expect(silent, "refused");
	expect(silent, NULL);
	expect(slow, "refused");
	expect(slow, NULL);
	assert_int_equal(ctld_server_counts(server).unauthenticated, 0);
	assert_int_equal(ctld_server_counts(server).refused, 2);
	hspmd_stream_destroy(silent);
	hspmd_stream_destroy(slow);
}

/* So many silent clients that no place for strangers is left: a client that proves its user is served all the same. */
static void test_the_silent_keep_nobody_out(void **state)
{
	struct hspmd_stream *silent[300];
	(void)state;
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
		silent[i] = call();
		expect(silent[i], "challenge");
	}
	int unauthenticated = ctld_server_counts(server).unauthenticated;
	assert_true(unauthenticated > 100 && unauthenticated < 300);
	struct hspmd_stream *s = greet(auth, "controller", 7);
	expect_welcome(s);
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
		hspmd_stream_destroy(silent[i]);
	assert_int_equal(gone, 0);
	hspmd_stream_destroy(s);
}

/* One user who tries to use up all connections. */
static void test_a_user_has_not_all_places(void **state)
{
	enum { MANY = 2048 };
	static struct hspmd_stream *s[MANY];
	struct rlimit files = { 2 * MANY + 200, 2 * MANY + 200 }, old;
	(void)state;
	getrlimit(RLIMIT_NOFILE, &old);
	if (old.rlim_max != RLIM_INFINITY && old.rlim_max < files.rlim_max)
		skip();
	files.rlim_max = old.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	for (int i = 0; i < MANY; i++) {
		s[i] = greet(auth, "controller", 1000 + i);
		expect_welcome(s[i]);
	}
	struct hspmd_stream *more = greet(auth, "controller", 7);
	expect(more, "refused");
	hspmd_stream_destroy(more);
	hspmd_stream_destroy(s[0]);
	for (double until = hspmd_now() + 20;;) { /* until the end was noticed */
		more = greet(auth, "controller", 7);
		json_t *m = next(more);
		bool in = !strcmp(json_string_value(json_object_get(m, "type")), "welcome");
		json_decref(m);
		hspmd_stream_destroy(more);
		if (in)
			break;
		assert_true(hspmd_now() < until);
	}
	for (int i = 1; i < MANY; i++)
		hspmd_stream_destroy(s[i]);
	setrlimit(RLIMIT_NOFILE, &old);
}

static void test_a_flood_is_cut(void **state)
{
	(void)state;
	struct hspmd_stream *s = greet(auth, "controller", 7);
	expect_welcome(s);
	for (int i = 0; i < 11 * CTLD_MESSAGES_S; i++)
		say(s, json_pack("{s:s}", "type", "state"));
	expect(s, NULL);
	assert_true(messages <= 10 * CTLD_MESSAGES_S);
	hspmd_stream_destroy(s);
}

static void test_who_calls_again_takes_over(void **state)
{
	(void)state;
	struct hspmd_stream *old = greet(auth, "controller", 7);
	expect_welcome(old);
	struct hspmd_stream *new = greet(auth, "controller", 7);
	expect_welcome(new);
	expect(old, NULL);
	assert_int_equal(gone, 0);
	assert_int_equal(ctld_server_counts(server).controllers, 1);
	hspmd_stream_destroy(old);
	hspmd_stream_destroy(new);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_who_proves_himself_is_heard, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_figures_are_sent_only_if_asked_for, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_a_client_understands_the_names_on_the_wire, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_a_client_notices_that_the_daemon_is_gone, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_forged_and_foreign_are_refused, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_replayed_is_refused, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_oversized_and_gibberish_are_cut, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_the_slow_are_cut, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_the_silent_keep_nobody_out, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_a_user_has_not_all_places, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_a_flood_is_cut, open_server, close_server),
		cmocka_unit_test_setup_teardown(test_who_calls_again_takes_over, open_server, close_server),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
