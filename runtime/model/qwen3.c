/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 (arXiv 2505.09388): Llama with a norm of each head's queries and keys. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = {
		.kv_heads = 32, .head_dim = 128, .max_positions = 32768, .norm_eps = 1e-6, .rope_theta = 1e4
	};
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qk_norm = HSPMD_QK_NORM_HEADS;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	int64_t window = hspmd_json_bool_or(root, "use_sliding_window", false) ? hspmd_window_of(root, 4096) : 0;
	int64_t first = hspmd_json_int_or(root, "max_window_layers", 0, HSPMD_BLOCKS_MAX, 28);
	hspmd_decoder_read_window(root, m, window, hspmd_slides_from, first);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_qwen3;
const struct hspmd_model_type hspmd_model_qwen3 = { .names = { "qwen3" }, .read = read, .block = hspmd_builder_dense_block };
