/* SPDX-License-Identifier: Apache-2.0 */
/* The way in which a stage keeps what its forward passes save (submesh.h): the fastest in which it fits. Ways that offload are compared
 * only if the stage does not fit without recomputation. A way that recomputes as much as one that fits without offloading is no faster.
 *
 * In each way a tensor-parallel group has sequence parallelism or not, whichever is faster, or else whichever fits. */
#include <math.h>

#include "controller/solver/search/search_internal.h"

/* The stages that get a way: of one chunk, or those on the same devices in all. */
struct chunks {
	struct hspmd_search *s;
	struct hspmd_plan *p;
	int pipeline, stage, step; /* step: stages from one to the next */
	bool divides, faster;      /* sequence parallelism may be chosen; it is faster */
};

static void set_sequence(const struct chunks *x, bool sequence)
{
	struct hspmd_pipeline *pipe = &x->p->pipelines[x->pipeline];
	for (int k = x->stage; x->divides && k < pipe->stage_count; k += x->step)
		pipe->stages[k].sequence_parallel = sequence;
}

/* Chunks of the same devices have sequence parallelism all or none. A group of unequal shares has none. */
static void find_sequence(struct chunks *x)
{
	const struct hspmd_pipeline *pipe = &x->p->pipelines[x->pipeline];
	const struct hspmd_stage *stage = &pipe->stages[x->stage];
	bool all = x->p->virtual_stages == 1 || x->step == pipe->stage_count / x->p->virtual_stages;
	x->divides =
	        all && x->s->caps.sequence_parallel && x->s->costs->facts && stage->device_count > stage->context && !stage->shard_ratio;
	x->faster = x->divides && hspmd_sequence_is_faster(x->s->costs, stage, pipe->micro_batch);
}

static void set_way(const struct chunks *x, int way)
{
	struct hspmd_pipeline *pipe = &x->p->pipelines[x->pipeline];
	for (int k = x->stage; k < pipe->stage_count; k += x->step) {
		pipe->stages[k].recompute = hspmd_way_recompute(way);
		pipe->stages[k].offload_activations = hspmd_way_offloads(way) ? HSPMD_OFFLOAD_ALL : 0;
	}
}

static bool fits(const struct chunks *x, int way)
{
	if (!(x->s->caps.recompute & 1u << hspmd_way_recompute(way)))
		return false;
	set_way(x, way);
	set_sequence(x, x->faster);
	if (hspmd_stage_fits(x->s->costs, x->p, x->pipeline, x->stage))
		return true;
	set_sequence(x, !x->faster);
	return x->divides && hspmd_stage_fits(x->s->costs, x->p, x->pipeline, x->stage);
}

/* Seconds of a micro-batch; INFINITY: unknown. */
static double seconds(const struct chunks *x, int way)
{
	const struct hspmd_pipeline *pipe = &x->p->pipelines[x->pipeline];
	double all = 0;
	set_way(x, way);
	for (int k = x->stage; k < pipe->stage_count; k += x->step) {
		struct hspmd_stage_cost cost;
		if (hspmd_costs_stage(x->s->costs, &pipe->stages[k], pipe->micro_batch, &cost, NULL))
			return INFINITY;
		all += cost.forward + cost.backward;
	}
	return all;
}

bool hspmd_stage_choose_way(struct hspmd_search *s, struct hspmd_plan *p, int pipeline, int stage, bool all_chunks)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	int ranks = pipe->stage_count / p->virtual_stages, best = 0;
	struct chunks x = { s, p, pipeline, stage, all_chunks ? ranks : pipe->stage_count, false, false };
	find_sequence(&x);
	while (best < HSPMD_RECOMPUTE_KINDS && !fits(&x, best))
		best++;
	bool found = best < HSPMD_RECOMPUTE_KINDS;
	if ((found && !(s->caps.recompute & ((1u << best) - 1))) || !hspmd_stage_can_offload(s, &pipe->stages[stage]))
		return found;
	bool sequence = pipe->stages[stage].sequence_parallel;
	double least = found ? seconds(&x, best) : INFINITY;
	for (int r = 0, most = best; r < most; r++) {
		int way = r + HSPMD_RECOMPUTE_KINDS;
		set_sequence(&x, x.faster);
		double takes = s->caps.recompute & 1u << r ? seconds(&x, way) : INFINITY;
		if (takes < least && fits(&x, way)) {
			least = takes;
			best = way;
			sequence = pipe->stages[stage].sequence_parallel;
			found = true;
		}
	}
	if (found) {
		set_way(&x, best);
		set_sequence(&x, sequence);
	}
	return found;
}

void hspmd_stage_copy_way(const struct hspmd_stage *from, struct hspmd_stage *to)
{
	to->recompute = from->recompute;
	to->offload_activations = from->offload_activations;
	to->sequence_parallel = from->sequence_parallel;
}
