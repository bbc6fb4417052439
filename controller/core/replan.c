/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for a new plan, and their causes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define BETTER_PLAN "better-plan"
#define CAUSE_COUNT 8

/* One loss may show as a worker's complaint about its peer, as the loss of the peer's agent, and as Slurm's report that the node has left.
 * The higher the rank, the more the cause says. */
static int cause_rank(const char *cause)
{
	static const char *const order[] = { BETTER_PLAN, "straggler", "fault",    "worker-lost",
		                             "hang",      "node-lost", "scontrol", "member-left" };
	for (int i = 0; i < CAUSE_COUNT; i++)
		if (!strcmp(cause, order[i]))
			return i;
	return CAUSE_COUNT; /* other causes (a request, the start) are kept */
}

static bool more_specific(const char *cause, const char *than)
{
	return cause_rank(cause) < CAUSE_COUNT && cause_rank(cause) > cause_rank(than);
}

void change_open(struct hspmd_controller *m, const char *cause)
{
	struct change *c = &m->change;
	if (c->open)
		return;
	memset(c, 0, sizeof *c);
	c->open = true;
	c->noticed = m->now;
	c->last_step_at = NAN;
	c->from_nodes = m->current.bound_plan ? m->current.bound_plan->nodes : 0;
	snprintf(c->cause, sizeof c->cause, "%s", cause);
	snprintf(c->next, sizeof c->next, "%s", cause);
}

void request_replan(struct hspmd_controller *m, const char *cause)
{
	struct change *c = &m->change;
	if (!c->open) {
		change_open(m, cause);
		c->optional = !strcmp(cause, "straggler");
	} else if (more_specific(cause, c->cause) || (!c->started && !strcmp(c->cause, BETTER_PLAN))) {
		snprintf(c->cause, sizeof c->cause, "%s", cause);
	}
	if (!c->wanted || more_specific(cause, c->next))
		snprintf(c->next, sizeof c->next, "%s", cause);
	c->optional = c->optional && !strcmp(cause, "straggler");
	c->wanted = true;
	c->not_before = m->now + m->config->timeouts.debounce;
}

bool change_pays_off(const struct hspmd_controller *m, double current_s, double plan_s, struct hspmd_error *why)
{
	if (!(current_s > 0) || !(plan_s > 0))
		return true;
	double gain = 1 - plan_s / current_s, left = (double)(m->config->job->steps - m->steps_reported) * m->step_s;
	if (gain >= m->config->policy_terms.min_gain && gain * left > m->pause_s)
		return true;
	hspmd_fail(why, "another would be %.1f %% faster and save %.1f s, and the change would cost %.1f s", 100 * fmax(0, gain),
	           fmax(0, gain) * left, m->pause_s);
	return false;
}

bool is_switched(const struct hspmd_controller *m)
{
	return m->current.phase == PHASE_TRAINING && m->next.phase == PHASE_NONE && !m->change.wanted;
}

bool is_steady(const struct hspmd_controller *m)
{
	return is_switched(m) && !m->change.open;
}
