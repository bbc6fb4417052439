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
 * queues. Larger changes, each of which is followed by these, are in reshape.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/search_internal.h"

#define EPSILON 1e-9 /* least relative gain that counts */

struct local_search {
	struct hspmd_search *s;
	struct hspmd_plan *p;
	double seconds;
	int *group;               /* per pipeline: the first pipeline equal to it */
	double *ends;             /* per pipeline: end of its last backward pass */
	struct hspmd_stage *ways; /* per stage of all pipelines: how it keeps what passes save, before the change */
	long budget;
	bool offload; /* some device could */
};

int hspmd_stage_count(const struct hspmd_plan *p)
{
	int stages = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		stages += p->pipelines[i].stage_count;
	return stages;
}

bool hspmd_pipelines_alike(const struct hspmd_search *s, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b)
{
	if (a->stage_count != b->stage_count || a->micro_batch != b->micro_batch)
		return false;
	for (int i = 0; i < a->stage_count; i++) {
		const struct hspmd_stage *x = &a->stages[i], *y = &b->stages[i];
		if (x->layers[1] != y->layers[1] || x->device_count != y->device_count || x->shard_ratio || y->shard_ratio ||
		    x->offload != y->offload || x->offload_activations != y->offload_activations ||
		    x->sequence_parallel != y->sequence_parallel)
			return false;
		for (int d = 0; d < x->device_count; d++)
			if (s->device_classes->class_of_device[x->devices[d]] != s->device_classes->class_of_device[y->devices[d]])
				return false;
	}
	return true;
}

static void find_groups(struct local_search *r)
{
	for (int i = 0; i < r->p->pipeline_count; i++) {
		r->group[i] = i;
		for (int k = 0; k < i && r->group[i] == i; k++)
			if (r->group[k] == k && hspmd_pipelines_alike(r->s, &r->p->pipelines[k], &r->p->pipelines[i]))
				r->group[i] = k;
	}
}

/* Seconds of a step of the plan as it is now, which fits; INFINITY if the step is not shorter than `below`. */
static double timed_fitting(struct local_search *r, double below)
{
	struct hspmd_timing t;
	int status = hspmd_timing_compute_below(r->s->costs, r->p, r->s->known, below, &t, NULL);
	if (status < 0)
		return INFINITY;
	r->s->evaluated++;
	for (int i = 0; i < r->p->pipeline_count; i++)
		r->budget -= r->p->pipelines[i].stage_count;
	if (status)
		return INFINITY;
	for (int i = 0; i < r->p->pipeline_count; i++)
		r->ends[i] = t.stages[t.first_stage[i]].end;
	double seconds = t.step_s;
	hspmd_timing_clear(&t);
	return seconds;
}

/* The same; INFINITY also if it does not fit. */
static double timed_below(struct local_search *r, double below)
{
	return hspmd_plan_fits(r->s->costs, r->p) ? timed_fitting(r, below) : INFINITY;
}

/* Of a change: a step that is not shorter is of no use. */
static double timed(struct local_search *r)
{
	return timed_below(r, r->seconds);
}

static bool better(const struct local_search *r, double seconds)
{
	return seconds < r->seconds * (1 - EPSILON);
}

static bool go_on(struct local_search *r)
{
	return r->budget > 0 && !hspmd_search_is_over(r->s);
}

/* Choose the fastest way in which stage s of pipeline i fits to keep what its passes save. Returns false if there is none. */
static bool choose_way(struct local_search *r, int i, int s)
{
	return hspmd_stage_choose_way(r->s, r->p, i, s, false);
}

/* Pipeline i is equal to k and runs as many micro-batches, so its stages fit in the same ways. */
static bool fits_as(const struct local_search *r, int i, int k)
{
	return r->group[i] == r->group[k] && !r->p->has_zero_shares && r->p->pipelines[i].micro_batches == r->p->pipelines[k].micro_batches;
}

/* Move the boundary after stage s by `by` layers in pipeline i, and if `all`, also in all pipelines equal to it. */
static bool shift(struct local_search *r, int i, int s, int by, bool all)
{
	bool fits = true;
	for (int k = i; k < r->p->pipeline_count; k++) {
		if (k != i && (!all || r->group[k] != r->group[i]))
			continue;
		struct hspmd_stage *st = r->p->pipelines[k].stages;
		st[s].layers[1] += by;
		st[s + 1].layers[0] += by;
		if (k == i || !fits_as(r, k, i)) {
			fits = fits && choose_way(r, k, s) && choose_way(r, k, s + 1);
			continue;
		}
		hspmd_stage_copy_way(&r->p->pipelines[i].stages[s], &st[s]);
		hspmd_stage_copy_way(&r->p->pipelines[i].stages[s + 1], &st[s + 1]);
	}
	return fits;
}

static bool try_border(struct local_search *r, int i, int s, int by, bool all)
{
	const struct hspmd_stage *st = r->p->pipelines[i].stages;
	if (st[s].layers[1] + by <= st[s].layers[0] || st[s].layers[1] + by >= st[s + 1].layers[1])
		return false;
	/* Two stages have changed, and ways have been chosen in which they fit. */
	bool fits = shift(r, i, s, by, all), others_fit = !isinf(r->seconds) && !r->p->has_zero_shares && r->p->virtual_stages == 1;
	double seconds = !fits ? INFINITY : others_fit ? timed_fitting(r, r->seconds) : timed(r);
	if (better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	shift(r, i, s, -by, all);
	return false;
}

static bool try_borders(struct local_search *r)
{
	static const int steps[] = { 1, -1, 2, -2 };
	bool any = false;
	for (int i = 0; i < r->p->pipeline_count && go_on(r); i++) {
		bool several = false;
		for (int k = i + 1; k < r->p->pipeline_count; k++)
			several = several || r->group[k] == i;
		for (int s = 0; s + 1 < r->p->pipelines[i].stage_count && go_on(r); s++)
			for (int k = 0; k < 4; k++) {
				if (r->group[i] == i && try_border(r, i, s, steps[k], true))
					any = true;
				else if ((several || r->group[i] != i) && r->p->pipeline_count <= 16 &&
				         try_border(r, i, s, steps[k], false)) {
					any = true;
					find_groups(r);
				}
			}
	}
	return any;
}

static bool give_one(struct local_search *r, int from, int to)
{
	r->p->pipelines[from].micro_batches--;
	r->p->pipelines[to].micro_batches++;
	double seconds = timed(r);
	if (better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	r->p->pipelines[from].micro_batches++;
	r->p->pipelines[to].micro_batches--;
	return false;
}

/* Move a micro-batch from the pipeline that ends last to one of those that end first. One pipeline of each partition is tried, because
 * the ends alone do not say how much longer a pipeline takes with one more. */
static bool move_micro_batch(struct local_search *r)
{
	int n = r->p->pipeline_count, last = 0;
	if (isinf(timed_below(r, INFINITY)))
		return false;
	for (int i = 1; i < n; i++)
		if (r->ends[i] > r->ends[last])
			last = i;
	if (r->p->pipelines[last].micro_batches < 2)
		return false;
	for (int i = 0; i < n && go_on(r); i++) {
		int first = -1;
		if (r->group[i] != i)
			continue;
		for (int k = i; k < n; k++)
			if (k != last && r->group[k] == i && r->p->pipelines[k].micro_batch == r->p->pipelines[last].micro_batch &&
			    (first < 0 || r->p->pipelines[k].micro_batches < r->p->pipelines[first].micro_batches))
				first = k;
		if (first >= 0 && give_one(r, last, first))
			return true;
	}
	return false;
}

static bool try_micro_batches(struct local_search *r)
{
	bool any = false;
	while (go_on(r) && r->p->pipeline_count > 1 && move_micro_batch(r))
		any = true;
	return any;
}

static bool try_zero(struct local_search *r)
{
	if (r->p->pipeline_count < 2 || r->s->caps.max_zero_stage < 1)
		return false;
	r->p->zero_stage = !r->p->zero_stage;
	double seconds = timed(r);
	if (better(r, seconds)) {
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
			if (like < i && fits_as(r, i, like))
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
	if (better(r, seconds)) {
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
	if (better(r, seconds)) {
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
	for (int i = 0; r->offload && i < r->p->pipeline_count && go_on(r); i++)
		for (int s = 0; r->group[i] == i && s < r->p->pipelines[i].stage_count / r->p->virtual_stages && go_on(r); s++)
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
	if (better(r, seconds)) {
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
	if (better(r, seconds)) {
		r->seconds = seconds;
		return true;
	}
	resize_micro_batches(r->p, !half);
	r->p->micro_batch = size;
	restore_ways(r);
	return false;
}

/* Swap the devices of neighbouring stages. */
static void swap_devices(struct local_search *r, int i, int s)
{
	for (int k = i; k < r->p->pipeline_count; k++) {
		if (r->group[k] != r->group[i])
			continue;
		struct hspmd_stage *a = &r->p->pipelines[k].stages[s], *b = a + 1, was = *a;
		a->device_count = b->device_count;
		a->devices = b->devices;
		a->shard_ratio = b->shard_ratio;
		a->sequence_parallel = b->sequence_parallel;
		b->device_count = was.device_count;
		b->devices = was.devices;
		b->shard_ratio = was.shard_ratio;
		b->sequence_parallel = was.sequence_parallel;
	}
}

static bool try_swaps(struct local_search *r)
{
	bool any = false;
	if (r->p->virtual_stages > 1) /* a pipeline rank has the same devices in every chunk */
		return false;
	for (int i = 0; i < r->p->pipeline_count && go_on(r); i++)
		for (int s = 0; r->group[i] == i && s + 1 < r->p->pipelines[i].stage_count && go_on(r); s++) {
			const struct hspmd_stage *a = &r->p->pipelines[i].stages[s], *b = a + 1;
			if (a->device_count == b->device_count &&
			    r->s->device_classes->class_of_device[a->devices[0]] == r->s->device_classes->class_of_device[b->devices[0]])
				continue;
			swap_devices(r, i, s);
			double seconds = timed(r);
			if (better(r, seconds)) {
				r->seconds = seconds;
				any = true;
			} else {
				swap_devices(r, i, s);
			}
		}
	return any;
}

int hspmd_local_search(struct hspmd_search *s, struct hspmd_plan *p, long *budget)
{
	struct local_search r = { .s = s, .p = p, .budget = *budget, .offload = hspmd_search_can_offload(s) };
	if (p->zero_stage > 1) /* most moves would put its pipelines out of step */
		return hspmd_best_plans_offer(s, p, NULL);
	r.group = hspmd_calloc((size_t)p->pipeline_count, sizeof *r.group);
	r.ends = hspmd_calloc((size_t)p->pipeline_count, sizeof *r.ends);
	r.ways = hspmd_calloc((size_t)hspmd_stage_count(p), sizeof *r.ways);
	if (!r.group || !r.ends || !r.ways) {
		free(r.group);
		free(r.ends);
		free(r.ways);
		hspmd_plan_destroy(p);
		return -1;
	}
	find_groups(&r);
	r.seconds = timed_below(&r, INFINITY);
	bool again = true, whole = false; /* the last pass came to its end */
	while (again && go_on(&r)) {
		again = try_zero(&r);
		again = try_ways(&r) || again;
		again = try_offload(&r) || again;
		again = try_schedule(&r) || again;
		again = try_micro_batch_size(&r, true) || try_micro_batch_size(&r, false) || again;
		again = try_micro_batches(&r) || again;
		again = try_borders(&r) || again;
		again = try_swaps(&r) || again;
		whole = go_on(&r);
	}
	if (r.offload)
		hspmd_plan_offload_least(s, p);
	*budget = r.budget;
	free(r.group);
	free(r.ends);
	free(r.ways);
	return whole && !again ? hspmd_best_plans_offer_refined(s, p) : hspmd_best_plans_offer(s, p, NULL);
}
