/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of the search: the best plans found are refined, then changed by beam search or reshaped, then interleaved. */
#include <stdlib.h>

#include "controller/solver/search/search_internal.h"

#define WORK_MAX 400000 /* most stages timed while refining, ... */
#define WORK_MIN 100    /* ... or so many plans of the best plan's size, if that is more */
#define BEFORE_BEAM 4   /* plans that are refined if a beam search follows, besides the best one of each number of pipelines */

/* Returns true if a better plan than the i-th has as many pipelines. */
static bool is_like_better(const struct hspmd_best_plans *best, int i)
{
	for (int k = 0; k < i; k++)
		if (best->list[k].plan->pipeline_count == best->list[i].plan->pipeline_count)
			return true;
	return false;
}

int hspmd_refine_plans(struct hspmd_search *s)
{
	struct hspmd_plan *copies[HSPMD_BEST_PLANS + 1];
	int most = s->best_plans.count < HSPMD_BEST_PLANS ? s->best_plans.count : HSPMD_BEST_PLANS, count = 0, rc = 0;
	long stages = most ? hspmd_stage_count(s->best_plans.list[0].plan) : 0, budget = WORK_MAX;
	budget = budget > WORK_MIN * stages ? budget : WORK_MIN * stages;
	for (int i = 0; i <= most && !rc; i++) {
		const struct hspmd_plan *p = i == most ? s->start : s->best_plans.list[i].plan;
		if (!p || !most || (i < most && s->best_plans.list[i].refined))
			continue;
		if (stages > HSPMD_RESHAPED_STAGES && i >= BEFORE_BEAM && i < most && is_like_better(&s->best_plans, i))
			continue;
		rc = (copies[count] = hspmd_plan_copy(p)) ? 0 : -1;
		count += !rc;
	}
	for (int i = 0; i < count; i++) {
		if (rc || budget <= 0 || hspmd_search_is_over(s))
			hspmd_plan_destroy(copies[i]);
		else
			rc = hspmd_local_search(s, copies[i], &budget);
	}
	return !rc && stages > HSPMD_RESHAPED_STAGES ? hspmd_beam_search(s) : rc;
}

/* The last plan that was reshaped may have come to the end of the work that is allowed for all while changes still helped it. */
static int refine_best(struct hspmd_search *s)
{
	long stages = s->best_plans.count ? hspmd_stage_count(s->best_plans.list[0].plan) : 0, budget = WORK_MIN * stages;
	if (!stages || stages > HSPMD_RESHAPED_STAGES || hspmd_search_is_over(s))
		return 0;
	struct hspmd_plan *copy = hspmd_plan_copy(s->best_plans.list[0].plan);
	return copy ? hspmd_local_search(s, copy, &budget) : -1;
}

int hspmd_reshape_plans(struct hspmd_search *s)
{
	int rc = hspmd_reshape(s);
	rc = rc ? rc : refine_best(s);
	return rc ? rc : hspmd_interleave(s);
}
