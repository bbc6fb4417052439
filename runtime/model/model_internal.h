/* SPDX-License-Identifier: Apache-2.0 */
/* What the model families share while their graphs are built. Failures stick in the graph (see graph.h), so nothing here is checked. */
#ifndef HSPMD_MODEL_MODEL_INTERNAL_H
#define HSPMD_MODEL_MODEL_INTERNAL_H

#include "runtime/model/build.h"

struct hspmd_builder {
	struct hspmd_graph *g;
	const struct hspmd_model *m;
	const struct hspmd_model_build_options *how;
	int layer;       /* plan layer being built */
	char prefix[64]; /* of its parameters' names */
	int tokens, targets;
	int segments; /* -1: samples are one document each */
};

#define HSPMD_SHAPE(...)                                                                                                                   \
	((struct hspmd_shape){ .rank = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .dim = { __VA_ARGS__ } })

/* Parameter "<prefix><name>". Matrices start as normal(0, deviation) and decay; vectors start as `value` and do not. split_dim, unit: how
 * tensor parallelism splits it (see struct hspmd_tensor). */
int hspmd_builder_matrix(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double deviation, int split_dim,
                         int64_t unit);
int hspmd_builder_vector(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double value, int split_dim, int64_t unit);

/* One operator of this layer. Returns its first output. */
int hspmd_builder_op(struct hspmd_builder *b, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *inputs, int count,
                     int *outputs);
/* x * w (+ bias; -1: none). */
int hspmd_builder_linear(struct hspmd_builder *b, int x, int w, int bias, bool transposed);
/* Layer or RMS norm with parameters "<name>.weight" (and ".bias"), as the model has it. */
int hspmd_builder_norm(struct hspmd_builder *b, int x, const char *name);
/* Causal attention over q, k, v, or one input that has all three, within documents. */
int hspmd_builder_attention(struct hspmd_builder *b, const struct hspmd_op_attr *attr, const int *inputs, int count);
int hspmd_builder_add(struct hspmd_builder *b, int x, int y);
/* The last layer: norm "<prefix><norm>", the head's matrix (the embedding's table where the model ties them), loss over the vocabulary. */
void hspmd_builder_head(struct hspmd_builder *b, int x, const char *prefix, const char *norm, int table);

/* The families: append everything up to the loss. 0 or -1 (see g->error). */
int hspmd_build_gpt2(struct hspmd_builder *b);
int hspmd_build_llama(struct hspmd_builder *b);

#endif
