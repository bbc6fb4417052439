/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of the search: the best plans found are refined, changed by beam search from several beginnings or reshaped, then
 * interleaved. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/search_internal.h"

#define WORK_MAX 400000 /* most stages timed while refining, ... */
#define WORK_MIN 100    /* ... or so many plans of the best plan's size, if that is more */
#define BEFORE_BEAM 4   /* plans that are refined if a beam search follows, besides the best one of each number of pipelines; */
#define WORK_BEFORE 40  /* ... plans of the best one's size that are timed for that */

#define AGAIN_LEAST 64     /* number of devices from which on beam searches have further beginnings, */
#define AGAIN_MOST 512     /* ... and up to which; */
#define AGAIN_WIDTH 2      /* ... one of stages of at most so many devices */
#define AGAIN_JUDGED 12000 /* drafts; if fewer were judged, there is time to search from each of them again */

/* Returns true if a better plan than the i-th has as many pipelines. */
static bool is_like_better(const struct hspmd_best_plans *best, int i)
{
	for (int k = 0; k < i; k++)
		if (best->list[k].plan->pipeline_count == best->list[i].plan->pipeline_count)
			return true;
	return false;
}

/* ---- beginnings of beam searches */

/* The sequences that were found last become a beginning. */
static int add_beginning(struct hspmd_search *s, unsigned schedules)
{
	struct hspmd_beginning *own = &s->beginnings[s->beginning_count];
	int count = s->warm_start_count;
	*own = (struct hspmd_beginning){ hspmd_calloc((size_t)count + 1, sizeof *own->starts), count, schedules }; /* there may be none */
	if (!own->starts)
		return -1;
	memcpy(own->starts, s->warm_starts, (size_t)count * sizeof *own->starts);
	s->beginning_count++;
	return 0;
}

/* Find the sequences that do well with micro-batches of this size; for ZB-H1 alone also plans, whose pipelines may differ. */
static int find_sequences(struct hspmd_search *s, int micro_batch)
{
	struct hspmd_candidates l = { 0 };
	struct hspmd_submesh_tables *t =
	        hspmd_submesh_tables_new(s->costs, s->device_classes, &s->caps, micro_batch, HSPMD_DRAFT_OFFLOADS_NOTHING, NULL);
	if (!t)
		return -1;
	s->warm_start_count = s->warm_start_any = 0;
	t->schedule = s->caps.schedules & 1u << HSPMD_SCHEDULE_1F1B ? HSPMD_SCHEDULE_1F1B : HSPMD_SCHEDULE_ZB_H1;
	bool zero = s->caps.max_zero_stage > 0;
	int rc = hspmd_candidates_fill(s, t, 2, zero, NULL, &l);
	if (t->schedule == HSPMD_SCHEDULE_ZB_H1)
		rc = rc ? rc : hspmd_assemble(s, t, &l, INT_MAX, zero);
	hspmd_candidates_clear(&l);
	hspmd_submesh_tables_destroy(t);
	return rc;
}

/* Add a beginning: the sequences of stages of at most so many devices, or for these schedules alone. */
static int find_beginning(struct hspmd_search *s, int width, unsigned schedules)
{
	int widest = s->widest, micro_batch = s->best_plans.list[0].plan->micro_batch;
	unsigned allowed = s->caps.schedules;
	bool done = (allowed & schedules) == allowed && width >= widest; /* the first search was the same */
	if (!(allowed & schedules) || done || s->request->global_batch % micro_batch || hspmd_search_is_over(s))
		return 0;
	s->widest = width < widest ? width : widest;
	s->caps.schedules = allowed & schedules;
	s->few_sequences = s->caps.schedules != allowed;
	int rc = find_sequences(s, micro_batch);
	s->widest = widest;
	s->caps.schedules = allowed;
	s->few_sequences = false;
	return rc ? rc : add_beginning(s, allowed & schedules);
}

/* Which drafts lead to good plans is only seen at the end: larger steps from different beginnings end at plans that differ by some per
 * cent. So there are other sequences to begin with than those of the first search: of narrow stages; then for ZB-H1, for which until then
 * only those were tried that did well with 1F1B. Where there are few devices the search misses little; where there are many, time is
 * short. */
static int find_beginnings(struct hspmd_search *s)
{
	int devices = s->costs->cluster->device_count;
	if (add_beginning(s, s->caps.schedules))
		return -1;
	if (devices < AGAIN_LEAST || devices > AGAIN_MOST || s->migration)
		return 0;
	int rc = find_beginning(s, AGAIN_WIDTH, s->caps.schedules);
	return rc ? rc : find_beginning(s, s->widest, 1u << HSPMD_SCHEDULE_ZB_H1);
}

int hspmd_refine_plans(struct hspmd_search *s)
{
	struct hspmd_plan *copies[HSPMD_BEST_PLANS + 1];
	int most = s->best_plans.count < HSPMD_BEST_PLANS ? s->best_plans.count : HSPMD_BEST_PLANS, count = 0, rc = 0;
	long stages = most ? hspmd_stage_count(s->best_plans.list[0].plan) : 0, budget = WORK_MAX;
	budget = budget > WORK_MIN * stages ? budget : WORK_MIN * stages;
	budget = stages > HSPMD_RESHAPED_STAGES ? WORK_BEFORE * stages : budget;
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
	if (rc || stages <= HSPMD_RESHAPED_STAGES)
		return rc;
	return find_beginnings(s) ? -1 : hspmd_beam_search(s, s->beginnings, s->beginning_count);
}

int hspmd_begin_again(struct hspmd_search *s)
{
	int rc = 0;
	for (int i = 1; i < s->beginning_count && !rc && s->judged < AGAIN_JUDGED; i++)
		rc = hspmd_beam_search(s, &s->beginnings[i], 1);
	return rc;
}

/* The work that is allowed for all plans may have come to its end while changes still helped the best one. */
static int refine_best(struct hspmd_search *s)
{
	long stages = s->best_plans.count ? hspmd_stage_count(s->best_plans.list[0].plan) : 0, budget = WORK_MIN * stages;
	if (!stages || stages > HSPMD_RESHAPED_STAGES || s->best_plans.list[0].refined || hspmd_search_is_over(s))
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
