/* SPDX-License-Identifier: Apache-2.0 */
/* Members: nodes that other jobs of this user bring. Their agents come by themselves, and go with their jobs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/run/machine_private.h"

void members_told(struct hspmd_machine *m, const json_t *allocation)
{
	json_t *waiting = json_object_get(allocation, "waiting"), *over = json_object_get(allocation, "over");
	json_decref(m->waiting);
	json_decref(m->over);
	m->waiting = json_incref(waiting);
	m->over = json_incref(over);
}

void member_set(struct hspmd_machine *m, struct node *n, const json_t *allocation)
{
	json_t *job = json_object_get(json_object_get(allocation, "members"), n->name);
	bool came = !n->held;
	n->held = true;
	n->member = json_is_integer(job) ? json_integer_value(job) : 0;
	n->guest_until = 0;
	if (came)
		n->abandoned = false;
	/* Its agent was here before Slurm named the node. */
	if (came && n->agent == LIFE_UP && (m->current.stage != STAGE_NONE || m->change.open))
		want_plan(m, "grow");
}

bool member_why(const struct hspmd_machine *m, const struct node *n, char *text, size_t size)
{
	char id[24];
	snprintf(id, sizeof id, "%lld", (long long)n->member);
	const char *how = n->member ? json_string_value(json_object_get(m->over, id)) : NULL;
	if (how)
		snprintf(text, size, "node %s left: member job %s %s", n->name, id, how);
	return how != NULL;
}

bool member_guest(struct hspmd_machine *m, struct node *n, const json_t *hello)
{
	const char *job = json_string_value(json_object_get(hello, "job"));
	if (n->held || !m->config->members || m->end != END_NONE || !job || !strcmp(job, m->config->job_id))
		return false;
	n->guest_until = m->now + m->config->patience.gather;
	act(m, RUN_POLL, NULL, NULL, 0);
	return true;
}

static bool is_abandoned(const struct node *n)
{
	return n->abandoned;
}

void member_abandon(struct hspmd_machine *m, struct node *n, const char *why)
{
	if (!n->member || n->abandoned || m->end != END_NONE)
		return;
	n->abandoned = true;
	note_event(m, "member_abandoned", "node %s is given back: %s", n->name, why);
	give_back(m, is_abandoned, 0);
}

static bool is_needed(const struct hspmd_machine *m, const struct node *n)
{
	for (int i = 0; i < n->workers; i++)
		if (member_of(&m->current, n->worker[i]) >= 0 || layout_uses(m->current.layout, n->worker[i]) || layout_uses(m->next.layout, n->worker[i]))
			return true;
	return !calm(m);
}

bool advance_members(struct hspmd_machine *m)
{
	bool any = false;
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (!n->member || !n->ending || n->dismissed || n->agent != LIFE_UP || m->end != END_NONE || is_needed(m, n))
			continue;
		n->dismissed = any = true;
		send_node(m, n, json_pack("{s:s}", "type", "quit"));
	}
	return any;
}

void members_time(struct hspmd_machine *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (n->guest_until == 0 || m->now < n->guest_until)
			continue;
		n->guest_until = 0;
		say(m, HSPMD_LOG_WARNING, "the agent of %s is sent away: the job does not hold the node", n->name);
		if (n->agent == LIFE_UP)
			send_node(m, n, json_pack("{s:s}", "type", "quit"));
	}
}

double members_deadline(const struct hspmd_machine *m)
{
	double first = INFINITY;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->guest_until > 0)
			first = fmin(first, m->node[i]->guest_until);
	return first;
}
