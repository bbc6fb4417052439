/* SPDX-License-Identifier: Apache-2.0 */
/* Proofs of identity: which are accepted, and which are not: with another cookie, replayed, made for another purpose, or with a changed
 * message. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/auth.h"
#include "tests/unit/own_munged.h"

#define COOKIE "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct hspmd_auth *by_cookie(const char *cookie)
{
	struct hspmd_error err;
	struct hspmd_auth *a = hspmd_auth_cookie(cookie, &err);
	assert_non_null(a);
	return a;
}

static void opens_not(const struct hspmd_auth *a, const char *purpose, const char *nonce, const json_t *sealed, const char *says)
{
	struct hspmd_error err = { "" };
	uid_t who;
	assert_null(hspmd_auth_open(a, purpose, nonce, sealed, &who, &err));
	if (!strstr(err.text, says))
		fail_msg("expected \"%s\" in \"%s\"", says, err.text);
}

static void proofs(const struct hspmd_auth *a, const struct hspmd_auth *again)
{
	struct hspmd_error err = { "" };
	char nonce[HSPMD_NONCE_HEX], other[HSPMD_NONCE_HEX];
	assert_int_equal(hspmd_auth_nonce(nonce, &err), 0);
	assert_int_equal(hspmd_auth_nonce(other, &err), 0);
	assert_string_not_equal(nonce, other);
	json_t *content = json_pack("{s:s, s:i}", "role", "agent", "pid", 7);
	json_t *sealed = hspmd_auth_seal(a, "hello", nonce, content, getuid(), &err);
	if (!sealed)
		fail_msg("%s", err.text);
	uid_t who = (uid_t)-1;
	opens_not(again, "welcome", nonce, sealed, "expected welcome, got hello");
	json_t *got = hspmd_auth_open(again, "hello", nonce, sealed, &who, &err);
	if (!got)
		fail_msg("%s", err.text);
	assert_true(json_equal(got, content));
	assert_int_equal(who, getuid());
	json_decref(got);
	json_decref(sealed);

	sealed = hspmd_auth_seal(a, "hello", nonce, content, getuid(), &err);
	opens_not(again, "hello", other, sealed, "not an answer");
	json_decref(sealed);

	sealed = hspmd_auth_seal(a, "hello", nonce, content, getuid(), &err);
	json_object_set_new(sealed, "type", json_string("welcome"));
	opens_not(again, "welcome", nonce, sealed, "not an answer");
	json_decref(sealed);
	json_decref(content);
}

static void test_cookie(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	assert_null(hspmd_auth_cookie("short", &err));
	assert_null(hspmd_auth_cookie(NULL, &err));
	struct hspmd_auth *a = by_cookie(COOKIE), *b = by_cookie("x" COOKIE);
	proofs(a, a);

	char nonce[HSPMD_NONCE_HEX];
	hspmd_auth_nonce(nonce, &err);
	json_t *content = json_pack("{s:s}", "role", "command");
	json_t *sealed = hspmd_auth_seal(a, "hello", nonce, content, getuid(), &err);
	opens_not(b, "hello", nonce, sealed, "cookie");
	const char *words = json_string_value(json_object_get(sealed, "words"));
	char *changed = strdup(words);
	*strstr(changed, "command") = 'C';
	json_object_set_new(sealed, "words", json_string(changed));
	opens_not(a, "hello", nonce, sealed, "cookie");
	free(changed);
	json_object_set_new(sealed, "mac", json_string(""));
	opens_not(a, "hello", nonce, sealed, "cookie");
	json_object_del(sealed, "words");
	opens_not(a, "hello", nonce, sealed, "cookie");
	json_decref(sealed);
	json_decref(content);
	hspmd_auth_destroy(a);
	hspmd_auth_destroy(b);
	hspmd_auth_destroy(NULL);
}

/* The other side of a handshake, emulated in a thread: what it sends after the hello. */
struct server {
	int fd;
	const char *cookie;
	/* 0 right, 1 refuses, 2 wrong cookie, 3 silent, 4 closes, 5 right, but another identity than the client expects, 6 crowded, 7 of an
	 * older version, 8 a welcome without a key */
	int mode;
};

enum { SIGNED_MESSAGES = 3 }; /* that a right server sends after its welcome: { number: 1 }, ... */

static json_t *answer_hello(const struct server *v, const struct hspmd_auth *a, const json_t *hello, json_t *welcome)
{
	const char *client = json_string_value(json_object_get(hello, "nonce"));
	struct hspmd_error err;
	if (v->mode == 1)
		return json_pack("{s:s, s:s}", "type", "refused", "text", "not today");
	if (v->mode == 6)
		return json_pack("{s:s, s:s, s:b}", "type", "refused", "text", "crowded", "again", 1);
	if (v->mode == 3 || v->mode == 4)
		return NULL;
	struct hspmd_auth *thief = by_cookie("thief" COOKIE);
	if (v->mode != 8)
		hspmd_auth_add_key(welcome, &err);
	json_t *sealed = hspmd_auth_seal(v->mode == 2 ? thief : a, "welcome", client ? client : "", welcome, getuid(), &err);
	hspmd_auth_destroy(thief);
	return sealed;
}

static void *serve(void *arg)
{
	struct server *v = arg;
	struct hspmd_error err;
	struct hspmd_auth *a = by_cookie(v->cookie);
	struct hspmd_stream *s = hspmd_stream_create(v->fd, HSPMD_HELLO_MAX, 1 << 20, &err);
	char nonce[HSPMD_NONCE_HEX];
	hspmd_auth_nonce(nonce, &err);
	json_t *challenge = json_pack("{s:s, s:s}", "type", "challenge", "nonce", nonce), *sealed = NULL, *m;
	if (v->mode != 7)
		hspmd_auth_add_version(challenge, &err);
	hspmd_stream_send(s, challenge, &err);
	if (hspmd_stream_receive(s, 10, &sealed, &err) == 1) {
		uid_t who;
		json_t *hello = hspmd_auth_open(a, "hello", nonce, sealed, &who, &err), *welcome = json_pack("{s:s}", "text", "in");
		json_t *answer = answer_hello(v, a, hello, welcome);
		if (answer)
			hspmd_stream_send(s, answer, &err);
		for (int i = 1; i <= SIGNED_MESSAGES && !v->mode; i++) {
			if (i == 1)
				hspmd_auth_sign_stream(a, s, true, nonce, hello, welcome, &err);
			m = json_pack("{s:i}", "number", i);
			hspmd_stream_send(s, m, &err);
			json_decref(m);
		}
		json_decref(answer), json_decref(hello), json_decref(welcome);
	}
	while (v->mode != 4 && hspmd_stream_receive(s, 10, &m, &err) == 1) /* until the client closes */
		json_decref(m);
	json_decref(challenge), json_decref(sealed);
	hspmd_stream_destroy(s);
	hspmd_auth_destroy(a);
	return NULL;
}

static void test_greet(void **state)
{
	(void)state;
	static const char *const says[] = { "",
		                            "refused: not today",
		                            "cookie",
		                            "waited",
		                            "closed",
		                            "is held by user",
		                            "refused: crowded",
		                            "an older hspmd (protocol 1), this is hspmd " PACKAGE_VERSION " (protocol 4)",
		                            "no keys" };
	static const int expected[] = { 0, -1, -1, HSPMD_AUTH_AGAIN, HSPMD_AUTH_AGAIN, -1, HSPMD_AUTH_AGAIN, -1, -1 };
	for (int mode = 0; mode < 9; mode++) {
		int fd[2];
		struct hspmd_error err = { "" };
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
		struct server v = { .fd = fd[1], .cookie = COOKIE, .mode = mode };
		pthread_t thread;
		assert_int_equal(pthread_create(&thread, NULL, serve, &v), 0);
		struct hspmd_auth *a = by_cookie(COOKIE);
		struct hspmd_stream *s = hspmd_stream_create(fd[0], 1 << 20, 1 << 20, &err);
		json_t *hello = json_pack("{s:s}", "role", "command"), *welcome = NULL;
		int rc = hspmd_auth_handshake(a, s, hello, getuid() + (mode == 5), mode == 3 ? 0.05 : 10, &welcome, &err);
		assert_int_equal(rc, expected[mode]);
		if (!strstr(err.text, says[mode]))
			fail_msg("expected \"%s\" in \"%s\"", says[mode], err.text);
		if (!mode)
			assert_string_equal(json_string_value(json_object_get(welcome, "text")), "in");
		json_decref(hello);
		json_decref(welcome);
		hspmd_stream_destroy(s);
		pthread_join(thread, NULL);
		hspmd_auth_destroy(a);
	}
}

/* ---- a relay between both sides, which has no key. It is honest during the handshake. */

enum { HONEST, CHANGES, REPEATS, LEAVES_OUT, SWAPS, STRIPS, ADDS, RELAYS };

struct relay {
	int client, server, mode;
};

/* Reads the next frame of the server into `frame`. Returns its size; 0: the end. */
static size_t read_frame(int fd, char *frame, size_t size)
{
	if (recv(fd, frame, 8, MSG_WAITALL) != 8)
		return 0;
	size_t n = (size_t)((unsigned char)frame[6] << 8 | (unsigned char)frame[7]) + (frame[3] == '2' ? HSPMD_SIGNATURE_BYTES : 0);
	assert_true(8 + n <= size);
	assert_int_equal(recv(fd, frame + 8, n, MSG_WAITALL), n);
	return 8 + n;
}

static void pass_on(int fd, const char *frame, size_t size)
{
	(void)!send(fd, frame, size, MSG_NOSIGNAL); /* the client may have closed already */
}

/* The messages after the welcome: the second is not what the server sent. */
static void spoil(const struct relay *r)
{
	char frame[SIGNED_MESSAGES][4096];
	size_t size[SIGNED_MESSAGES];
	for (int i = 0; i < SIGNED_MESSAGES; i++)
		size[i] = read_frame(r->server, frame[i], sizeof frame[i]);
	char *number = memmem(frame[1], size[1], ":2", 2);
	assert_non_null(number);
	pass_on(r->client, frame[r->mode == SWAPS], size[0]);
	if (r->mode == CHANGES)
		number[1] = '9';
	if (r->mode == STRIPS)
		frame[1][3] = '1', size[1] -= HSPMD_SIGNATURE_BYTES;
	if (r->mode == ADDS)
		pass_on(r->client, "HSP1\0\0\0\x0c{\"number\":2}", 20);
	if (r->mode != LEAVES_OUT)
		pass_on(r->client, frame[r->mode == SWAPS || r->mode == REPEATS ? 0 : 1], size[1]);
	pass_on(r->client, frame[2], size[2]);
}

static void *relay(void *arg)
{
	const struct relay *r = arg;
	char frame[4096];
	pass_on(r->client, frame, read_frame(r->server, frame, sizeof frame)); /* challenge */
	pass_on(r->server, frame, read_frame(r->client, frame, sizeof frame)); /* hello */
	pass_on(r->client, frame, read_frame(r->server, frame, sizeof frame)); /* welcome */
	spoil(r);
	recv(r->client, frame, sizeof frame, 0); /* until the client closes */
	close(r->client);
	close(r->server);
	return NULL;
}

/* Returns the number of right messages before an error; *err: the error, which may come already with the welcome. */
static int listen_through(int mode, struct hspmd_error *err)
{
	int a[2], b[2], right = 0;
	pthread_t thread[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a) | socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
	struct server v = { .fd = b[1], .cookie = COOKIE };
	struct relay r = { .client = a[1], .server = b[0], .mode = mode };
	assert_int_equal(pthread_create(&thread[0], NULL, serve, &v) | pthread_create(&thread[1], NULL, relay, &r), 0);
	struct hspmd_auth *auth = by_cookie(COOKIE);
	struct hspmd_stream *s = hspmd_stream_create(a[0], 1 << 20, 1 << 20, err);
	json_t *hello = json_pack("{s:s}", "role", "command"), *m;
	int rc = hspmd_auth_handshake(auth, s, hello, getuid(), 10, NULL, err);
	while (!rc && right < SIGNED_MESSAGES && hspmd_stream_receive(s, 10, &m, err) == 1) {
		assert_int_equal(json_integer_value(json_object_get(m, "number")), ++right);
		json_decref(m);
	}
	json_decref(hello);
	hspmd_stream_destroy(s);
	hspmd_auth_destroy(auth);
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	return right;
}

static void test_a_relay_cannot_speak(void **state)
{
	struct hspmd_error err = { "" };
	(void)state;
	for (int mode = 0; mode < RELAYS; mode++) {
		int right = listen_through(mode, &err);
		assert_true(mode == HONEST ? right == SIGNED_MESSAGES : right <= (mode != SWAPS));
		if (mode != HONEST)
			assert_non_null(strstr(err.text, mode == STRIPS || mode == ADDS ? "is not signed" : "its signature is wrong"));
	}
}

#ifdef HAVE_MUNGE
/* Skipped if munged is not installed. */
static void test_munge(void **state)
{
	(void)state;
	struct own_munged munged;
	struct hspmd_error err = { "" };
	if (!own_munged_start(&munged))
		skip();
	struct hspmd_auth *a = hspmd_auth_munge(munged.socket, &err);
	assert_non_null(a);
	assert_null(hspmd_auth_secret(a));
	proofs(a, a);
	uid_t who;
	json_t *content = json_object(), *sealed = hspmd_auth_seal(a, "hello", "n", content, getuid(), &err);
	json_t *once = hspmd_auth_open(a, "hello", "n", sealed, &who, &err);
	assert_non_null(once);
	json_decref(once);
	opens_not(a, "hello", "n", sealed, "MUNGE: "); /* munged itself has seen it */
	json_object_set_new(sealed, "credential", json_string("MUNGE:AwQFAAAA:"));
	opens_not(a, "hello", "n", sealed, "MUNGE: ");
	json_decref(sealed);
	/* Another user who sees a credential cannot open it, and thereby spend it. */
	sealed = hspmd_auth_seal(a, "hello", "n", content, getuid() + 1, &err);
	opens_not(a, "hello", "n", sealed, "Unauthorized");
	json_decref(sealed);
	json_decref(content);
	hspmd_auth_destroy(a);
	own_munged_stop(&munged);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cookie),
		cmocka_unit_test(test_greet),
		cmocka_unit_test(test_a_relay_cannot_speak),
#ifdef HAVE_MUNGE
		cmocka_unit_test(test_munge),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
