/* SPDX-License-Identifier: Apache-2.0 */
/* Restart of the controller: taking over workers that the previous incarnation left training. The journal, written before the start of each
 * generation and again when it trains, names them. Their agents reconnect and list the living ones, and each of these is asked what it
 * holds and whether it trains. If all train on, the controller only listens again. Else the generation is aborted, and the next one starts
 * from the state that its workers hold, as after any loss. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

#define AGENT_RECONNECT_S 15.0 /* agents try every second */
#define QUERY_REPLY_S 60.0     /* a worker answers between two steps */

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* Takes over a change that the previous incarnation carried out, but whose resize line it did not write. */
static void inherit_change(struct hspmd_controller *m, const json_t *j)
{
	static const char *const sources[] = { "live", "copies", "checkpoint", "init", "command" };
	struct change *c = &m->change, asked = *c;
	const char *cause = json_string_value(json_object_get(j, "cause")), *source = json_string_value(json_object_get(j, "state"));
	if (!cause || !strcmp(cause, "start") || m->current.bound_plan->generation <= m->config->resize_reported)
		return;
	memset(c, 0, sizeof *c);
	if (asked.wanted) { /* of this incarnation: it begins when the inherited one has its line */
		c->wanted = true;
		snprintf(c->next, sizeof c->next, "%s", asked.next);
		c->not_before = asked.not_before;
	}
	snprintf(c->cause, sizeof c->cause, "%s", cause);
	for (size_t i = 0; source && i < sizeof sources / sizeof *sources; i++)
		if (!strcmp(source, sources[i]))
			c->source = sources[i];
	c->open = c->started = c->inherited = true;
	c->noticed = m->now;
	c->last_step_at = NAN;
	c->steps_lost = json_integer_value(json_object_get(j, "steps_lost"));
	m->steps_reported -=
	        c->steps_lost < m->steps_reported ? c->steps_lost : m->steps_reported; /* the last lines are older than the loss */
	c->from_nodes = (int)json_integer_value(json_object_get(j, "from_nodes"));
	c->planned = number(j, "planned");
	c->specialised = number(j, "specialised");
	c->connected = number(j, "connected");
	c->moved = number(j, "moved");
	c->local = number(j, "local");
	c->peers = number(j, "peers");
	c->disk = number(j, "disk");
	c->shared = number(j, "shared");
}

void adopt_begin(struct hspmd_controller *m)
{
	json_t *j = m->config->journal;
	m->adopt = json_incref(j);
	m->adopt_until = m->now + AGENT_RECONNECT_S;
	m->first_plan_used = true;
	committed_restore(m, j);
	choices_take_plan(m, json_object_get(json_object_get(j, "current"), "plan"), false);
}

bool adopt_holds(const struct hspmd_controller *m, const struct node *n)
{
	return name_listed(json_object_get(m->adopt, "nodes"), n->name);
}

void adopt_workers(struct hspmd_controller *m, struct node *n, json_t *living)
{
	size_t i;
	json_t *v;
	json_array_foreach(living, i, v) {
		const char *device = json_string_value(json_object_get(v, "device"));
		struct worker *w = worker_find(m, device);
		json_t *serial = json_object_get(v, "serial");
		if (m->adopt && !m->current.bound_plan && w && w->node == n && name_listed(json_object_get(m->adopt, "members"), device)) {
			w->process = PROC_UP;
			w->adopted = true;
			w->serial = json_integer_value(serial);
			w->holds = 0;
		} else if (device) { /* its state is unknown */
			send_node(m, n, json_pack("{s:s, s:s, s:O}", "type", "kill", "device", device, "serial", serial));
		}
	}
}

/* Returns true if the agents of all the journal's members are connected. */
static bool all_agents_back(struct hspmd_controller *m)
{
	size_t i;
	json_t *v;
	json_array_foreach(json_object_get(m->adopt, "members"), i, v) {
		const struct worker *w = worker_find(m, json_string_value(v));
		if (!w || w->node->agent != PROC_UP)
			return false;
	}
	return true;
}

/* Makes workers for all devices of the cluster: the plan is valid for the living ones even if others are gone. */
static void restore_workers(struct hspmd_controller *m, json_t *cluster)
{
	struct hspmd_error err;
	struct hspmd_cluster *c = hspmd_cluster_from_json(cluster, "cluster", &err);
	for (int i = 0; c && i < c->node_count; i++)
		node_restore(m, c->nodes[i].name, c->nodes[i].device_count);
	hspmd_cluster_destroy(c);
}

static struct bound_plan *restore_bound_plan(struct hspmd_controller *m, json_t *from)
{
	struct hspmd_error err;
	if (!json_is_object(from))
		return NULL;
	restore_workers(m, json_object_get(from, "cluster"));
	struct bound_plan *l = bound_plan_create(m, json_object_get(from, "cluster"), json_object_get(from, "plan"), "journal", &err);
	if (l) {
		l->generation = json_integer_value(json_object_get(from, "generation"));
		l->nodes = (int)message_integer(from, "nodes", l->nodes); /* some may leave, or not be back yet */
		l->copies = (int)message_integer(from, "copies", l->copies);
		l->behind = number(from, "behind");
		const char *found = json_string_value(json_object_get(from, "found"));
		snprintf(l->found, sizeof l->found, "%s", found ? found : "");
	} else
		log_msg(m, HSPMD_LOG_WARNING, "the journal's plan is not used: %s", err.text);
	return l;
}

static bool list_members(struct hspmd_controller *m, struct generation *g)
{
	json_t *names = json_object_get(m->adopt, "members"), *v;
	size_t i;
	bool all = true;
	g->member = hspmd_calloc(json_array_size(names), sizeof *g->member);
	g->answer = hspmd_calloc(json_array_size(names), sizeof *g->answer);
	if (!g->member || !g->answer) {
		m->failed = true;
		return false;
	}
	json_array_foreach(names, i, v) {
		struct worker *w = worker_find(m, json_string_value(v));
		if (w && w->process == PROC_UP)
			g->member[g->members++] = w;
		else
			all = false;
	}
	return all;
}

static void abort_and_replan(struct hspmd_controller *m, const char *why)
{
	abort_current(m, why);
	revive_missing(m); /* before new processes are started for the next plan */
	request_replan(m, "controller");
}

bool advance_adopt(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	if (!m->adopt || g->bound_plan || m->end != END_NONE || (m->now < m->adopt_until && !all_agents_back(m)))
		return false;
	g->bound_plan = restore_bound_plan(m, json_object_get(m->adopt, "current"));
	m->older = restore_bound_plan(m, json_object_get(m->adopt, "older"));
	if (!g->bound_plan) { /* without the plan nothing is known about the state that the workers hold */
		json_decref(m->adopt);
		m->adopt = NULL;
		request_replan(m, "controller");
		return true;
	}
	if (m->change.open) /* requested before the plan was known */
		m->change.from_nodes = g->bound_plan->nodes;
	inherit_change(m, json_object_get(m->adopt, "change"));
	bool all = list_members(m, g);
	note_event(m, "controller", "the job controller is back: %d of %d workers of generation %lld are there", g->members,
	           (int)json_array_size(json_object_get(m->adopt, "members")), (long long)g->bound_plan->generation);
	m->step = m->steps_reported;
	m->steps_told = m->steps_reported > 0;
	m->told_generation = g->bound_plan->generation; /* its first step is not looked for among those that agents send again */
	if (!all) {
		adopt_end(m);
		abort_and_replan(m, "workers were lost while there was no controller");
		return true;
	}
	send_workers(m, g->member, g->members,
	             json_pack("{s:s, s:I}", "type", "query", "generation", (json_int_t)g->bound_plan->generation));
	enter_phase(g, PHASE_STARTING, m->now, QUERY_REPLY_S);
	return true;
}

/* Returns true if a node has come of which the controller that made the plan did not know. */
static bool has_new_node(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		if (node_usable(m->node[i]) && hspmd_cluster_find_node(m->current.bound_plan->cluster, m->node[i]->name) < 0)
			return true;
	return false;
}

bool advance_adopted(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	bool on = true;
	if (!m->adopt || g->phase != PHASE_STARTING)
		return false;
	for (int i = 0; i < g->members; i++) {
		if (!g->answer[i])
			continue;
		json_t *holds = json_object_get(g->answer[i], "holds");
		g->member[i]->holds = json_integer_value(holds);
		g->member[i]->step = m->steps_reported;
		bool trains = json_is_true(json_object_get(g->answer[i], "training")) && g->member[i]->holds == g->bound_plan->generation;
		on &= trains || !bound_plan_uses(g->bound_plan, g->member[i]);
	}
	/* If one of them does not train, the others may wait for it in the middle of a step, and cannot answer. */
	if (on && !all_answered(g))
		return false;
	/* Steps that ended while there was no controller: the workers remember the losses of the last ones. */
	for (int i = 0; i < g->members; i++)
		report_losses(m, json_object_get(g->answer[i], "losses"));
	if (!on) {
		abort_and_replan(m, "the controller was gone in the middle of a change");
		return true;
	}
	adopt_end(m);
	if (has_new_node(m))
		request_replan(m, "grow");
	return true;
}
