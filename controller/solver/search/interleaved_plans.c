/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaved plans (Megatron-LM, arXiv 2104.04473, section 2.2), made from the best plans that are not interleaved: the layers of every
 * stage are distributed over v chunks, as evenly as possible, and the pipeline's devices come one after another in each chunk. The bubble
 * shrinks to a v-th; activations cross stage boundaries v times as often, and more micro-batches are in flight. The simulator decides
 * which matters more; plans that come near the best plan are refined. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/search_internal.h"

#define BASES 6
#define CHUNKS_MAX 8
#define PASSES_MAX 200000 /* passes of all micro-batches on all devices: the cost of simulating a plan */
#define WORK_EACH 60      /* plans timed while one plan is refined */
#define NEAR 1.05         /* factor over the best objective up to which a plan is refined */

static const struct hspmd_stage *base_stage(const struct hspmd_pipeline *pipe, int s)
{
	return &pipe->stages[s % pipe->stage_count];
}

/* Number of layers of stage s that belong to chunk r. */
static int part_of(const struct hspmd_stage *s, int r, int chunks)
{
	int layers = s->layers[1] - s->layers[0];
	return layers / chunks + (r < layers % chunks);
}

/* Make a stage on the devices of another one; its layers are not set. Returns 0, or -1 if memory runs out. */
static int copy_stage(const struct hspmd_stage *from, struct hspmd_stage *to)
{
	size_t n = (size_t)from->device_count;
	*to = (struct hspmd_stage){ .device_count = from->device_count,
		                    .context = from->context,
		                    .sequence_parallel = from->sequence_parallel,
		                    .offload = from->offload };
	to->devices = hspmd_calloc(n, sizeof *to->devices);
	to->shard_ratio = from->shard_ratio ? hspmd_calloc(n, sizeof *to->shard_ratio) : NULL;
	to->context_ratio = from->context_ratio ? hspmd_calloc(n, sizeof *to->context_ratio) : NULL;
	if (!to->devices || (from->shard_ratio && !to->shard_ratio) || (from->context_ratio && !to->context_ratio))
		return -1;
	memcpy(to->devices, from->devices, n * sizeof *to->devices);
	if (to->shard_ratio)
		memcpy(to->shard_ratio, from->shard_ratio, n / (size_t)from->context * sizeof *to->shard_ratio);
	if (to->context_ratio)
		memcpy(to->context_ratio, from->context_ratio, (size_t)from->context * sizeof *to->context_ratio);
	return 0;
}

static int deal_layers(const struct hspmd_pipeline *from, int chunks, struct hspmd_pipeline *to)
{
	to->stages = hspmd_calloc((size_t)from->stage_count * (size_t)chunks, sizeof *to->stages);
	if (!to->stages)
		return -1;
	to->micro_batch = from->micro_batch;
	to->micro_batches = from->micro_batches;
	for (int s = 0, layer = 0; s < from->stage_count * chunks; s++) {
		struct hspmd_stage *st = &to->stages[to->stage_count++];
		if (copy_stage(base_stage(from, s), st))
			return -1;
		st->layers[0] = layer;
		st->layers[1] = layer += part_of(base_stage(from, s), s / from->stage_count, chunks);
	}
	return 0;
}

/* Choose how the pipeline's stages keep what their passes save: as those of the pipeline before it, if that is alike. Returns false if one
 * does not fit. */
static bool choose_ways(struct hspmd_search *s, const struct hspmd_plan *base, struct hspmd_plan *p, int pipeline)
{
	const struct hspmd_pipeline *from = &base->pipelines[pipeline];
	bool alike = pipeline > 0 && from->micro_batches == from[-1].micro_batches && hspmd_pipelines_alike(s, from - 1, from), fits = true;
	for (int k = 0; alike && k < from->stage_count; k++)
		alike = hspmd_stage_same_splits(&from[-1].stages[k], &from->stages[k]);
	for (int k = 0; alike && k < p->pipelines[pipeline].stage_count; k++)
		hspmd_stage_copy_way(&p->pipelines[pipeline - 1].stages[k], &p->pipelines[pipeline].stages[k]);
	for (int k = 0; !alike && fits && k < from->stage_count; k++)
		fits = hspmd_stage_choose_way(s, p, pipeline, k, true);
	return fits;
}

/* Make the plan in chunks. Returns NULL with *possible false if it does not fit, NULL with *possible true if memory runs out. */
static struct hspmd_plan *interleaved_plan(struct hspmd_search *s, const struct hspmd_plan *base, int chunks, bool *possible)
{
	struct hspmd_plan *p = hspmd_calloc(1, sizeof *p);
	*possible = true;
	if (!p)
		return NULL;
	*p = (struct hspmd_plan){ .global_batch = base->global_batch,
		                  .micro_batch = base->micro_batch,
		                  .seq_len = base->seq_len,
		                  .schedule = HSPMD_SCHEDULE_INTERLEAVED,
		                  .virtual_stages = chunks,
		                  .zero_stage = base->zero_stage > 0 };
	p->pipelines = hspmd_calloc((size_t)base->pipeline_count, sizeof *p->pipelines);
	int rc = p->pipelines ? 0 : -1;
	for (int i = 0; !rc && i < base->pipeline_count; i++, p->pipeline_count++)
		if ((rc = deal_layers(&base->pipelines[i], chunks, &p->pipelines[i])) != 0)
			p->pipeline_count++; /* the plan owns the part of it that exists */
	for (int i = 0; !rc && *possible && i < p->pipeline_count; i++)
		*possible = choose_ways(s, base, p, i);
	if (!rc && *possible)
		return p;
	hspmd_plan_destroy(p);
	*possible = rc != 0;
	return NULL;
}

/* Returns true if every device can have a layer in every chunk, and the work of simulating the plan is small enough. */
static bool can_interleave(const struct hspmd_plan *p, int chunks)
{
	long passes = 0;
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &p->pipelines[i];
		if (pipe->stage_count < 2)
			return false;
		for (int s = 0; s < pipe->stage_count; s++)
			if (pipe->stages[s].layers[1] - pipe->stages[s].layers[0] < chunks)
				return false;
		passes += 2L * pipe->stage_count * chunks * pipe->micro_batches;
	}
	return passes <= PASSES_MAX && p->virtual_stages == 1;
}

static int interleave(struct hspmd_search *s, const struct hspmd_plan *base)
{
	for (int chunks = 2; chunks <= CHUNKS_MAX && can_interleave(base, chunks) && !hspmd_search_is_over(s); chunks++) {
		bool possible;
		struct hspmd_plan *p = interleaved_plan(s, base, chunks, &possible);
		long budget = 0;
		if (!p && possible)
			return -1;
		if (!p || hspmd_best_plans_time(s, p, NULL) > NEAR * s->best_plans.list[0].objective) {
			hspmd_plan_destroy(p);
			continue;
		}
		for (int i = 0; i < p->pipeline_count; i++)
			budget += (long)WORK_EACH * p->pipelines[i].stage_count;
		if (hspmd_local_search(s, p, &budget))
			return -1;
	}
	return 0;
}

int hspmd_interleave(struct hspmd_search *s)
{
	struct hspmd_plan *bases[BASES] = { NULL };
	int count = s->best_plans.count < BASES ? s->best_plans.count : BASES, rc = 0;
	if (!(s->caps.schedules & 1u << HSPMD_SCHEDULE_INTERLEAVED))
		return 0;
	for (int i = 0; i < count; i++)
		rc = (bases[i] = hspmd_plan_copy(s->best_plans.list[i].plan)) ? rc : -1;
	for (int i = 0; i < count && !rc && !hspmd_search_is_over(s); i++)
		rc = interleave(s, bases[i]);
	for (int i = 0; i < count; i++)
		hspmd_plan_destroy(bases[i]);
	return rc;
}
