/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-NeoX and Pythia (arXiv 2204.06745): attention and MLP read the same residual (use_parallel_residual) and only a share of a head is
 * rotated. Files have query, key and value of a head one after another; here each is a parameter of its own. */
#include <math.h>

#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"
#include "runtime/model/weight_pieces.h"

struct neox {
	struct hspmd_decoder d;
	bool parallel;
};

static void read_sizes(struct hspmd_json *root, struct hspmd_model *m, struct neox *n)
{
	static const char *const gelu_names[] = { "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", NULL };
	struct hspmd_decoder *d = &n->d;
	d->heads = d->kv_heads = hspmd_json_int_or(root, "num_attention_heads", 1, HSPMD_HEADS_MAX, 64);
	d->ffn = hspmd_json_int_or(root, "intermediate_size", 1, HSPMD_FFN_MAX, 24576);
	m->max_positions = hspmd_json_int_or(root, "max_position_embeddings", 1, HSPMD_POSITIONS_MAX, 2048);
	d->norm_eps = hspmd_json_number_or(root, "layer_norm_eps", HSPMD_JSON_POSITIVE, 1, 1e-5);
	m->tied = hspmd_json_bool_or(root, "tie_word_embeddings", false);
	d->dropout.embedding = d->dropout.residual = hspmd_rate_of(root, "hidden_dropout", 0);
	d->dropout.attention = hspmd_rate_of(root, "attention_dropout", 0);
	n->parallel = hspmd_json_bool_or(root, "use_parallel_residual", true);
	d->activation = hspmd_json_enum_or(root, "hidden_act", gelu_names, 0) ? HSPMD_GELU_TANH : HSPMD_GELU_ERF;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", true);
	d->mlp_bias = d->layer_norm = true;
}

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	m->hidden = hspmd_json_int(root, "hidden_size", 1, HSPMD_HIDDEN_MAX);
	int64_t blocks = hspmd_json_int(root, "num_hidden_layers", 1, HSPMD_BLOCKS_MAX);
	struct neox *n = (struct neox *)hspmd_decoder_create(root, m, sizeof *n, blocks);
	if (!n)
		return;
	read_sizes(root, m, n);
	if (hspmd_json_failed(root))
		return;
	hspmd_check_divides(root, "num_attention_heads", n->d.heads, "hidden size", m->hidden);
	n->d.head_dim = m->hidden / n->d.heads;
	struct hspmd_json parameters = hspmd_json_object_or_none(root, "rope_parameters");
	double share = hspmd_json_number_or(root, "rotary_pct", 0, 1, 0.25);
	share = hspmd_json_number_or(&parameters, "partial_rotary_factor", 0, 1, share);
	n->d.rope[0].dims = (int64_t)((double)n->d.head_dim * share);
	n->d.rope[0].theta = hspmd_json_number_or(root, "rotary_emb_base", HSPMD_JSON_POSITIVE, 1e18, 1e4);
	hspmd_rope_read(root, NULL, m->max_positions, &n->d.rope[0]);
	hspmd_decoder_check(root, m);
}

static int mlp(struct hspmd_builder *b, int x)
{
	const struct hspmd_decoder *d = b->d;
	struct hspmd_op_attr gelu = { .exact = d->activation == HSPMD_GELU_ERF };
	int up = hspmd_builder_projection(b, x, "mlp.dense_h_to_4h", d->ffn, b->m->hidden, true, (struct hspmd_cut){ 0, 1 });
	int act = hspmd_builder_op(b, HSPMD_OP_GELU, &gelu, &up, 1, NULL);
	int down = hspmd_builder_projection(b, act, "mlp.dense_4h_to_h", b->m->hidden, d->ffn, true, (struct hspmd_cut){ 1, 1 });
	return hspmd_builder_dropout(b, down, d->dropout.residual);
}

static int block(struct hspmd_builder *b, int x)
{
	int64_t h = b->m->hidden;
	int attention = hspmd_builder_self_attention(b, hspmd_builder_norm(b, x, "input_layernorm", h), "attention", "dense");
	int middle = hspmd_builder_add(b, x, attention);
	int parallel = ((const struct neox *)b->d)->parallel;
	int n = hspmd_builder_norm(b, parallel ? x : middle, "post_attention_layernorm", h);
	return hspmd_builder_add(b, middle, mlp(b, n));
}

static void build(struct hspmd_builder *b)
{
	int table, x = hspmd_builder_embedding(b, "gpt_neox.", "embed_in.weight", &table);
	x = hspmd_builder_dropout(b, x, b->d->dropout.embedding);
	for (int l = 0; l < b->m->block_count; l++) {
		hspmd_builder_block(b, "gpt_neox.layers.", l);
		x = block(b, x);
	}
	hspmd_builder_head(b, x, "gpt_neox.", "final_layer_norm", "embed_out.weight", table);
}

/* ---- weights */

static void place_q(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)ours;
	hspmd_piece_interleaved(piece, 0, 3, hspmd_decoder_of(m)->head_dim);
}

static void place_k(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)ours;
	hspmd_piece_interleaved(piece, 1, 3, hspmd_decoder_of(m)->head_dim);
}

static void place_v(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)ours;
	hspmd_piece_interleaved(piece, 2, 3, hspmd_decoder_of(m)->head_dim);
}

static const struct hspmd_weight_name weights[] = {
	{ ".q_proj.", ".query_key_value.", place_q },
	{ ".k_proj.", ".query_key_value.", place_k },
	{ ".v_proj.", ".query_key_value.", place_v },
	{ 0 },
};
static const char *const prefixes[] = { "gpt_neox.", NULL };

extern const struct hspmd_model_type hspmd_model_gpt_neox;
const struct hspmd_model_type hspmd_model_gpt_neox = {
	.names = { "gpt_neox" }, .read = read, .build = build, .weights = weights, .prefixes = prefixes
};
