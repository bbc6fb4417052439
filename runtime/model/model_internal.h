/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the model families while they build graphs. A failure is kept in the graph (see graph.h), so nothing here needs a check. */
#ifndef HSPMD_MODEL_MODEL_INTERNAL_H
#define HSPMD_MODEL_MODEL_INTERNAL_H

#include "runtime/model/build.h"

struct hspmd_builder {
	struct hspmd_graph *g;
	const struct hspmd_model *m;
	const struct hspmd_model_build_options *how;
	int layer;       /* plan layer being built */
	char prefix[64]; /* prefix of the layer's parameter names */
	int tokens, targets;
	int segments; /* -1: each sample is one document */
};

#define HSPMD_SHAPE(...)                                                                                                                   \
	((struct hspmd_shape){ .rank = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .dim = { __VA_ARGS__ } })

/* Parameter "<prefix><name>". Matrices start as normal(0, deviation) and have weight decay; vectors start as `value` and have none.
 * split_dim, unit: how tensor parallelism splits it (see struct hspmd_tensor). */
int hspmd_builder_matrix(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double deviation, int split_dim,
                         int64_t unit);
int hspmd_builder_vector(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double value, int split_dim, int64_t unit);

/* Appends one operator of this layer. Returns its first output. */
int hspmd_builder_op(struct hspmd_builder *b, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *inputs, int count,
                     int *outputs);
/* x * w (+ bias; -1: none). */
int hspmd_builder_linear(struct hspmd_builder *b, int x, int w, int bias, bool transposed);
/* Layer or RMS norm, depending on the model, with parameters "<name>.weight" (and ".bias"). */
int hspmd_builder_norm(struct hspmd_builder *b, int x, const char *name);
/* Causal attention within documents, over q, k, v or one input that has all three. */
int hspmd_builder_attention(struct hspmd_builder *b, const struct hspmd_op_attr *attr, const int *inputs, int count);
int hspmd_builder_add(struct hspmd_builder *b, int x, int y);
/* The last layer: norm "<prefix><norm>", the head's matrix (`table` of the embedding if the model ties them), loss over the vocabulary. */
void hspmd_builder_head(struct hspmd_builder *b, int x, const char *prefix, const char *norm, int table);

/* The model families: each appends everything up to the loss. 0 or -1 (see g->error). */
int hspmd_build_gpt2(struct hspmd_builder *b);
int hspmd_build_llama(struct hspmd_builder *b);

#endif
