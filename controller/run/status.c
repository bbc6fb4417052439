/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine is doing, for people. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hostlist.h"
#include "controller/run/machine_private.h"

static const char *phase(const struct hspmd_machine *m)
{
	if (m->end != END_NONE)
		return m->end == END_SAVING ? "saving" : "ending";
	if (m->leaving)
		return "leaving";
	switch (m->current.stage) {
	case STAGE_STARTING:
		return "starting";
	case STAGE_TRAINING:
		return m->next.stage == STAGE_NONE ? "training" : "training, preparing a change";
	case STAGE_STOPPING:
		return "stopping";
	case STAGE_ABORTING:
	case STAGE_SETTLING:
		return "recovering";
	default:
		break;
	}
	switch (m->next.stage) {
	case STAGE_SOLVING:
		return "planning";
	case STAGE_SPAWNING:
	case STAGE_PREPARING:
	case STAGE_MEETING:
	case STAGE_READY:
		return "preparing";
	default:
		return m->short_until > 0 ? "waiting for nodes" : "gathering";
	}
}

/* What is waited for, in words. */
static void waiting(const struct hspmd_machine *m, char *text, size_t size)
{
	char who[400];
	text[0] = 0;
	if (m->current.stage >= STAGE_STARTING && m->current.stage != STAGE_TRAINING && m->current.stage != STAGE_HELD) {
		still_silent(&m->current, who, sizeof who);
		snprintf(text, size, "%s", who);
	} else if (m->next.stage == STAGE_PREPARING) {
		still_silent(&m->next, who, sizeof who);
		snprintf(text, size, "%s", who);
	} else if (m->next.stage == STAGE_SOLVING) {
		snprintf(text, size, "the solver");
	} else {
		size_t n = 0;
		for (size_t i = 0; i < m->nodes; i++)
			if (m->node[i]->held && m->node[i]->agent == LIFE_STARTING && n + 80 < size)
				n += (size_t)snprintf(text + n, size - n, "%s%.64s", n ? ", " : "agents of ", m->node[i]->name);
	}
}

static char *folded(const struct hspmd_machine *m)
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

/* How often the whole state lies in workers' memory: with its optimizer spread over the pipelines, once. */
static int in_memory(const struct layout *l)
{
	return !l ? 0 : l->plan->zero_stage ? 1 : l->plan->pipeline_count;
}

/* Copies of the state: where they lie, of which step they are, and how old. */
static json_t *state_copies(const struct hspmd_machine *m, double now)
{
	json_t *list = json_array();
	int live = in_memory(m->current.layout);
	if (live && m->told > 0 && !isnan(m->last_step_at))
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "memory", "count", live, "step", (json_int_t)m->told, "age_s",
						      now - m->last_step_at));
	if (m->copied_step >= 0)
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "other nodes' memory", "count", 1, "step", (json_int_t)m->copied_step,
						      "age_s", now - m->copied_at));
	int nodes = m->current.layout ? m->current.layout->nodes : 1;
	int disks = 1 + (m->current.layout ? m->current.layout->copies : m->config->job->checkpoint.replicas);
	if (m->saved_step >= 0 && m->config->local)
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "disk", "count", disks < nodes ? disks : nodes, "step",
						      (json_int_t)m->saved_step, "age_s", now - m->saved_at));
	if (m->shared_saved_step >= 0)
		json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:f}", "where", "shared", "count", 1, "step", (json_int_t)m->shared_saved_step, "age_s",
						      now - m->shared_saved_at));
	return list;
}

/* What is said of a node, NULL: nothing. Its member job, how slow it is, and for how many seconds it is left out still. */
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
	return n->benched ? json_real(fmax(0, n->benched_until - now)) : NULL;
}

/* { node: what is said of it } */
static json_t *by_node(const struct hspmd_machine *m, json_t *(*says)(const struct node *n, double now), double now)
{
	json_t *o = json_object();
	for (size_t i = 0; i < m->nodes; i++) {
		json_t *v = m->node[i]->held ? says(m->node[i], now) : NULL;
		if (v)
			json_object_set_new(o, m->node[i]->name, v);
	}
	return o;
}

json_t *hspmd_machine_status(const struct hspmd_machine *m, double now, double wall)
{
	char wait[600];
	waiting(m, wait, sizeof wait);
	char *nodes = folded(m);
	const struct layout *l = m->current.layout;
	char *plan = l ? hspmd_plan_line(l->plan, l->cluster) : NULL;
	bool runs = m->current.stage == STAGE_TRAINING;
	json_t *s = json_pack("{s:s, s:s, s:s?, s:i, s:I, s:i, s:s?, s:I, s:I, s:f, s:f, s:f, s:s, s:s, s:f, s:f}", "job", m->config->job_id, "phase",
			      phase(m), "nodes", nodes ? nodes : "", "node_count", nodes_held(m), "generation",
			      (json_int_t)(l ? l->generation : m->generation), "devices", l ? l->devices : 0, "plan", plan, "step", (json_int_t)m->told,
			      "steps", (json_int_t)m->config->job->steps, "loss", m->loss, "step_s", m->step_s, "tokens_per_s",
			      runs ? m->tokens_per_s : 0.0, "waiting_for", wait, "output", m->config->output, "up_s", now - m->began, "time", wall);
	free(nodes);
	free(plan);
	json_t *saved = m->saved_step >= 0 ? json_pack("{s:I, s:f, s:f}", "step", (json_int_t)m->saved_step, "age_s", now - m->saved_at, "seconds",
						       m->save_seconds)
					   : json_null();
	json_t *copies = json_pack("{s:b}", "by_plan", l && l->safe);
	if (copies && m->copied_step >= 0)
		json_object_update_new(copies, json_pack("{s:I, s:f, s:f}", "step", (json_int_t)m->copied_step, "age_s", now - m->copied_at, "seconds",
							 m->copy_seconds));
	if (s && (json_object_set_new(s, "checkpoint", saved) || json_object_set_new(s, "copies", copies))) {
		json_decref(s);
		return NULL;
	}
	if (s) {
		json_object_set_new(s, "state", state_copies(m, now));
		json_object_set_new(s, "members", by_node(m, member_job, now));
		json_object_set_new(s, "stragglers", by_node(m, slow, now));
		json_object_set_new(s, "left_out", by_node(m, left_out, now));
		if (json_array_size(m->waiting))
			json_object_set(s, "members_waiting", m->waiting);
	}
	if (s && m->trouble[0] && m->attempts)
		json_object_set_new(s, "trouble", json_string(m->trouble));
	return s;
}
