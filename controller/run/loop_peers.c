/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's server: agents, and whoever gives commands. */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "controller/run/loop_internal.h"
#include "controller/run/peer_limits.h"

struct agent *loop_agent_of(struct loop *l, const char *node)
{
	void *at = tfind(&node, &l->agent_by_node, hspmd_name_order);
	if (at)
		return *(struct agent **)at;
	struct agent *a = calloc(1, sizeof *a);
	if (!a || !(a->node = strdup(node)) || !tsearch(a, &l->agent_by_node, hspmd_name_order)) {
		free(a ? a->node : NULL);
		free(a);
		return NULL;
	}
	a->next = l->agents;
	return l->agents = a;
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

static int on_hello(void *context, struct hspmd_peer *peer, json_t *hello, uid_t who, struct hspmd_error *err)
{
	struct loop *l = context;
	const char *role = json_string_value(json_object_get(hello, "role")), *node = json_string_value(json_object_get(hello, "node"));
	(void)who, (void)peer;
	if (!role || (strcmp(role, "agent") && strcmp(role, "command")))
		return hspmd_fail(err, "unknown role");
	struct agent *a = !strcmp(role, "agent") && node ? loop_agent_of(l, node) : NULL;
	if (!strcmp(role, "agent") && !a)
		return hspmd_fail(err, "the agent's hello names no node");
	/* A member job that got a part of a node that already takes part. */
	if (a && a->peer && !same_text(a->job, json_string_value(json_object_get(hello, "job"))))
		return hspmd_fail(err, "node %s takes part already, by job %s", node, a->job ? a->job : "?");
	return 0;
}

static void take_command(struct loop *l, struct hspmd_peer *peer, json_t *message);

/* An agent that connects again (same pid) has lost its connection. A new agent of the node replaces the old one, which must quit. */
static void replace_agent(struct agent *a, json_int_t pid)
{
	struct hspmd_error err;
	json_t *quit = a->peer && a->pid != pid ? json_pack("{s:s}", "type", "quit") : NULL;
	if (a->peer && quit && !hspmd_peer_send(a->peer, quit, &err))
		hspmd_peer_drain(a->peer);
	else if (a->peer)
		hspmd_peer_close(a->peer);
	json_decref(quit);
	a->pid = pid;
}

static void on_known(void *context, struct hspmd_peer *peer, json_t *hello)
{
	struct loop *l = context;
	struct agent *a;
	if (strcmp(json_string_value(json_object_get(hello, "role")), "agent")) {
		take_command(l, peer, hello);
		return;
	}
	if (!(a = loop_agent_of(l, json_string_value(json_object_get(hello, "node"))))) {
		hspmd_peer_close(peer);
		return;
	}
	replace_agent(a, json_integer_value(json_object_get(hello, "pid")));
	a->peer = peer;
	const char *job = json_string_value(json_object_get(hello, "job"));
	free(a->job);
	a->job = job ? strdup(job) : NULL;
	hspmd_peer_set_data(peer, a);
	struct run_event e = { .kind = EVENT_AGENT_UP, .node = a->node, .value = hello };
	l->on_event(l, &e);
}

/* A peer that is known has the tag of an agent or of the command that it has given. */
static bool is_agent(const struct loop *l, const void *tag)
{
	for (const struct command *c = l->commands; c; c = c->next)
		if (c == tag)
			return false;
	return tag != NULL;
}

static void take_command(struct loop *l, struct hspmd_peer *peer, json_t *message)
{
	struct command *c = calloc(1, sizeof *c);
	if (!c || hspmd_peer_data(peer)) { /* one command per connection at a time */
		free(c);
		hspmd_peer_close(peer);
		return;
	}
	c->id = ++l->command_count;
	c->peer = peer;
	c->next = l->commands;
	l->commands = c;
	hspmd_peer_set_data(peer, c);
	struct run_event e = { .kind = EVENT_COMMAND, .id = c->id, .value = message };
	l->on_event(l, &e);
}

static int on_message(void *context, struct hspmd_peer *peer, json_t *message, struct hspmd_error *err)
{
	struct loop *l = context;
	void *tag = hspmd_peer_data(peer);
	(void)err;
	if (!is_agent(l, tag)) {
		take_command(l, peer, message);
		return 0;
	}
	struct agent *a = tag;
	if (a->peer != peer)
		return 0; /* another agent has replaced it */
	struct run_event e = { .kind = EVENT_MESSAGE, .node = a->node, .value = message };
	l->on_event(l, &e);
	return 0;
}

static void on_gone(void *context, struct hspmd_peer *peer, const char *why)
{
	struct loop *l = context;
	void *tag = hspmd_peer_data(peer);
	if (is_agent(l, tag)) {
		struct agent *a = tag;
		if (a->peer != peer)
			return;
		a->peer = NULL;
		struct run_event e = { .kind = EVENT_AGENT_LOST, .node = a->node, .text = why };
		l->on_event(l, &e);
		return;
	}
	for (struct command **at = &l->commands; *at; at = &(*at)->next) {
		struct command *c = *at;
		if (c != tag)
			continue;
		*at = c->next;
		struct run_event e = { .kind = EVENT_DISCONNECTED, .id = c->id };
		free(c);
		l->on_event(l, &e);
		return;
	}
}

int loop_open_server(struct loop *l, struct hspmd_error *err)
{
	char listen[40];
	json_t *welcome = json_pack("{s:s}", "job", l->o->config->job_id);
	if (!welcome)
		return hspmd_fail_memory(err, "opening the port");
	snprintf(listen, sizeof listen, "%s:%d", l->o->loopback ? "127.0.0.1" : "", l->o->port);
	struct hspmd_server_options o = { .listen = listen,
		                          .default_port = l->o->port,
		                          .auth = l->o->auth,
		                          .job = l->o->config->job_id,
		                          .welcome = welcome,
		                          .owner_only = true,
		                          .limits = run_peer_limits,
		                          .events = { on_hello, on_known, on_message, on_gone },
		                          .context = l };
	l->server = hspmd_server_open(&l->uv, &o, err);
	json_decref(welcome);
	return l->server ? 0 : -1;
}
