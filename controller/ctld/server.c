/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/server.h"

#include <stdlib.h>
#include <string.h>

#include "controller/ctld/peer_limits.h"
#include "controller/ctld_client/protocol.h"
#include "controller/server/server.h"

enum role { CONTROLLER, VIEWER };

/* A peer that has proved its user. */
struct caller {
	struct caller *next, **link;
	struct hspmd_peer *peer;
	enum role role;
	uint32_t job; /* of a controller */
	uid_t uid;
};

struct ctld_server {
	struct hspmd_server *server;
	const struct ctld_handlers *handlers;
	struct caller *callers;
	int controllers;
};

/* ---- callers */

static struct caller *controller_of(const struct ctld_server *s, uint32_t job)
{
	for (struct caller *c = s->callers; c; c = c->next)
		if (c->role == CONTROLLER && c->job == job)
			return c;
	return NULL;
}

static struct caller *add_caller(struct ctld_server *s, struct hspmd_peer *peer, uid_t uid, struct hspmd_error *err)
{
	struct caller *c = malloc(sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "greeting a client");
		return NULL;
	}
	*c = (struct caller){ .next = s->callers, .link = &s->callers, .peer = peer, .role = VIEWER, .uid = uid };
	if (c->next)
		c->next->link = &c->next;
	s->callers = c;
	hspmd_peer_set_data(peer, c);
	return c;
}

/* Forgets a caller whose connection is closed. A controller that has not called again meanwhile is reported as gone if `report`. */
static void remove_caller(struct ctld_server *s, struct caller *c, bool report)
{
	struct caller removed = *c;
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	free(c);
	if (removed.role != CONTROLLER)
		return;
	s->controllers--;
	if (report)
		s->handlers->gone(s->handlers->context, removed.job);
}

/* ---- what happens at the server */

static int greet_controller(struct ctld_server *s, struct caller *c, json_int_t job, struct hspmd_error *err)
{
	if (job < 1 || job > UINT32_MAX)
		return hspmd_fail(err, "user %u names no job", (unsigned)c->uid);
	if (s->handlers->hello(s->handlers->context, (uint32_t)job, c->uid, err) < 0)
		return -1;
	/* A controller that connects again has lost its old connection, even if that has not been noticed here. */
	struct caller *old = controller_of(s, (uint32_t)job);
	if (old) {
		hspmd_peer_close(old->peer);
		remove_caller(s, old, false);
	}
	c->role = CONTROLLER;
	c->job = (uint32_t)job;
	s->controllers++;
	hspmd_peer_limit_silence(c->peer, CTLD_HEARTBEAT_TIMEOUT_S);
	return 0;
}

static int on_hello(void *context, struct hspmd_peer *peer, json_t *hello, uid_t who, struct hspmd_error *err)
{
	struct ctld_server *s = context;
	const char *role = json_string_value(json_object_get(hello, "role"));
	bool viewer = role && !strcmp(role, "viewer");
	if (!viewer && (!role || strcmp(role, "controller") != 0))
		return hspmd_fail(err, "unknown role");
	struct caller *c = add_caller(s, peer, who, err);
	if (!c)
		return -1;
	hspmd_peer_limit_silence(peer, CTLD_HELLO_S);
	if (viewer || !greet_controller(s, c, json_integer_value(json_object_get(hello, "job")), err))
		return 0;
	remove_caller(s, c, false);
	return -1;
}

static int answer_query(struct ctld_server *s, struct caller *c, json_t *message, struct hspmd_error *err)
{
	struct hspmd_error unsent;
	hspmd_fail_memory(err, "answering a viewer");
	json_t *answer = s->handlers->query(s->handlers->context, c->uid, message, err);
	if (!answer)
		return -1;
	if (hspmd_peer_send(c->peer, answer, &unsent)) {
		hspmd_peer_close(c->peer);
		remove_caller(s, c, false);
	}
	json_decref(answer);
	return 0;
}

static int on_message(void *context, struct hspmd_peer *peer, json_t *message, struct hspmd_error *err)
{
	struct ctld_server *s = context;
	struct caller *c = hspmd_peer_data(peer);
	if (c->role == VIEWER)
		return answer_query(s, c, message, err);
	return s->handlers->message(s->handlers->context, c->job, message, err) < 0 ? -1 : 0;
}

static void on_closed(void *context, struct hspmd_peer *peer, const char *why)
{
	(void)why;
	remove_caller(context, hspmd_peer_data(peer), true);
}

/* ---- for the daemon */

struct ctld_server *ctld_server_open(uv_loop_t *loop, const char *listen, const struct hspmd_auth *auth,
                                     const struct ctld_handlers *handlers, struct hspmd_error *err)
{
	struct ctld_server *s = calloc(1, sizeof *s);
	struct hspmd_server_options o = { .listen = listen,
		                          .default_port = CTLD_PORT,
		                          .auth = auth,
		                          .welcome = json_pack("{s:i}", "hspmdctld", 1),
		                          .limits = ctld_peer_limits,
		                          .events = { .hello = on_hello, .message = on_message, .closed = on_closed },
		                          .context = s };
	if (!s || !o.welcome) {
		hspmd_fail_memory(err, "opening hspmdctld's socket");
	} else {
		s->handlers = handlers;
		s->server = hspmd_server_open(loop, &o, err);
	}
	json_decref(o.welcome);
	if (s && s->server)
		return s;
	free(s);
	return NULL;
}

int ctld_server_port(const struct ctld_server *s)
{
	return hspmd_server_port(s->server);
}

struct ctld_counts ctld_server_counts(const struct ctld_server *s)
{
	struct hspmd_server_counts n = hspmd_server_counts(s->server);
	return (struct ctld_counts){ n.accepted, n.refused, s->controllers, n.strangers };
}

int ctld_server_send(struct ctld_server *s, uint32_t job, const json_t *message)
{
	struct hspmd_error err;
	struct caller *c = controller_of(s, job);
	if (!c)
		return -1;
	if (!hspmd_peer_send(c->peer, message, &err))
		return 0;
	hspmd_peer_close(c->peer);
	remove_caller(s, c, true);
	return -1;
}

void ctld_server_drop(struct ctld_server *s, uint32_t job, const char *why)
{
	struct caller *c = controller_of(s, job);
	if (!c)
		return;
	hspmd_peer_refuse(c->peer, why);
	remove_caller(s, c, true);
}

void ctld_server_close(struct ctld_server *s)
{
	if (!s)
		return;
	hspmd_server_close(s->server);
	while (s->callers)
		remove_caller(s, s->callers, false);
	free(s);
}
