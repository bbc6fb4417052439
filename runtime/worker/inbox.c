/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/worker/inbox.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/condition.h"
#include "common/log.h"
#include "common/wire.h"

#define SEND_DEADLINE_S 60 /* the agent reads all the time; if it does not for this long, it is gone */
#define END_S 60           /* without its agent a worker ends; this long, if it must write the rest of a checkpoint */

struct hspmd_inbox {
	int fd;
	hspmd_inbox_hook *hook;
	void *context;
	pthread_t thread;
	pthread_mutex_t lock, send_lock;
	pthread_cond_t more;
	json_t **queue; /* a ring would avoid moves; but this queue holds only a few messages */
	size_t count, capacity;
	bool lost, closing;
};

static void lose(struct hspmd_inbox *in)
{
	pthread_mutex_lock(&in->lock);
	in->lost = true;
	pthread_cond_broadcast(&in->more);
	pthread_mutex_unlock(&in->lock);
}

/* Wait until there is another message, the connection is lost, or `until` has passed. */
static void wait_for_more(struct hspmd_inbox *in, double until)
{
	if (until == HUGE_VAL) {
		pthread_cond_wait(&in->more, &in->lock);
		return;
	}
	struct timespec at = { .tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9) };
	pthread_cond_timedwait(&in->more, &in->lock, &at);
}

int hspmd_inbox_post(struct hspmd_inbox *in, json_t *message)
{
	int status = -1;
	pthread_mutex_lock(&in->lock);
	if (message && !hspmd_array_grow(&in->queue, &in->capacity, in->count, sizeof(json_t *))) {
		in->queue[in->count++] = message;
		status = 0;
	}
	pthread_cond_broadcast(&in->more);
	pthread_mutex_unlock(&in->lock);
	if (status)
		json_decref(message);
	return status;
}

/* The answer to a message that this thread answers at once; NULL: another message. */
static json_t *answer_to(const json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	if (type && !strcmp(type, "ping"))
		return json_pack("{ss}", "type", "pong");
	if (type && !strcmp(type, "clock"))
		return json_pack("{ss,sO*,sf}", "type", "clock", "sent", json_object_get(message, "sent"), "now", hspmd_now());
	return NULL;
}

/* Nobody else is left who would end a worker that hangs. */
static void end_in_time(struct hspmd_inbox *in)
{
	double until = hspmd_now() + END_S;
	pthread_mutex_lock(&in->lock);
	while (!in->closing && hspmd_now() < until)
		wait_for_more(in, until);
	bool hangs = !in->closing;
	pthread_mutex_unlock(&in->lock);
	if (!hangs)
		return;
	hspmd_error_log("the agent is gone, and the worker has not ended for %d s: it is ended", END_S);
	_exit(1);
}

static void *read_messages(void *argument)
{
	struct hspmd_inbox *in = argument;
	struct hspmd_wire_reader *reader = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	struct hspmd_error err;
	json_t *message;
	int status = reader ? 1 : -1;
	while (reader && (status = hspmd_wire_receive(in->fd, reader, -1, &message, &err)) == 1) {
		/* The reply to `ping` shows that this thread runs. */
		json_t *answer = answer_to(message);
		if (answer) {
			json_decref(message);
			hspmd_inbox_send(in, answer);
			continue;
		}
		in->hook(in->context, message);
		if (hspmd_inbox_post(in, message))
			break;
	}
	if (status < 0)
		hspmd_error_log("control connection: %s", reader ? err.text : "out of memory");
	hspmd_wire_reader_destroy(reader);
	json_t *gone = json_pack("{ss}", "type", "lost");
	if (gone)
		in->hook(in->context, gone);
	json_decref(gone);
	lose(in);
	end_in_time(in);
	return NULL;
}

struct hspmd_inbox *hspmd_inbox_open(int fd, hspmd_inbox_hook *hook, void *context, struct hspmd_error *err)
{
	struct hspmd_inbox *in = calloc(1, sizeof *in);
	if (!in) {
		hspmd_fail_memory(err, "starting the worker");
		return NULL;
	}
	in->fd = fd;
	in->hook = hook;
	in->context = context;
	pthread_mutex_init(&in->lock, NULL);
	pthread_mutex_init(&in->send_lock, NULL);
	hspmd_condition_init(&in->more);
	if (pthread_create(&in->thread, NULL, read_messages, in)) {
		hspmd_fail(err, "cannot start a thread for the control connection");
		free(in);
		return NULL;
	}
	return in;
}

json_t *hspmd_inbox_next_before(struct hspmd_inbox *in, double until)
{
	json_t *message = NULL;
	pthread_mutex_lock(&in->lock);
	while (!in->count && !in->lost && (until == HUGE_VAL || hspmd_now() < until))
		wait_for_more(in, until);
	if (in->count) {
		message = in->queue[0];
		in->count--;
		for (size_t i = 0; i < in->count; i++)
			in->queue[i] = in->queue[i + 1];
	}
	pthread_mutex_unlock(&in->lock);
	return message;
}

json_t *hspmd_inbox_next(struct hspmd_inbox *in, bool wait)
{
	return hspmd_inbox_next_before(in, wait ? HUGE_VAL : 0);
}

bool hspmd_inbox_lost(struct hspmd_inbox *in)
{
	pthread_mutex_lock(&in->lock);
	bool lost = in->lost && !in->count;
	pthread_mutex_unlock(&in->lock);
	return lost;
}

int hspmd_inbox_send(struct hspmd_inbox *in, json_t *message)
{
	struct hspmd_error err;
	if (!message) {
		hspmd_error_log("out of memory while answering the controller");
		return -1;
	}
	pthread_mutex_lock(&in->send_lock);
	int status = hspmd_wire_send(in->fd, message, SEND_DEADLINE_S, &err);
	pthread_mutex_unlock(&in->send_lock);
	json_decref(message);
	if (status)
		lose(in);
	return status;
}

void hspmd_inbox_close(struct hspmd_inbox *in)
{
	if (!in)
		return;
	pthread_mutex_lock(&in->lock);
	in->closing = true;
	pthread_cond_broadcast(&in->more);
	pthread_mutex_unlock(&in->lock);
	shutdown(in->fd, SHUT_RDWR);
	pthread_join(in->thread, NULL);
	for (size_t i = 0; i < in->count; i++)
		json_decref(in->queue[i]);
	free(in->queue);
	pthread_cond_destroy(&in->more);
	pthread_mutex_destroy(&in->lock);
	pthread_mutex_destroy(&in->send_lock);
	free(in);
}
