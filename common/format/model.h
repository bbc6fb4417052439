/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face config.json, reduced to the values that decide shapes and arithmetic. Plain data.
 * Layer 0 is the embedding, layers 1 .. block_count the transformer blocks, layer block_count + 1 the final norm with the head. */
#ifndef HSPMD_FORMAT_MODEL_H
#define HSPMD_FORMAT_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

enum hspmd_model_type {
	HSPMD_MODEL_GPT2,
	HSPMD_MODEL_LLAMA,
	HSPMD_MODEL_MISTRAL,
	HSPMD_MODEL_QWEN2,
	HSPMD_MODEL_MIXTRAL,
	HSPMD_MODEL_TYPE_COUNT
};
extern const char *const hspmd_model_type_names[];

struct hspmd_model {
	enum hspmd_model_type type;
	char *name; /* _name_or_path if given, else the model_type */
	int block_count;
	int64_t hidden;
	int64_t heads, kv_heads, head_dim; /* q width = heads * head_dim */
	int64_t ffn;                       /* inner width of the MLP (of one expert) */
	int64_t vocab;
	int64_t max_positions;
	int64_t sliding_window; /* 0: none */
	double norm_eps;
	double rope_theta; /* 0: learnt positions (gpt2) */
	double init_range; /* standard deviation of random weights */
	bool rms_norm;     /* else layer norm with bias */
	bool gated;        /* SwiGLU; else GELU (tanh form: gelu_new, gelu_pytorch_tanh) */
	bool gelu_exact;   /* the erf form ("gelu") */
	bool qkv_bias, out_bias, mlp_bias;
	bool tied;                      /* head shares the embedding */
	int experts, experts_per_token; /* 0: dense */
	double router_aux_coef;
	bool dropout;   /* the config asks for dropout; hspmd trains without it, and warns once */
	json_t *config; /* the file as read, for export; owned */
};

/* Read and check; errors name file and JSON path; an unsupported model_type lists the supported ones. */
struct hspmd_model *hspmd_model_read(const char *path, struct hspmd_error *err);
struct hspmd_model *hspmd_model_from_json(json_t *value, const char *name, struct hspmd_error *err);
void hspmd_model_destroy(struct hspmd_model *m);

int hspmd_model_layers(const struct hspmd_model *m); /* block_count + 2 */

#endif
