/* SPDX-License-Identifier: Apache-2.0 */
/* Member jobs: further jobs of the same user that bring nodes. They start their agents themselves, which end with them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

void members_update(struct hspmd_controller *m, const json_t *allocation)
{
	json_t *waiting = json_object_get(allocation, "waiting"), *over = json_object_get(allocation, "over");
	json_decref(m->waiting);
	json_decref(m->over);
	m->waiting = json_incref(waiting);
	m->over = json_incref(over);
}

void member_update(struct hspmd_controller *m, struct node *n, const json_t *allocation)
{
	json_t *job = json_object_get(json_object_get(allocation, "members"), n->name);
	bool came = !n->held;
	n->held = true;
	n->member = json_is_integer(job) ? json_integer_value(job) : 0;
	n->unconfirmed_until = 0;
	if (came)
		n->released = false;
	/* Its agent connected before Slurm named the node. */
	if (came && n->agent == PROC_UP && (m->current.phase != PHASE_NONE || m->change.open))
		request_replan(m, "grow");
}

int64_t member_ending_job(const struct hspmd_controller *m, const struct node *n, const json_t *allocation)
{
	int64_t job = json_integer_value(json_object_get(json_object_get(allocation, "ending"), n->name));
	bool its = n->member ? job == n->member : m->adopt != NULL; /* a new controller does not know yet */
	return its && n->agent == PROC_UP && !n->leaving && !n->released ? job : 0;
}

void member_terminating(struct hspmd_controller *m, struct node *n)
{
	if (n->terminating)
		return;
	n->terminating = true;
	note_event(m, "member_leaving", "node %s is leaving: its member job %lld was told to end", n->name, (long long)n->member);
	request_replan(m, "member-left");
}

bool member_exit_reason(const struct hspmd_controller *m, const struct node *n, char *text, size_t size)
{
	char id[24];
	snprintf(id, sizeof id, "%lld", (long long)n->member);
	const char *how = n->member ? json_string_value(json_object_get(m->over, id)) : NULL;
	if (how)
		snprintf(text, size, "node %s left: member job %s %s", n->name, id, how);
	return how != NULL;
}

bool member_admit(struct hspmd_controller *m, struct node *n, const json_t *hello)
{
	const char *job = json_string_value(json_object_get(hello, "job"));
	if (n->held || !m->config->members || m->end != END_NONE || !job || !strcmp(job, m->config->job_id))
		return false;
	n->unconfirmed_until = m->now + m->config->timeouts.startup;
	emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
	return true;
}

static bool is_released(const struct node *n)
{
	return n->released;
}

void member_release(struct hspmd_controller *m, struct node *n, const char *why)
{
	if (!n->member || n->released || m->end != END_NONE)
		return;
	n->released = true;
	note_event(m, "member_released", "node %s is given back: %s", n->name, why);
	release_nodes(m, is_released, 0);
}

static bool is_in_use(const struct hspmd_controller *m, const struct node *n)
{
	for (int i = 0; i < n->workers; i++)
		if (member_index(&m->current, n->worker[i]) >= 0 || bound_plan_uses(m->current.bound_plan, n->worker[i]) ||
		    bound_plan_uses(m->next.bound_plan, n->worker[i]))
			return true;
	return !is_steady(m);
}

bool advance_members(struct hspmd_controller *m)
{
	bool any = false;
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (!n->member || !n->terminating || n->quit_sent || n->agent != PROC_UP || m->end != END_NONE || is_in_use(m, n))
			continue;
		n->quit_sent = any = true;
		send_node(m, n, json_pack("{s:s}", "type", "quit"));
	}
	return any;
}

void members_tick(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (n->unconfirmed_until == 0 || m->now < n->unconfirmed_until)
			continue;
		n->unconfirmed_until = 0;
		log_msg(m, HSPMD_LOG_WARNING, "the agent of %s must quit: the job does not hold the node", n->name);
		if (n->agent == PROC_UP)
			send_node(m, n, json_pack("{s:s}", "type", "quit"));
	}
}

double members_deadline(const struct hspmd_controller *m)
{
	double first = INFINITY;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->unconfirmed_until > 0)
			first = fmin(first, m->node[i]->unconfirmed_until);
	return first;
}
