/* SPDX-License-Identifier: Apache-2.0 */
/* Settling after a failure: all survivors that are ready apply the last step, or none does. See controller.h for the argument. */
#include <stdlib.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

/* The sums of `step`, from the answer of a member that has applied it; borrowed. NULL: no member has. */
static json_t *totals(const struct generation *g, int64_t step)
{
	for (int i = 0; i < g->members; i++) {
		json_t *sums = json_object_get(g->answer[i], "sums");
		if (json_is_array(sums) && message_integer(g->answer[i], "applied", -1) == step)
			return sums;
	}
	return NULL;
}

/* The step that the members that are ready for it must apply; -1: none. */
static int64_t step_to_apply(const struct generation *g)
{
	int64_t last = -1, first = INT64_MAX;
	for (int i = 0; i < g->members; i++) {
		if (!g->member[i]->holds)
			continue;
		int64_t next = message_integer(g->answer[i], "step", -1);
		last = next > last ? next : last;
		first = next < first ? next : first;
	}
	return first < last && totals(g, last - 1) ? last - 1 : -1;
}

void settle_collect(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	for (int i = g->members - 1; i >= 0; i--) {
		struct worker *w = g->member[i];
		json_t *holds = json_object_get(g->answer[i], "holds");
		if (w->adopted && json_is_null(holds)) {
			/* An earlier incarnation started it, perhaps to take up the state of another worker: this is started again. */
			send_kill(m, w, w->serial);
			w->process = PROC_NONE;
			w->holds = 0;
			generation_remove_member(g, w);
			if (bound_plan_uses(m->next.bound_plan, w)) { /* it would wait for this process */
				next_drop(m);
				m->change.wanted = true;
			}
			continue;
		}
		if (holds)
			w->holds = json_integer_value(holds); /* null: no state */
		if (w->holds != g->bound_plan->generation && !(m->older && w->holds == m->older->generation))
			w->holds = 0; /* of a plan that is not known any more */
	}
}

bool settle_begin(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	int64_t apply = step_to_apply(g);
	json_t *sums = apply >= 0 ? json_incref(totals(g, apply)) : json_null();
	int64_t generation = g->bound_plan->generation;
	struct worker **to[2] = { hspmd_calloc((size_t)g->members, sizeof *to[0]), hspmd_calloc((size_t)g->members, sizeof *to[1]) };
	int count[2] = { 0, 0 }; /* of those that keep what they have, and of those that apply the step */
	for (int i = 0; i < g->members; i++) {
		struct worker *w = g->member[i];
		w->step = message_integer(g->answer[i], "step", -1);
		if (w->holds == generation)
			report_losses(m, json_object_get(g->answer[i], "losses"));
		bool does = apply >= 0 && message_integer(g->answer[i], "ready", -1) == apply;
		if (to[does])
			to[does][count[does]++] = w;
	}
	m->failed |= !to[0] || !to[1];
	send_workers(m, to[0], count[0], json_pack("{s:s, s:I, s:n}", "type", "settle", "generation", (json_int_t)generation, "apply"));
	send_workers(m, to[1], count[1],
	             json_pack("{s:s, s:I, s:I, s:O}", "type", "settle", "generation", (json_int_t)generation, "apply", (json_int_t)apply,
	                       "sums", sums));
	free(to[0]);
	free(to[1]);
	json_decref(sums);
	enter_phase(g, PHASE_SETTLING, m->now, m->config->timeouts.settle);
	return true;
}

void settle_end(struct hspmd_controller *m)
{
	/* The state of a member that is behind the others is of no use. */
	for (int i = 0; i < m->current.members; i++)
		if (m->current.member[i]->step < m->step)
			m->current.member[i]->holds = 0;
	check_attempts(m);
}
