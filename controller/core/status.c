/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's status, for `hspmd status`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hostlist.h"
#include "controller/core/controller_internal.h"

static const char *phase_name(const struct hspmd_controller *m)
{
	if (m->end != END_NONE)
		return m->end == END_SAVING ? "saving" : "ending";
	if (m->shutting_down)
		return "shutting down";
	switch (m->current.phase) {
	case PHASE_STARTING:
		return "starting";
	case PHASE_TRAINING:
		return m->next.phase == PHASE_NONE ? "training" : "training, preparing a change";
	case PHASE_STOPPING:
		return "stopping";
	case PHASE_ABORTING:
	case PHASE_SETTLING:
		return "recovering";
	default:
		break;
	}
	switch (m->next.phase) {
	case PHASE_SOLVING:
		return "planning";
	case PHASE_SPAWNING:
	case PHASE_PREPARING:
	case PHASE_PRECONNECTING:
	case PHASE_READY:
		return "preparing";
	default:
		return m->short_until > 0 ? "waiting for nodes" : "gathering";
	}
}

/* Writes what the controller waits for. */
static void waiting(const struct hspmd_controller *m, char *text, size_t size)
{
	char who[400];
	text[0] = 0;
	if (m->current.phase >= PHASE_STARTING && m->current.phase != PHASE_TRAINING && m->current.phase != PHASE_HELD) {
		list_unanswered(&m->current, who, sizeof who);
		snprintf(text, size, "%s", who);
	} else if (m->next.phase == PHASE_PREPARING) {
		list_unanswered(&m->next, who, sizeof who);
		snprintf(text, size, "%s", who);
	} else if (m->next.phase == PHASE_SOLVING) {
		snprintf(text, size, "the solver");
	} else {
		size_t n = 0;
		for (size_t i = 0; i < m->nodes; i++)
			if (m->node[i]->held && m->node[i]->agent == PROC_STARTING && n + 80 < size)
				n += (size_t)snprintf(text + n, size - n, "%s%.64s", n ? ", " : "agents of ", m->node[i]->name);
	}
}

static char *folded(const struct hspmd_controller *m)
{
	char **names = calloc(m->nodes + 1, sizeof *names);
	int count = 0;
	for (size_t i = 0; names && i < m->nodes; i++)
		if (m->node[i]->held)
			names[count++] = m->node[i]->name;
	char *text = names ? hspmd_hostlist_fold(names, count) : NULL;
	free(names);
	return text;
}

/* Number of complete states in workers' memory: one if the optimizer state is sharded over the pipelines. */
static int in_memory(const struct bound_plan *l)
{
	return !l ? 0 : l->plan->zero_stage ? 1 : l->plan->pipeline_count;
}

/* Copies of the state: place, number, step and age. */
static json_t *state_copies(const struct hspmd_controller *m, double now)
{
	json_t *list = json_array();
	int live = runs_command(m) && !m->elastic ? 0 : in_memory(m->current.bound_plan);
	if (live && m->steps_reported > 0 && !isnan(m->last_step_at))
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "memory", "count", live, "step",
		                                      (json_int_t)m->steps_reported, "age_s", now - m->last_step_at));
	if (m->copied_step >= 0)
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "other nodes' memory", "count", 1, "step",
		                                      (json_int_t)m->copied_step, "age_s", now - m->copied_at));
	int nodes = m->current.bound_plan ? m->current.bound_plan->nodes : 1;
	int disks = 1 + (m->current.bound_plan ? m->current.bound_plan->copies : m->config->job->checkpoint.replicas);
	if (m->checkpoint_step >= 0 && m->config->local)
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "disk", "count", disks < nodes ? disks : nodes,
		                                      "step", (json_int_t)m->checkpoint_step, "age_s", now - m->checkpoint_at));
	if (m->shared_checkpoint_step >= 0)
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "shared", "count", 1, "step",
		                                      (json_int_t)m->shared_checkpoint_step, "age_s", now - m->shared_checkpoint_at));
	return list;
}

/* Entries of the per-node lists; NULL: none for this node. Its member job, its slowdown, and why no plan uses it, with the seconds that its
 * quarantine still lasts. */
static json_t *member_job(const struct node *n, double now)
{
	(void)now;
	return n->member ? json_integer(n->member) : NULL;
}

static json_t *slow(const struct node *n, double now)
{
	(void)now;
	return n->slowdown > 1 ? json_real(n->slowdown) : NULL;
}

static json_t *left_out(const struct node *n, double now)
{
	if (n->quarantined)
		return json_pack("{s:f, s:s}", "for_s", fmax(0, n->quarantined_until - now), "reason", n->left_out_why);
	return n->agent == PROC_NONE && !n->leaving && n->left_out_why[0] ? json_pack("{s:s}", "reason", n->left_out_why) : NULL;
}

/* { node: entry }, of the held nodes. */
static json_t *by_node(const struct hspmd_controller *m, json_t *(*says)(const struct node *n, double now), double now)
{
	json_t *o = json_object();
	for (size_t i = 0; i < m->nodes; i++) {
		json_t *v = m->node[i]->held ? says(m->node[i], now) : NULL;
		if (v)
			json_object_set_new(o, m->node[i]->name, v);
	}
	return o;
}

json_t *hspmd_controller_status(const struct hspmd_controller *m, double now, double wall)
{
	char wait[600];
	waiting(m, wait, sizeof wait);
	char *nodes = folded(m);
	const struct bound_plan *l = m->current.bound_plan;
	char *plan = l ? bound_plan_summary(m, l) : NULL;
	bool runs = m->current.phase == PHASE_TRAINING;
	json_t *s = json_pack("{s:s, s:s, s:s?, s:i, s:I, s:i, s:s?, s:I, s:I, s:f, s:f, s:f, s:s, s:s, s:f, s:f}", "job",
	                      m->config->job_id, "phase", phase_name(m), "nodes", nodes ? nodes : "", "node_count", nodes_held(m),
	                      "generation", (json_int_t)(l ? l->generation : m->generation), "devices", l ? l->devices : 0, "plan", plan,
	                      "step", (json_int_t)m->steps_reported, "steps", (json_int_t)(runs_command(m) ? 0 : m->config->job->steps),
	                      "loss", m->loss, "step_s", m->step_s, "tokens_per_s", runs ? m->tokens_per_s : 0.0, "waiting_for", wait,
	                      "output", m->config->output, "up_s", now - m->began, "time", wall);
	free(nodes);
	free(plan);
	json_t *saved = m->checkpoint_step >= 0 ? json_pack("{s:I, s:f, s:f}", "step", (json_int_t)m->checkpoint_step, "age_s",
	                                                    now - m->checkpoint_at, "seconds", m->checkpoint_seconds)
	                                        : json_null();
	json_t *copies = json_pack("{s:b}", "by_plan", l && l->safe);
	if (copies && m->copied_step >= 0)
		json_object_update_new(copies, json_pack("{s:I, s:f, s:f}", "step", (json_int_t)m->copied_step, "age_s", now - m->copied_at,
		                                         "seconds", m->copy_seconds));
	if (s && (json_object_set_new(s, "checkpoint", saved) || json_object_set_new(s, "copies", copies))) {
		json_decref(s);
		return NULL;
	}
	if (s) {
		json_object_set_new(s, "state", state_copies(m, now));
		json_object_set_new(s, "members", by_node(m, member_job, now));
		json_object_set_new(s, "stragglers", by_node(m, slow, now));
		json_object_set_new(s, "left_out", by_node(m, left_out, now));
		json_t *repaired = better_plan_status(m, now);
		if (repaired)
			json_object_set_new(s, "repaired", repaired);
		if (json_array_size(m->waiting))
			json_object_set(s, "members_waiting", m->waiting);
	}
	const struct checkpoint_trouble *own = &m->checkpoint_trouble[PART_OWN], *shared = &m->checkpoint_trouble[PART_SHARED];
	if (s && own->since > 0)
		json_object_set_new(s, "checkpoints_fail", json_pack("{s:f, s:s}", "for_s", now - own->since, "why", own->why));
	else if (s && shared->since > 0)
		json_object_set_new(s, "checkpoints_fail",
		                    json_pack("{s:f, s:o}", "for_s", now - shared->since, "why",
		                              json_sprintf("%s%s", m->config->local ? "in the shared folder: " : "", shared->why)));
	if (s && m->last_error[0] && m->attempts)
		json_object_set_new(s, "last_error", json_string(m->last_error));
	return s;
}
