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

/* Sends an agent away: another one of its node works for this job. */
static void turn_away(struct hspmd_peer *peer, const char *why)
{
	struct hspmd_error err;
	json_t *m = json_pack("{s:s, s:s}", "type", "turned_away", "text", why ? why : "the node has another agent");
	if (m && !hspmd_peer_send(peer, m, &err))
		hspmd_peer_drain(peer);
	else
		hspmd_peer_close(peer);
	json_decref(m);
}

void loop_drop_agent(struct loop *l, const char *node)
{
	struct agent *a = loop_agent_of(l, node);
	if (a && a->peer)
		hspmd_peer_drain(a->peer);
	if (a)
		a->peer = NULL;
}

void loop_turn_away(struct loop *l, const char *node, const char *why)
{
	struct agent *a = loop_agent_of(l, node);
	if (a && a->newcomer)
		turn_away(a->newcomer, why);
	if (a)
		a->newcomer = NULL;
}

void loop_replace_agent(struct loop *l, const char *node, const char *why)
{
	struct agent *a = loop_agent_of(l, node);
	if (!a)
		return;
	if (a->peer)
		turn_away(a->peer, why);
	a->peer = a->newcomer;
	memcpy(a->process, a->newcomer_process, sizeof a->process);
	a->newcomer = NULL;
	struct run_event e = { .kind = EVENT_AGENT_LOST, .node = node, .text = "the agent that was to take its place is gone" };
	if (!a->peer)
		l->on_event(l, &e);
}

/* Agents of earlier versions have a process id only. */
static void read_process(const json_t *hello, char process[HSPMD_NONCE_HEX])
{
	const char *text = json_string_value(json_object_get(hello, "process"));
	json_int_t pid = json_integer_value(json_object_get(hello, "pid"));
	if (text)
		snprintf(process, HSPMD_NONCE_HEX, "%s", text);
	else
		snprintf(process, HSPMD_NONCE_HEX, "pid %" JSON_INTEGER_FORMAT, pid);
}

/* Returns true if this agent is not the one of its node with which the controller works, or may work again. */
static bool is_newcomer(const struct agent *a, const char *process, const json_t *hello)
{
	return strcmp(process, a->process) && (a->peer || json_is_false(json_object_get(hello, "alone")));
}

static void keep_newcomer(struct agent *a, struct hspmd_peer *peer, const char *process)
{
	if (a->newcomer && strcmp(a->newcomer_process, process))
		turn_away(a->newcomer, "the node has a third agent, which came later");
	else if (a->newcomer) /* it has lost its connection */
		hspmd_peer_close(a->newcomer);
	a->newcomer = peer;
	snprintf(a->newcomer_process, sizeof a->newcomer_process, "%s", process);
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
	char process[HSPMD_NONCE_HEX];
	read_process(hello, process);
	bool newcomer = is_newcomer(a, process, hello);
	if (newcomer) {
		keep_newcomer(a, peer, process);
	} else {
		if (a->peer)
			hspmd_peer_close(a->peer); /* the agent has connected again */
		a->peer = peer;
		memcpy(a->process, process, sizeof process);
	}
	const char *job = json_string_value(json_object_get(hello, "job"));
	free(a->job);
	a->job = job ? strdup(job) : NULL;
	hspmd_peer_set_data(peer, a);
	struct run_event e = { .kind = newcomer ? EVENT_NEWCOMER : EVENT_AGENT_UP, .node = a->node, .value = hello };
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
	if (a->peer != peer && a->newcomer != peer)
		return 0; /* another agent has replaced it */
	struct run_event e = { .kind = a->peer == peer ? EVENT_MESSAGE : EVENT_NEWCOMER_MESSAGE, .node = a->node, .value = message };
	l->on_event(l, &e);
	return 0;
}

static void on_gone(void *context, struct hspmd_peer *peer, const char *why)
{
	struct loop *l = context;
	void *tag = hspmd_peer_data(peer);
	if (is_agent(l, tag)) {
		struct agent *a = tag;
		if (a->peer != peer && a->newcomer != peer)
			return;
		struct run_event e = { .kind = a->peer == peer ? EVENT_AGENT_LOST : EVENT_NEWCOMER_GONE, .node = a->node, .text = why };
		*(a->peer == peer ? &a->peer : &a->newcomer) = NULL;
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
	o.limits.source_strangers += l->o->local_agents;
	o.limits.strangers += l->o->local_agents;
	l->server = hspmd_server_open(&l->uv, &o, err);
	json_decref(welcome);
	return l->server ? 0 : -1;
}
