/* SPDX-License-Identifier: Apache-2.0 */
/* A server of job controllers or of hspmdctld, and clients that call it, in one process: the server runs while a client waits. */
#ifndef HSPMD_TESTS_SERVER_CALLS_H
#define HSPMD_TESTS_SERVER_CALLS_H

#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/auth.h"
#include "common/clock.h"
#include "common/contact.h"
#include "common/log.h"
#include "controller/ctld/peer_limits.h"
#include "controller/run/peer_limits.h"
#include "controller/server/server.h"
#include "tests/unit/greeting.h"

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

static inline int on_hello(void *context, struct hspmd_peer *peer, json_t *hello, uid_t who, struct hspmd_error *err)
{
	(void)context, (void)peer;
	seen.hellos++;
	assert_int_equal(who, getuid());
	return json_object_get(hello, "unwanted") ? hspmd_fail(err, "you are unwanted") : 0;
}

static inline void on_accepted(void *context, struct hspmd_peer *peer, json_t *hello)
{
	(void)context;
	seen.accepted++;
	seen.last = peer;
	json_decref(seen.hello);
	seen.hello = json_incref(hello);
}

static inline int on_message(void *context, struct hspmd_peer *peer, json_t *message, struct hspmd_error *err)
{
	(void)context, (void)peer;
	seen.messages++;
	json_decref(seen.message);
	seen.message = json_incref(message);
	return json_object_get(message, "bad") ? hspmd_fail(err, "ill-formed") : 0;
}

static inline void on_closed(void *context, struct hspmd_peer *peer, const char *why)
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

static inline void start(const struct variant *v, const char *listen, int peers, double hello_s)
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

static inline void stop(void)
{
	hspmd_server_close(server);
	server = NULL;
	uv_run(&loop, UV_RUN_DEFAULT);
}

/* *state: the variant. */
static inline int open_server(void **state)
{
	struct hspmd_error err;
	memset(&seen, 0, sizeof seen);
	uv_loop_init(&loop);
	auth = hspmd_auth_cookie(secret, &err);
	stranger = hspmd_auth_cookie(other, &err);
	start(*state, "127.0.0.1:0", 0, 2 * PATIENCE_S);
	return 0;
}

static inline int close_server(void **state)
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

static inline void log_begin(void)
{
	char name[] = "/tmp/hspmd-test-log-XXXXXX";
	log_fd = mkstemp(name);
	assert_true(log_fd >= 0);
	unlink(name);
	hspmd_log_tee(log_fd);
}

/* Lines with this word so far. */
static inline int log_lines(const char *word)
{
	char line[1024];
	int count = 0;
	FILE *f = fdopen(dup(log_fd), "r");
	assert_non_null(f);
	rewind(f);
	while (fgets(line, sizeof line, f))
		count += strstr(line, word) != NULL;
	fclose(f);
	lseek(log_fd, 0, SEEK_END);
	return count;
}

static inline int log_end(void)
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

static inline struct hspmd_stream *call_at(struct in_addr address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = address };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	struct hspmd_stream *s = hspmd_stream_create(fd, HSPMD_WIRE_MAX, HSPMD_WIRE_MAX, NULL);
	assert_non_null(s);
	return s;
}

static inline struct hspmd_stream *call(void)
{
	return call_at((struct in_addr){ htonl(INADDR_LOOPBACK) });
}

/* Lets the server run, and the client read, until the client has a message; NULL: the connection is closed. */
static inline json_t *next(struct hspmd_stream *s)
{
	return client_next(&loop, s);
}

/* Expects this type of message (NULL: the end of the connection), with these words in its text. */
static inline void expect(struct hspmd_stream *s, const char *type, const char *words)
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

static inline void expect_refused(struct hspmd_stream *s, const char *words)
{
	expect(s, "refused", words);
	expect(s, NULL, NULL);
	hspmd_stream_destroy(s);
}

/* Lets the server run until the number is reached. */
static inline void wait_for(const int *number, int wanted)
{
	for (double deadline = hspmd_now() + PATIENCE_S; *number != wanted && hspmd_now() < deadline;)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(*number, wanted);
}

static inline void say(struct hspmd_stream *s, json_t *m)
{
	assert_int_equal(hspmd_stream_send(s, m, NULL), 0);
	json_decref(m);
}

static inline json_t *sealed_hello(const struct hspmd_auth *who, const char *nonce, json_t *content)
{
	return greeting_hello(&greeting, who, nonce, content);
}

static inline json_t *honest(void)
{
	return json_pack("{s:s, s:s, s:i}", "role", "controller", "nonce", "n", "job", 7);
}

/* Answers the challenge as `who` with this content, which is released. */
static inline struct hspmd_stream *answer(struct hspmd_stream *s, const struct hspmd_auth *who, json_t *content)
{
	json_t *challenge = next(s);
	assert_string_equal(json_string_value(json_object_get(challenge, "type")), "challenge");
	say(s, sealed_hello(who, json_string_value(json_object_get(challenge, "nonce")), content));
	json_decref(challenge);
	return s;
}

static inline struct hspmd_stream *greet(const struct hspmd_auth *who, json_t *content)
{
	return answer(call(), who, content);
}

/* Expects the welcome for the last hello. */
static inline void expect_welcome(struct hspmd_stream *s)
{
	json_t *m = next(s);
	assert_string_equal(json_string_value(json_object_get(m, "type")), "welcome");
	assert_int_equal(greeting_welcomed(&greeting, auth, s, m), 0);
	json_decref(m);
}

static inline struct hspmd_stream *known(void)
{
	struct hspmd_stream *s = greet(auth, honest());
	expect_welcome(s);
	wait_for(&seen.accepted, seen.hellos);
	return s;
}

/* Runs a test with the limits of both. */
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

#endif
