/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of the search: the best plans found are refined, then reshaped, then interleaved. */
#include <stdlib.h>

#include "controller/solver/search.h"

#define WORK_MOST 400000 /* stages timed while refining, */
#define WORK_LEAST 100    /* or plans as large as the best, if that is more */

int hspmd_refine(struct hspmd_search *s)
{
	struct hspmd_plan *copies[HSPMD_POOL_BEST + 1];
	int best = s->pool.count < HSPMD_POOL_BEST ? s->pool.count : HSPMD_POOL_BEST, count = best + (best && s->start), rc = 0;
	long stages = 0, budget = WORK_MOST;
	for (int i = 0; count && i < s->pool.best[0].plan->pipeline_count; i++)
		stages += s->pool.best[0].plan->pipelines[i].stage_count;
	budget = budget > WORK_LEAST * stages ? budget : WORK_LEAST * stages;
	for (int i = 0; i < count; i++) {
		copies[i] = hspmd_plan_copy(i < best ? s->pool.best[i].plan : s->start);
		rc = rc || !copies[i] ? -1 : 0;
	}
	for (int i = 0; i < count; i++) {
		if (rc || budget <= 0 || hspmd_search_is_over(s))
			hspmd_plan_destroy(copies[i]);
		else
			rc = hspmd_refine_plan(s, copies[i], &budget);
	}
	rc = rc ? rc : hspmd_reshape(s);
	return rc ? rc : hspmd_interleave(s);
}
