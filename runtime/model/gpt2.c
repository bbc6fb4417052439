/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 (Radford et al. 2019) as Hugging Face's GPT2LMHeadModel stores it: Conv1D weights are [in, out]; the query, key and value
 * projections are one matrix [H, 3H], here seen as [H, 3, H] so that each can be split by heads. */
#include <math.h>

#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"
#include "runtime/model/weight_pieces.h"

static void read_sizes(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d)
{
	static const char *const gelu_names[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", NULL };
	d->heads = d->kv_heads = hspmd_size_of(root, "n_head", "num_attention_heads", HSPMD_HEADS_MAX);
	d->ffn = hspmd_json_int_or(root, "n_inner", 1, HSPMD_FFN_MAX, 4 * m->hidden);
	const char *other_name = hspmd_json_has(root, "n_ctx") ? "n_ctx" : "max_position_embeddings";
	m->max_positions = hspmd_size_of(root, "n_positions", other_name, HSPMD_POSITIONS_MAX);
	m->learnt_positions = true;
	d->activation = hspmd_json_enum_or(root, "activation_function", gelu_names, 0) == 3 ? HSPMD_GELU_ERF : HSPMD_GELU_TANH;
	d->norm_eps = hspmd_json_number_or(root, "layer_norm_epsilon", HSPMD_JSON_POSITIVE, 1, 1e-5);
	m->tied = hspmd_json_bool_or(root, "tie_word_embeddings", true);
	d->qkv_bias = d->out_bias = d->mlp_bias = d->layer_norm = true;
	d->dropout.embedding = hspmd_rate_of(root, "embd_pdrop", 0.1);
	d->dropout.residual = hspmd_rate_of(root, "resid_pdrop", 0.1);
	d->dropout.attention = hspmd_rate_of(root, "attn_pdrop", 0.1);
	hspmd_refuse_unless(root, "scale_attn_by_inverse_layer_idx", false);
	hspmd_refuse_unless(root, "scale_attn_weights", true);
}

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	m->hidden = hspmd_size_of(root, "n_embd", "hidden_size", HSPMD_HIDDEN_MAX);
	int64_t blocks = hspmd_size_of(root, "n_layer", "num_hidden_layers", HSPMD_BLOCKS_MAX);
	struct hspmd_decoder *d = hspmd_decoder_create(root, m, sizeof *d, blocks);
	if (!d)
		return;
	read_sizes(root, m, d);
	if (hspmd_json_failed(root))
		return;
	d->head_dim = m->hidden / d->heads;
	hspmd_check_divides(root, hspmd_json_has(root, "n_head") ? "n_head" : "num_attention_heads", d->heads, "hidden size", m->hidden);
	hspmd_decoder_check(root, m);
}

static int attention(struct hspmd_builder *b, int x)
{
	const struct hspmd_decoder *d = b->d;
	double narrow = d->init_range / sqrt(2.0 * b->m->block_count); /* projections into the residual stream, as GPT-2 initialises them */
	int64_t h = b->m->hidden;
	int qkv = hspmd_builder_linear(b, x,
	                               hspmd_builder_matrix(b, "attn.c_attn.weight", HSPMD_SHAPE(h, 3, h), d->init_range, 2, d->head_dim),
	                               hspmd_builder_vector(b, "attn.c_attn.bias", HSPMD_SHAPE(3, h), 0, 1, d->head_dim), true);
	struct hspmd_op_attr attr = {
		.head_dim = d->head_dim,
		.heads = d->heads,
		.kv_heads = d->kv_heads,
		.scale = d->attention_scale,
	};
	int inputs[HSPMD_OP_MAX_IO] = { qkv };
	if (b->how->parts)
		hspmd_builder_op(b, HSPMD_OP_SPLIT_QKV, NULL, &qkv, 1, inputs);
	int o = hspmd_builder_attention(b, &attr, inputs, b->how->parts ? 3 : 1, -1);
	o = hspmd_builder_linear(b, o, hspmd_builder_matrix(b, "attn.c_proj.weight", HSPMD_SHAPE(h, h), narrow, 0, d->head_dim),
	                         hspmd_builder_vector(b, "attn.c_proj.bias", HSPMD_SHAPE(h), 0, -1, 1), true);
	return hspmd_builder_dropout(b, o, d->dropout.residual);
}

static int mlp(struct hspmd_builder *b, int x)
{
	const struct hspmd_decoder *d = b->d;
	double narrow = d->init_range / sqrt(2.0 * b->m->block_count);
	int64_t h = b->m->hidden, f = d->ffn;
	int up = hspmd_builder_linear(b, x, hspmd_builder_matrix(b, "mlp.c_fc.weight", HSPMD_SHAPE(h, f), d->init_range, 1, 1),
	                              hspmd_builder_vector(b, "mlp.c_fc.bias", HSPMD_SHAPE(f), 0, 0, 1), true);
	struct hspmd_op_attr gelu = { .exact = d->activation == HSPMD_GELU_ERF };
	int act = hspmd_builder_op(b, HSPMD_OP_GELU, &gelu, &up, 1, NULL);
	int down = hspmd_builder_linear(b, act, hspmd_builder_matrix(b, "mlp.c_proj.weight", HSPMD_SHAPE(f, h), narrow, 0, 1),
	                                hspmd_builder_vector(b, "mlp.c_proj.bias", HSPMD_SHAPE(h), 0, -1, 1), true);
	return hspmd_builder_dropout(b, down, d->dropout.residual);
}

static void build(struct hspmd_builder *b)
{
	const struct hspmd_model *m = b->m;
	int table, x = hspmd_builder_embedding(b, "transformer.", "wte.weight", &table);
	int positions = hspmd_builder_matrix(b, "wpe.weight", HSPMD_SHAPE(m->max_positions, m->hidden), b->d->init_range, -1, 1);
	if (b->positions >= 0) {
		int own = hspmd_builder_op(b, HSPMD_OP_EMBED, NULL, (int[]){ b->positions, positions }, 2, NULL);
		x = hspmd_builder_add(b, x, own);
	} else {
		x = hspmd_builder_op(b, HSPMD_OP_POSITION_EMBED, NULL, (int[]){ x, positions }, 2, NULL);
	}
	x = hspmd_builder_dropout(b, x, b->d->dropout.embedding);
	for (int l = 0; l < m->block_count; l++) {
		hspmd_builder_block(b, "transformer.h.", l);
		x = hspmd_builder_add(b, x, attention(b, hspmd_builder_norm(b, x, "ln_1", m->hidden)));
		x = hspmd_builder_add(b, x, mlp(b, hspmd_builder_norm(b, x, "ln_2", m->hidden)));
	}
	hspmd_builder_head(b, x, "transformer.", "ln_f", "lm_head.weight", table);
}

/* ---- weights */

static void place_joined(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)m;
	(void)ours;
	hspmd_piece_joined(piece);
}

static const struct hspmd_weight_name weights[] = { { ".c_attn.", ".c_attn.", place_joined }, { 0 } };
static const char *const prefixes[] = { "transformer.", NULL };

extern const struct hspmd_model_type hspmd_model_gpt2;
const struct hspmd_model_type hspmd_model_gpt2 = {
	.names = { "gpt2" }, .read = read, .build = build, .weights = weights, .prefixes = prefixes
};
