/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/build.h"

#include <inttypes.h>

#include "runtime/model/model_internal.h"
#include "runtime/op/op.h"

struct hspmd_graph *hspmd_model_graph(const struct hspmd_model *m, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	int64_t tokens = how->context > how->seq_len ? how->context : how->seq_len;
	if (tokens > m->max_positions && m->learnt_positions) {
		hspmd_fail(err, "sequences of %" PRId64 " tokens, but the model has %" PRId64 " learnt positions", tokens,
		           m->max_positions);
		return NULL;
	}
	if (m->type->graph && how->fp8) {
		hspmd_fail(err, "precision \"fp8\" is for types of models that hspmd knows; a model of one's own computes in \"bf16\" or "
		                "\"fp32\"");
		return NULL;
	}
	if (m->type->graph)
		return m->type->graph(m, how, err);
	struct hspmd_graph *g = hspmd_graph_create(hspmd_op_types);
	if (!g) {
		hspmd_fail_memory(err, "building the model's graph");
		return NULL;
	}
	g->compute_dtype = how->bf16 ? HSPMD_BF16 : HSPMD_F32;
	struct hspmd_builder b = { .g = g, .m = m, .d = m->own, .how = how };
	b.tokens = hspmd_graph_input(g, HSPMD_TENSOR_TOKENS, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), 0);
	b.targets = hspmd_graph_input(g, HSPMD_TENSOR_TARGETS, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), hspmd_model_layers(m) - 1);
	b.segments = how->documents ? hspmd_graph_input(g, HSPMD_TENSOR_SEGMENTS, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), 0) : -1;
	bool resets = how->reset_positions && m->learnt_positions;
	b.positions = resets ? hspmd_graph_input(g, HSPMD_TENSOR_POSITIONS, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), 0) : -1;
	bool drops = m->dropout && !how->forward_only;
	b.noise = drops ? hspmd_graph_input(g, HSPMD_TENSOR_NOISE, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), 0) : -1;
	if (m->type->build)
		m->type->build(&b);
	else
		hspmd_build_decoder(&b, m->type->block);
	if (g->failed || (!how->forward_only && hspmd_graph_differentiate(g)) || g->failed) {
		hspmd_fail(err, "model %s: %s", m->type->names[0], g->error.text);
		hspmd_graph_destroy(g);
		return NULL;
	}
	return g;
}

struct hspmd_graph *hspmd_model_parameters_graph(const struct hspmd_model *m, struct hspmd_error *err)
{
	const struct hspmd_model_build_options how = { .batch = 1, .seq_len = 1, .vocab_parts = 1, .loss_scale = 1, .forward_only = true };
	return hspmd_model_graph(m, &how, err);
}

struct hspmd_graph *hspmd_model_job_graph(const struct hspmd_model *m, const struct hspmd_job *j, struct hspmd_error *err)
{
	const struct hspmd_model_build_options how = { .batch = 1,
		                                       .seq_len = j->seq_len,
		                                       .vocab_parts = 1,
		                                       .loss_scale = 1,
		                                       .reset_positions = j->reset_positions,
		                                       .documents = j->documents,
		                                       .fp8 = j->precision == HSPMD_PRECISION_FP8,
		                                       .forward_only = true };
	return hspmd_model_graph(m, &how, err);
}
