/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2 with experts (arXiv 2407.10671, section 2.2.2; Qwen1.5-MoE): beside the experts that a token chooses there is one that all tokens
 * take, weighted by a sigmoid of its own. If use_sliding_window is set, every second of the first max_window_layers layers has the
 * window. */
#include "runtime/model/fields.h"
#include "runtime/model/qwen_moe.h"

static bool slides(const struct hspmd_decoder *d, int64_t layer, int64_t n)
{
	(void)d;
	return layer % 2 == 0 && layer < n;
}

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .kv_heads = 16, .max_positions = 32768, .norm_eps = 1e-6, .rope_theta = 1e4 };
	static const struct hspmd_qwen_moe_defaults experts = { .experts = 60, .per_token = 4, .ffn = 1408 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qkv_bias = hspmd_json_bool_or(root, "qkv_bias", true);
	int64_t window = hspmd_json_bool_or(root, "use_sliding_window", false) ? hspmd_window_of(root, 4096) : 0;
	int64_t last = hspmd_json_int_or(root, "max_window_layers", 0, HSPMD_BLOCKS_MAX, 28);
	hspmd_decoder_read_window(root, m, window, slides, last);
	hspmd_qwen_moe_read(root, m, d, &experts);
	d->experts.shared_ffn = hspmd_json_int_or(root, "shared_expert_intermediate_size", 1, HSPMD_FFN_MAX, 5632);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_qwen2_moe;
const struct hspmd_model_type hspmd_model_qwen2_moe = {
	.names = { "qwen2_moe" }, .read = read, .block = hspmd_qwen_moe_block, .weights = hspmd_qwen_moe_weights
};
