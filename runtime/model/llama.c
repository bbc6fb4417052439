/* SPDX-License-Identifier: Apache-2.0 */
/* Llama (arXiv 2302.13971; rotary positions of Llama 3.1 to 3.3: arXiv 2407.21783) as LlamaForCausalLM stores it. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .max_positions = 2048, .norm_eps = 1e-6, .rope_theta = 1e4 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	d->mlp_bias = hspmd_json_bool_or(root, "mlp_bias", false);
	hspmd_decoder_read_window(root, m, 0, NULL, 0);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_llama;
const struct hspmd_model_type hspmd_model_llama = { .names = { "llama" }, .read = read, .block = hspmd_builder_dense_block };
