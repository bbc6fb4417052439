/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a program: the graphs and annotations of all pipelines, then the passes that make this device's instructions, each in its own
 * file. */
#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "common/alloc.h"
#include "common/format/plan_precision.h"
#include "runtime/comm/comm.h"
#include "runtime/program/parameter_layout.h"
#include "runtime/program/program.h"
#include "runtime/program/stage_program.h"

/* Returns true if attention on these devices processes keys and values part by part, so that the ring is possible. (In bf16 every merge
 * would round.) */
static bool takes_parts(const struct hspmd_cluster *cluster, const struct hspmd_stage *stage)
{
	for (int d = 0; d < stage->device_count; d++)
		if (!hspmd_device_traits(cluster->types[cluster->devices[stage->devices[d]].type].kind)->takes_parts)
			return false;
	return true;
}

/* All pipelines have the same tensors, even if only some split the sequence. */
static bool any_ring(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster)
{
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count; s++)
			if (plan->pipelines[q].stages[s].context > 1 && takes_parts(cluster, &plan->pipelines[q].stages[s]))
				return true;
	return false;
}

/* Devices of the plan's largest tensor-parallel group. All pipelines split their parameters in the same units. */
static int widest_group(const struct hspmd_plan *plan)
{
	int most = 1;
	for (int q = 0; q < plan->pipeline_count; q++)
		for (int s = 0; s < plan->pipelines[q].stage_count; s++) {
			const struct hspmd_stage *stage = &plan->pipelines[q].stages[s];
			most = stage->device_count / stage->context > most ? stage->device_count / stage->context : most;
		}
	return most;
}

static struct hspmd_model_build_options how_to_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                     const struct hspmd_cluster *cluster, int pipeline, bool bf16)
{
	const struct hspmd_pipeline *p = &plan->pipelines[pipeline];
	const struct hspmd_stage *last = &p->stages[p->stage_count - 1];
	return (struct hspmd_model_build_options){
		.batch = p->micro_batch,
		.seq_len = plan->seq_len,
		.vocab_parts = last->device_count / last->context,
		.widest = plan->synthesis ? 1 : widest_group(plan),
		.loss_scale = 1 / ((double)plan->global_batch * plan->seq_len),
		.documents = source->documents,
		.reset_positions = source->reset_positions,
		.parts = !bf16 && any_ring(plan, cluster),
		.bf16 = bf16,
	};
}

/* Prefix an error of the passes, which may name the stage, with the plan's path. */
static int in_pipeline(int number, struct hspmd_error *err)
{
	if (!err || strncmp(err->text, "stages[", 7) != 0)
		return hspmd_error_prefix(err, "pipelines[%d]", number);
	struct hspmd_error said = *err;
	return hspmd_fail(err, "pipelines[%d].%s", number, said.text);
}

/* Build the graph of one pipeline and run the passes on it. *how: of the graph. */
static int build_pipeline(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
                          int number, struct hspmd_model_build_options *how, const struct hspmd_link_cost *cost, struct hspmd_graph **graph,
                          struct hspmd_spmd **spmd, struct hspmd_error *err)
{
	const struct hspmd_pipeline *p = &plan->pipelines[number];
	struct hspmd_spmd_stage *stages = hspmd_calloc((size_t)p->stage_count, sizeof *stages);
	int64_t **weights = hspmd_calloc((size_t)p->stage_count, sizeof *weights);
	int *stage_of_layer = hspmd_spmd_stage_of_layer(p, err);
	int status = stages && weights ? 0 : hspmd_fail_memory(err, "reading the plan");
	if (!stage_of_layer)
		status = -1;
	for (int s = 0; !status && s < p->stage_count; s++) {
		weights[s] = malloc((size_t)(p->stages[s].device_count + p->stages[s].context) * sizeof **weights);
		if (weights[s])
			hspmd_spmd_stage_of_plan(&p->stages[s], &stages[s], weights[s]);
		else
			status = hspmd_fail_memory(err, "reading the plan");
		stages[s].ring = !how->bf16 && takes_parts(cluster, &p->stages[s]);
	}
	*graph = status            ? NULL
	         : plan->synthesis ? hspmd_program_synthesise(source, plan, cluster, how, NULL, err)
	                           : source->build(source->context, how, err);
	*spmd = *graph ? hspmd_spmd_build(*graph, stages, stage_of_layer, cost, err) : NULL;
	if (!status && !*spmd)
		status = in_pipeline(number, err);
	for (int s = 0; weights && s < p->stage_count; s++)
		free(weights[s]);
	free(weights);
	free(stages);
	free(stage_of_layer);
	return status;
}

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
				}
	for (int q = 0; q < p->pipeline; q++)
		p->first_sample += (int64_t)plan->pipelines[q].micro_batches * plan->pipelines[q].micro_batch;
	p->chunks = plan->virtual_stages;
	p->pipeline_ranks = plan->pipelines[p->pipeline].stage_count / plan->virtual_stages;
	p->micro_batches = plan->pipelines[p->pipeline].micro_batches;
	p->micro_batch = plan->pipelines[p->pipeline].micro_batch;
}

/* Sizes of the message buffers: those of the step that needs most, and those of one whose receives were posted early; and the same for
 * communication once per step, which has its own engine and buffers. */
static int measure_messages(struct hspmd_program *p, struct hspmd_device *dev, struct hspmd_error *err)
{
	int64_t most[2] = { 0 }, early = 0;
	for (size_t i = 0; dev && dev->ops->host_memory && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_COMM)
			continue;
		const struct hspmd_comm_step *step = &in->transfer->steps[in->step];
		int64_t bytes = hspmd_comm_scratch_bytes(in->transfer, step, p->device, err);
		bool comes = step->kind == HSPMD_COMM_SEND_RECEIVE || step->kind == HSPMD_COMM_BATCHED, whole = in->micro_batch < 0;
		if (bytes < 0)
			return -1;
		most[whole] = bytes > most[whole] ? bytes : most[whole];
		early = comes && !whole && bytes > early ? bytes : early;
	}
	p->message_bytes = (size_t)(most[0] + early + most[1]);
	return 0;
}

/* Run the passes that make the device's instructions. spmds[q]: of every pipeline. */
static int make_instructions(struct hspmd_program *p, struct hspmd_spmd *const *spmds, const struct hspmd_plan *plan,
                             const struct hspmd_cluster *cluster, const struct hspmd_link_cost *across, struct hspmd_device *dev,
                             struct hspmd_error *err)
{
	const struct hspmd_device_type *type = p->device >= 0 ? &cluster->types[cluster->devices[p->device].type] : NULL;
	p->overlaps = type && hspmd_device_traits(type->kind)->overlaps;
	p->layouts = hspmd_parameter_layouts_build(p->graph, plan, err);
	if (!p->layouts || hspmd_program_specialise(p, plan, err) || (type && hspmd_program_fuse_ops(p, type->kind, err)) ||
	    hspmd_program_sync_gradients(p, spmds, across, err) || hspmd_program_plan_memory(p, err) || measure_messages(p, dev, err))
		return -1;
	hspmd_program_query_workspace(p, dev);
	return 0;
}

struct hspmd_program *hspmd_program_vary(const struct hspmd_program *like, const struct hspmd_plan *plan,
                                         const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	struct hspmd_program *p = calloc(1, sizeof *p);
	struct hspmd_link_cost across = hspmd_link_cost_of_cluster(cluster);
	across.cache = hspmd_resolve_cache_create();
	int status = p && across.cache ? 0 : hspmd_fail_memory(err, "specialising");
	if (!status) {
		p->device = like->device;
		find_device(p, plan);
		p->graph = like->graph;
		p->spmd = like->spmd;
		p->borrows = true;
		p->how = like->how;
		p->optimizer = like->optimizer;
		status = make_instructions(p, &p->spmd, plan, cluster, &across, NULL, err);
	}
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
	struct hspmd_program *p = calloc(1, sizeof *p);
	size_t n = (size_t)plan->pipeline_count;
	struct hspmd_graph **graphs = hspmd_calloc(n, sizeof *graphs);
	struct hspmd_spmd **spmds = hspmd_calloc(n, sizeof *spmds);
	struct hspmd_model_build_options *hows = hspmd_calloc(n, sizeof *hows);
	struct hspmd_link_cost across = hspmd_link_cost_of_cluster(cluster), cost = across;
	if (!plan->synthesis)
		cost.node = NULL; /* between stages there are few devices; the bulk of the data between nodes is gradients and parameters */
	bool bf16 = hspmd_plan_precision(plan, cluster, source->precision) == HSPMD_PRECISION_BF16;
	cost.cache = hspmd_resolve_cache_create();
	across.cache = hspmd_resolve_cache_create();
	int status = p && graphs && spmds && hows && cost.cache && across.cache ? 0 : hspmd_fail_memory(err, "specialising");
	for (size_t q = 0; !status && q < n; q++) {
		hows[q] = how_to_build(source, plan, cluster, (int)q, bf16);
		status = build_pipeline(source, plan, cluster, (int)q, &hows[q], &cost, &graphs[q], &spmds[q], err);
	}
	if (!status) {
		p->device = device;
		p->optimizer = source->optimizer;
		find_device(p, plan);
		p->graph = graphs[p->pipeline];
		p->spmd = spmds[p->pipeline];
		p->how = hows[p->pipeline];
		status = make_instructions(p, spmds, plan, cluster, &across, dev, err);
	}
	for (size_t q = 0; graphs && spmds && q < n; q++) {
		if (p && p->graph == graphs[q])
			continue; /* now owned by the program */
		hspmd_spmd_destroy(spmds[q]);
		hspmd_graph_destroy(graphs[q]);
	}
	hspmd_resolve_cache_destroy(cost.cache);
	hspmd_resolve_cache_destroy(across.cache);
	free(graphs);
	free(spmds);
	free(hows);
	if (status) {
		hspmd_program_destroy(p);
		return NULL;
	}
	return p;
}
