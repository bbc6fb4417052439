/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral (arXiv 2401.04088): Mistral with experts. The matrices of a layer's experts are stacked to [E, ..] here; files store each
 * expert's alone. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .kv_heads = 8, .max_positions = 131072, .norm_eps = 1e-5, .rope_theta = 1e6 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	hspmd_decoder_refuse_biases(root, d, false);
	hspmd_decoder_read_window(root, m, hspmd_window_of(root, 0), NULL, 0);
	hspmd_decoder_read_experts(root, d, "num_local_experts", 8, 2, 0.001);
	hspmd_decoder_check(root, m);
}

static int block(struct hspmd_builder *b, int x)
{
	static const struct hspmd_expert_names names = {
		.router = "block_sparse_moe.gate",
		.gate = "block_sparse_moe.experts.w1",
		.up = "block_sparse_moe.experts.w3",
		.down = "block_sparse_moe.experts.w2",
	};
	return hspmd_builder_experts_block(b, x, &names);
}

static const struct hspmd_weight_name weights[] = { { ".experts.w", ".experts.%d.w", NULL }, { 0 } };

extern const struct hspmd_model_type hspmd_model_mixtral;
const struct hspmd_model_type hspmd_model_mixtral = { .names = { "mixtral" }, .read = read, .block = block, .weights = weights };
