/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 (Radford et al. 2019) as Hugging Face's GPT2LMHeadModel stores it: Conv1D weights are [in, out]; the query, key and value
 * projections are one matrix [H, 3H], here seen as [H, 3, H] so that each can be split by heads. */
#include <math.h>
#include <stdio.h>

#include "runtime/model/model_internal.h"

static int block(struct hspmd_builder *b, int x)
{
	const struct hspmd_model *m = b->m;
	double narrow = m->init_range / sqrt(2.0 * m->block_count); /* projections into the residual stream, as GPT-2 initialises them */
	int64_t h = m->hidden, f = m->ffn;

	int n1 = hspmd_builder_norm(b, x, "ln_1");
	int qkv = hspmd_builder_linear(b, n1,
	                               hspmd_builder_matrix(b, "attn.c_attn.weight", HSPMD_SHAPE(h, 3, h), m->init_range, 2, m->head_dim),
	                               hspmd_builder_vector(b, "attn.c_attn.bias", HSPMD_SHAPE(3, h), 0, 1, m->head_dim), true);
	struct hspmd_op_attr attr = {
		.head_dim = m->head_dim,
		.heads = m->heads,
		.kv_heads = m->kv_heads,
		.scale = 1 / sqrt((double)m->head_dim),
	};
	int inputs[HSPMD_OP_MAX_IO] = { qkv };
	if (b->how->parts)
		hspmd_builder_op(b, HSPMD_OP_SPLIT_QKV, NULL, &qkv, 1, inputs);
	int attention = hspmd_builder_attention(b, &attr, inputs, b->how->parts ? 3 : 1);
	int projected =
	        hspmd_builder_linear(b, attention, hspmd_builder_matrix(b, "attn.c_proj.weight", HSPMD_SHAPE(h, h), narrow, 0, m->head_dim),
	                             hspmd_builder_vector(b, "attn.c_proj.bias", HSPMD_SHAPE(h), 0, -1, 1), true);
	x = hspmd_builder_add(b, x, projected);

	int n2 = hspmd_builder_norm(b, x, "ln_2");
	int up = hspmd_builder_linear(b, n2, hspmd_builder_matrix(b, "mlp.c_fc.weight", HSPMD_SHAPE(h, f), m->init_range, 1, 1),
	                              hspmd_builder_vector(b, "mlp.c_fc.bias", HSPMD_SHAPE(f), 0, 0, 1), true);
	struct hspmd_op_attr gelu = { .exact = m->gelu_exact };
	int act = hspmd_builder_op(b, HSPMD_OP_GELU, &gelu, &up, 1, NULL);
	int down = hspmd_builder_linear(b, act, hspmd_builder_matrix(b, "mlp.c_proj.weight", HSPMD_SHAPE(f, h), narrow, 0, 1),
	                                hspmd_builder_vector(b, "mlp.c_proj.bias", HSPMD_SHAPE(h), 0, -1, 1), true);
	return hspmd_builder_add(b, x, down);
}

int hspmd_build_gpt2(struct hspmd_builder *b)
{
	const struct hspmd_model *m = b->m;
	snprintf(b->prefix, sizeof b->prefix, "transformer.");
	int table = hspmd_builder_matrix(b, "wte.weight", HSPMD_SHAPE(m->vocab, m->hidden), m->init_range, 0, 1);
	int positions = hspmd_builder_matrix(b, "wpe.weight", HSPMD_SHAPE(m->max_positions, m->hidden), m->init_range, -1, 1);
	int x = hspmd_builder_op(b, HSPMD_OP_EMBED, NULL, (int[]){ b->tokens, table }, 2, NULL);
	x = hspmd_builder_op(b, HSPMD_OP_POSITION_EMBED, NULL, (int[]){ x, positions }, 2, NULL);
	for (int l = 0; l < m->block_count; l++) {
		b->layer = l + 1;
		snprintf(b->prefix, sizeof b->prefix, "transformer.h.%d.", l);
		x = block(b, x);
	}
	hspmd_builder_head(b, x, "transformer.", "ln_f", table);
	return b->g->failed ? -1 : 0;
}
