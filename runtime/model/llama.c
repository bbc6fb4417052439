/* SPDX-License-Identifier: Apache-2.0 */
/* Llama (arXiv 2302.13971), Mistral (2310.06825: window), Qwen2 (2407.10671: biases of q, k, v) and Mixtral (2401.04088: experts), as
 * Hugging Face's *ForCausalLM store them. The experts' matrices of a layer are stacked to [E, ..] here; files store each expert's alone. */
#include <math.h>
#include <stdio.h>

#include "runtime/model/model_internal.h"

/* The dimension of a projection that tensor parallelism splits, and the granularity of the split. */
struct cut {
	int dim; /* of the weight [out, in]; 0: outputs are split, and the bias with them; 1: inputs; -1: neither */
	int64_t unit;
};

static int projection(struct hspmd_builder *b, int x, const char *name, int64_t out, int64_t in, bool bias, struct cut cut)
{
	char full[96];
	snprintf(full, sizeof full, "%s.weight", name);
	int w = hspmd_builder_matrix(b, full, HSPMD_SHAPE(out, in), b->m->init_range, cut.dim, cut.unit);
	snprintf(full, sizeof full, "%s.bias", name);
	return hspmd_builder_linear(b, x, w,
	                            bias ? hspmd_builder_vector(b, full, HSPMD_SHAPE(out), 0, cut.dim == 0 ? 0 : -1, cut.unit) : -1, false);
}

static int attention(struct hspmd_builder *b, int x)
{
	const struct hspmd_model *m = b->m;
	int64_t width = m->heads * m->head_dim, kv_width = m->kv_heads * m->head_dim;
	struct hspmd_op_attr attr = {
		.head_dim = m->head_dim,
		.heads = m->heads,
		.kv_heads = m->kv_heads,
		.window = m->sliding_window,
		.scale = 1 / sqrt((double)m->head_dim),
		.theta = m->rope_theta,
	};
	/* query heads stay with the key and value head they read */
	struct cut by_kv_head = { 0, m->head_dim }, by_group = { 0, m->head_dim * (m->heads / m->kv_heads) },
	           from_group = { 1, by_group.unit };
	int q = projection(b, x, "self_attn.q_proj", width, m->hidden, m->qkv_bias, by_group);
	int k = projection(b, x, "self_attn.k_proj", kv_width, m->hidden, m->qkv_bias, by_kv_head);
	int v = projection(b, x, "self_attn.v_proj", kv_width, m->hidden, m->qkv_bias, by_kv_head);
	q = hspmd_builder_op(b, HSPMD_OP_ROPE, &attr, &q, 1, NULL);
	k = hspmd_builder_op(b, HSPMD_OP_ROPE, &attr, &k, 1, NULL);
	int o = hspmd_builder_attention(b, &attr, (int[]){ q, k, v }, 3);
	return projection(b, o, "self_attn.o_proj", m->hidden, width, m->out_bias, from_group);
}

static int dense_mlp(struct hspmd_builder *b, int x)
{
	const struct hspmd_model *m = b->m;
	int gate = projection(b, x, "mlp.gate_proj", m->ffn, m->hidden, m->mlp_bias, (struct cut){ 0, 1 });
	int up = projection(b, x, "mlp.up_proj", m->ffn, m->hidden, m->mlp_bias, (struct cut){ 0, 1 });
	int act = hspmd_builder_op(b, HSPMD_OP_SWIGLU, NULL, (int[]){ gate, up }, 2, NULL);
	return projection(b, act, "mlp.down_proj", m->hidden, m->ffn, m->mlp_bias, (struct cut){ 1, 1 });
}

static int expert_mlp(struct hspmd_builder *b, int x)
{
	const struct hspmd_model *m = b->m;
	struct hspmd_op_attr attr = {
		.experts = m->experts,
		.experts_per_token = m->experts_per_token,
		.scale = m->router_aux_coef * b->how->loss_scale,
	};
	int outputs[HSPMD_OP_MAX_IO];
	int logits = projection(b, x, "block_sparse_moe.gate", m->experts, m->hidden, false, (struct cut){ -1, 1 });
	int weights = hspmd_builder_op(b, HSPMD_OP_TOPK_ROUTER, &attr, &logits, 1, outputs);
	int gate = hspmd_builder_matrix(b, "block_sparse_moe.experts.w1.weight", HSPMD_SHAPE(m->experts, m->ffn, m->hidden), m->init_range,
	                                0, 1);
	int up = hspmd_builder_matrix(b, "block_sparse_moe.experts.w3.weight", HSPMD_SHAPE(m->experts, m->ffn, m->hidden), m->init_range, 0,
	                              1);
	int down = hspmd_builder_matrix(b, "block_sparse_moe.experts.w2.weight", HSPMD_SHAPE(m->experts, m->hidden, m->ffn), m->init_range,
	                                0, 1);
	return hspmd_builder_op(b, HSPMD_OP_EXPERTS, &attr, (int[]){ x, outputs[1], weights, gate, up, down }, 6, NULL);
}

int hspmd_build_llama(struct hspmd_builder *b)
{
	const struct hspmd_model *m = b->m;
	snprintf(b->prefix, sizeof b->prefix, "model.");
	int table = hspmd_builder_matrix(b, "embed_tokens.weight", HSPMD_SHAPE(m->vocab, m->hidden), m->init_range, 0, 1);
	int x = hspmd_builder_op(b, HSPMD_OP_EMBED, NULL, (int[]){ b->tokens, table }, 2, NULL);
	for (int l = 0; l < m->block_count; l++) {
		b->layer = l + 1;
		snprintf(b->prefix, sizeof b->prefix, "model.layers.%d.", l);
		x = hspmd_builder_add(b, x, attention(b, hspmd_builder_norm(b, x, "input_layernorm")));
		int n = hspmd_builder_norm(b, x, "post_attention_layernorm");
		x = hspmd_builder_add(b, x, m->experts ? expert_mlp(b, n) : dense_mlp(b, n));
	}
	hspmd_builder_head(b, x, "model.", "norm", table);
	return b->g->failed ? -1 : 0;
}
