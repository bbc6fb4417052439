/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld_client/client.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "controller/ctld_client/protocol.h"

#define FIRST_WAIT_S 1.0
#define MOST_WAIT_S 30.0
#define CALL_S 10.0 /* from connect until both sides have proved their users */
#define STATE_EVERY_S 30.0
#define STATE_LEAST_S 1.0 /* least time between two states */
#define UNSENT_MAX (1u << 20)

enum step { DOWN, CALLING, CHALLENGED, GREETING, UP };

struct ctld_client {
	char *where;
	uid_t owner;
	uint32_t job;
	const struct hspmd_auth *auth;
	enum step step;
	struct hspmd_stream *stream;
	double deadline; /* of this step; DOWN: time of the next connect */
	double wait;
	char nonce[HSPMD_NONCE_HEX];
	json_t *state, *requests, *risk;
	int64_t oldest; /* id of the first request on this connection; earlier ones are not answered */
	bool unsent;    /* the state has changed since it was sent */
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
	hspmd_stream_destroy(l->stream);
	json_decref(l->state);
	json_decref(l->requests);
	json_decref(l->risk);
	free(l->where);
	free(l);
}

static void disconnect(struct ctld_client *l, const struct hspmd_error *why)
{
	hspmd_stream_destroy(l->stream);
	l->stream = NULL;
	json_array_clear(l->requests);
	l->oldest = INT64_MAX;
	l->step = DOWN;
	l->deadline = hspmd_now() + l->wait;
	l->wait = fmin(l->wait * 2, MOST_WAIT_S);
	memcpy(l->last_error, why->text, sizeof l->last_error);
}

/* ---- connecting */

static int start_connect(const struct ctld_client *l, struct hspmd_error *err)
{
	struct addrinfo *list = hspmd_address_resolve(l->where, CTLD_PORT, false, err);
	int fd = -1;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS) {
			hspmd_fail_errno(err, "calling hspmdctld at %s", l->where);
			close(fd);
			fd = -1;
		}
	}
	if (list)
		freeaddrinfo(list);
	return fd;
}

static void begin(struct ctld_client *l)
{
	struct hspmd_error err = { "" };
	int fd = start_connect(l, &err);
	if (fd >= 0)
		l->stream = hspmd_stream_create(fd, CTLD_FRAME, UNSENT_MAX, &err);
	if (!l->stream) {
		disconnect(l, &err);
		return;
	}
	l->step = CALLING;
	l->deadline = hspmd_now() + CALL_S;
}

/* ---- handshake */

static int greet(struct ctld_client *l, const json_t *challenge, struct hspmd_error *err)
{
	const char *nonce = json_string_value(json_object_get(challenge, "nonce"));
	if (!nonce ||
	    strcmp(json_string_value(json_object_get(challenge, "type")) ? json_string_value(json_object_get(challenge, "type")) : "",
	           "challenge") != 0)
		return hspmd_fail(err, "hspmdctld at %s does not begin with a challenge", l->where);
	if (hspmd_auth_nonce(l->nonce, err) < 0)
		return -1;
	json_t *hello = json_pack("{s:s, s:I, s:s}", "role", "controller", "job", (json_int_t)l->job, "nonce", l->nonce);
	json_t *sealed = hello ? hspmd_auth_seal(l->auth, "hello", nonce, hello, err) : NULL;
	int rc = sealed ? hspmd_stream_send(l->stream, sealed, err) : -1;
	json_decref(hello);
	json_decref(sealed);
	l->step = GREETING;
	return rc;
}

static void send_state(struct ctld_client *l)
{
	struct hspmd_error err;
	if (l->step != UP || !l->state)
		return;
	l->unsent = false;
	l->sent_s = hspmd_now();
	if (hspmd_stream_send(l->stream, l->state, &err) < 0)
		disconnect(l, &err);
}

static int welcomed(struct ctld_client *l, const json_t *message, struct hspmd_error *err)
{
	uid_t who = (uid_t)-1;
	const char *type = json_string_value(json_object_get(message, "type")), *text = json_string_value(json_object_get(message, "text"));
	if (type && !strcmp(type, "refused"))
		return hspmd_fail(err, "hspmdctld at %s refuses: %s", l->where, text ? text : "?");
	json_t *content = hspmd_auth_open(l->auth, "welcome", l->nonce, message, &who, err);
	if (!content)
		return -1;
	json_decref(content);
	if (who != l->owner)
		return hspmd_fail(err, "%s is held by user %u, not by user %u", l->where, (unsigned)who, (unsigned)l->owner);
	l->step = UP;
	l->wait = FIRST_WAIT_S;
	*l->last_error = '\0';
	send_state(l);
	return 0;
}

static int on_message(struct ctld_client *l, json_t *message, struct hspmd_error *err)
{
	if (l->step == CALLING || l->step == CHALLENGED)
		return greet(l, message, err);
	if (l->step == GREETING)
		return welcomed(l, message, err);
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
	if (talk(l, &err) < 0) {
		disconnect(l, &err);
		return;
	}
	if (l->step != UP && now >= l->deadline) {
		hspmd_fail(&err, "hspmdctld at %s does not answer", l->where);
		disconnect(l, &err);
	} else if (l->step == UP && now - l->sent_s >= (l->unsent ? STATE_LEAST_S : STATE_EVERY_S)) {
		send_state(l);
	}
}

/* ---- for the loop */

int ctld_client_fd(const struct ctld_client *l)
{
	return l->stream ? hspmd_stream_fd(l->stream) : -1;
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
