/* SPDX-License-Identifier: Apache-2.0 */
/* What the program of a plan with `synthesis` takes, for the solver, and why, for people. */
#include <stdlib.h>

#include "common/alloc.h"
#include "common/format/program_search.h"
#include "common/json.h"
#include "runtime/program/pipelines.h"
#include "runtime/program/stage_program.h"

/* Adds the parameters that each device keeps. */
static void count_parameters(const struct hspmd_spmd *spmd, const int *devices, int count, double *parameters)
{
	const struct hspmd_graph *g = spmd->graph;
	for (size_t t = 0; t < g->tensor_count; t++) {
		int value = g->tensors[t].role == HSPMD_TENSOR_PARAMETER ? spmd->first_value[t] : -1;
		struct hspmd_local_shard shard;
		for (int d = 0; value >= 0 && d < count; d++)
			if (hspmd_annotation_local_shard(spmd->values[value].annotation, &g->tensors[t].shape, devices[d], &shard))
				parameters[d] += (double)hspmd_box_elements(&shard.box);
	}
}

/* Returns true if device d is the first of its type that has as much of this as any. */
static bool has_most(const struct hspmd_cluster *c, const struct hspmd_stage *stage, const double *of, int d)
{
	int type = c->devices[stage->devices[d]].type;
	for (int e = 0; e < stage->device_count; e++)
		if (c->devices[stage->devices[e]].type == type && (of[e] > of[d] || (of[e] == of[d] && e < d)))
			return false;
	return true;
}

/* Makes the programs of those devices that keep most parameters or compute longest, for the memory that they need. */
static int measure_memory(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *c,
                          struct hspmd_program_cost *cost, struct hspmd_error *err)
{
	const struct hspmd_stage *stage = &plan->pipelines[0].stages[0];
	for (int d = 0; d < stage->device_count; d++) {
		if (!has_most(c, stage, cost->parameters, d) && !has_most(c, stage, cost->busy_s, d))
			continue;
		struct hspmd_program *p = hspmd_program_build(source, plan, c, stage->devices[d], NULL, err);
		double bytes = p ? (double)hspmd_program_memory(p) : 0;
		hspmd_program_destroy(p);
		if (!p)
			return -1;
		for (int e = 0; e < stage->device_count; e++)
			if (c->devices[stage->devices[e]].type == c->devices[stage->devices[d]].type && cost->bytes[e] < bytes)
				cost->bytes[e] = bytes;
	}
	return 0;
}

/* Fills what the annotated graph takes. */
static int measure(struct hspmd_graph *g, const struct hspmd_synthesis_stage *stage, struct hspmd_program_cost *cost,
                   struct hspmd_error *err)
{
	struct hspmd_spmd_stage view = { .device_count = stage->device_count, .devices = stage->devices, .context = 1 };
	struct hspmd_link_cost links = hspmd_link_cost_of_cluster(stage->cluster);
	struct hspmd_synthesis_seconds seconds = { .busy = cost->busy_s };
	int layers = 1;
	for (size_t t = 0; t < g->tensor_count; t++)
		layers = g->tensors[t].layer >= layers ? g->tensors[t].layer + 1 : layers;
	int *stage_of_layer = hspmd_calloc((size_t)layers, sizeof *stage_of_layer);
	links.cache = hspmd_resolve_cache_create();
	int status = stage_of_layer && links.cache ? 0 : hspmd_fail_memory(err, "predicting a program");
	struct hspmd_spmd *spmd = status ? NULL : hspmd_spmd_build(g, &view, stage_of_layer, &links, err);
	if (!spmd || hspmd_synthesis_cost(spmd, stage, &links, &seconds, err) < 0)
		status = -1;
	if (!status) {
		count_parameters(spmd, stage->devices, stage->device_count, cost->parameters);
		cost->operators_s = seconds.operators;
		cost->messages_s = seconds.messages;
		cost->sync_s = seconds.sync;
		cost->operators = (double)seconds.operator_count;
	}
	hspmd_spmd_destroy(spmd);
	hspmd_resolve_cache_destroy(links.cache);
	free(stage_of_layer);
	return status;
}

/* How long each device computes in a micro-batch, for the straggler's sake. */
static int note_busy(json_t *program, const double *busy_s, int devices)
{
	json_t *all = json_array();
	int bad = !all;
	for (int d = 0; d < devices; d++)
		bad |= json_array_append_new(all, hspmd_json_real(busy_s[d]));
	return bad | json_object_set_new(program, "busy_s", all);
}

int hspmd_program_find(const void *graph_source, const struct hspmd_cluster *cluster, struct hspmd_plan *plan,
                       const struct hspmd_program_limits *limits, struct hspmd_program_cost *cost, struct hspmd_error *err)
{
	const struct hspmd_graph_source *source = graph_source;
	bool bf16 = hspmd_pipelines_are_bf16(source, plan, cluster);
	struct hspmd_synthesis_stage stage = hspmd_stage_program_stage(source, plan, cluster, bf16);
	struct hspmd_model_build_options how = hspmd_pipeline_options(source, plan, cluster, 0, bf16);
	struct hspmd_stage_program f = { 0 };
	size_t n = (size_t)stage.device_count;
	*cost = (struct hspmd_program_cost){ .busy_s = hspmd_calloc(n, sizeof(double)),
		                             .parameters = hspmd_calloc(n, sizeof(double)),
		                             .bytes = hspmd_calloc(n, sizeof(double)) };
	if (!cost->busy_s || !cost->parameters || !cost->bytes)
		return hspmd_fail_memory(err, "predicting a program");
	int rc = hspmd_stage_program_find(source, plan, cluster, &how, limits, &f, err);
	if (rc)
		return rc;
	json_t *program = hspmd_stage_program_save(&f, err);
	int status = program && !hspmd_synthesis_apply(f.synthesis, f.graph, err) ? measure(f.graph, &stage, cost, err) : -1;
	if (!status && note_busy(program, cost->busy_s, stage.device_count))
		status = hspmd_fail_memory(err, "writing a program");
	hspmd_stage_program_clear(&f);
	json_decref(plan->program);
	plan->program = program;
	return status ? status : measure_memory(source, plan, cluster, cost, err);
}

char *hspmd_program_explain_stage(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                  const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	const struct hspmd_program_limits unlimited = { 0 };
	bool bf16 = hspmd_pipelines_are_bf16(source, plan, cluster);
	struct hspmd_model_build_options how = hspmd_pipeline_options(source, plan, cluster, 0, bf16);
	struct hspmd_stage_program found = { 0 };
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int status = f ? hspmd_stage_program_find(source, plan, cluster, &how, &unlimited, &found, err)
	               : hspmd_fail_memory(err, "explaining a program");
	if (!status)
		status = hspmd_synthesis_explain(found.synthesis, f, err);
	hspmd_stage_program_clear(&found);
	if (f && fclose(f) && !status)
		status = hspmd_fail_memory(err, "explaining a program");
	if (!status)
		return text;
	free(text);
	return NULL;
}
