/* SPDX-License-Identifier: Apache-2.0 */
/* Refinement: single changes to a plan, each timed by the simulator and kept if the step gets shorter, until none helps.
 *
 * - move a boundary between two stages by a layer or two, in all pipelines with the same partition or in one
 * - move a micro-batch from the pipeline that ends last to another one
 * - divide the optimizer state (ZeRO-1) or not
 * - swap two neighbouring stages
 * - run the passes in another order (1F1B, ZB-H1)
 * - put a stage's optimizer state into the host's memory, so that it recomputes or offloads less of its activations, or back
 * - halve or double the size of all micro-batches
 *
 * This accounts for what the estimates of the search leave out: uneven fill and drain, gradient synchronisation that overlaps with it,
 * queues. Changes of a single boundary, micro-batch or pair of stages are in local_changes.c, what both need of the plan in local_plan.c;
 * larger changes, each of which is followed by all these, in reshape.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/local_search_internal.h"

/* Of a change: a step that is not shorter is of no use. */
static double timed(struct local_search *r)
{
	return hspmd_local_time_below(r, r->seconds);
}

/* Choose the fastest way in which stage s of pipeline i fits to keep what its passes save. Returns false if there is none. */
static bool choose_way(struct local_search *r, int i, int s)
{
	return hspmd_stage_choose_way(r->s, r->p, i, s, false);
}

static bool try_zero(struct local_search *r)
{
	if (r->p->pipeline_count < 2 || r->s->caps.max_zero_stage < 1)
		return false;
	r->p->zero_stage = !r->p->zero_stage;
	double seconds = timed(r);
	if (hspmd_local_better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	r->p->zero_stage = !r->p->zero_stage;
	return false;
}

/* Choose the ways of all stages anew. Returns false if one does not fit. */
static bool choose_all_ways(struct local_search *r)
{
	bool fits = true;
	for (int i = 0, at = 0; i < r->p->pipeline_count; i++) {
		int like = r->group[i];
		for (int s = 0; s < r->p->pipelines[i].stage_count; s++) {
			hspmd_stage_copy_way(&r->p->pipelines[i].stages[s], &r->ways[at++]);
			if (like < i && hspmd_local_fits_as(r, i, like))
				hspmd_stage_copy_way(&r->p->pipelines[like].stages[s], &r->p->pipelines[i].stages[s]);
			else
				fits = fits && choose_way(r, i, s);
		}
	}
	return fits;
}

static void restore_ways(struct local_search *r)
{
	for (int i = 0, at = 0; i < r->p->pipeline_count; i++)
		for (int s = 0; s < r->p->pipelines[i].stage_count; s++)
			hspmd_stage_copy_way(&r->ways[at++], &r->p->pipelines[i].stages[s]);
}

/* Candidates are made by an estimate of memory that is never too low: some stages fit in a faster way. */
static bool try_ways(struct local_search *r)
{
	bool fits = choose_all_ways(r), other = false;
	for (int i = 0, at = 0; i < r->p->pipeline_count; i++)
		for (int s = 0; s < r->p->pipelines[i].stage_count; s++, at++) {
			const struct hspmd_stage *st = &r->p->pipelines[i].stages[s];
			other = other || st->recompute != r->ways[at].recompute ||
			        st->offload_activations != r->ways[at].offload_activations ||
			        st->sequence_parallel != r->ways[at].sequence_parallel;
		}
	double seconds = fits && other ? timed(r) : INFINITY;
	if (hspmd_local_better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	restore_ways(r);
	return false;
}

/* Put the optimizer's state of stage s of pipeline i, and of those equal to it, elsewhere. Returns false if a device cannot. */
static bool set_offload(struct local_search *r, int i, int s, enum hspmd_offload offload)
{
	bool can = true;
	for (int k = i; k < r->p->pipeline_count; k++)
		if (r->group[k] == r->group[i]) {
			hspmd_stage_set_offload(r->p, k, s, offload);
			can = can && (!offload || hspmd_stage_can_offload(r->s, &r->p->pipelines[k].stages[s]));
		}
	return can;
}

/* A stage that recomputes nothing and offloads no activations has memory enough. */
static bool try_offload_of(struct local_search *r, int i, int s)
{
	const struct hspmd_stage *st = &r->p->pipelines[i].stages[s];
	enum hspmd_offload was = st->offload, other = was ? HSPMD_OFFLOAD_NONE : HSPMD_OFFLOAD_OPTIMIZER;
	bool is_short = false;
	for (int k = s; k < r->p->pipelines[i].stage_count; k += r->p->pipelines[i].stage_count / r->p->virtual_stages)
		is_short = is_short || st[k - s].recompute != HSPMD_RECOMPUTE_NONE || st[k - s].offload_activations;
	if (!was && (!is_short || !hspmd_stage_can_offload(r->s, st)))
		return false;
	bool can = set_offload(r, i, s, other), fits = choose_all_ways(r);
	double seconds = can && fits ? timed(r) : INFINITY;
	if (hspmd_local_better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	set_offload(r, i, s, was);
	restore_ways(r);
	return false;
}

static bool try_offload(struct local_search *r)
{
	bool any = false;
	for (int i = 0; r->offload && i < r->p->pipeline_count && hspmd_local_go_on(r); i++)
		for (int s = 0; r->group[i] == i && s < r->p->pipelines[i].stage_count / r->p->virtual_stages && hspmd_local_go_on(r); s++)
			any = try_offload_of(r, i, s) || any;
	return any;
}

/* Switch between 1F1B and ZB-H1. */
static bool try_schedule(struct local_search *r)
{
	enum hspmd_schedule was = r->p->schedule, other = was == HSPMD_SCHEDULE_1F1B ? HSPMD_SCHEDULE_ZB_H1 : HSPMD_SCHEDULE_1F1B;
	bool deep = false;
	if ((was != HSPMD_SCHEDULE_1F1B && was != HSPMD_SCHEDULE_ZB_H1) || !(r->s->caps.schedules & 1u << other))
		return false;
	r->p->schedule = other;
	for (int i = 0; i < r->p->pipeline_count; i++)
		deep = deep || r->p->pipelines[i].stage_count > 1;
	bool fits = choose_all_ways(r);
	double seconds = deep && fits ? timed(r) : INFINITY;
	if (hspmd_local_better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	r->p->schedule = was;
	restore_ways(r);
	return false;
}

static void resize_micro_batches(struct hspmd_plan *p, bool half)
{
	for (int i = 0; i < p->pipeline_count; i++) {
		struct hspmd_pipeline *pipe = &p->pipelines[i];
		pipe->micro_batch = half ? pipe->micro_batch / 2 : pipe->micro_batch * 2;
		pipe->micro_batches = half ? pipe->micro_batches * 2 : pipe->micro_batches / 2;
	}
	p->micro_batch = p->pipelines[0].micro_batch;
}

/* Halve or double the size of all micro-batches: stages found for one size may do better with another. */
static bool try_micro_batch_size(struct local_search *r, bool half)
{
	if (r->s->request->micro_batch || r->p->virtual_stages > 1)
		return false;
	int parts = 0, size = r->p->micro_batch;
	for (int i = 0; i < r->p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &r->p->pipelines[i];
		parts += pipe->micro_batches;
		if ((half ? pipe->micro_batch : pipe->micro_batches) % 2 || (!half && 2 * pipe->micro_batch > HSPMD_MICRO_BATCH_MAX))
			return false;
	}
	if (half && 2 * parts > HSPMD_PARTS_MAX)
		return false;
	resize_micro_batches(r->p, half);
	double seconds = choose_all_ways(r) ? timed(r) : INFINITY;
	if (hspmd_local_better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	resize_micro_batches(r->p, !half);
	r->p->micro_batch = size;
	restore_ways(r);
	return false;
}

/* ---- until none helps */

static void local_search_clear(struct local_search *r)
{
	for (int i = 0; r->trials && i < r->threads; i++) {
		free(r->trials[i].pipelines);
		free(r->trials[i].stages);
		free(r->trials[i].ends);
	}
	free(r->trials);
	free(r->group);
	free(r->ends);
	free(r->ways);
}

/* One thread is enough for few stages. Returns 0, or -1 if memory runs out. */
static int local_search_prepare(struct local_search *r)
{
	size_t pipelines = (size_t)r->p->pipeline_count, stages = (size_t)hspmd_stage_count(r->p);
	r->threads = stages > HSPMD_RESHAPED_STAGES ? hspmd_search_threads(r->s) : 1;
	r->group = hspmd_calloc(pipelines, sizeof *r->group);
	r->ends = hspmd_calloc(pipelines, sizeof *r->ends);
	r->ways = hspmd_calloc(stages, sizeof *r->ways);
	r->trials = r->threads ? hspmd_calloc((size_t)r->threads, sizeof *r->trials) : NULL;
	bool fine = r->group && r->ends && r->ways && r->trials;
	for (int i = 0; fine && i < r->threads; i++) {
		struct trial *t = &r->trials[i];
		t->pipelines = hspmd_calloc(pipelines, sizeof *t->pipelines);
		t->stages = hspmd_calloc(stages, sizeof *t->stages);
		t->ends = hspmd_calloc(pipelines, sizeof *t->ends);
		fine = t->pipelines && t->stages && t->ends;
	}
	return fine ? 0 : -1;
}

int hspmd_local_search(struct hspmd_search *s, struct hspmd_plan *p, long *budget)
{
	struct local_search r = { .s = s, .p = p, .budget = *budget, .offload = hspmd_search_can_offload(s) };
	if (p->zero_stage > 1) /* most moves would put its pipelines out of step */
		return hspmd_best_plans_offer(s, p, NULL);
	if (local_search_prepare(&r)) {
		local_search_clear(&r);
		hspmd_plan_destroy(p);
		return -1;
	}
	hspmd_local_find_groups(&r);
	r.seconds = hspmd_local_time_below(&r, INFINITY);
	bool again = true, whole = false; /* the last pass came to its end */
	while (again && hspmd_local_go_on(&r)) {
		again = try_zero(&r);
		again = try_ways(&r) || again;
		again = try_offload(&r) || again;
		again = try_schedule(&r) || again;
		again = try_micro_batch_size(&r, true) || try_micro_batch_size(&r, false) || again;
		again = hspmd_local_try_micro_batches(&r) || again;
		again = hspmd_local_try_borders(&r) || again;
		again = hspmd_local_try_swaps(&r) || again;
		whole = hspmd_local_go_on(&r);
	}
	if (r.offload)
		hspmd_plan_offload_least(s, p);
	*budget = r.budget;
	local_search_clear(&r);
	return whole && !again ? hspmd_best_plans_offer_refined(s, p) : hspmd_best_plans_offer(s, p, NULL);
}
