/* SPDX-License-Identifier: Apache-2.0 */
/* The server of job controllers and of hspmdctld, each with its limits: who is heard, who is refused and what refused peers are told, who
 * must make room for whom, and how connections end. */
#include <arpa/inet.h>
#include <ctype.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/auth.h"
#include "common/clock.h"
#include "common/contact.h"
#include "common/log.h"
#include "common/log_limit.h"
#include "controller/ctld/peer_limits.h"
#include "controller/run/peer_limits.h"
#include "controller/server/listen_internal.h"
#include "controller/server/strangers_internal.h"
#include "tests/unit/greeting.h"
#include "tests/unit/own_munged.h"

#define PATIENCE_S 30
#define MANY 20

static const char secret[] = "0123456789abcdef0123456789abcdef", other[] = "fedcba9876543210fedcba9876543210";

/* What the owner of the port has seen. */
static struct {
	int hellos, accepted, messages, closed;
	struct hspmd_peer *last; /* accepted last */
	json_t *hello, *message; /* of the last */
	char why[128];
} seen;

static uv_loop_t loop;
static struct hspmd_auth *auth, *stranger;
static struct hspmd_server *server;
static int port;
static struct greeting greeting; /* of the client that greeted last */

static int on_hello(void *context, struct hspmd_peer *peer, json_t *hello, uid_t who, struct hspmd_error *err)
{
	(void)context, (void)peer;
	seen.hellos++;
	assert_int_equal(who, getuid());
	return json_object_get(hello, "unwanted") ? hspmd_fail(err, "you are unwanted") : 0;
}

static void on_accepted(void *context, struct hspmd_peer *peer, json_t *hello)
{
	(void)context;
	seen.accepted++;
	seen.last = peer;
	json_decref(seen.hello);
	seen.hello = json_incref(hello);
}

static int on_message(void *context, struct hspmd_peer *peer, json_t *message, struct hspmd_error *err)
{
	(void)context, (void)peer;
	seen.messages++;
	json_decref(seen.message);
	seen.message = json_incref(message);
	return json_object_get(message, "bad") ? hspmd_fail(err, "ill-formed") : 0;
}

static void on_closed(void *context, struct hspmd_peer *peer, const char *why)
{
	(void)context, (void)peer;
	seen.closed++;
	snprintf(seen.why, sizeof seen.why, "%s", why);
}

/* One set of options, as the user of the server has it. */
struct variant {
	const struct hspmd_server_limits *limits;
	const char *job;
	bool owner_only;
};
static const struct variant of_job = { &run_peer_limits, "7", true }, of_cluster = { &ctld_peer_limits, NULL, false };

static void start(const struct variant *v, const char *listen, int peers, double hello_s)
{
	struct hspmd_error err;
	struct hspmd_server_options o = { .listen = listen,
		                          .auth = auth,
		                          .job = v->job,
		                          .welcome = json_pack("{s:i}", "version", 1),
		                          .owner_only = v->owner_only,
		                          .limits = *v->limits,
		                          .events = { on_hello, on_accepted, on_message, on_closed } };
	o.limits.hello_s = hello_s;
	o.limits.unsent_bytes = 256u << 20; /* the test must fill the kernel's buffers */
	o.limits.peers = peers ? peers : o.limits.peers;
	server = hspmd_server_open(&loop, &o, &err);
	json_decref(o.welcome);
	if (!server)
		fail_msg("%s", err.text);
	port = hspmd_server_port(server);
}

static void stop(void)
{
	hspmd_server_close(server);
	server = NULL;
	uv_run(&loop, UV_RUN_DEFAULT);
}

/* *state: the variant. */
static int open_server(void **state)
{
	struct hspmd_error err;
	memset(&seen, 0, sizeof seen);
	uv_loop_init(&loop);
	auth = hspmd_auth_cookie(secret, &err);
	stranger = hspmd_auth_cookie(other, &err);
	start(*state, "127.0.0.1:0", 0, 2 * PATIENCE_S);
	return 0;
}

static int close_server(void **state)
{
	(void)state;
	stop();
	json_decref(seen.hello);
	json_decref(seen.message);
	json_decref(greeting.hello);
	greeting.hello = NULL;
	hspmd_auth_destroy(auth);
	hspmd_auth_destroy(stranger);
	return uv_loop_close(&loop);
}

/* Lines of the log since log_begin(). */
static int log_fd;

static void log_begin(void)
{
	char name[] = "/tmp/hspmd-test-log-XXXXXX";
	log_fd = mkstemp(name);
	assert_true(log_fd >= 0);
	unlink(name);
	hspmd_log_tee(log_fd);
}

static int log_end(void)
{
	char text[8192];
	ssize_t n;
	int lines_logged = 0;
	hspmd_log_tee(-1);
	lseek(log_fd, 0, SEEK_SET);
	while ((n = read(log_fd, text, sizeof text)) > 0)
		for (ssize_t i = 0; i < n; i++)
			lines_logged += text[i] == '\n';
	close(log_fd);
	return lines_logged;
}

/* ---- a client */

static struct hspmd_stream *call_at(struct in_addr address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = address };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	struct hspmd_stream *s = hspmd_stream_create(fd, HSPMD_WIRE_MAX, HSPMD_WIRE_MAX, NULL);
	assert_non_null(s);
	return s;
}

static struct hspmd_stream *call(void)
{
	return call_at((struct in_addr){ htonl(INADDR_LOOPBACK) });
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
	return greeting_hello(&greeting, who, nonce, content);
}

static json_t *honest(void)
{
	return json_pack("{s:s, s:s, s:i}", "role", "controller", "nonce", "n", "job", 7);
}

/* Answers the challenge as `who` with this content, which is released. */
static struct hspmd_stream *answer(struct hspmd_stream *s, const struct hspmd_auth *who, json_t *content)
{
	json_t *challenge = next(s);
	assert_string_equal(json_string_value(json_object_get(challenge, "type")), "challenge");
	say(s, sealed_hello(who, json_string_value(json_object_get(challenge, "nonce")), content));
	json_decref(challenge);
	return s;
}

static struct hspmd_stream *greet(const struct hspmd_auth *who, json_t *content)
{
	return answer(call(), who, content);
}

/* Expects the welcome for the last hello. */
static void expect_welcome(struct hspmd_stream *s)
{
	json_t *m = next(s);
	assert_string_equal(json_string_value(json_object_get(m, "type")), "welcome");
	assert_int_equal(greeting_welcomed(&greeting, auth, s, m), 0);
	json_decref(m);
}

static struct hspmd_stream *known(void)
{
	struct hspmd_stream *s = greet(auth, honest());
	expect_welcome(s);
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
	expect_refused(s, "the caller is an older hspmd (protocol 1), this is hspmd " PACKAGE_VERSION " (protocol 2)");
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

/* So many silent strangers that no place for them is left: who proves himself is heard all the same, and the log stays short. */
static void test_the_silent_keep_nobody_out(void **state)
{
	struct hspmd_stream *silent[300];
	const struct variant *v = *state;
	double began = hspmd_now();
	log_begin();
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
		silent[i] = call();
		expect(silent[i], "challenge", NULL);
	}
	assert_in_range(hspmd_server_counts(server).strangers, 1, v->limits->source_strangers);
	struct hspmd_stream *s = known();
	expect_refused(silent[0], "too many");
	for (size_t i = 1; i < sizeof silent / sizeof *silent; i++)
		hspmd_stream_destroy(silent[i]);
	int lines_logged = log_end(), most = 2 * (HSPMD_LOG_LIMIT_BURST + (int)((hspmd_now() - began) / HSPMD_LOG_LIMIT_EVERY_S));
	assert_in_range(lines_logged, 1, most); /* of two kinds: crowded out, and too slow */
	assert_int_equal(seen.closed, 0);
	hspmd_stream_destroy(s);
}

static void flood(struct hspmd_stream **calls, int n)
{
	for (int i = 0; i < n; i++)
		calls[i] = call();
}

static void end_flood(struct hspmd_stream **calls, int n)
{
	for (int i = 0; i < n; i++)
		hspmd_stream_destroy(calls[i]);
}

/* Others at the caller's own address flood the server. Its hello arrives before more of them are accepted, and it is next to make room. */
static void test_who_has_answered_is_not_crowded_out(void **state)
{
	struct hspmd_stream *strangers[400];
	const struct variant *v = *state;
	int full = v->limits->source_strangers - 1;
	struct hspmd_stream *s = call();
	json_t *challenge = next(s);
	for (int i = 0; i < full; i++) {
		flood(strangers + i, 1);
		expect(strangers[i], "challenge", NULL);
	}
	assert_int_equal(hspmd_server_counts(server).strangers, full + 1);
	flood(strangers + full, 200);
	say(s, sealed_hello(auth, json_string_value(json_object_get(challenge, "nonce")), honest()));
	json_decref(challenge);
	expect_welcome(s);
	end_flood(strangers, full + 200);
	hspmd_stream_destroy(s);
}

/* The machine's first address that others can reach; false: it has none. */
static bool own_address(struct in_addr *address)
{
	struct ifaddrs *all = NULL;
	bool found = false;
	if (getifaddrs(&all))
		return false;
	for (struct ifaddrs *i = all; i && !found; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK)) {
			*address = ((struct sockaddr_in *)i->ifa_addr)->sin_addr;
			found = true;
		}
	freeifaddrs(all);
	return found;
}

/* A caller from another address keeps its place however many come. */
static void test_a_flood_from_one_address_crowds_out_itself_only(void **state)
{
	enum { FLOOD = 700 };
	static struct hspmd_stream *strangers[FLOOD];
	const struct variant *v = *state;
	struct in_addr address;
	if (!own_address(&address))
		skip();
	stop();
	start(v, ":0", 0, 2 * PATIENCE_S);
	struct hspmd_stream *s = call_at(address);
	for (int i = 0; i < FLOOD; i++) {
		flood(strangers + i, 1);
		expect(strangers[i], "challenge", NULL);
	}
	assert_int_equal(hspmd_server_counts(server).strangers, v->limits->source_strangers + 1);
	expect_welcome(answer(s, auth, honest()));
	end_flood(strangers, FLOOD);
	hspmd_stream_destroy(s);
}

/* All places are taken: strangers make room, known peers do not. */
static void test_strangers_make_room_for_callers(void **state)
{
	struct hspmd_stream *strangers[3], *peers[3];
	stop();
	start(*state, "127.0.0.1:0", 3, 2 * PATIENCE_S);
	flood(strangers, 3);
	for (int i = 0; i < 3; i++)
		expect(strangers[i], "challenge", NULL);
	for (int i = 0; i < 3; i++) {
		peers[i] = known();
		expect_refused(strangers[i], "too many");
	}
	struct hspmd_stream *more = call();
	expect(more, NULL, NULL);
	assert_int_equal(hspmd_server_counts(server).peers, 3);
	assert_int_equal(hspmd_server_counts(server).refused, 4);
	hspmd_stream_destroy(more);
	end_flood(peers, 3);
	assert_int_equal(seen.closed, 0);
}

/* The process has no descriptor left: a stranger gives back its own. */
static void test_no_descriptor_is_left(void **state)
{
	struct rlimit old, few;
	int held[64], n = 0;
	(void)state;
	struct hspmd_stream *first = call();
	expect(first, "challenge", NULL);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = (rlim_t)hspmd_stream_fd(first) + 40;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (n < 64 && (held[n] = dup(STDERR_FILENO)) >= 0)
		n++;
	assert_in_range(n, 1, 63);
	close(held[--n]); /* for the client's end */
	struct hspmd_stream *s = greet(auth, honest());
	expect_welcome(s);
	while (n)
		close(held[--n]);
	setrlimit(RLIMIT_NOFILE, &old);
	expect_refused(first, "too many");
	hspmd_stream_destroy(s);
}

static struct sockaddr_in6 address_of(const char *text)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6 };
	assert_int_equal(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
	return a;
}

/* Peers are told apart by pointers into an array that stands for them. */
static void test_who_must_make_room(void **state)
{
	static char peers[8];
	static const char *const from[8] = {
		"::ffff:10.0.0.1", "::ffff:127.0.0.1", "::1", "::ffff:127.9.9.9", "2001:db8::1", "2001:db8:0:1::2"
	};
	const struct hspmd_server_limits limits = { .strangers = 6, .source_strangers = 3 };
	struct strangers all = { 0 };
	struct stranger s[6];
	struct sockaddr_in6 a;
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK + 5) } };
	(void)state;
	assert_null(strangers_of_largest_source(&all));
	for (int i = 0; i < 6; i++) {
		a = address_of(from[i]);
		assert_null(strangers_in_the_way(&all, (struct sockaddr *)&a, &limits));
		s[i].peer = (struct hspmd_peer *)&peers[i];
		assert_int_equal(strangers_add(&all, &s[i], (struct sockaddr *)&a), 0);
	}
	/* One more from this machine: for the oldest from there. One more from anywhere else: for the same, because most are from there. */
	assert_ptr_equal(strangers_in_the_way(&all, (struct sockaddr *)&v4, &limits), &peers[1]);
	a = address_of("2001:db8:0:2::3");
	assert_ptr_equal(strangers_in_the_way(&all, (struct sockaddr *)&a, &limits), &peers[1]);
	/* A machine may have all addresses of a network of IPv6: they are one source. */
	const struct hspmd_server_limits one = { .strangers = 7, .source_strangers = 1 };
	a = address_of("2001:db8::3");
	assert_ptr_equal(strangers_in_the_way(&all, (struct sockaddr *)&a, &one), &peers[4]);
	strangers_remove(&all, &s[1]);
	strangers_remove(&all, &s[1]);
	assert_null(strangers_in_the_way(&all, (struct sockaddr *)&v4, &limits));
	assert_ptr_equal(strangers_of_largest_source(&all), &peers[2]);
	strangers_remove(&all, &s[2]);
	assert_ptr_equal(strangers_of_largest_source(&all), &peers[0]); /* all have one: the oldest */
	for (int i = 0; i < 6; i++)
		strangers_remove(&all, &s[i]);
	assert_int_equal(all.count, 0);
	assert_null(all.sources);
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

#ifdef HAVE_MUNGE
/* While munged hangs, those who have proved themselves are heard; who has not is heard when munged answers again. */
static void test_a_munged_that_hangs_delays_nobody_else(void **state)
{
	struct own_munged munged;
	struct hspmd_error err;
	enum { CALLERS = 6 };
	struct hspmd_stream *s[CALLERS];
	if (!own_munged_start(&munged))
		skip();
	stop();
	hspmd_auth_destroy(auth);
	auth = hspmd_auth_munge(munged.socket, &err);
	start(*state, "127.0.0.1:0", 0, 2 * PATIENCE_S);
	struct hspmd_stream *first = known();
	struct hspmd_server_counts before = hspmd_server_counts(server);
	for (int i = 0; i < CALLERS; i++)
		s[i] = greet(auth, honest());
	kill(munged.pid, SIGSTOP);
	for (int i = 0; i < 50; i++) /* the hellos arrive */
		uv_run(&loop, UV_RUN_NOWAIT);
	say(first, json_pack("{s:s}", "type", "state"));
	wait_for(&seen.messages, 1);
	assert_int_equal(hspmd_server_counts(server).refused, before.refused);
	int heard = seen.hellos;
	assert_true(heard < 1 + CALLERS);
	kill(munged.pid, SIGCONT);
	wait_for(&seen.hellos, 1 + CALLERS);
	for (int i = 0; i < CALLERS; i++)
		hspmd_stream_destroy(s[i]);
	hspmd_stream_destroy(first);
	own_munged_stop(&munged);
}

/* A munged that never answers: callers are told so in time, and may call again. */
static void test_callers_do_not_wait_for_munged_for_ever(void **state)
{
	struct own_munged munged;
	struct hspmd_error err;
	if (!own_munged_start(&munged))
		skip();
	stop();
	hspmd_auth_destroy(auth);
	auth = hspmd_auth_munge(munged.socket, &err);
	start(*state, "127.0.0.1:0", 0, 0.5);
	struct hspmd_stream *s = greet(auth, honest());
	kill(munged.pid, SIGSTOP);
	json_t *m = next(s);
	assert_string_equal(json_string_value(json_object_get(m, "type")), "refused");
	assert_non_null(strstr(json_string_value(json_object_get(m, "text")), "munged hangs"));
	assert_true(json_is_true(json_object_get(m, "again")));
	json_decref(m);
	hspmd_stream_destroy(s);
	kill(munged.pid, SIGKILL); /* the thread that waits for it ends */
	own_munged_stop(&munged);
}
#endif

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

#define RUN(TEST)                                                                                                                          \
	{ .name = #TEST "/job",                                                                                                            \
	  .test_func = TEST,                                                                                                               \
	  .setup_func = open_server,                                                                                                       \
	  .teardown_func = close_server,                                                                                                   \
	  .initial_state = (void *)(uintptr_t)&of_job },                                                                                   \
	{                                                                                                                                  \
		.name = #TEST "/cluster", .test_func = TEST, .setup_func = open_server, .teardown_func = close_server,                     \
		.initial_state = (void *)(uintptr_t)&of_cluster                                                                            \
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
		RUN(test_the_silent_keep_nobody_out),
		RUN(test_who_has_answered_is_not_crowded_out),
		RUN(test_a_flood_from_one_address_crowds_out_itself_only),
		RUN(test_strangers_make_room_for_callers),
		RUN(test_no_descriptor_is_left),
		RUN(test_the_owner_ends_a_connection),
		RUN(test_the_last_messages_arrive),
		RUN(test_a_peer_that_takes_nothing_is_cut_in_the_end),
		RUN(test_addresses),
#ifdef HAVE_MUNGE
		RUN(test_a_munged_that_hangs_delays_nobody_else),
		RUN(test_callers_do_not_wait_for_munged_for_ever),
#endif
		cmocka_unit_test(test_bridges_of_this_machine_are_no_address),
		cmocka_unit_test(test_who_must_make_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
