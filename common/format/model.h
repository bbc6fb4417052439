/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face config.json, reduced to the values that decide shapes and arithmetic. Plain data.
 * Layer 0 is the embedding, layers 1 .. block_count the transformer blocks, layer block_count + 1 the final norm with the head. */
#ifndef HSPMD_FORMAT_MODEL_H
#define HSPMD_FORMAT_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

/* A type of model (runtime/model/model_type.h), which has read the config.json and builds the graph. */
struct hspmd_model_type;

struct hspmd_model {
	const struct hspmd_model_type *type;
	char *name; /* _name_or_path if given, else the model_type */
	int block_count;
	int64_t hidden, vocab;
	int64_t max_positions;
	bool learnt_positions; /* the model has weights for max_positions positions, and no sample can be longer */
	bool tied;             /* head shares the embedding */
	bool dropout;          /* training drops elements at random */
	json_t *config;        /* the file as read, for export; owned */
	void *own;             /* what only the type's own files read; one allocation, owned */

	/* Sizes of a transformer block, from which costs are computed. */
	int64_t heads, kv_heads, head_dim; /* q width = heads * head_dim */
	int64_t ffn;                       /* inner width of the MLP (of one expert) */
	int64_t sliding_window;            /* of all layers; 0: none */
	bool rms_norm;                     /* else layer norm with bias */
	bool gated;                        /* else one activation without a gate */
	bool qkv_bias, out_bias, mlp_bias;
	int experts, experts_per_token; /* 0: dense */
};

void hspmd_model_destroy(struct hspmd_model *m);

int hspmd_model_layers(const struct hspmd_model *m); /* block_count + 2 */
/* Parameters of one layer. A tied head counts the norm only. */
int64_t hspmd_model_layer_params(const struct hspmd_model *m, int layer);
int64_t hspmd_model_params(const struct hspmd_model *m);
/* Floating-point operations of one sample's forward pass through a layer (2 per multiply-add; causal attention counts half). */
double hspmd_model_layer_flops(const struct hspmd_model *m, int layer, int64_t seq_len);
/* Elements that a layer sends to the next layer per sample (seq_len * hidden; the head: 1). */
int64_t hspmd_model_layer_output(const struct hspmd_model *m, int layer, int64_t seq_len);

#endif
