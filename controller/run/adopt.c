/* SPDX-License-Identifier: Apache-2.0 */
/* A later life of the controller, and the workers that the one before left training. The journal, written before each generation's start and again when it trains, says
 * who they are; their agents call again and list those that live; each of these is asked what it holds and whether it trains. Where all train on, nothing is done but to
 * listen again. Else the generation is called off, and what its workers hold is what the next begins from, as after any loss. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/run/machine_private.h"

#define CALL_S 15.0   /* agents call every second */
#define REPORT_S 60.0 /* a worker answers between two steps */

static json_t *layout_json(struct hspmd_machine *m, const struct layout *l)
{
	return l ? need(m, json_pack("{s:I, s:O, s:O}", "generation", (json_int_t)l->generation, "cluster", l->cluster_json, "plan", l->plan_json)) : json_null();
}

/* What has been carried out, and may not have been told of when this life ends. */
static json_t *change_json(struct hspmd_machine *m)
{
	const struct change *c = &m->change;
	if (!c->open || !c->started)
		return json_null();
	return need(m, json_pack("{s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "cause", c->cause, "state", c->source ? c->source : "live", "steps_lost",
				 (json_int_t)c->steps_lost, "from_nodes", c->from_nodes, "planned", c->planned, "specialised", c->specialised, "connected",
				 c->connected, "moved", c->moved, "local", c->local, "peers", c->peers, "disk", c->disk, "shared", c->shared));
}

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* What the life before carried out and did not tell of. */
static void inherit_change(struct hspmd_machine *m, const json_t *j)
{
	static const char *const sources[] = { "live", "copies", "checkpoint", "init" };
	struct change *c = &m->change;
	const char *cause = json_string_value(json_object_get(j, "cause")), *source = json_string_value(json_object_get(j, "state"));
	if (!cause || !strcmp(cause, "start") || c->open || m->current.layout->generation <= m->config->explained)
		return;
	memset(c, 0, sizeof *c);
	snprintf(c->cause, sizeof c->cause, "%s", cause);
	for (size_t i = 0; source && i < sizeof sources / sizeof *sources; i++)
		if (!strcmp(source, sources[i]))
			c->source = sources[i];
	c->open = c->started = c->inherited = true;
	c->noticed = m->now;
	c->last_step_at = NAN;
	c->steps_lost = json_integer_value(json_object_get(j, "steps_lost"));
	m->told -= c->steps_lost < m->told ? c->steps_lost : m->told; /* the last lines are from before they were lost */
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

void journal(struct hspmd_machine *m)
{
	const struct generation *g = &m->current;
	json_t *members = need(m, json_array()), *held = need(m, json_array());
	for (int i = 0; i < g->members; i++)
		if (json_array_append_new(members, json_string(g->member[i]->address)))
			m->failed = true;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && json_array_append_new(held, json_string(m->node[i]->name)))
			m->failed = true;
	act(m, RUN_JOURNAL, NULL, need(m, json_pack("{s:o, s:o, s:o, s:o, s:o}", "current", layout_json(m, g->layout), "older", layout_json(m, m->older), "members",
						    members, "nodes", held, "change", change_json(m))), 0);
}

void adopt_begin(struct hspmd_machine *m)
{
	json_t *j = m->config->journal;
	m->adopt = json_incref(j);
	m->adopt_until = m->now + CALL_S;
	m->first_plan_used = true;
}

static bool names(const json_t *list, const char *name)
{
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

bool adopt_holds(const struct hspmd_machine *m, const struct node *n)
{
	return names(json_object_get(m->adopt, "nodes"), n->name);
}

void adopt_workers(struct hspmd_machine *m, struct node *n, json_t *living)
{
	size_t i;
	json_t *v;
	json_array_foreach(living, i, v) {
		const char *device = json_string_value(json_object_get(v, "device"));
		struct worker *w = worker_find(m, device);
		json_t *serial = json_object_get(v, "serial");
		if (m->adopt && !m->current.layout && w && w->node == n && names(json_object_get(m->adopt, "members"), device)) {
			w->life = LIFE_UP;
			w->adopted = true;
			w->serial = json_integer_value(serial);
			w->holds = 0;
		} else if (device) { /* nobody knows what it does */
			send_node(m, n, json_pack("{s:s, s:s, s:O}", "type", "kill", "device", device, "serial", serial));
		}
	}
}

/* Are all there who were? */
static bool all_called(struct hspmd_machine *m)
{
	size_t i;
	json_t *v;
	json_array_foreach(json_object_get(m->adopt, "members"), i, v) {
		const struct worker *w = worker_find(m, json_string_value(v));
		if (!w || w->node->agent != LIFE_UP)
			return false;
	}
	return true;
}

/* Workers for all devices it names: what a plan says about the state of those who are there is true without those who have gone. */
static void name_workers(struct hspmd_machine *m, json_t *cluster)
{
	struct hspmd_error err;
	struct hspmd_cluster *c = hspmd_cluster_from_json(cluster, "cluster", &err);
	for (int i = 0; c && i < c->node_count; i++)
		node_remember(m, c->nodes[i].name, c->nodes[i].device_count);
	hspmd_cluster_destroy(c);
}

static struct layout *remember(struct hspmd_machine *m, json_t *from)
{
	struct hspmd_error err;
	if (!json_is_object(from))
		return NULL;
	name_workers(m, json_object_get(from, "cluster"));
	struct layout *l = layout_create(m, json_object_get(from, "cluster"), json_object_get(from, "plan"), "journal", &err);
	if (l)
		l->generation = json_integer_value(json_object_get(from, "generation"));
	else
		say(m, HSPMD_LOG_WARNING, "the journal's plan is not used: %s", err.text);
	return l;
}

static bool list_members(struct hspmd_machine *m, struct generation *g)
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
		if (w && w->life == LIFE_UP)
			g->member[g->members++] = w;
		else
			all = false;
	}
	return all;
}

static void again(struct hspmd_machine *m, const char *why)
{
	abort_current(m, why);
	revive_missing(m); /* before the next plan has new processes started in their place */
	want_plan(m, "controller");
}

bool advance_adopt(struct hspmd_machine *m)
{
	struct generation *g = &m->current;
	if (!m->adopt || g->layout || m->end != END_NONE || (m->now < m->adopt_until && !all_called(m)))
		return false;
	g->layout = remember(m, json_object_get(m->adopt, "current"));
	m->older = remember(m, json_object_get(m->adopt, "older"));
	if (!g->layout) { /* it cannot be read: what is known of the state lies under that plan */
		json_decref(m->adopt);
		m->adopt = NULL;
		want_plan(m, "controller");
		return true;
	}
	inherit_change(m, json_object_get(m->adopt, "change"));
	bool all = list_members(m, g);
	note_event(m, "controller", "the job controller is back: %d of %d workers of generation %lld are there", g->members,
		   (int)json_array_size(json_object_get(m->adopt, "members")), (long long)g->layout->generation);
	m->step = m->told;
	if (!all) {
		adopt_end(m);
		again(m, "workers have gone while there was no controller");
		return true;
	}
	send_workers(m, g->member, g->members, json_pack("{s:s, s:I}", "type", "report", "generation", (json_int_t)g->layout->generation));
	ask_again(g, STAGE_STARTING, m->now, REPORT_S);
	return true;
}

void adopt_end(struct hspmd_machine *m)
{
	json_decref(m->adopt);
	m->adopt = NULL;
}

bool adopt_answered(struct hspmd_machine *m)
{
	struct generation *g = &m->current;
	bool on = true;
	for (int i = 0; i < g->members; i++) {
		json_t *holds = json_object_get(g->answer[i], "holds");
		g->member[i]->holds = json_integer_value(holds);
		g->member[i]->step = m->told;
		bool trains = json_is_true(json_object_get(g->answer[i], "training")) && g->member[i]->holds == g->layout->generation;
		on &= trains || !layout_uses(g->layout, g->member[i]);
	}
	/* What was told of while nobody listened: the agents kept it, and the workers know the last. */
	for (int i = 0; i < g->members; i++)
		tell_losses(m, json_object_get(g->answer[i], "losses"));
	adopt_end(m);
	if (!on)
		again(m, "the controller was gone in the middle of a change");
	return on;
}
