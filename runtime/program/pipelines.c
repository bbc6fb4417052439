/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/pipelines.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "common/format/plan_precision.h"
#include "runtime/program/parameter_layout.h"
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

bool hspmd_pipelines_are_bf16(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster)
{
	return !source->fp32_elements && hspmd_plan_is_bf16(plan, cluster, source->precision);
}

struct hspmd_model_build_options hspmd_pipeline_options(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                        const struct hspmd_cluster *cluster, int pipeline, bool bf16)
{
	const struct hspmd_pipeline *p = &plan->pipelines[pipeline];
	const struct hspmd_stage *last = &p->stages[p->stage_count - 1];
	return (struct hspmd_model_build_options){
		.batch = p->micro_batch,
		.seq_len = p->seq_len ? p->seq_len : plan->seq_len,
		.vocab_parts = last->device_count / last->context,
		.widest = plan->synthesis ? 1 : hspmd_plan_widest_group(plan), /* all pipelines split their parameters in the same units */
		.loss_scale = 1 / ((double)plan->global_batch * plan->seq_len),
		.documents = source->documents,
		.reset_positions = source->reset_positions,
		.parts = !bf16 && any_ring(plan, cluster),
		.bf16 = bf16,
		.fp8 = source->precision == HSPMD_PRECISION_FP8,
	};
}

struct hspmd_graph *hspmd_pipeline_graph(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                         const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	bool bf16 = hspmd_pipelines_are_bf16(source, plan, cluster);
	struct hspmd_model_build_options how = hspmd_pipeline_options(source, plan, cluster, 0, bf16);
	return plan->synthesis ? hspmd_program_synthesise(source, plan, cluster, &how, err) : source->build(source->context, &how, err);
}

/* Prefix an error of the passes, which may name the stage, with the plan's path. */
static int in_pipeline(int number, struct hspmd_error *err)
{
	if (!err || strncmp(err->text, "stages[", 7) != 0)
		return hspmd_error_prefix(err, "pipelines[%d]", number);
	struct hspmd_error said = *err;
	return hspmd_fail(err, "pipelines[%d].%s", number, said.text);
}

/* Build the graph of one pipeline and run the passes on it. cost NULL: only deduce annotations. *how: of the graph. */
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
	         : plan->synthesis ? hspmd_program_synthesise(source, plan, cluster, how, err)
	                           : source->build(source->context, how, err);
	if (*graph)
		*spmd = cost ? hspmd_spmd_build(*graph, stages, stage_of_layer, cost, err)
		             : hspmd_spmd_deduce(*graph, stages, stage_of_layer, err);
	if (!status && !*spmd)
		status = in_pipeline(number, err);
	for (int s = 0; weights && s < p->stage_count; s++)
		free(weights[s]);
	free(weights);
	free(stages);
	free(stage_of_layer);
	return status;
}

/* ---- shapes */

static bool same_stage(const struct hspmd_cluster *cluster, const struct hspmd_stage *a, const struct hspmd_stage *b)
{
	return a->layers[0] == b->layers[0] && a->layers[1] == b->layers[1] && hspmd_stage_same_splits(a, b) &&
	       takes_parts(cluster, a) == takes_parts(cluster, b);
}

/* Returns true if the annotations of the two pipelines differ in the devices only. */
static bool same_shape(const struct hspmd_cluster *cluster, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b)
{
	bool same = a->micro_batch == b->micro_batch && a->seq_len == b->seq_len && a->stage_count == b->stage_count;
	for (int s = 0; same && s < a->stage_count; s++)
		same = same_stage(cluster, &a->stages[s], &b->stages[s]);
	return same;
}

/* The pipeline for which the passes run, for each pipeline: `own` for those of its shape, else the first of its shape. */
static void find_shapes(struct hspmd_pipelines *p, const struct hspmd_cluster *cluster, int own)
{
	const struct hspmd_pipeline *all = p->plan->pipelines;
	for (int q = 0; q < p->plan->pipeline_count; q++) {
		p->like[q] = same_shape(cluster, &all[q], &all[own]) ? own : q;
		for (int r = 0; p->like[q] == q && r < q; r++)
			if (p->like[r] == r && same_shape(cluster, &all[q], &all[r]))
				p->like[q] = r;
	}
}

struct hspmd_pipelines *hspmd_pipelines_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                              const struct hspmd_cluster *cluster, int own, const struct hspmd_link_cost *cost,
                                              struct hspmd_error *err)
{
	size_t n = (size_t)plan->pipeline_count;
	struct hspmd_pipelines *p = calloc(1, sizeof *p);
	bool bf16 = hspmd_pipelines_are_bf16(source, plan, cluster);
	int status = p ? 0 : -1;
	if (p) {
		p->plan = plan;
		p->like = hspmd_calloc(n, sizeof *p->like);
		p->graphs = hspmd_calloc(n, sizeof *p->graphs);
		p->spmds = hspmd_calloc(n, sizeof *p->spmds);
		status = p->like && p->graphs && p->spmds ? 0 : -1;
	}
	if (status)
		hspmd_fail_memory(err, "specialising");
	else
		find_shapes(p, cluster, own);
	for (int q = 0; !status && q < plan->pipeline_count; q++) {
		struct hspmd_model_build_options how = hspmd_pipeline_options(source, plan, cluster, q, bf16);
		if (p->like[q] != q)
			continue;
		status = build_pipeline(source, plan, cluster, q, &how, q == own ? cost : NULL, &p->graphs[q], &p->spmds[q], err);
		if (q == own)
			p->how = how;
	}
	if (!status)
		return p;
	hspmd_pipelines_destroy(p);
	return NULL;
}

void hspmd_pipelines_destroy(struct hspmd_pipelines *p)
{
	if (!p)
		return;
	for (int q = 0; p->graphs && p->spmds && q < p->plan->pipeline_count; q++) {
		hspmd_spmd_destroy(p->spmds[q]);
		hspmd_graph_destroy(p->graphs[q]);
	}
	free(p->like);
	free(p->graphs);
	free(p->spmds);
	free(p);
}

/* ---- annotations */

/* The device that stands in stage `to` where `device` stands in stage `from`; -1: it is not in `from`. */
static int counterpart(const struct hspmd_stage *from, const struct hspmd_stage *to, int device)
{
	for (int d = 0; d < from->device_count; d++)
		if (from->devices[d] == device)
			return to->devices[d];
	return -1;
}

struct hspmd_annotation *hspmd_pipelines_annotation(const struct hspmd_pipelines *p, int tensor, struct hspmd_holder holder,
                                                    struct hspmd_error *err)
{
	int like = p->like[holder.pipeline], value = tensor < 0 ? -1 : hspmd_spmd_value(p->spmds[like], tensor, holder.stage);
	if (value < 0) {
		hspmd_fail(err, "pipelines[%d].stages[%d]: nothing computes it", holder.pipeline, holder.stage);
		return NULL;
	}
	const struct hspmd_stage *from = &p->plan->pipelines[like].stages[holder.stage],
	                         *to = &p->plan->pipelines[holder.pipeline].stages[holder.stage];
	struct hspmd_annotation *a = hspmd_annotation_copy(p->spmds[like]->values[value].annotation);
	if (!a)
		hspmd_fail_memory(err, "specialising");
	for (int g = 0; a && like != holder.pipeline && g < a->hsize; g++)
		for (int d = 0; d < a->groups[g].device_count; d++)
			a->groups[g].devices[d] = counterpart(from, to, a->groups[g].devices[d]);
	return a;
}
