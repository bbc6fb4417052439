/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a decoder's blocks, by the decoder's values. */
#include <stdio.h>

#include "runtime/model/model_internal.h"
#include "runtime/tensor/fp8.h"

/* ---- attention */

int hspmd_builder_rotate(struct hspmd_builder *b, int x, int64_t head_dim)
{
	enum hspmd_rotation which = hspmd_builder_layer(b)->rotation;
	if (which == HSPMD_ROTATION_NONE || b->d->rope[which].dims == 0)
		return x;
	const struct hspmd_rope *r = &b->d->rope[which];
	if (r->kind != HSPMD_ROPE_PLAIN && !b->frequencies[which]) {
		double frequencies[HSPMD_ROPE_FREQUENCIES];
		hspmd_rope_frequencies(r, b->how->context ? b->how->context : b->how->seq_len, frequencies);
		b->frequencies[which] = hspmd_graph_constant(b->g, frequencies, (size_t)(r->dims / 2));
	}
	struct hspmd_op_attr attr = {
		.head_dim = head_dim,
		.rotary = r->dims < head_dim ? r->dims : 0,
		.theta = r->theta,
		.frequencies = b->frequencies[which],
		.rotation_scale = r->scale,
		.interleaved = r->interleaved,
	};
	return hspmd_builder_op(b, HSPMD_OP_ROPE, &attr, &x, 1, NULL);
}

static int named(struct hspmd_builder *b, int x, const char *name, const char *part, int64_t out, int64_t in, bool bias,
                 struct hspmd_cut cut)
{
	char full[80];
	snprintf(full, sizeof full, "%s.%s", name, part);
	return hspmd_builder_projection(b, x, full, out, in, bias, cut);
}

static int norm_heads(struct hspmd_builder *b, int x, const char *name, const char *part, int64_t width)
{
	char full[80];
	snprintf(full, sizeof full, "%s.%s", name, part);
	if (b->d->qk_norm == HSPMD_QK_NORM_NONE)
		return x;
	return hspmd_builder_norm(b, x, full, b->d->qk_norm == HSPMD_QK_NORM_HEADS ? b->d->head_dim : width);
}

static int sinks_of(struct hspmd_builder *b, const char *name, int64_t unit)
{
	char full[80];
	snprintf(full, sizeof full, "%s.sinks", name);
	return b->d->sinks ? hspmd_builder_vector(b, full, HSPMD_SHAPE(b->d->heads), 0, 0, unit) : -1;
}

int hspmd_builder_self_attention(struct hspmd_builder *b, int x, const char *name, const char *out)
{
	const struct hspmd_decoder *d = b->d;
	int64_t width = d->heads * d->head_dim, kv_width = d->kv_heads * d->head_dim, h = b->m->hidden;
	/* A tensor-parallel group with more devices than heads of keys and values: each device has all of those, and some query heads. Else
	 * query heads stay with the key and value head they read. */
	bool whole = b->how->widest > d->kv_heads;
	int64_t group = whole ? 1 : d->heads / d->kv_heads;
	struct hspmd_cut by_kv_head = { whole ? -1 : 0, d->head_dim }, by_group = { 0, d->head_dim * group },
	                 from_group = { 1, by_group.unit };
	struct hspmd_op_attr attr = {
		.head_dim = d->head_dim,
		.heads = d->heads,
		.kv_heads = d->kv_heads,
		.window = hspmd_builder_layer(b)->slides ? d->window : 0,
		.scale = d->attention_scale,
		.softcap = d->attention_softcap,
		.whole_kv = whole,
	};
	int q = named(b, x, name, "q_proj", width, h, d->qkv_bias, by_group);
	int k = named(b, x, name, "k_proj", kv_width, h, d->qkv_bias, by_kv_head);
	int v = named(b, x, name, "v_proj", kv_width, h, d->qkv_bias, by_kv_head);
	q = hspmd_builder_rotate(b, norm_heads(b, q, name, "q_norm", width), d->head_dim);
	k = hspmd_builder_rotate(b, norm_heads(b, k, name, "k_norm", kv_width), d->head_dim);
	int o = hspmd_builder_attention(b, &attr, (int[]){ q, k, v }, 3, sinks_of(b, name, group));
	return hspmd_builder_dropout(b, named(b, o, name, out, h, width, d->out_bias, from_group), d->dropout.residual);
}

/* ---- MLP and experts */

int hspmd_builder_gated_mlp(struct hspmd_builder *b, int x, const char *name, int64_t ffn)
{
	const struct hspmd_decoder *d = b->d;
	int64_t h = b->m->hidden;
	struct hspmd_op_attr attr = { .activation = d->activation };
	int gate = named(b, x, name, "gate_proj", ffn, h, d->mlp_bias, (struct hspmd_cut){ 0, 1 });
	int up = named(b, x, name, "up_proj", ffn, h, d->mlp_bias, (struct hspmd_cut){ 0, 1 });
	int act = hspmd_builder_op(b, HSPMD_OP_SWIGLU, &attr, (int[]){ gate, up }, 2, NULL);
	return hspmd_builder_dropout(b, named(b, act, name, "down_proj", h, ffn, d->mlp_bias, (struct hspmd_cut){ 1, 1 }),
	                             d->dropout.residual);
}

/* A parameter of all experts, which are split as wholes. */
static int stack(struct hspmd_builder *b, const char *name, const char *part, struct hspmd_shape shape)
{
	char full[80];
	snprintf(full, sizeof full, "%s.%s", name, part);
	return shape.rank > 2 ? hspmd_builder_matrix(b, full, shape, b->d->init_range, 0, 1)
	                      : hspmd_builder_vector(b, full, shape, 0, 0, 1);
}

int hspmd_builder_experts(struct hspmd_builder *b, int x, const struct hspmd_expert_names *names)
{
	const struct hspmd_decoder *d = b->d;
	int64_t n = d->experts.count, h = b->m->hidden, f = d->experts.ffn;
	struct hspmd_op_attr attr = {
		.experts = d->experts.count,
		.experts_per_token = d->experts.per_token,
		.router = d->experts.router,
		.weight_scale = d->experts.weight_scale,
		.groups = d->experts.groups,
		.top_groups = d->experts.top_groups,
		.group_best = d->experts.group_best,
		.activation = d->activation,
		.limit = d->experts.limit,
		.scale = d->experts.aux_coef * b->how->loss_scale,
	};
	int routed[HSPMD_OP_MAX_IO];
	bool biases = d->experts.biases;
	int logits = hspmd_builder_router(b, x, names->router, n, biases);
	int chosen_by[] = { logits, d->experts.choice_bias
		                            ? hspmd_builder_vector(b, "mlp.gate.e_score_correction_bias", HSPMD_SHAPE(n), 0, -1, 1)
		                            : -1 };
	int in[9] = { x, -1, hspmd_builder_op(b, HSPMD_OP_TOPK_ROUTER, &attr, chosen_by, d->experts.choice_bias ? 2 : 1, routed) };
	in[1] = routed[1];
	in[3] = stack(b, names->gate, "weight", HSPMD_SHAPE(n, f, h));
	in[4] = stack(b, names->up, "weight", HSPMD_SHAPE(n, f, h));
	in[5] = stack(b, names->down, "weight", HSPMD_SHAPE(n, h, f));
	in[6] = biases ? stack(b, names->gate, "bias", HSPMD_SHAPE(n, f)) : -1;
	in[7] = biases ? stack(b, names->up, "bias", HSPMD_SHAPE(n, f)) : -1;
	in[8] = biases ? stack(b, names->down, "bias", HSPMD_SHAPE(n, h)) : -1;
	if (biases || !b->how->fp8)
		return hspmd_builder_op(b, HSPMD_OP_EXPERTS, &attr, in, biases ? 9 : 6, NULL);
	attr.scale = b->how->loss_scale;
	in[6] = hspmd_builder_history(b, in[3], HSPMD_AMAX_HISTORY, HSPMD_EXPERTS_OPERANDS);
	return hspmd_builder_op(b, HSPMD_OP_EXPERTS_FP8, &attr, in, 7, NULL);
}

static int shared_experts(struct hspmd_builder *b, int x, const struct hspmd_expert_names *names)
{
	int y = hspmd_builder_gated_mlp(b, x, names->shared, b->d->experts.shared_ffn);
	if (!names->shared_gate)
		return y;
	struct hspmd_op_attr sigmoid = { .kind = HSPMD_UNARY_SIGMOID }, times = { .kind = HSPMD_BINARY_MUL };
	int gate = hspmd_builder_router(b, x, names->shared_gate, 1, false);
	gate = hspmd_builder_op(b, HSPMD_OP_UNARY, &sigmoid, &gate, 1, NULL);
	return hspmd_builder_op(b, HSPMD_OP_BINARY, &times, (int[]){ y, gate }, 2, NULL);
}

/* ---- blocks */

int hspmd_builder_add_mlp(struct hspmd_builder *b, int x, const struct hspmd_expert_names *experts)
{
	int n = hspmd_builder_norm(b, x, "post_attention_layernorm", b->m->hidden);
	if (!experts || hspmd_builder_layer(b)->is_dense)
		return hspmd_builder_add(b, x, hspmd_builder_gated_mlp(b, n, "mlp", b->d->ffn));
	x = hspmd_builder_add(b, x, hspmd_builder_experts(b, n, experts));
	return b->d->experts.shared_ffn ? hspmd_builder_add(b, x, shared_experts(b, n, experts)) : x;
}

int hspmd_builder_experts_block(struct hspmd_builder *b, int x, const struct hspmd_expert_names *experts)
{
	int n = hspmd_builder_norm(b, x, "input_layernorm", b->m->hidden);
	x = hspmd_builder_add(b, x, hspmd_builder_self_attention(b, n, "self_attn", "o_proj"));
	return hspmd_builder_add_mlp(b, x, experts);
}

int hspmd_builder_dense_block(struct hspmd_builder *b, int x)
{
	return hspmd_builder_experts_block(b, x, NULL);
}

int hspmd_builder_sandwich_block(struct hspmd_builder *b, int x)
{
	int64_t h = b->m->hidden;
	int y = hspmd_builder_self_attention(b, hspmd_builder_norm(b, x, "input_layernorm", h), "self_attn", "o_proj");
	x = hspmd_builder_add(b, x, hspmd_builder_norm(b, y, "post_attention_layernorm", h));
	y = hspmd_builder_gated_mlp(b, hspmd_builder_norm(b, x, "pre_feedforward_layernorm", h), "mlp", b->d->ffn);
	return hspmd_builder_add(b, x, hspmd_builder_norm(b, y, "post_feedforward_layernorm", h));
}

void hspmd_build_decoder(struct hspmd_builder *b, int (*block)(struct hspmd_builder *b, int x))
{
	int table, x = hspmd_builder_embedding(b, "model.", "embed_tokens.weight", &table);
	for (int l = 0; l < b->m->block_count; l++) {
		hspmd_builder_block(b, "model.layers.", l);
		x = block(b, x);
	}
	hspmd_builder_head(b, x, "model.", "norm", "lm_head.weight", table);
}
