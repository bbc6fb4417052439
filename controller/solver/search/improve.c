/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of the search: the best plans found are refined, then changed by beam search or reshaped, then interleaved. */
#include <stdlib.h>

#include "controller/solver/search/search_internal.h"

#define WORK_MAX 400000 /* most stages timed while refining, ... */
#define WORK_MIN 100    /* ... or so many plans of the best plan's size, if that is more */

int hspmd_improve_plans(struct hspmd_search *s)
{
	struct hspmd_plan *copies[HSPMD_BEST_PLANS + 1];
	int best = s->best_plans.count < HSPMD_BEST_PLANS ? s->best_plans.count : HSPMD_BEST_PLANS, count = best + (best && s->start),
	    rc = 0;
	long stages = 0, budget = WORK_MAX;
	for (int i = 0; count && i < s->best_plans.list[0].plan->pipeline_count; i++)
		stages += s->best_plans.list[0].plan->pipelines[i].stage_count;
	budget = budget > WORK_MIN * stages ? budget : WORK_MIN * stages;
	for (int i = 0; i < count; i++) {
		copies[i] = hspmd_plan_copy(i < best ? s->best_plans.list[i].plan : s->start);
		rc = rc || !copies[i] ? -1 : 0;
	}
	for (int i = 0; i < count; i++) {
		if (rc || budget <= 0 || hspmd_search_is_over(s))
			hspmd_plan_destroy(copies[i]);
		else
			rc = hspmd_local_search(s, copies[i], &budget);
	}
	if (!rc && stages > HSPMD_RESHAPED_STAGES)
		rc = hspmd_beam_search(s);
	rc = rc ? rc : hspmd_reshape(s);
	return rc ? rc : hspmd_interleave(s);
}
