/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss (arXiv 2508.10925): experts with biases and a clamped activation, attention with sinks, a window in every other layer. Files have
 * the experts' matrices transposed, with gate and up in turns. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = {
		.kv_heads = 8, .head_dim = 64, .max_positions = 131072, .norm_eps = 1e-5, .rope_theta = 150000
	};
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", true);
	d->sinks = true;
	if (!hspmd_json_has(root, "rope_scaling") && !hspmd_json_has(root, "rope_parameters"))
		hspmd_rope_set_yarn(&d->rope[0], 32, 4096, 32, 1, false);
	hspmd_decoder_read_window(root, m, hspmd_window_of(root, 128), hspmd_slides_but_each, 2);
	hspmd_decoder_read_experts(root, d, "num_local_experts", 128, 4, 0.9);
	if (!hspmd_json_bool_or(root, "output_router_logits", false))
		d->experts.aux_coef = 0; /* the balance loss is part of the loss only then */
	d->experts.biases = true;
	d->activation = HSPMD_CLAMPED;
	d->experts.limit = hspmd_json_number_or(root, "swiglu_limit", HSPMD_JSON_POSITIVE, 1e9, 7);
	hspmd_decoder_check(root, m);
}

static int block(struct hspmd_builder *b, int x)
{
	static const struct hspmd_expert_names names = {
		.router = "mlp.router",
		.gate = "mlp.experts.gate_proj",
		.up = "mlp.experts.up_proj",
		.down = "mlp.experts.down_proj",
	};
	return hspmd_builder_experts_block(b, x, &names);
}

/* ---- weights */

/* Ours is [E, F, H], or [E, F] for biases; the file's [E, H, 2 F] or [E, 2 F], gate in even columns and up in odd ones. */
static void place_in_turns(const struct hspmd_shape *ours, struct hspmd_file_piece *piece, int64_t first)
{
	int64_t f = ours->dim[1], h = ours->rank > 2 ? ours->dim[2] : 1;
	piece->first = first;
	piece->stride[0] = 2 * f * h;
	piece->stride[1] = 2;
	piece->stride[2] = 2 * f;
	piece->shape.dim[1] = ours->rank > 2 ? h : 2 * f;
	piece->shape.dim[2] = ours->rank > 2 ? 2 * f : 0;
}

static void place_gate(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)m;
	place_in_turns(ours, piece, 0);
}

static void place_up(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)m;
	place_in_turns(ours, piece, 1);
}

static void place_down(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)m;
	piece->stride[1] = 1;
	piece->stride[2] = ours->dim[1];
	piece->shape.dim[1] = ours->dim[2];
	piece->shape.dim[2] = ours->dim[1];
}

static const struct hspmd_weight_name weights[] = {
	{ ".experts.gate_proj.weight", ".experts.gate_up_proj", place_gate },
	{ ".experts.up_proj.weight", ".experts.gate_up_proj", place_up },
	{ ".experts.down_proj.weight", ".experts.down_proj", place_down },
	{ ".experts.gate_proj.bias", ".experts.gate_up_proj_bias", place_gate },
	{ ".experts.up_proj.bias", ".experts.gate_up_proj_bias", place_up },
	{ ".experts.down_proj.bias", ".experts.down_proj_bias", NULL },
	{ 0 },
};

extern const struct hspmd_model_type hspmd_model_gpt_oss;
const struct hspmd_model_type hspmd_model_gpt_oss = { .names = { "gpt_oss" }, .read = read, .block = block, .weights = weights };
