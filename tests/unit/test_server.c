/* SPDX-License-Identifier: Apache-2.0 */
/* The server of job controllers and of hspmdctld, each with its limits: who is heard, who is refused and what refused peers are told, and
 * how connections end. test_server_crowd has those who keep others out. */
#include "tests/unit/server_calls.h"

#include <ctype.h>

#include "controller/server/listen_internal.h"

#define MANY 20

static void test_who_proves_himself_is_heard(void **state)
{
	struct hspmd_error err;
	(void)state;
	struct hspmd_stream *s = known();
	json_t *expected = honest(), *ask = json_pack("{s:s}", "type", "ask"),
	       *report = json_pack("{s:s, s:i}", "type", "state", "step", 3);
	assert_null(json_object_get(seen.hello, "key"));
	hspmd_auth_add_version(expected, NULL);
	assert_true(json_equal(seen.hello, expected));
	hspmd_peer_set_data(seen.last, &seen);
	assert_ptr_equal(hspmd_peer_data(seen.last), &seen);
	say(s, json_incref(report));
	wait_for(&seen.messages, 1);
	assert_true(json_equal(seen.message, report));
	assert_int_equal(hspmd_peer_send(seen.last, ask, &err), 0);
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

/* What follows the welcome is signed: others on the way cannot add to it. */
static void test_what_is_not_signed_is_not_heard(void **state)
{
	static const char words[] = "HSP1\0\0\0\x0d{\"type\":\"ask\"}";
	(void)state;
	struct hspmd_stream *s = known();
	say(s, json_pack("{s:s}", "type", "state"));
	wait_for(&seen.messages, 1);
	assert_int_equal(send(hspmd_stream_fd(s), words, sizeof words - 1, 0), (ssize_t)sizeof words - 1);
	expect(s, NULL, NULL);
	assert_int_equal(seen.messages, 1);
	assert_int_equal(seen.closed, 1);
	assert_string_equal(seen.why, "a message is not signed");
	hspmd_stream_destroy(s);
	/* Signed messages before the hello. */
	s = call();
	json_decref(next(s));
	assert_int_equal(send(hspmd_stream_fd(s), "HSP2\0\0\0\2{}", 10, 0), 10);
	hspmd_stream_destroy(s);
}

/* A caller of an older version, whose hello has no protocol number, is told both versions. */
static void test_other_versions_are_told(void **state)
{
	(void)state;
	struct hspmd_stream *s = call();
	json_t *challenge = next(s), *content = honest();
	assert_int_equal(json_integer_value(json_object_get(challenge, "protocol")), HSPMD_PROTOCOL);
	assert_string_equal(json_string_value(json_object_get(challenge, "version")), PACKAGE_VERSION);
	say(s, hspmd_auth_seal(auth, "hello", json_string_value(json_object_get(challenge, "nonce")), content, getuid(), NULL));
	expect_refused(s, "the caller is an older hspmd (protocol 1), this is hspmd " PACKAGE_VERSION " (protocol 4)");
	assert_int_equal(seen.hellos, 0);
	json_decref(challenge);
	json_decref(content);
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
	stop();
	start(*state, "127.0.0.1:0", 0, 1);
	struct hspmd_stream *silent = call(), *slow = call(), *gone = call(), *honest_one = known();
	expect(silent, "challenge", NULL);
	expect(slow, "challenge", NULL);
	hspmd_stream_destroy(gone); /* with an unread challenge: the kernel resets the connection */
	assert_int_equal(send(hspmd_stream_fd(slow), half, sizeof half, 0), sizeof half);
	expect_refused(silent, "did not prove itself in time");
	expect_refused(slow, "did not prove itself in time");
	assert_int_equal(hspmd_server_counts(server).refused, 2); /* to leave is no offence */
	assert_int_equal(seen.hellos, 1);
	assert_int_equal(seen.closed, 0);
	hspmd_stream_destroy(honest_one);
}

/* Before the proof a message may be short only; after it, longer. */
static void test_longer_messages_after_the_proof(void **state)
{
	const struct variant *v = *state;
	char *text = calloc(1, v->limits->hello_bytes + 1);
	memset(text, 'x', v->limits->hello_bytes);
	json_t *m = json_pack("{s:s, s:s}", "type", "state", "words", text);
	struct hspmd_stream *s = call(), *k = known();
	expect(s, "challenge", NULL);
	hspmd_stream_send(s, m, NULL);
	expect_refused(s, "where at most");
	say(k, m);
	wait_for(&seen.messages, 1);
	hspmd_stream_destroy(k);
	free(text);
}

/* Sends messages for longer than the peer may be silent. Returns false if this process itself paused meanwhile. */
static bool chatter(struct hspmd_stream *s, double silence_s)
{
	double now = hspmd_now(), until = now + 1.6 * silence_s, last = now;
	for (; now < until; now = hspmd_now()) {
		if (now - last > silence_s / 4)
			return false;
		last = now;
		say(s, json_pack("{s:s}", "type", "state"));
		uv_run(&loop, UV_RUN_NOWAIT);
		poll(NULL, 0, 100); /* few enough messages for the limit on their rate */
	}
	return true;
}

static void test_who_talks_is_not_silent(void **state)
{
	const double silence_s = 1.5;
	bool talked = false;
	(void)state;
	for (double deadline = hspmd_now() + PATIENCE_S; !talked && hspmd_now() < deadline;) {
		struct hspmd_stream *s = known();
		int closed = seen.closed;
		hspmd_peer_limit_silence(seen.last, silence_s);
		talked = chatter(s, silence_s);
		if (talked)
			assert_int_equal(seen.closed, closed);
		hspmd_stream_destroy(s);
		wait_for(&seen.closed, closed + 1);
	}
	if (!talked)
		skip();
}

/* What a peer sends is wrong for the owner, or nothing comes from it: the owner is told that it is gone. */
static void test_who_misbehaves_is_cut(void **state)
{
	(void)state;
	struct hspmd_stream *bad = known();
	say(bad, json_pack("{s:b}", "bad", 1));
	wait_for(&seen.closed, 1);
	assert_string_equal(seen.why, "ill-formed");
	expect(bad, NULL, NULL);
	struct hspmd_stream *silent = known();
	hspmd_peer_limit_silence(seen.last, 0.1);
	wait_for(&seen.closed, 2);
	expect(silent, NULL, NULL);
	assert_int_equal(hspmd_server_counts(server).refused, 2);
	assert_int_equal(hspmd_server_counts(server).peers, 0);
	hspmd_stream_destroy(bad);
	hspmd_stream_destroy(silent);
}

/* A connection that its owner ends, at once or when all is sent, ends without a word to the owner. */
static void test_the_owner_ends_a_connection(void **state)
{
	struct hspmd_error err;
	(void)state;
	struct hspmd_stream *s = known();
	hspmd_peer_close(seen.last);
	json_t *m = honest();
	assert_int_equal(hspmd_peer_send(seen.last, m, &err), -1);
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
		assert_int_equal(hspmd_peer_send(seen.last, m, &err), 0);
	json_decref(m);
}

static int peer_count(void)
{
	return hspmd_server_counts(server).peers;
}

static void test_the_last_messages_arrive(void **state)
{
	(void)state;
	struct hspmd_stream *s = known();
	send_much();
	hspmd_peer_drain(seen.last);
	say(s, honest()); /* nobody wants to know */
	for (int i = 0; i < MANY; i++)
		expect(s, "long", NULL);
	expect(s, NULL, NULL);
	hspmd_stream_destroy(s);
	assert_int_equal(seen.closed + seen.messages, 0);
}

static void test_a_peer_that_takes_nothing_is_cut_in_the_end(void **state)
{
	(void)state;
	struct hspmd_stream *s = known();
	send_much();
	hspmd_peer_drain(seen.last);
	assert_int_equal(peer_count(), 1);
	for (double deadline = hspmd_now() + PATIENCE_S; peer_count() && hspmd_now() < deadline;)
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(peer_count(), 0);
	assert_int_equal(seen.closed, 0);
	hspmd_stream_destroy(s);
}

/* What others are given as the server's addresses reaches it. */
static void test_bridges_of_this_machine_are_no_address(void **state)
{
	static const char *const bridge[] = { "docker0", "virbr0", "br-0123456789ab", "cni0" };
	static const char *const other_name[] = { "br-ex", "br0", "eth0", "ib0" };
	(void)state;
	for (int i = 0; i < 4; i++) {
		assert_true(server_is_host_bridge(bridge[i]));
		assert_false(server_is_host_bridge(other_name[i]));
	}
}

static void test_addresses(void **state)
{
	char expected[64];
	json_t *addresses = hspmd_server_addresses(server), *v;
	size_t i;
	snprintf(expected, sizeof expected, "127.0.0.1:%d", port);
	assert_int_equal(json_array_size(addresses), 1);
	assert_string_equal(json_string_value(json_array_get(addresses, 0)), expected);
	json_decref(addresses);
	stop();
	start(*state, ":0", 0, 2 * PATIENCE_S);
	addresses = hspmd_server_addresses(server);
	assert_true(json_array_size(addresses) >= 1);
	json_array_foreach(addresses, i, v) {
		struct hspmd_error err;
		json_t *one = json_pack("[O]", v);
		int fd = hspmd_connect_any(one, -1, PATIENCE_S, &err);
		/* The host's name may be unknown where the test runs. */
		if (fd >= 0)
			close(fd);
		else if (i + 1 == json_array_size(addresses) || json_string_value(v)[0] == '[' || isdigit(json_string_value(v)[0]))
			fail_msg("%s", err.text);
		json_decref(one);
	}
	json_decref(addresses);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RUN(test_who_proves_himself_is_heard),
		RUN(test_who_does_not_is_told_why_not),
		RUN(test_what_is_no_message_ends_the_connection),
		RUN(test_what_is_not_signed_is_not_heard),
		RUN(test_other_versions_are_told),
		RUN(test_the_silent_are_cut),
		RUN(test_longer_messages_after_the_proof),
		RUN(test_who_talks_is_not_silent),
		RUN(test_who_misbehaves_is_cut),
		RUN(test_the_owner_ends_a_connection),
		RUN(test_the_last_messages_arrive),
		RUN(test_a_peer_that_takes_nothing_is_cut_in_the_end),
		RUN(test_addresses),
		cmocka_unit_test(test_bridges_of_this_machine_are_no_address),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
