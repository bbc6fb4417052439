/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 with experts (arXiv 2505.09388). */
#include "runtime/model/fields.h"
#include "runtime/model/qwen_moe.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .kv_heads = 4, .max_positions = 32768, .norm_eps = 1e-6, .rope_theta = 1e4 };
	static const struct hspmd_qwen_moe_defaults experts = { .experts = 128, .per_token = 8, .ffn = 768 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qk_norm = HSPMD_QK_NORM_HEADS;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	int64_t window = hspmd_json_bool_or(root, "use_sliding_window", false) ? hspmd_window_of(root, 4096) : 0;
	hspmd_decoder_read_window(root, m, window, NULL, 0);
	hspmd_qwen_moe_read(root, m, d, &experts);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_qwen3_moe;
const struct hspmd_model_type hspmd_model_qwen3_moe = {
	.names = { "qwen3_moe" }, .read = read, .block = hspmd_qwen_moe_block, .weights = hspmd_qwen_moe_weights
};
