/* SPDX-License-Identifier: Apache-2.0 */
/* The next generation: solved, its workers spawned and prepared, so that it can start as soon as the current one has stopped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/device_runs.h"
#include "common/format/plan_precision.h"
#include "controller/core/controller_internal.h"
#include "controller/core/readers.h"

#define COMMAND_PRECONNECT_S 30.0 /* for the ranks of a command, one of which may hang; the rest connects when the generation starts */

/* Takes all quarantined nodes back, if there are too few without them. Returns true if there were any. */
static bool end_quarantines(struct hspmd_controller *m)
{
	bool any = false;
	for (size_t i = 0; i < m->nodes; i++) {
		any |= m->node[i]->quarantined;
		m->node[i]->quarantined = false;
	}
	return any;
}

/* Returns true if there are enough nodes for a plan, and none is about to come. If nodes are missing, notes that once. */
static bool enough_nodes(struct hspmd_controller *m)
{
	int usable = nodes_usable(m), least = m->config->job->elastic.min_nodes;
	bool first = m->generation == m->config->generation;
	if (first && (nodes_pending(m) || nodes_to_retry(m)) && m->now < m->startup_until)
		return false;
	if (usable >= least && usable > 0) {
		m->short_until = 0;
		return !(m->current.phase == PHASE_TRAINING && nodes_pending(m));
	}
	if (end_quarantines(m))
		return enough_nodes(m);
	if (nodes_pending(m) || m->short_until > 0)
		return false;
	if (first && m->current.phase == PHASE_NONE && m->now < m->startup_until && nodes_held(m) == 0)
		return false;
	m->short_until = m->now + m->config->timeouts.nodes;
	note_event(m, "too_few_nodes", "%d usable node%s where the job needs at least %d: waiting up to %.0f s for more", usable,
	           usable == 1 ? "" : "s", least, m->config->timeouts.nodes);
	return false;
}

void next_begin(struct hspmd_controller *m, struct bound_plan *l)
{
	m->next.bound_plan = l;
	l->generation = ++m->generation;
	choices_take_plan(m, l->plan_json, false);
	choices_put(m, l);
	m->new_choices = false;
	m->next.phase = PHASE_SPAWNING;
	m->next.since = m->now;
	m->change.wanted = false;
	m->change.planned = m->now - m->change.noticed;
	char *line = bound_plan_summary(m, l);
	note_event(m, "plan", "generation %lld: %s", (long long)l->generation, line ? line : "?");
	free(line);
	if (l->behind > 0)
		note_event(m, "repaired",
		           "generation %lld goes on with the last plan without what was lost (%.1f %% slower than the lost speed "
		           "explains), and "
		           "a better one is searched for meanwhile",
		           (long long)l->generation, 100 * fmax(0, l->behind - 1));
	char why[400];
	if (hspmd_plan_precision_differs(l->plan, l->cluster, m->config->job->precision, why, sizeof why))
		note_event(m, "precision", "generation %lld %s", (long long)l->generation, why);
	emit(m, ACTION_SAVE_PLAN, NULL, json_incref(l->plan_json), l->generation);
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->process == PROC_NONE)
			worker_spawn(m, l->device[i]);
	readers_spawn(m, &m->next);
}

/* A plan that was completed is the one that workers get. */
static int take_completed(struct bound_plan *l, struct hspmd_error *err)
{
	json_t *whole = l->plan->program ? hspmd_plan_to_json(l->plan, l->cluster) : json_incref(l->plan_json);
	if (!whole)
		return hspmd_fail_memory(err, "reading the plan");
	json_decref(l->plan_json);
	l->plan_json = whole;
	return 0;
}

/* The first generation uses the plan of --plan unchanged. A later incarnation of the job may hold other nodes: then it solves. */
static bool take_first_plan(struct hspmd_controller *m, json_t *cluster)
{
	struct hspmd_error err = { "" };
	if (!m->config->first_plan || m->first_plan_used)
		return false;
	m->first_plan_used = true;
	struct bound_plan *l = bound_plan_create(m, cluster, m->config->first_plan, m->config->first_plan_name, &err);
	if (l && m->config->runnable && (m->config->runnable(m->config, l->plan, l->cluster, &err) || take_completed(l, &err))) {
		bound_plan_unref(l);
		l = NULL;
	}
	if (l) {
		next_begin(m, l);
		return true;
	}
	if (m->config->generation)
		log_msg(m, HSPMD_LOG_WARNING, "the plan of --plan is not used: %s", err.text);
	else
		end_run(m, 1, "%s", err.text);
	return m->end != END_NONE;
}

int64_t solve_ask(struct hspmd_controller *m, json_t *cluster, const struct bound_plan *l, bool urgent)
{
	struct run_intervals every = checkpoint_intervals(m);
	json_t *current =
	        l ? json_pack("{s:O, s:O, s:f}", "cluster", l->cluster_json, "plan", l->plan_json, "behind", l->behind) : json_null();
	emit(m, ACTION_SOLVE, NULL,
	     check_alloc(m, json_pack("{s:o, s:o, s:b, s:i, s:i, s:f, s:f, s:{s:f, s:f}}", "cluster", cluster, "current", current, "urgent",
	                              urgent, "max_nodes", m->config->job->elastic.max_nodes, "copies", copies_wanted(m, nodes_usable(m)),
	                              "every_s", every.every_s, "shared_every_s", every.shared_every_s, "risk", "losses_per_node_s",
	                              m->risk.losses_per_s, "together", m->risk.correlated)),
	     ++m->tickets);
	return m->tickets;
}

static bool begin(struct hspmd_controller *m)
{
	struct hspmd_error err = { "" };
	if (!m->change.wanted || m->now < m->change.not_before || m->now < m->slurm_confirm_until || m->current.phase == PHASE_STARTING)
		return false;
	/* Workers of an earlier incarnation hold state that is not known before they are taken over. */
	if ((m->adopt && !m->current.bound_plan) || !enough_nodes(m))
		return false;
	json_t *cluster = usable_cluster(m, &err);
	if (!cluster) {
		end_run(m, 1, "%s", err.text);
		return true;
	}
	bool done = take_first_plan(m, cluster);
	if (!done) {
		m->solve = solve_ask(m, json_incref(cluster), m->current.bound_plan, m->current.phase != PHASE_TRAINING);
		m->next.phase = PHASE_SOLVING;
		m->next.since = m->now;
		m->next.deadline = m->now + m->config->timeouts.solve;
		m->change.wanted = false;
	}
	json_decref(cluster);
	return true;
}

/* Gives up the change; but if it has been carried out, its resize line must still be written. */
static void change_close(struct hspmd_controller *m)
{
	m->change.open = m->change.started;
	m->change.wanted = false;
}

static void no_plan(struct hspmd_controller *m, const char *why)
{
	next_drop(m);
	if (m->current.phase != PHASE_TRAINING && end_quarantines(m)) {
		char cause[sizeof m->change.cause];
		snprintf(cause, sizeof cause, "%s", m->change.open ? m->change.cause : "worker-lost");
		note_event(m, "no_plan", "nodes that were left out are used again: %s", why);
		request_replan(m, cause);
		return;
	}
	if (m->current.phase == PHASE_TRAINING) {
		note_event(m, "no_plan", "the plan stays: %s", why);
		change_close(m);
		return;
	}
	if (m->current.phase == PHASE_NONE && !m->steps_reported) {
		end_run(m, 1, "%s", why);
		return;
	}
	m->short_until = m->now + m->config->timeouts.nodes;
	note_event(m, "no_plan", "waiting up to %.0f s for more nodes: %s", m->config->timeouts.nodes, why);
}

void on_plan(struct hspmd_controller *m, const struct run_event *e)
{
	struct hspmd_error err = { "" };
	if (m->next.phase != PHASE_SOLVING || e->id != m->solve || m->end != END_NONE)
		return;
	m->solve = 0;
	json_t *plan = json_object_get(e->value, "plan"), *cluster = json_object_get(e->value, "cluster");
	if (!plan) {
		no_plan(m, e->text ? e->text : "the solver found none");
		return;
	}
	generation_clear(&m->next);
	if (m->change.wanted)
		return; /* the nodes have changed since the solve began */
	if (m->current.phase == PHASE_TRAINING && strcmp(m->change.cause, "risk") != 0 &&
	    plans_same_work(plan, m->current.bound_plan->plan_json)) {
		log_msg(m, HSPMD_LOG_INFO, "the plan stays as it is");
		m->current.bound_plan->nodes = nodes_usable(m);
		m->current.bound_plan->behind = 0;
		m->current.bound_plan->found[0] = '\0';
		journal(m);
		change_close(m);
		return;
	}
	struct bound_plan *l = bound_plan_create(m, cluster, plan, "plan", &err);
	if (l)
		l->behind = json_number_value(json_object_get(e->value, "behind"));
	if (!l)
		no_plan(m, err.text);
	else if (!bound_plan_agents_up(l)) /* one was lost in the meantime, and a message to it would be lost, too */
		m->change.wanted = true;
	else if (m->change.optional && m->current.phase == PHASE_TRAINING &&
	         !change_pays_off(m, json_number_value(json_object_get(e->value, "current_step_s")), l->plan->predicted.step_s, &err)) {
		note_event(m, "straggler", "the plan stays: %s", err.text);
		change_close(m);
	} else {
		next_begin(m, bound_plan_ref(l));
	}
	bound_plan_unref(l);
}

static bool all_up(const struct bound_plan *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->process != PROC_UP)
			return false;
	return true;
}

static void prepare(struct hspmd_controller *m)
{
	struct generation *g = &m->next;
	int64_t step;
	struct bound_plan *donor = m->current.phase == PHASE_TRAINING ? m->current.bound_plan : held_bound_plan(m, &step);
	if (generation_set_members(m, g, g->bound_plan, workers_give_state(m) ? donor : NULL) || (!donor && readers_join(m, g)))
		return;
	struct hspmd_error err;
	json_t *cluster = members_cluster(m, g, &err);
	if (!cluster) {
		no_plan(m, err.text);
		return;
	}
	const char **name = member_names(m, g);
	json_t *members = check_alloc(m, name ? hspmd_device_runs(name, g->members) : NULL);
	free(name);
	json_decref(g->expected);
	g->expected = expected_holders(m, g, donor);
	m->checkpoint_search.asked = m->checkpoint_search.done = false;
	if (!donor)
		checkpoint_search_begin(m);
	send_workers(m, g->member, g->members,
	             json_pack("{s:s, s:I, s:o, s:O, s:o, s:i, s:i, s:o*, s:O*}", "type", "prepare", "generation",
	                       (json_int_t)g->bound_plan->generation, "cluster", cluster, "plan", g->bound_plan->plan_json, "members",
	                       members, "replicas", g->bound_plan->copies, "keep", g->bound_plan->keep, "elastic",
	                       m->elastic ? json_true() : NULL, "live", g->expected));
	enter_phase(g, PHASE_PREPARING, m->now, m->config->timeouts.prepare);
}

void on_prepared(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	if (m->next.phase == PHASE_PREPARING &&
	    json_integer_value(json_object_get(message, "generation")) == m->next.bound_plan->generation)
		record_answer(&m->next, w, message);
}

static bool all_say(const struct generation *g, const char *key)
{
	for (int i = 0; i < g->members; i++)
		if (json_is_true(json_object_get(g->answer[i], "needs_preconnect")) && !json_is_true(json_object_get(g->answer[i], key)))
			return false;
	return true;
}

/* Devices that connect slowly connect now, while the current generation trains. It is stopped when they have connected, or at the
 * deadline. */
static void preconnect(struct hspmd_controller *m)
{
	struct generation *g = &m->next;
	g->phase = PHASE_READY;
	if (m->current.phase != PHASE_TRAINING || all_say(g, "none"))
		return;
	json_t *addresses = member_addresses(m, g);
	send_workers_own(m, g->member, g->members,
	                 json_pack("{s:s, s:I}", "type", "preconnect", "generation", (json_int_t)g->bound_plan->generation), "addresses",
	                 addresses);
	json_decref(addresses);
	g->phase = PHASE_PRECONNECTING;
	g->since = m->now;
	g->deadline = m->now + (runs_command(m) ? COMMAND_PRECONNECT_S : m->config->timeouts.start);
}

void on_preconnected(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct generation *g = &m->next;
	int i = g->phase == PHASE_PRECONNECTING && json_integer_value(json_object_get(message, "generation")) == g->bound_plan->generation
	                ? member_index(g, w)
	                : -1;
	if (i >= 0 && json_object_set_new(g->answer[i], "preconnected", json_true()))
		m->failed = true;
}

bool advance_next(struct hspmd_controller *m)
{
	struct generation *g = &m->next;
	if (m->shutting_down || m->end != END_NONE || m->current.finished)
		return false;
	switch (g->phase) {
	case PHASE_NONE:
		if (m->short_until > 0 && m->now >= m->short_until) {
			end_run(m, 1, "waited %.0f s for nodes: %d usable where at least %d are needed", m->config->timeouts.nodes,
			        nodes_usable(m), m->config->job->elastic.min_nodes);
			return true;
		}
		return begin(m);
	case PHASE_SOLVING:
		if (m->change.wanted && m->now >= m->change.not_before && m->current.phase != PHASE_TRAINING) {
			next_drop(m); /* this plan lacks what was lost since, and nothing trains until there is one */
			return true;
		}
		if (m->now < g->deadline)
			return false;
		no_plan(m, "the solver did not answer in time");
		return true;
	case PHASE_SPAWNING:
		if (!all_up(g->bound_plan) || !readers_up(m, g) ||
		    (m->current.phase != PHASE_NONE && m->current.phase != PHASE_TRAINING && m->current.phase != PHASE_HELD))
			return false;
		prepare(m);
		return true;
	case PHASE_PREPARING:
		if (!all_answered(g))
			return false;
		m->change.specialised = m->now - g->since;
		choices_take_answers(m, g);
		preconnect(m);
		return true;
	case PHASE_PRECONNECTING:
		if (m->current.phase == PHASE_TRAINING && m->now < g->deadline && !all_say(g, "preconnected"))
			return false;
		g->phase = PHASE_READY; /* the rest connects when the generation starts */
		return true;
	case PHASE_READY:
		checkpoint_search_check(m);
		if (m->change.wanted && m->current.phase == PHASE_TRAINING) {
			next_drop(m); /* another change came: one pause for both */
			return true;
		}
		if (m->current.phase == PHASE_TRAINING) {
			stop_current(m);
			return true;
		}
		if ((m->current.phase != PHASE_HELD && m->current.phase != PHASE_NONE) ||
		    (m->checkpoint_search.asked && !m->checkpoint_search.done))
			return false;
		start_generation(m);
		if (m->next.again) {
			struct bound_plan *l = bound_plan_ref(m->next.bound_plan);
			next_drop(m);
			next_begin(m, l);
		}
		return true;
	default:
		return false;
	}
}
