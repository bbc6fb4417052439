/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 2 (arXiv 2501.00656): norms stand behind attention and MLP, and queries and keys have a norm over all heads together. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .max_positions = 2048, .norm_eps = 1e-5, .rope_theta = 1e4 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qk_norm = HSPMD_QK_NORM_WHOLE;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	hspmd_decoder_read_window(root, m, 0, NULL, 0);
	hspmd_decoder_check(root, m);
}

static int block(struct hspmd_builder *b, int x)
{
	int64_t h = b->m->hidden;
	int y = hspmd_builder_self_attention(b, x, "self_attn", "o_proj");
	x = hspmd_builder_add(b, x, hspmd_builder_norm(b, y, "post_attention_layernorm", h));
	y = hspmd_builder_gated_mlp(b, x, "mlp", b->d->ffn);
	return hspmd_builder_add(b, x, hspmd_builder_norm(b, y, "post_feedforward_layernorm", h));
}

extern const struct hspmd_model_type hspmd_model_olmo2;
const struct hspmd_model_type hspmd_model_olmo2 = { .names = { "olmo2" }, .read = read, .block = block };
