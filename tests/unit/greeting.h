/* SPDX-License-Identifier: Apache-2.0 */
/* A client's side of the handshake in steps, for tests whose clients misbehave at one of them, or run on the server's own loop. */
#ifndef HSPMD_TESTS_GREETING_H
#define HSPMD_TESTS_GREETING_H

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "common/auth.h"
#include "common/clock.h"

#define PATIENCE_S 30

struct greeting {
	char nonce[HSPMD_NONCE_HEX]; /* the challenge's */
	json_t *hello;               /* the content */
};

/* Returns the hello with this content, which is released. The content has the client's "nonce". */
static inline json_t *greeting_hello(struct greeting *g, const struct hspmd_auth *a, const char *nonce, json_t *content)
{
	snprintf(g->nonce, sizeof g->nonce, "%s", nonce);
	json_decref(g->hello);
	g->hello = content;
	return hspmd_auth_add_key(content, NULL) ? NULL : hspmd_auth_seal(a, "hello", nonce, content, getuid(), NULL);
}

/* Signs the stream after this answer to the last hello. Returns 0, or -1: it is no right welcome. */
static inline int greeting_welcomed(const struct greeting *g, const struct hspmd_auth *a, struct hspmd_stream *s, const json_t *answer)
{
	uid_t who;
	struct hspmd_error err;
	const char *own = json_string_value(json_object_get(g->hello, "nonce"));
	json_t *welcome = hspmd_auth_open(a, "welcome", own ? own : "", answer, &who, &err);
	int rc = welcome ? hspmd_auth_sign_stream(a, s, false, g->nonce, g->hello, welcome, &err) : -1;
	json_decref(welcome);
	return rc;
}

/* Lets the server run on `loop`, and the client read, until the client has a message; NULL: the connection is closed. */
static inline json_t *client_next(uv_loop_t *loop, struct hspmd_stream *s)
{
	for (double deadline = hspmd_now() + PATIENCE_S; hspmd_now() < deadline;) {
		json_t *m = hspmd_stream_next(s);
		if (m)
			return m;
		uv_run(loop, UV_RUN_NOWAIT);
		struct pollfd p = { .fd = hspmd_stream_fd(s), .events = POLLIN };
		if (poll(&p, 1, 5) > 0 && hspmd_stream_read(s, NULL) <= 0)
			return hspmd_stream_next(s);
		hspmd_stream_flush(s, NULL);
	}
	fail_msg("no answer");
	return NULL;
}

#endif
