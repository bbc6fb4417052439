/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/stage_program.h"

#include "common/optimizer/optimizer.h"

/* Bytes of the state of one element of a parameter: value, gradient and moments, and its copy in the precision of the operators. */
static double state_bytes(const struct hspmd_graph_source *source, bool bf16)
{
	return hspmd_optimizer_state_bytes(hspmd_optimizer_types[source->optimizer]->moments) + (bf16 ? 2 : 0);
}

/* The best program of the graph with this number of parts of the vocabulary. NULL: there is none. */
static struct hspmd_graph *attempt(const struct hspmd_graph_source *source, const struct hspmd_synthesis_stage *stage,
                                   const struct hspmd_model_build_options *how, struct hspmd_synthesis_result *result,
                                   struct hspmd_error *err)
{
	struct hspmd_graph *g = source->build(source->context, how, err);
	struct hspmd_synthesis *s = g ? hspmd_synthesis_create(g, stage, err) : NULL;
	if (!s || hspmd_synthesis_search(s, result, err) || hspmd_synthesis_apply(s, g, err)) {
		hspmd_graph_destroy(g);
		g = NULL;
	}
	hspmd_synthesis_destroy(s);
	return g;
}

struct hspmd_graph *hspmd_program_synthesise(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                             const struct hspmd_cluster *cluster, struct hspmd_model_build_options *how,
                                             struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	const struct hspmd_stage *only = &plan->pipelines[0].stages[0];
	struct hspmd_synthesis_stage stage = { .cluster = cluster,
		                               .device_count = only->device_count,
		                               .devices = only->devices,
		                               .micro_batches = plan->pipelines[0].micro_batches,
		                               .precision = how->bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32,
		                               .state_bytes = state_bytes(source, how->bf16) };
	struct hspmd_synthesis_result found = { 0 }, other = { 0 };
	struct hspmd_error why;
	how->vocab_parts = 1;
	struct hspmd_graph *g = attempt(source, &stage, how, &found, err);
	if (only->device_count > 1) {
		/* A vocabulary in parts can be divided, and then nothing else of the loss can. */
		struct hspmd_model_build_options parts = *how;
		parts.vocab_parts = only->device_count;
		struct hspmd_graph *divided = attempt(source, &stage, &parts, &other, g ? &why : err);
		if (divided && (!g || other.seconds < found.seconds * (1 - 1e-9))) {
			hspmd_graph_destroy(g);
			g = divided;
			*how = parts;
			found = other;
		} else {
			hspmd_graph_destroy(divided);
		}
	}
	if (result)
		*result = found;
	return g;
}
