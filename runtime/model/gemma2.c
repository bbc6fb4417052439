/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2 (arXiv 2408.00118): norms before and behind attention and MLP, which multiply by 1 + weight; soft caps of scores and logits;
 * every other layer has a window. */
#include <math.h>

#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = {
		.kv_heads = 4,
		.head_dim = 256,
		.max_positions = 8192,
		.norm_eps = 1e-6,
		.rope_theta = 1e4,
		.tied = true,
		.attention_softcap = true,
		.logit_softcap = true,
		.activation_key = "hidden_activation",
		.activation = HSPMD_GELU_TANH,
	};
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	if (!json_object_get(root->value, "attn_logit_softcapping"))
		d->attention_softcap = 50;
	if (!json_object_get(root->value, "final_logit_softcapping"))
		d->logit_softcap = 30;
	d->gain_plus_one = true;
	d->embedding_scale = sqrt((double)m->hidden);
	d->attention_scale = 1 / sqrt(hspmd_json_number_or(root, "query_pre_attn_scalar", HSPMD_JSON_POSITIVE, 1e9, 256));
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	hspmd_decoder_read_window(root, m, hspmd_window_of(root, 4096), hspmd_slides_but_each, 2);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_gemma2;
const struct hspmd_model_type hspmd_model_gemma2 = { .names = { "gemma2" }, .read = read, .block = hspmd_builder_sandwich_block };
