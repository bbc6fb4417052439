/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld_client/call_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/contact.h"
#include "controller/ctld_client/protocol.h"

#define CALL_S 10.0 /* to connect to one address; and to prove who both sides are */
#define UNSENT_MAX (1u << 20)

/* Freed by whoever of the thread and the caller needs it last. */
struct ctld_call {
	char *where;
	uid_t owner;
	struct hspmd_auth *auth;
	json_t *hello;
	int event;
	atomic_int holders;
	atomic_bool done;
	struct hspmd_stream *stream;
	struct hspmd_error err;
};

static struct hspmd_stream *call(struct ctld_call *c)
{
	json_t *addresses = json_pack("[s]", c->where);
	int fd = addresses ? hspmd_connect_any(addresses, CTLD_PORT, CALL_S, &c->err) : hspmd_fail_memory(&c->err, "calling hspmdctld");
	struct hspmd_stream *s = fd >= 0 ? hspmd_stream_create(fd, CTLD_FRAME, UNSENT_MAX, &c->err) : NULL;
	json_decref(addresses);
	if (s && hspmd_auth_handshake(c->auth, s, c->hello, c->owner, CALL_S, NULL, &c->err)) {
		hspmd_stream_destroy(s);
		s = NULL;
	}
	if (!s)
		hspmd_error_prefix(&c->err, "calling hspmdctld at %s", c->where);
	return s;
}

static void *run_call(void *arg)
{
	struct ctld_call *c = arg;
	uint64_t one = 1;
	c->stream = call(c);
	atomic_store(&c->done, true);
	while (write(c->event, &one, sizeof one) < 0 && errno == EINTR)
		;
	ctld_call_release(c);
	return NULL;
}

static void call_free(struct ctld_call *c)
{
	hspmd_stream_destroy(c->stream);
	hspmd_auth_destroy(c->auth);
	json_decref(c->hello);
	if (c->event >= 0)
		close(c->event);
	free(c->where);
	free(c);
}

void ctld_call_release(struct ctld_call *c)
{
	if (c && atomic_fetch_sub(&c->holders, 1) == 1)
		call_free(c);
}

/* Signals are for the caller's threads. */
static int start_thread(struct ctld_call *c)
{
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&thread, NULL, run_call, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc)
		pthread_detach(thread);
	return rc;
}

struct ctld_call *ctld_call_start(const char *where, uid_t owner, const struct hspmd_auth *auth, const json_t *hello,
                                  struct hspmd_error *err)
{
	struct ctld_call *c = calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "calling hspmdctld");
		return NULL;
	}
	c->owner = owner;
	c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->auth = hspmd_auth_copy(auth, err);
	c->where = strdup(where);
	c->hello = json_deep_copy(hello);
	atomic_init(&c->holders, 2);
	if (c->auth && c->where && c->hello && c->event >= 0 && !start_thread(c))
		return c;
	call_free(c);
	hspmd_fail(err, "calling hspmdctld: no memory, descriptor or thread");
	return NULL;
}

int ctld_call_fd(const struct ctld_call *c)
{
	return c->event;
}

bool ctld_call_is_done(const struct ctld_call *c)
{
	return atomic_load(&c->done);
}

struct hspmd_stream *ctld_call_take(struct ctld_call *c, struct hspmd_error *err)
{
	struct hspmd_stream *s = c->stream;
	c->stream = NULL;
	if (!s)
		memcpy(err, &c->err, sizeof *err);
	return s;
}
