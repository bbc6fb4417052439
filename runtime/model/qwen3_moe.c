/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 with experts (arXiv 2505.09388). Every decoder_sparse_step-th layer has experts, except those of mlp_only_layers. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read_dense_layers(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d)
{
	int64_t step = hspmd_json_int_or(root, "decoder_sparse_step", 1, HSPMD_BLOCKS_MAX, 1);
	for (int64_t l = 0; l < m->block_count; l++)
		d->layers[l].is_dense = (l + 1) % step != 0;
	struct hspmd_json dense = hspmd_json_array_or_none(root, "mlp_only_layers", 0, HSPMD_BLOCKS_MAX);
	for (size_t i = 0; i < hspmd_json_length(&dense); i++) {
		struct hspmd_json at = hspmd_json_at(&dense, i);
		int64_t layer = hspmd_json_int_value(&at, 0, m->block_count - 1);
		if (!hspmd_json_failed(root))
			d->layers[layer].is_dense = true;
	}
}

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .kv_heads = 4, .max_positions = 32768, .norm_eps = 1e-6, .rope_theta = 1e4 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qk_norm = HSPMD_QK_NORM_HEADS;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	int64_t window = hspmd_json_bool_or(root, "use_sliding_window", false) ? hspmd_window_of(root, 4096) : 0;
	hspmd_decoder_read_window(root, m, window, NULL, 0);
	hspmd_decoder_read_experts(root, d, "num_experts", 128, 8, 0.001);
	d->experts.ffn = hspmd_json_int_or(root, "moe_intermediate_size", 1, HSPMD_FFN_MAX, 768);
	d->experts.router = hspmd_json_bool_or(root, "norm_topk_prob", false) ? HSPMD_ROUTER_CHOSEN : HSPMD_ROUTER_ALL;
	if (!hspmd_json_bool_or(root, "output_router_logits", false))
		d->experts.aux_coef = 0; /* the balance loss is part of the loss only then */
	read_dense_layers(root, m, d);
	hspmd_decoder_check(root, m);
}

static int block(struct hspmd_builder *b, int x)
{
	static const struct hspmd_expert_names names = {
		.router = "mlp.gate",
		.gate = "mlp.experts.gate_proj",
		.up = "mlp.experts.up_proj",
		.down = "mlp.experts.down_proj",
	};
	return hspmd_builder_experts_block(b, x, &names);
}

static const struct hspmd_weight_name weights[] = {
	{ ".experts.gate_proj", ".experts.%d.gate_proj", NULL },
	{ ".experts.up_proj", ".experts.%d.up_proj", NULL },
	{ ".experts.down_proj", ".experts.%d.down_proj", NULL },
	{ 0 },
};

extern const struct hspmd_model_type hspmd_model_qwen3_moe;
const struct hspmd_model_type hspmd_model_qwen3_moe = { .names = { "qwen3_moe" }, .read = read, .block = block, .weights = weights };
