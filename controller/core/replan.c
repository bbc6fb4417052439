/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for a new plan: why one is wanted, and how often it has failed already. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define CAUSE_COUNT 7

/* A worker that complains of its peer, the peer's lost agent and Slurm's word that the node has left tell of one thing, the last the
 * most. */
static int cause_rank(const char *cause)
{
	static const char *const order[] = { "straggler", "fault", "worker-lost", "hang", "node-lost", "scontrol", "member-left" };
	for (int i = 0; i < CAUSE_COUNT; i++)
		if (!strcmp(cause, order[i]))
			return i;
	return CAUSE_COUNT; /* what was asked for, or how it began, stays */
}

static bool more_specific(const char *cause, const char *than)
{
	return cause_rank(cause) < CAUSE_COUNT && cause_rank(cause) > cause_rank(than);
}

void request_replan(struct hspmd_controller *m, const char *cause)
{
	struct change *c = &m->change;
	if (!c->open) {
		memset(c, 0, sizeof *c);
		c->open = true;
		c->noticed = m->now;
		c->last_step_at = NAN;
		c->from_nodes = m->current.bound_plan ? m->current.bound_plan->nodes : 0;
		snprintf(c->cause, sizeof c->cause, "%s", cause);
		c->optional = !strcmp(cause, "straggler");
	} else if (more_specific(cause, c->cause)) {
		snprintf(c->cause, sizeof c->cause, "%s", cause);
	}
	if (!c->wanted || more_specific(cause, c->next))
		snprintf(c->next, sizeof c->next, "%s", cause);
	c->optional = c->optional && !strcmp(cause, "straggler");
	c->wanted = true;
	c->not_before = m->now + m->config->timeouts.debounce;
}

/* All train by the plan that was wanted, though perhaps no step of it is done yet: somebody is waiting for the nodes it does not use. */
bool is_switched(const struct hspmd_controller *m)
{
	return m->current.phase == PHASE_TRAINING && m->next.phase == PHASE_NONE && !m->change.wanted;
}

bool is_steady(const struct hspmd_controller *m)
{
	return is_switched(m) && !m->change.open;
}

bool check_attempts(struct hspmd_controller *m)
{
	if (m->attempts <= m->config->max_attempts || m->end != END_NONE)
		return false;
	end_run(m, 1, "given up after %d attempts without a step: %s", m->attempts, m->last_error);
	return true;
}
