/* SPDX-License-Identifier: Apache-2.0 */
/* Every decoder_sparse_step-th layer has experts, except those of mlp_only_layers. */
#include "runtime/model/qwen_moe.h"

#include "runtime/model/fields.h"

static void read_dense_layers(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d)
{
	int64_t step = hspmd_json_int_or(root, "decoder_sparse_step", 1, HSPMD_BLOCKS_MAX, 1);
	if (hspmd_json_failed(root))
		return; /* what was not read is zero */
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

void hspmd_qwen_moe_read(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d,
                         const struct hspmd_qwen_moe_defaults *absent)
{
	hspmd_decoder_read_experts(root, d, "num_experts", absent->experts, absent->per_token, 0.001);
	d->experts.ffn = hspmd_json_int_or(root, "moe_intermediate_size", 1, HSPMD_FFN_MAX, absent->ffn);
	d->experts.router = hspmd_json_bool_or(root, "norm_topk_prob", false) ? HSPMD_ROUTER_CHOSEN : HSPMD_ROUTER_ALL;
	if (!hspmd_json_bool_or(root, "output_router_logits", false))
		d->experts.aux_coef = 0; /* the balance loss is part of the loss only then */
	read_dense_layers(root, m, d);
}

int hspmd_qwen_moe_block(struct hspmd_builder *b, int x)
{
	static const struct hspmd_expert_names names = {
		.router = "mlp.gate",
		.gate = "mlp.experts.gate_proj",
		.up = "mlp.experts.up_proj",
		.down = "mlp.experts.down_proj",
		.shared = "mlp.shared_expert",
		.shared_gate = "mlp.shared_expert_gate",
	};
	return hspmd_builder_experts_block(b, x, &names);
}

const struct hspmd_weight_name hspmd_qwen_moe_weights[] = {
	{ ".experts.gate_proj", ".experts.%d.gate_proj", NULL },
	{ ".experts.up_proj", ".experts.%d.up_proj", NULL },
	{ ".experts.down_proj", ".experts.%d.down_proj", NULL },
	{ 0 },
};
