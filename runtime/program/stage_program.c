/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/stage_program.h"

#include "common/clock.h"
#include "common/optimizer/optimizer.h"

/* Bytes of the state of one element of a parameter: value, gradient and moments, and its copy in the precision of the operators. */
static double state_bytes(const struct hspmd_graph_source *source, bool bf16)
{
	return hspmd_optimizer_state_bytes(hspmd_optimizer_types[source->optimizer]->moments) + (bf16 ? 2 : 0);
}

struct hspmd_synthesis_stage hspmd_stage_program_stage(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                       const struct hspmd_cluster *cluster, bool bf16)
{
	const struct hspmd_stage *only = &plan->pipelines[0].stages[0];
	return (struct hspmd_synthesis_stage){ .cluster = cluster,
		                               .device_count = only->device_count,
		                               .devices = only->devices,
		                               .micro_batches = plan->pipelines[0].micro_batches,
		                               .precision = bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32,
		                               .state_bytes = state_bytes(source, bf16) };
}

void hspmd_stage_program_clear(struct hspmd_stage_program *p)
{
	hspmd_synthesis_destroy(p->synthesis);
	hspmd_graph_destroy(p->graph);
	*p = (struct hspmd_stage_program){ 0 };
}

/* The best program of the graph with this number of parts of the vocabulary. 0; 1: none is wanted; -1 and err. */
static int attempt(const struct hspmd_graph_source *source, const struct hspmd_synthesis_stage *stage, struct hspmd_model_build_options how,
                   int vocab_parts, struct hspmd_stage_program *f, struct hspmd_error *err)
{
	how.vocab_parts = vocab_parts;
	f->how = how;
	f->graph = source->build(source->context, &how, err);
	f->synthesis = f->graph ? hspmd_synthesis_create(f->graph, stage, err) : NULL;
	int rc = f->synthesis ? hspmd_synthesis_search(f->synthesis, &f->result, err) : -1;
	if (rc)
		hspmd_stage_program_clear(f);
	return rc;
}

/* A vocabulary in parts can be divided, and then nothing else of the loss can; so both are tried. */
static int search(const struct hspmd_graph_source *source, struct hspmd_synthesis_stage stage, const struct hspmd_model_build_options *how,
                  struct hspmd_stage_program *best, struct hspmd_error *err)
{
	struct hspmd_stage_program divided = { 0 };
	struct hspmd_error why;
	int whole = attempt(source, &stage, *how, 1, best, err);
	if (stage.device_count == 1)
		return whole;
	if (!whole)
		stage.below_s = best->result.seconds * (1 - 1e-9);
	int rc = attempt(source, &stage, *how, stage.device_count, &divided, whole < 0 ? err : &why);
	if (rc)
		return whole < 0 ? rc : whole;
	if (whole || divided.result.seconds < stage.below_s) {
		hspmd_stage_program_clear(best);
		*best = divided;
	} else {
		hspmd_stage_program_clear(&divided);
	}
	return 0;
}

/* The program that travelled with the plan. */
static int load(const struct hspmd_graph_source *source, const struct hspmd_synthesis_stage *stage,
                const struct hspmd_model_build_options *how, const json_t *program, struct hspmd_stage_program *f, struct hspmd_error *err)
{
	const json_t *parts = json_object_get(program, "vocab_parts");
	f->how = *how;
	f->how.vocab_parts = (int)json_integer_value(parts);
	if (f->how.vocab_parts < 1 || f->how.vocab_parts > stage->device_count)
		return hspmd_fail(err, "program.vocab_parts: expected 1..%d", stage->device_count);
	f->graph = source->build(source->context, &f->how, err);
	f->synthesis = f->graph ? hspmd_synthesis_create(f->graph, stage, err) : NULL;
	if (f->synthesis && !hspmd_synthesis_load(f->synthesis, program, err))
		return 0;
	hspmd_stage_program_clear(f);
	return -1;
}

json_t *hspmd_stage_program_save(const struct hspmd_stage_program *f, struct hspmd_error *err)
{
	json_t *program = hspmd_synthesis_save(f->synthesis, err);
	if (program && json_object_set_new(program, "vocab_parts", json_integer(f->how.vocab_parts))) {
		json_decref(program);
		hspmd_fail_memory(err, "writing a program");
		return NULL;
	}
	return program;
}

int hspmd_stage_program_find(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
                             const struct hspmd_model_build_options *how, const struct hspmd_program_limits *limits,
                             struct hspmd_stage_program *f, struct hspmd_error *err)
{
	struct hspmd_synthesis_stage stage = hspmd_stage_program_stage(source, plan, cluster, how->bf16);
	stage.until_s = limits->seconds > 0 ? hspmd_now() + limits->seconds : 0;
	stage.below_s = limits->step_s / stage.micro_batches;
	return plan->program ? load(source, &stage, how, plan->program, f, err) : search(source, stage, how, f, err);
}

struct hspmd_graph *hspmd_program_synthesise(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                             const struct hspmd_cluster *cluster, struct hspmd_model_build_options *how,
                                             struct hspmd_error *err)
{
	const struct hspmd_program_limits unlimited = { 0 };
	struct hspmd_stage_program f = { 0 };
	struct hspmd_graph *g = NULL;
	if (hspmd_stage_program_find(source, plan, cluster, how, &unlimited, &f, err))
		return NULL;
	if (!hspmd_synthesis_apply(f.synthesis, f.graph, err)) {
		g = f.graph;
		f.graph = NULL;
		*how = f.how;
	}
	hspmd_stage_program_clear(&f);
	return g;
}
