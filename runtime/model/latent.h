/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1) with experts some of which all tokens share. Keys
 * and values are made of one small latent vector per position; a part of each head of queries and keys is rotated, and all heads of keys
 * have the same rotated part. Values are filled up with zeros to the width of keys for the attention operator. */
#ifndef HSPMD_MODEL_LATENT_H
#define HSPMD_MODEL_LATENT_H

#include "runtime/model/model_internal.h"

/* The own data of such a model. */
struct hspmd_latent {
	struct hspmd_decoder d;        /* head_dim: of queries and keys */
	int64_t q_rank, kv_rank;       /* q_rank 0: queries are made without a latent vector */
	int64_t nope, rotated, values; /* elements of a head: of queries and keys without rotation, and rotated; of values */
};

/* Absent keys: as in the configuration class of the model type. */
struct hspmd_latent_defaults {
	int64_t heads_kv, q_rank, kv_rank, nope, rotated, values, positions, first_dense;
	int experts, per_token, shared, groups, top_groups;
	double weight_scale;
};

/* Reads everything but the router's kind, and checks it. NULL: the document has failed. */
struct hspmd_latent *hspmd_latent_read(struct hspmd_json *root, struct hspmd_model *m, const struct hspmd_latent_defaults *absent);
int hspmd_latent_block(struct hspmd_builder *b, int x);
extern const struct hspmd_weight_name hspmd_latent_weights[];

#endif
