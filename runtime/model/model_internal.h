/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the types of models while they build graphs. A failure is kept in the graph (see graph.h), so nothing here needs a check. */
#ifndef HSPMD_MODEL_MODEL_INTERNAL_H
#define HSPMD_MODEL_MODEL_INTERNAL_H

#include "runtime/model/build.h"
#include "runtime/model/decoder.h"
#include "runtime/model/model_type.h"

struct hspmd_builder {
	struct hspmd_graph *g;
	const struct hspmd_model *m;
	const struct hspmd_decoder *d; /* m->own */
	const struct hspmd_model_build_options *how;
	int layer;       /* plan layer being built */
	char prefix[64]; /* prefix of the layer's parameter names */
	int tokens, targets;
	int segments; /* -1: each sample is one document */
	int positions; /* -1: counted through the sample */
	int noise;    /* -1: no dropout */
	int drops;    /* operators with dropout so far, which number their streams */
	const double *frequencies[HSPMD_ROTATION_COUNT]; /* of scaled rotations, the graph's; NULL: not needed yet */
};

#define HSPMD_SHAPE(...)                                                                                                                   \
	((struct hspmd_shape){ .rank = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .dim = { __VA_ARGS__ } })

/* Parameter "<prefix><name>". Matrices start as normal(0, deviation) and have weight decay; vectors start as `value` and have none.
 * split_dim, unit: how tensor parallelism splits it (see struct hspmd_tensor). */
int hspmd_builder_matrix(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double deviation, int split_dim,
                         int64_t unit);
int hspmd_builder_vector(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double value, int split_dim, int64_t unit);

/* The dimension of a projection that tensor parallelism splits, and the granularity of the split. */
struct hspmd_cut {
	int dim; /* of the weight [out, in]; 0: outputs are split, and the bias with them; 1: inputs; -1: neither */
	int64_t unit;
};

/* Appends one operator of this layer. Returns its first output. */
int hspmd_builder_op(struct hspmd_builder *b, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *inputs, int count,
                     int *outputs);
/* The amax history "<name of w without .weight><name>" of `rows` tensors. */
int hspmd_builder_history(struct hspmd_builder *b, int w, const char *name, int64_t rows);
/* x * w (+ bias; -1: none), of FP8 operands if the model is built so, with amax histories that are named after the weight. */
int hspmd_builder_linear(struct hspmd_builder *b, int x, int w, int bias, bool transposed);
/* x * "<name>.weight"[out, in] (+ "<name>.bias"). */
int hspmd_builder_projection(struct hspmd_builder *b, int x, const char *name, int64_t out, int64_t in, bool bias, struct hspmd_cut cut);
/* The same for a router's logits, whose choices must not depend on the rounding: never of FP8 operands. */
int hspmd_builder_router(struct hspmd_builder *b, int x, const char *name, int64_t experts, bool bias);
/* Layer or RMS norm, depending on the model, with parameters "<name>.weight" (and ".bias") of `width` elements: of rows of that width, or
 * of each part of that width of a row. */
int hspmd_builder_norm(struct hspmd_builder *b, int x, const char *name, int64_t width);
/* Causal attention within documents, over q, k, v or one input that has all three. sinks: -1: none. */
int hspmd_builder_attention(struct hspmd_builder *b, const struct hspmd_op_attr *attr, const int *inputs, int count, int sinks);
/* Dropout; x if there is none. */
int hspmd_builder_dropout(struct hspmd_builder *b, int x, double rate);
int hspmd_builder_add(struct hspmd_builder *b, int x, int y);
/* Sets layer and prefix: "<blocks><number>." */
void hspmd_builder_block(struct hspmd_builder *b, const char *blocks, int number);

/* The embedding "<prefix><name>", scaled if the model does. *table: its matrix. */
int hspmd_builder_embedding(struct hspmd_builder *b, const char *prefix, const char *name, int *table);
/* The last layer: norm "<prefix><norm>", the head's matrix `head` (`table` of the embedding if the model ties them), loss over the
 * vocabulary. */
void hspmd_builder_head(struct hspmd_builder *b, int x, const char *prefix, const char *norm, const char *head, int table);

/* Rotary positions of this layer, for heads of head_dim elements. */
int hspmd_builder_rotate(struct hspmd_builder *b, int x, int64_t head_dim);
/* RMS norm with "<name>.weight" and this eps. */
int hspmd_builder_rms_norm(struct hspmd_builder *b, int x, const char *name, int64_t width, double eps);
/* A block's attention with projections "<name>.q_proj", "k_proj", "v_proj" and `out`, by the decoder's values. */
int hspmd_builder_self_attention(struct hspmd_builder *b, int x, const char *name, const char *out);
/* "mlp.gate_proj", "up_proj", "down_proj" with the decoder's activation. */
int hspmd_builder_gated_mlp(struct hspmd_builder *b, int x, const char *name, int64_t ffn);

/* Router "<router>" and experts: stacks of matrices "<gate>.weight", "<up>.weight" [E, F, H] and "<down>.weight" [E, H, F]; and
 * "<..>.bias" if the decoder has them. If the decoder has shared experts, they are one MLP "<shared>", whose result is multiplied by the
 * sigmoid of a logit per token, made by "<shared_gate>.weight" [1, H]; shared_gate NULL: it is added as it is. If the model is built so,
 * products of experts without biases are of FP8 operands, with the amax history "<gate>.amax_history". */
struct hspmd_expert_names {
	const char *router, *gate, *up, *down, *shared, *shared_gate;
};
int hspmd_builder_experts(struct hspmd_builder *b, int x, const struct hspmd_expert_names *names);

/* The graph of most types: "model.embed_tokens", blocks "model.layers.N.", "model.norm", "lm_head". `block` appends one block. */
void hspmd_build_decoder(struct hspmd_builder *b, int (*block)(struct hspmd_builder *b, int x));
/* The block of Llama: norm, attention, sum, norm, MLP, sum. */
int hspmd_builder_dense_block(struct hspmd_builder *b, int x);
/* The block of Gemma 2 and 3: the results of attention and MLP have a norm too, before they are added. */
int hspmd_builder_sandwich_block(struct hspmd_builder *b, int x);
/* x plus the MLP of its norm "post_attention_layernorm"; in layers that are not dense, plus the experts of these names and the shared ones
 * instead. experts NULL: all are dense. */
int hspmd_builder_add_mlp(struct hspmd_builder *b, int x, const struct hspmd_expert_names *experts);
/* The block of Llama with experts of these names instead of the MLP, except in layers that are dense. */
int hspmd_builder_experts_block(struct hspmd_builder *b, int x, const struct hspmd_expert_names *experts);

static inline const struct hspmd_decoder_layer *hspmd_builder_layer(const struct hspmd_builder *b)
{
	return &b->d->layers[b->layer - 1];
}

#endif
