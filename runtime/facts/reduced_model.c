/* SPDX-License-Identifier: Apache-2.0 */
/* A model with one layer of each kind. */
#include <string.h>

#include "common/alloc.h"
#include "runtime/facts/facts_internal.h"

static bool same_graph(const struct hspmd_model_build_options *a, const struct hspmd_model_build_options *b)
{
	return a->batch == b->batch && a->seq_len == b->seq_len && a->vocab_parts == b->vocab_parts && a->parts == b->parts;
}

/* The reduced graph, forward operators only; it stays with the model. */
static const struct hspmd_graph *reduced_graph(struct hspmd_reduced_model *m, const struct hspmd_model_build_options *how,
                                               struct hspmd_error *err)
{
	for (int i = 0; i < m->count; i++)
		if (same_graph(&m->made[i].how, how))
			return m->made[i].graph;
	struct hspmd_model_build_options forward = *how;
	forward.forward_only = true;
	forward.widest = m->widest;
	forward.bf16 = false; /* copies of it compute in either type */
	struct hspmd_graph *full = m->full.build(m->full.context, &forward, err), *g = NULL;
	struct hspmd_layer_kinds kinds = { 0 }; /* other options may give a layer other operators, but not make equal layers unlike */
	if (full && !hspmd_layer_kinds_find(full, m->full.layers, &kinds, err) && kinds.kind_count == m->kinds.kind_count)
		g = hspmd_layer_kinds_graph(full, &kinds, err);
	else if (full && kinds.layer_count)
		hspmd_fail(err, "the model has %d kinds of layers, %d if built otherwise", m->kinds.kind_count, kinds.kind_count);
	hspmd_layer_kinds_clear(&kinds);
	hspmd_graph_destroy(full);
	if (!g)
		return NULL;
	if (m->count == HSPMD_REDUCED_MAX) {
		hspmd_graph_destroy(m->made[0].graph);
		memmove(m->made, m->made + 1, (size_t)--m->count * sizeof *m->made);
	}
	m->made[m->count].how = *how;
	m->made[m->count++].graph = g;
	return g;
}

static struct hspmd_graph *build_reduced(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	const struct hspmd_graph *forward = reduced_graph(context, how, err);
	struct hspmd_graph *g = forward ? hspmd_graph_copy_forward(forward, how->bf16, err) : NULL;
	if (!g || how->forward_only || !hspmd_graph_differentiate(g))
		return g;
	hspmd_fail(err, "%s", g->error.text);
	hspmd_graph_destroy(g);
	return NULL;
}

struct hspmd_reduced_model *hspmd_reduced_model_create(const struct hspmd_graph_source *full, int seq_len, int widest,
                                                       struct hspmd_error *err)
{
	struct hspmd_reduced_model *m = hspmd_calloc(1, sizeof *m);
	if (!m) {
		hspmd_fail_memory(err, "reading a model's layers");
		return NULL;
	}
	m->full = *full;
	m->widest = widest;
	m->made[0].how = (struct hspmd_model_build_options){
		.batch = 1,
		.seq_len = seq_len,
		.vocab_parts = 1,
		.widest = widest,
		.loss_scale = 1,
		.fp8 = full->precision == HSPMD_PRECISION_FP8,
		.forward_only = true,
	};
	m->whole = full->build(full->context, &m->made[0].how, err);
	if (m->whole && !hspmd_layer_kinds_find(m->whole, full->layers, &m->kinds, err) &&
	    (m->made[0].graph = hspmd_layer_kinds_graph(m->whole, &m->kinds, err))) {
		m->count = 1;
		return m;
	}
	hspmd_reduced_model_destroy(m);
	return NULL;
}

struct hspmd_graph_source hspmd_reduced_model_source(struct hspmd_reduced_model *m)
{
	return (struct hspmd_graph_source){ .build = build_reduced,
		                            .context = m,
		                            .layers = m->kinds.kind_count,
		                            .precision =
		                                    m->full.precision == HSPMD_PRECISION_FP8 ? HSPMD_PRECISION_FP8 : HSPMD_PRECISION_FP32,
		                            .documents = m->full.documents,
		                            .reset_positions = m->full.reset_positions };
}

void hspmd_reduced_model_destroy(struct hspmd_reduced_model *m)
{
	if (!m)
		return;
	for (int i = 0; i < m->count; i++)
		hspmd_graph_destroy(m->made[i].graph);
	hspmd_graph_destroy(m->whole);
	hspmd_layer_kinds_clear(&m->kinds);
	free(m);
}
