/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a program: the annotations of all pipelines, then the passes that make this device's instructions, each in its own file. */
#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "common/alloc.h"
#include "common/format/plan_precision.h"
#include "common/format/workspace_limit.h"
#include "runtime/comm/comm.h"
#include "runtime/program/parameter_state.h"
#include "runtime/program/program.h"

/* Find the device's stage in the plan. A device in no stage gets pipeline 0, stage -1. */
static void find_device(struct hspmd_program *p, const struct hspmd_plan *plan)
{
	p->stage = -1;
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count / plan->virtual_stages; s++)
			for (int d = 0; d < plan->pipelines[q].stages[s].device_count; d++)
				if (plan->pipelines[q].stages[s].devices[d] == p->device) {
					p->pipeline = q;
					p->stage = s;
					p->offloads = plan->pipelines[q].stages[s].offload == HSPMD_OFFLOAD_OPTIMIZER;
				}
	for (int q = 0; q < p->pipeline; q++)
		p->first_sample += (int64_t)plan->pipelines[q].micro_batches * plan->pipelines[q].micro_batch;
	p->varies = plan->pipelines[p->pipeline].seq_len > 0;
	p->chunks = plan->virtual_stages;
	p->pipeline_ranks = plan->pipelines[p->pipeline].stage_count / plan->virtual_stages;
	p->micro_batches = plan->pipelines[p->pipeline].micro_batches;
	p->micro_batch = plan->pipelines[p->pipeline].micro_batch;
}

/* The largest READ, and whether an update reads a sum that is not where the gradients were accumulated: if the device has only a part of
 * that sum. */
static void measure_slots(struct hspmd_program *p)
{
	for (size_t i = 0; i < p->instruction_count; i++)
		if (p->instructions[i].kind == HSPMD_INSTRUCTION_READ) {
			const struct hspmd_slot_type *type = &p->slot_types[p->slots[p->instructions[i].out[0]].slot_type];
			size_t bytes = type->room > type->bytes ? type->room : type->bytes;
			p->read_bytes = bytes > p->read_bytes ? bytes : p->read_bytes;
		}
	for (int i = 0; i < p->state_count; i++)
		p->sums_in_arena |=
		        p->states[i].param >= 0 && p->states[i].grad >= 0 && p->slots[p->states[i].grad].memory == HSPMD_ARENA_TRANSIENT;
}

/* Of an instruction and those that run with it. -1 and err: memory. */
static int64_t message_bytes(const struct hspmd_program *p, const struct hspmd_instruction *in, struct hspmd_error *err)
{
	struct hspmd_comm_part *parts = hspmd_calloc((size_t)in->joined + 1, sizeof *parts);
	int64_t bytes = parts ? 0 : hspmd_fail_memory(err, "planning memory");
	for (int k = 0; parts && k <= in->joined; k++)
		parts[k] = (struct hspmd_comm_part){ .transfer = in[k].transfer, .step = &in[k].transfer->steps[in[k].step] };
	if (parts)
		bytes = hspmd_comm_joined_scratch_bytes(parts, in->joined + 1, p->device, err);
	free(parts);
	return bytes;
}

/* Sizes of the message buffers: those of the step that needs most, and those of one whose receives were posted early; and the same for
 * communication once per step, which has its own engine and buffers. */
static int measure_messages(struct hspmd_program *p, struct hspmd_device *dev, struct hspmd_error *err)
{
	int64_t most[2] = { 0 }, early = 0;
	for (size_t i = 0; dev && dev->ops->host_memory && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM || in->joins)
			continue;
		const struct hspmd_comm_step *step = &in->transfer->steps[in->step];
		int64_t bytes = message_bytes(p, in, err);
		bool comes = !in->joined && (step->kind == HSPMD_COMM_SEND_RECEIVE || step->kind == HSPMD_COMM_BATCHED),
		     whole = in->micro_batch < 0;
		if (bytes < 0)
			return -1;
		most[whole] = bytes > most[whole] ? bytes : most[whole];
		early = comes && !whole && bytes > early ? bytes : early;
	}
	p->message_bytes = (size_t)(most[0] + early + most[1]);
	return 0;
}

/* Add the instructions of the micro-batches. of: the program whose training state this one works on; NULL: its own. */
static int make_passes(struct hspmd_program *p, const struct hspmd_program *of, const struct hspmd_pipelines *pipelines,
                       const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const struct hspmd_link_cost *across,
                       struct hspmd_error *err)
{
	const struct hspmd_device_type *type = p->device >= 0 ? &cluster->types[cluster->devices[p->device].type] : NULL;
	p->overlaps = type && hspmd_device_traits(type->kind)->overlaps;
	p->layouts = hspmd_parameter_layouts_build(p->graph, plan, err);
	if (!p->layouts || (of && hspmd_parameter_layouts_share_state(p->layouts, of->layouts, err)) ||
	    hspmd_parameter_shard_states(p, pipelines, across, err) || hspmd_program_specialise(p, plan, err) ||
	    (type && (hspmd_program_fuse_ops(p, type->kind, err) || hspmd_program_pad_rows(p, type->kind, err))) ||
	    hspmd_program_offload_activations(p, err))
		return -1;
	return 0;
}

/* Run the passes that make the device's instructions. source: only if micro-batches have different sizes. */
static int make_instructions(struct hspmd_program *p, const struct hspmd_program *of, const struct hspmd_graph_source *source,
                             const struct hspmd_pipelines *pipelines, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
                             const struct hspmd_link_cost *across, struct hspmd_device *dev, struct hspmd_error *err)
{
	if (make_passes(p, of, pipelines, plan, cluster, across, err) || (p->varies && hspmd_program_make_room(p, source, plan, err)) ||
	    hspmd_program_sync_gradients(p, pipelines, across, err) || hspmd_program_plan_memory(p, 0, err) ||
	    (p->device >= 0 && hspmd_program_run_beside(p, cluster->types[cluster->devices[p->device].type].kind, err)) ||
	    measure_messages(p, dev, err))
		return -1;
	measure_slots(p);
	hspmd_program_query_workspace(p, dev);
	return 0;
}

struct hspmd_program *hspmd_program_vary(const struct hspmd_program *like, const struct hspmd_plan *plan,
                                         const struct hspmd_cluster *cluster, struct hspmd_resolve_cache *resolved, struct hspmd_error *err)
{
	struct hspmd_program *p = calloc(1, sizeof *p);
	struct hspmd_link_cost across = hspmd_link_cost_of_cluster(cluster);
	across.cache = resolved;
	int status = p ? 0 : hspmd_fail_memory(err, "specialising");
	if (!status) {
		p->device = like->device;
		find_device(p, plan);
		p->graph = like->graph;
		p->spmd = like->spmd;
		p->borrows = true;
		p->how = like->how;
		p->tf32 = like->tf32;
		p->any_order = like->any_order;
		p->optimizer = like->optimizer;
		struct hspmd_pipelines only = { .plan = plan, .like = &(int){ 0 }, .spmds = &p->spmd };
		status = make_passes(p, NULL, &only, plan, cluster, &across, err);
	}
	if (!status)
		return p;
	hspmd_program_destroy(p);
	return NULL;
}

static struct hspmd_program *build(const struct hspmd_program *of, const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                   const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev, struct hspmd_error *err)
{
	struct hspmd_program *p = calloc(1, sizeof *p);
	struct hspmd_link_cost across = hspmd_link_cost_of_cluster(cluster), cost = across;
	if (!plan->synthesis)
		cost.node = NULL; /* between stages there are few devices; the bulk of the data between nodes is gradients and parameters */
	/* A cut along samples or tokens would not be possible for every number of samples and every length that a step may have. */
	cost.whole_dims = plan->pipelines[0].length_count ? 2 : 0;
	cost.cache = hspmd_resolve_cache_create();
	across.cache = hspmd_resolve_cache_create();
	struct hspmd_pipelines *pipelines = NULL;
	int status = p && cost.cache && across.cache ? hspmd_plan_check_precision(plan, cluster, source->precision, err)
	                                             : hspmd_fail_memory(err, "specialising");
	if (!status) {
		p->device = device;
		p->optimizer = source->optimizer;
		p->tf32 = hspmd_plan_precision(plan, cluster, source->precision) == HSPMD_PRECISION_TF32;
		p->any_order = source->any_order;
		p->workspace_most = of ? of->workspace_most : hspmd_workspace_limit_of(plan->choices);
		find_device(p, plan);
		p->offloads = of ? of->offloads : p->offloads;
		pipelines = hspmd_pipelines_build(source, plan, cluster, p->pipeline, &cost, err);
		status = pipelines ? 0 : -1;
	}
	if (!status) {
		p->how = pipelines->how;
		p->graph = pipelines->graphs[p->pipeline];
		p->spmd = pipelines->spmds[p->pipeline];
		status = make_instructions(p, of, source, pipelines, plan, cluster, &across, dev, err);
		pipelines->graphs[p->pipeline] = NULL; /* now owned by the program */
		pipelines->spmds[p->pipeline] = NULL;
	}
	hspmd_pipelines_destroy(pipelines);
	hspmd_resolve_cache_destroy(cost.cache);
	hspmd_resolve_cache_destroy(across.cache);
	if (!status)
		return p;
	hspmd_program_destroy(p);
	return NULL;
}

struct hspmd_program *hspmd_program_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                          const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev,
                                          struct hspmd_error *err)
{
	return build(NULL, source, plan, cluster, device, dev, err);
}

struct hspmd_program *hspmd_program_build_on(const struct hspmd_program *of, const struct hspmd_graph_source *source,
                                             const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, struct hspmd_device *dev,
                                             struct hspmd_error *err)
{
	struct hspmd_graph_source same = *source;
	/* On fewer devices it could be another. */
	same.precision = of->how.fp8    ? HSPMD_PRECISION_FP8
	                 : of->how.bf16 ? HSPMD_PRECISION_BF16
	                 : of->tf32     ? HSPMD_PRECISION_TF32
	                                : HSPMD_PRECISION_FP32;
	same.fp32_elements = of->how.fp8 && !of->how.bf16;
	return build(of, &same, plan, cluster, of->device, dev, err);
}
