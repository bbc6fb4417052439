/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/inference/forward.h"

#include <string.h>

#include "common/alloc.h"
#include "runtime/inference/positions.h"
#include "runtime/program/place_blocks.h"

#define ALIGN 64

/* The input of the last operator that makes statistics of logits. -1: none. */
static int logits_of(const struct hspmd_graph *g)
{
	int logits = -1;
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].opcode == HSPMD_OP_VOCAB_STATS)
			logits = g->ops[i].in[0];
	return logits;
}

/* Marks the operators that `wanted` tensors follow from, and all tensors that these read. */
static void mark_needed(struct inference_forward *f, bool *wanted)
{
	for (size_t i = f->graph->op_count; i-- > 0;) {
		const struct hspmd_op *op = &f->graph->ops[i];
		for (int o = 0; o < op->output_count; o++)
			f->runs[i] |= op->out[o] >= 0 && wanted[op->out[o]];
		for (int k = 0; f->runs[i] && k < op->input_count; k++)
			if (op->in[k] >= 0)
				wanted[op->in[k]] = true;
	}
}

static int find_needed(struct inference_forward *f, const struct inference_forward_options *o, struct hspmd_error *err)
{
	const struct hspmd_graph *g = f->graph;
	bool *wanted = hspmd_calloc(g->tensor_count, sizeof *wanted);
	if (!wanted)
		return hspmd_fail_memory(err, "preparing to generate");
	wanted[f->logits] = o->logits;
	for (size_t i = 0; i < g->op_count; i++) {
		if (g->ops[i].opcode != HSPMD_OP_ATTENTION)
			continue;
		f->attention_count++;
		if (o->cached && g->ops[i].input_count >= 3)
			wanted[g->ops[i].in[1]] = wanted[g->ops[i].in[2]] = true;
	}
	mark_needed(f, wanted);
	int rv = 0;
	for (size_t t = 0; !rv && t < g->tensor_count; t++)
		if (wanted[t] && g->tensors[t].role == HSPMD_TENSOR_INPUT && (int)t != f->tokens)
			rv = hspmd_fail(err, "the model has an input %s besides tokens", g->tensors[t].name);
	free(wanted);
	return rv;
}

/* ---- memory */

static size_t bytes_of(const struct hspmd_graph *g, int t)
{
	size_t bytes = (size_t)hspmd_shape_elements(&g->tensors[t].shape) * hspmd_dtype_bytes(g->tensors[t].dtype);
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

struct lives {
	struct hspmd_memory_block *blocks;
	int *tensor; /* per block */
	size_t count;
	size_t *last; /* per tensor: its last use */
};

static void add_block(struct lives *l, const struct hspmd_graph *g, int t, size_t first)
{
	size_t last = l->last[t] > first ? l->last[t] : first;
	l->tensor[l->count] = t;
	l->blocks[l->count++] = (struct hspmd_memory_block){ .first = first, .last = last, .bytes = bytes_of(g, t) };
}

/* Keys and values are copied where attention is, also if the attention itself is not needed. */
static void find_lives(const struct inference_forward *f, struct lives *l)
{
	const struct hspmd_graph *g = f->graph;
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] >= 0 && (f->runs[i] || g->ops[i].opcode == HSPMD_OP_ATTENTION))
				l->last[g->ops[i].in[k]] = i;
	l->last[f->logits] = g->op_count;
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_INPUT)
			add_block(l, g, (int)t, 0);
	for (size_t i = 0; i < g->op_count; i++)
		for (int o = 0; f->runs[i] && o < g->ops[i].output_count; o++)
			if (g->ops[i].out[o] >= 0)
				add_block(l, g, g->ops[i].out[o], i);
}

static int place(struct inference_forward *f, struct hspmd_error *err)
{
	size_t n = f->graph->tensor_count;
	struct lives l = { hspmd_calloc(n, sizeof *l.blocks), hspmd_calloc(n, sizeof *l.tensor), 0, hspmd_calloc(n, sizeof *l.last) };
	int rv = l.blocks && l.tensor && l.last ? 0 : hspmd_fail_memory(err, "preparing to generate");
	if (!rv) {
		find_lives(f, &l);
		rv = hspmd_place_blocks(l.blocks, l.count, 0, &f->arena_bytes, err);
		for (size_t i = 0; !rv && i < l.count; i++)
			f->offset[l.tensor[i]] = l.blocks[i].offset;
	}
	free(l.blocks);
	free(l.tensor);
	free(l.last);
	return rv;
}

/* ---- the whole */

static int prepare(struct inference_forward *f, const struct inference_forward_options *o, struct hspmd_error *err)
{
	const struct hspmd_graph *g = f->graph;
	f->tokens = hspmd_graph_find(g, HSPMD_TENSOR_TOKENS);
	f->logits = logits_of(g);
	if (f->tokens < 0 || f->logits < 0)
		return hspmd_fail(err, "the model has no %s", f->tokens < 0 ? "tokens" : "logits of tokens");
	f->runs = hspmd_calloc(g->op_count, sizeof *f->runs);
	f->position_dim = hspmd_calloc(g->tensor_count, sizeof *f->position_dim);
	f->offset = hspmd_calloc(g->tensor_count, sizeof *f->offset);
	if (!f->runs || !f->position_dim || !f->offset)
		return hspmd_fail_memory(err, "preparing to generate");
	if (find_needed(f, o, err) || (o->cached && inference_positions(g, f->runs, f->position_dim, err)))
		return -1;
	for (size_t t = 0; !o->cached && t < g->tensor_count; t++)
		f->position_dim[t] = -1;
	return place(f, err);
}

int inference_forward_build(struct inference_forward *f, const struct hspmd_model *m, const struct inference_forward_options *o,
                            struct hspmd_error *err)
{
	struct hspmd_model_build_options how = { .batch = 1,
		                                 .seq_len = o->count,
		                                 .context = o->context,
		                                 .vocab_parts = 1,
		                                 .loss_scale = 1,
		                                 .parts = o->cached,
		                                 .bf16 = o->bf16,
		                                 .forward_only = true };
	*f = (struct inference_forward){ .count = o->count };
	f->graph = hspmd_model_graph(m, &how, err);
	int rv = f->graph ? prepare(f, o, err) : -1;
	if (rv)
		inference_forward_free(f);
	return rv;
}

void inference_forward_free(struct inference_forward *f)
{
	hspmd_graph_destroy(f->graph);
	free(f->runs);
	free(f->position_dim);
	free(f->offset);
	*f = (struct inference_forward){ 0 };
}
