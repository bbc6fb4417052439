/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld_client/client.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "controller/ctld_client/call_internal.h"
#include "controller/ctld_client/protocol.h"

#define FIRST_WAIT_S 1.0
#define MOST_WAIT_S 30.0
#define CALL_S 30.0 /* after so long in a call, what it waits for is worth a line in the log */
#define STATE_EVERY_S 30.0
#define STATE_LEAST_S 1.0 /* least time between two states */

enum step { DOWN, CALLING, UP };

struct ctld_client {
	char *where;
	uid_t owner;
	uint32_t job;
	const struct hspmd_auth *auth;
	enum step step;
	struct ctld_call *call; /* CALLING */
	struct hspmd_stream *stream;
	double deadline; /* of this step; DOWN: time of the next connect */
	double wait;
	json_t *state, *requests, *risk;
	int64_t oldest;     /* id of the first request on this connection; earlier ones are not answered */
	bool unsent;        /* the state has changed since it was sent */
	bool wants_figures; /* this hspmdctld takes `figures` in the state */
	double sent_s;
	char last_error[HSPMD_ERROR_MAX];
};

struct ctld_client *ctld_client_create(const char *where, uint32_t job, const struct hspmd_auth *auth, struct hspmd_error *err)
{
	char *end;
	errno = 0;
	unsigned long uid = strtoul(where, &end, 10);
	if (end == where || *end != '@' || !end[1] || errno || uid >= UINT32_MAX) {
		hspmd_fail(err, "HSPMD_CTLD: expected UID@HOST:PORT, got \"%s\"", where);
		return NULL;
	}
	struct ctld_client *l = calloc(1, sizeof *l);
	if (l)
		*l = (struct ctld_client){ .where = strdup(end + 1),
			                   .owner = (uid_t)uid,
			                   .job = job,
			                   .auth = auth,
			                   .wait = FIRST_WAIT_S,
			                   .requests = json_array(),
			                   .oldest = INT64_MAX,
			                   .sent_s = -INFINITY };
	if (l && l->where && l->requests)
		return l;
	ctld_client_destroy(l);
	hspmd_fail_memory(err, "preparing the connection to hspmdctld");
	return NULL;
}

void ctld_client_destroy(struct ctld_client *l)
{
	if (!l)
		return;
	ctld_call_release(l->call);
	hspmd_stream_destroy(l->stream);
	json_decref(l->state);
	json_decref(l->requests);
	json_decref(l->risk);
	free(l->where);
	free(l);
}

static void disconnect(struct ctld_client *l, const struct hspmd_error *why)
{
	ctld_call_release(l->call);
	hspmd_stream_destroy(l->stream);
	l->call = NULL;
	l->stream = NULL;
	json_array_clear(l->requests);
	l->oldest = INT64_MAX;
	l->wants_figures = false; /* the next one may be older */
	l->step = DOWN;
	l->deadline = hspmd_now() + l->wait;
	l->wait = fmin(l->wait * 2, MOST_WAIT_S);
	memcpy(l->last_error, why->text, sizeof l->last_error);
}

/* ---- connecting */

static void begin(struct ctld_client *l)
{
	struct hspmd_error err = { "" };
	json_t *hello = json_pack("{s:s, s:I}", "role", "controller", "job", (json_int_t)l->job);
	l->call = ctld_call_start(l->where, l->owner, l->auth, hello, &err);
	json_decref(hello);
	if (!l->call) {
		disconnect(l, &err);
		return;
	}
	l->step = CALLING;
	l->deadline = hspmd_now() + CALL_S;
}

static void send_state(struct ctld_client *l)
{
	struct hspmd_error err;
	if (l->step != UP || !l->state)
		return;
	l->unsent = false;
	l->sent_s = hspmd_now();
	json_t *state = l->wants_figures ? json_incref(l->state) : json_copy(l->state);
	if (!l->wants_figures)
		json_object_del(state, "figures");
	if (state && hspmd_stream_send(l->stream, state, &err) < 0)
		disconnect(l, &err);
	json_decref(state);
}

/* The thread that calls has a deadline for each thing that it does. If it waits for very long, this says so, and waits on. */
static void look_after_call(struct ctld_client *l)
{
	struct hspmd_error err = { "" };
	if (!ctld_call_is_done(l->call)) {
		if (hspmd_now() < l->deadline)
			return;
		hspmd_fail(&err, "hspmdctld at %s does not answer, or the name service or munged does not", l->where);
		memcpy(l->last_error, err.text, sizeof l->last_error);
		l->deadline = INFINITY;
		return;
	}
	l->stream = ctld_call_take(l->call, &err);
	if (!l->stream) {
		disconnect(l, &err);
		return;
	}
	ctld_call_release(l->call);
	l->call = NULL;
	l->step = UP;
	l->wait = FIRST_WAIT_S;
	*l->last_error = '\0';
	send_state(l);
}

static int on_message(struct ctld_client *l, json_t *message, struct hspmd_error *err)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	if (type && !strcmp(type, "refused"))
		return hspmd_fail(err, "hspmdctld refuses: %s", json_string_value(json_object_get(message, "text")));
	if (type && !strcmp(type, CTLD_MESSAGE_REQUEST)) {
		int64_t id = json_integer_value(json_object_get(message, "id"));
		l->oldest = id < l->oldest ? id : l->oldest;
		if (json_array_append(l->requests, message) < 0)
			return hspmd_fail_memory(err, "taking a request");
	}
	if (type && !strcmp(type, "risk")) {
		json_incref(message);
		json_decref(l->risk);
		l->risk = message;
	}
	if (type && !strcmp(type, "figures"))
		l->wants_figures = l->unsent = true;
	return 0;
}

static int talk(struct ctld_client *l, struct hspmd_error *err)
{
	if (hspmd_stream_has_unsent(l->stream) && hspmd_stream_flush(l->stream, err) < 0)
		return -1;
	int rc = hspmd_stream_read(l->stream, err);
	for (json_t *m; l->stream && (m = hspmd_stream_next(l->stream));) {
		int bad = on_message(l, m, err);
		json_decref(m);
		if (bad < 0)
			return -1;
	}
	if (rc == 0)
		hspmd_fail(err, "hspmdctld at %s has hung up", l->where);
	return rc > 0 ? 0 : -1;
}

void ctld_client_process(struct ctld_client *l)
{
	struct hspmd_error err = { "" };
	double now = hspmd_now();
	if (l->step == DOWN) {
		if (now >= l->deadline)
			begin(l);
		return;
	}
	if (l->step == CALLING)
		look_after_call(l);
	if (l->step != UP)
		return;
	if (talk(l, &err) < 0)
		disconnect(l, &err);
	else if (now - l->sent_s >= (l->unsent ? STATE_LEAST_S : STATE_EVERY_S))
		send_state(l);
}

/* ---- for the loop */

int ctld_client_fd(const struct ctld_client *l)
{
	return l->stream ? hspmd_stream_fd(l->stream) : l->call ? ctld_call_fd(l->call) : -1;
}

bool ctld_client_wants_write(const struct ctld_client *l)
{
	return l->stream && hspmd_stream_has_unsent(l->stream);
}

double ctld_client_next_deadline(const struct ctld_client *l)
{
	return l->step == UP ? l->sent_s + (l->unsent ? STATE_LEAST_S : STATE_EVERY_S) : l->deadline;
}

bool ctld_client_is_connected(const struct ctld_client *l)
{
	return l->step == UP;
}

void ctld_client_set_state(struct ctld_client *l, json_t *state)
{
	if (!state || json_object_set_new(state, "type", json_string("state")) < 0)
		return;
	l->unsent |= !l->state || !json_equal(l->state, state);
	json_incref(state);
	json_decref(l->state);
	l->state = state;
}

json_t *ctld_client_next_request(struct ctld_client *l)
{
	json_t *request = json_incref(json_array_get(l->requests, 0));
	if (request)
		json_array_remove(l->requests, 0);
	return request;
}

json_t *ctld_client_next_risk(struct ctld_client *l)
{
	json_t *risk = l->risk;
	l->risk = NULL;
	return risk;
}

void ctld_client_send_answer(struct ctld_client *l, int64_t id, bool ok, const char *text)
{
	struct hspmd_error err;
	if (id < l->oldest)
		return;
	json_t *m = json_pack("{s:s, s:I, s:b, s:s}", "type", "answer", "id", (json_int_t)id, "ok", ok, "text", text ? text : "");
	if (m && l->step == UP && hspmd_stream_send(l->stream, m, &err) < 0)
		disconnect(l, &err);
	json_decref(m);
}

const char *ctld_client_last_error(const struct ctld_client *l)
{
	return l->last_error;
}
