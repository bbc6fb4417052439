/* SPDX-License-Identifier: Apache-2.0 */
/* The next generation: solved, its workers spawned, prepared; ready to be started the moment the current one has stopped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/plan_model.h"
#include "controller/run/machine_private.h"

#define SAYS_MOST 7

/* A worker that complains of its peer, the peer's lost agent and Slurm's word that the node has left tell of one thing, the last the most. */
static int rank_of(const char *cause)
{
	static const char *const order[] = { "straggler", "fault", "worker-lost", "hang", "node-lost", "scontrol", "member-left" };
	for (int i = 0; i < SAYS_MOST; i++)
		if (!strcmp(cause, order[i]))
			return i;
	return SAYS_MOST; /* what was asked for, or how it began, stays */
}

static bool says_more(const char *cause, const char *than)
{
	return rank_of(cause) < SAYS_MOST && rank_of(cause) > rank_of(than);
}

void want_plan(struct hspmd_machine *m, const char *cause)
{
	struct change *c = &m->change;
	if (!c->open) {
		memset(c, 0, sizeof *c);
		c->open = true;
		c->noticed = m->now;
		c->last_step_at = NAN;
		c->from_nodes = m->current.layout ? m->current.layout->nodes : 0;
		snprintf(c->cause, sizeof c->cause, "%s", cause);
		c->optional = !strcmp(cause, "straggler");
	} else if (says_more(cause, c->cause)) {
		snprintf(c->cause, sizeof c->cause, "%s", cause);
	}
	if (!c->wanted || says_more(cause, c->next))
		snprintf(c->next, sizeof c->next, "%s", cause);
	c->optional = c->optional && !strcmp(cause, "straggler");
	c->wanted = true;
	c->not_before = m->now + m->config->patience.quiet;
}

void next_drop(struct hspmd_machine *m)
{
	generation_forget(&m->next);
	m->solve = 0;
}

/* Nodes that were left out for failing are better than none. */
static bool take_back_benched(struct hspmd_machine *m)
{
	bool any = false;
	for (size_t i = 0; i < m->nodes; i++) {
		any |= m->node[i]->benched;
		m->node[i]->benched = false;
	}
	return any;
}

/* Enough nodes, and none that is about to come, to make a plan with? Says why not, once. */
static bool enough_nodes(struct hspmd_machine *m)
{
	int usable = nodes_usable(m), least = m->config->job->elastic.min_nodes;
	bool first = m->generation == m->config->generation;
	if (first && (nodes_pending(m) || nodes_refused(m)) && m->now < m->gather_until)
		return false;
	if (usable >= least && usable > 0) {
		m->short_until = 0;
		return !(m->current.stage == STAGE_TRAINING && nodes_pending(m));
	}
	if (take_back_benched(m))
		return enough_nodes(m);
	if (nodes_pending(m) || m->short_until > 0)
		return false;
	if (first && m->current.stage == STAGE_NONE && m->now < m->gather_until && nodes_held(m) == 0)
		return false;
	m->short_until = m->now + m->config->patience.nodes;
	note_event(m, "too_few_nodes", "%d usable node%s where the job needs at least %d: waiting up to %.0f s for more", usable,
		   usable == 1 ? "" : "s", least, m->config->patience.nodes);
	return false;
}

static void next_from_layout(struct hspmd_machine *m, struct layout *l)
{
	m->next.layout = l;
	l->generation = ++m->generation;
	m->next.stage = STAGE_SPAWNING;
	m->next.since = m->now;
	m->change.wanted = false;
	m->change.planned = m->now - m->change.noticed;
	char *line = hspmd_plan_line(l->plan, l->cluster);
	note_event(m, "plan", "generation %lld: %s", (long long)l->generation, line ? line : "?");
	free(line);
	char why[400];
	if (hspmd_plan_precision_differs(l->plan, l->cluster, m->config->job->precision, why, sizeof why))
		note_event(m, "precision", "generation %lld %s", (long long)l->generation, why);
	act(m, RUN_SAVE_PLAN, NULL, json_incref(l->plan_json), l->generation);
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->life == LIFE_NONE)
			worker_spawn(m, l->device[i]);
}

/* --plan: as it is for the first generation. A later life of the job may hold other nodes: then it is solved. */
static bool take_first_plan(struct hspmd_machine *m, json_t *cluster)
{
	struct hspmd_error err = { "" };
	if (!m->config->first_plan || m->first_plan_used)
		return false;
	m->first_plan_used = true;
	struct layout *l = layout_create(m, cluster, m->config->first_plan, m->config->first_plan_name, &err);
	if (l && m->config->runnable && m->config->runnable(m->config, l->plan, l->cluster, &err)) {
		layout_drop(l);
		l = NULL;
	}
	if (l) {
		next_from_layout(m, l);
		return true;
	}
	if (m->config->generation)
		say(m, HSPMD_LOG_WARNING, "the plan that was given is not used: %s", err.text);
	else
		end_run(m, 1, "%s", err.text);
	return m->end != END_NONE;
}

static bool begin(struct hspmd_machine *m)
{
	struct hspmd_error err = { "" };
	if (!m->change.wanted || m->now < m->change.not_before || m->now < m->look_until || m->current.stage == STAGE_STARTING || !enough_nodes(m))
		return false;
	json_t *cluster = usable_cluster(m, &err);
	if (!cluster) {
		end_run(m, 1, "%s", err.text);
		return true;
	}
	bool done = take_first_plan(m, cluster);
	if (!done) {
		const struct layout *now = m->current.layout;
		int copies = copies_wanted(m, nodes_usable(m));
		struct run_intervals every = save_intervals(m);
		json_t *current = now ? json_pack("{s:O, s:O}", "cluster", now->cluster_json, "plan", now->plan_json) : json_null();
		m->solve = ++m->tickets;
		act(m, RUN_SOLVE, NULL, need(m, json_pack("{s:O, s:o, s:i, s:i, s:f, s:f, s:{s:f, s:f}}", "cluster", cluster, "current", current, "max_nodes",
								     m->config->job->elastic.max_nodes, "copies", copies, "every_s", every.every_s,
								     "shared_every_s", every.shared_every_s, "risk", "losses_per_node_s", m->risk.losses_per_s,
								     "together", m->risk.together)),
		    m->solve);
		m->next.stage = STAGE_SOLVING;
		m->next.since = m->now;
		m->next.deadline = m->now + m->config->patience.solve;
		m->change.wanted = false;
	}
	json_decref(cluster);
	return true;
}

static bool same_work(json_t *a, json_t *b)
{
	static const char *const keys[] = { "pipelines", "micro_batch", "global_batch", "seq_len", "schedule", "zero_stage" };
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
		if (x != y && !json_equal(x, y))
			return false;
	}
	return true;
}

/* Nothing comes of it; but the line of a change that has been carried out is still owed. */
static void change_close(struct hspmd_machine *m)
{
	m->change.open = m->change.started;
	m->change.wanted = false;
}

static void no_plan(struct hspmd_machine *m, const char *why)
{
	next_drop(m);
	if (m->current.stage != STAGE_TRAINING && take_back_benched(m)) {
		char cause[sizeof m->change.cause];
		snprintf(cause, sizeof cause, "%s", m->change.open ? m->change.cause : "worker-lost");
		note_event(m, "no_plan", "nodes that were left out are taken back: %s", why);
		want_plan(m, cause);
		return;
	}
	if (m->current.stage == STAGE_TRAINING) {
		note_event(m, "no_plan", "the plan stays: %s", why);
		change_close(m);
		return;
	}
	if (m->current.stage == STAGE_NONE && !m->told) {
		end_run(m, 1, "%s", why);
		return;
	}
	m->short_until = m->now + m->config->patience.nodes;
	note_event(m, "no_plan", "waiting up to %.0f s for more nodes: %s", m->config->patience.nodes, why);
}

void on_plan(struct hspmd_machine *m, const struct run_event *e)
{
	struct hspmd_error err = { "" };
	if (m->next.stage != STAGE_SOLVING || e->id != m->solve || m->end != END_NONE)
		return;
	m->solve = 0;
	json_t *plan = json_object_get(e->value, "plan"), *cluster = json_object_get(e->value, "cluster");
	if (!plan) {
		no_plan(m, e->text ? e->text : "the solver found none");
		return;
	}
	generation_forget(&m->next);
	if (m->change.wanted)
		return; /* something has changed since it was asked for */
	if (m->current.stage == STAGE_TRAINING && strcmp(m->change.cause, "risk") != 0 && same_work(plan, m->current.layout->plan_json)) {
		say(m, HSPMD_LOG_INFO, "the plan stays as it is");
		m->current.layout->nodes = nodes_usable(m);
		change_close(m);
		return;
	}
	struct layout *l = layout_create(m, cluster, plan, "plan", &err);
	if (!l)
		no_plan(m, err.text);
	else if (m->change.optional && m->current.stage == STAGE_TRAINING && !pace_worth(m, l->plan, json_object_get(e->value, "stay_s")))
		change_close(m);
	else
		next_from_layout(m, layout_keep(l));
	layout_drop(l);
}

static bool all_up(const struct layout *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->life != LIFE_UP)
			return false;
	return true;
}

/* Nobody holds the state: what checkpoints are there? */
static void ask_for_checkpoints(struct hspmd_machine *m)
{
	struct find *f = &m->find;
	json_decref(f->found);
	f->found = need(m, json_object());
	f->id = ++m->tickets;
	f->asked = true;
	f->since = m->now;
	f->deadline = m->now + m->config->patience.find;
	f->done = !m->config->local && !m->config->shared && !m->config->memory;
	/* What lies there when a job begins its first life is another's. */
	f->done |= !m->config->resumed && !m->told;
	for (size_t i = 0; i < m->nodes && !f->done; i++)
		if (node_usable(m->node[i]))
			send_node(m, m->node[i], json_pack("{s:s, s:I, s:s?, s:s?, s:s?}", "type", "find", "id", (json_int_t)f->id, "local",
							   m->config->local, "shared", m->config->shared, "memory", m->config->memory));
}

void on_found(struct hspmd_machine *m, struct node *n, json_t *message)
{
	if (!m->find.asked || json_integer_value(json_object_get(message, "id")) != m->find.id)
		return;
	json_t *list = json_object_get(message, "checkpoints");
	if (json_object_set(m->find.found, n->name, list ? list : json_null()))
		m->failed = true;
}

static bool found_any(const struct hspmd_machine *m)
{
	const char *node;
	json_t *list;
	json_object_foreach(m->find.found, node, list)
		if (json_array_size(list))
			return true;
	return false;
}

static void find_check(struct hspmd_machine *m)
{
	if (!m->find.asked || m->find.done)
		return;
	bool all = true;
	for (size_t i = 0; i < m->nodes; i++)
		if (node_usable(m->node[i]) && !json_object_get(m->find.found, m->node[i]->name))
			all = false;
	if (all || m->now < m->find.deadline) {
		m->find.done = all;
		return;
	}
	say(m, HSPMD_LOG_WARNING, "waited %.0f s for nodes to look for checkpoints", m->now - m->find.since);
	/* Beginning anew is the last thing to do: who is silent may have what there is. */
	m->find.done = found_any(m) || m->now >= m->find.since + m->config->patience.nodes;
	m->find.deadline = m->now + m->config->patience.find;
}

static void prepare(struct hspmd_machine *m)
{
	struct generation *g = &m->next;
	int64_t step;
	struct layout *giver = m->current.stage == STAGE_TRAINING ? m->current.layout : held_layout(m, &step);
	if (generation_members(m, g, g->layout, giver))
		return;
	struct hspmd_error err;
	json_t *members = need(m, json_array()), *cluster = members_cluster(m, g, &err);
	if (!cluster) {
		json_decref(members);
		no_plan(m, err.text);
		return;
	}
	for (int i = 0; i < g->members; i++)
		if (json_array_append_new(members, json_string(g->member[i]->address)))
			m->failed = true;
	m->find.asked = m->find.done = false;
	if (!giver)
		ask_for_checkpoints(m);
	send_workers(m, g->member, g->members,
		     json_pack("{s:s, s:I, s:o, s:O, s:o, s:i, s:i}", "type", "prepare", "generation", (json_int_t)g->layout->generation, "cluster",
			       cluster, "plan", g->layout->plan_json, "members", members, "replicas", g->layout->copies, "keep", g->layout->keep));
	ask_again(g, STAGE_PREPARING, m->now, m->config->patience.prepare);
}

void on_prepared(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	if (m->next.stage == STAGE_PREPARING && json_integer_value(json_object_get(message, "generation")) == m->next.layout->generation)
		take_answer(&m->next, w, message);
}

static bool all_say(const struct generation *g, const char *key)
{
	for (int i = 0; i < g->members; i++)
		if (json_is_true(json_object_get(g->answer[i], "meets")) && !json_is_true(json_object_get(g->answer[i], key)))
			return false;
	return true;
}

/* Devices that take long to connect do so now, as long as the current generation trains: it is stopped when they have, or when they take too long. */
static void introduce(struct hspmd_machine *m)
{
	struct generation *g = &m->next;
	g->stage = STAGE_READY;
	if (m->current.stage != STAGE_TRAINING || all_say(g, "none"))
		return;
	send_workers(m, g->member, g->members, json_pack("{s:s, s:I, s:o}", "type", "meet", "generation", (json_int_t)g->layout->generation, "addresses",
							 transport_addresses(m, g, "address")));
	g->stage = STAGE_MEETING;
	g->since = m->now;
	g->deadline = m->now + m->config->patience.start;
}

void on_met(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct generation *g = &m->next;
	int i = g->stage == STAGE_MEETING && json_integer_value(json_object_get(message, "generation")) == g->layout->generation ? member_of(g, w) : -1;
	if (i >= 0 && json_object_set_new(g->answer[i], "met", json_true()))
		m->failed = true;
}

bool advance_next(struct hspmd_machine *m)
{
	struct generation *g = &m->next;
	if (m->leaving || m->end != END_NONE || m->current.finished)
		return false;
	switch (g->stage) {
	case STAGE_NONE:
		if (m->short_until > 0 && m->now >= m->short_until) {
			end_run(m, 1, "waited %.0f s for nodes: %d usable where at least %d are needed", m->config->patience.nodes, nodes_usable(m),
				m->config->job->elastic.min_nodes);
			return true;
		}
		return begin(m);
	case STAGE_SOLVING:
		if (m->now < g->deadline)
			return false;
		no_plan(m, "the solver did not answer in time");
		return true;
	case STAGE_SPAWNING:
		if (!all_up(g->layout) || (m->current.stage != STAGE_NONE && m->current.stage != STAGE_TRAINING && m->current.stage != STAGE_HELD))
			return false;
		prepare(m);
		return true;
	case STAGE_PREPARING:
		if (all_answered(g)) {
			m->change.specialised = m->now - g->since;
			introduce(m);
			return true;
		}
		if (m->now < g->deadline)
			return false;
		end_silent(m, g, "prepared");
		return true;
	case STAGE_MEETING:
		if (m->current.stage == STAGE_TRAINING && m->now < g->deadline && !all_say(g, "met"))
			return false;
		g->stage = STAGE_READY; /* what is not made yet is waited for when it starts */
		return true;
	case STAGE_READY:
		find_check(m);
		if (m->change.wanted && m->current.stage == STAGE_TRAINING) {
			next_drop(m); /* yet another change: one pause for both */
			return true;
		}
		if (m->current.stage == STAGE_TRAINING) {
			stop_current(m);
			return true;
		}
		if ((m->current.stage != STAGE_HELD && m->current.stage != STAGE_NONE) || (m->find.asked && !m->find.done))
			return false;
		start_generation(m);
		return true;
	default:
		return false;
	}
}
