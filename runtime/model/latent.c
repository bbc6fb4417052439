/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/latent.h"

#include <math.h>

#include "runtime/model/fields.h"
#include "runtime/model/weight_pieces.h"

#define LATENT_EPS 1e-6 /* of the norms of latent vectors, whatever rms_norm_eps is */

static const struct hspmd_latent *latent_of(const struct hspmd_model *m)
{
	return m->own;
}

/* ---- reading */

static void read_sizes(struct hspmd_json *root, struct hspmd_latent *l, const struct hspmd_latent_defaults *absent)
{
	bool null_rank = json_is_null(json_object_get(root->value, "q_lora_rank"));
	l->q_rank = hspmd_json_int_or(root, "q_lora_rank", 1, HSPMD_HIDDEN_MAX, null_rank ? 0 : absent->q_rank);
	l->kv_rank = hspmd_json_int_or(root, "kv_lora_rank", 1, HSPMD_HIDDEN_MAX, absent->kv_rank);
	l->nope = hspmd_json_int_or(root, "qk_nope_head_dim", 1, HSPMD_HIDDEN_MAX, absent->nope);
	l->values = hspmd_json_int_or(root, "v_head_dim", 1, HSPMD_HIDDEN_MAX, absent->values);
	struct hspmd_json at = hspmd_json_any(root, "v_head_dim");
	if (!hspmd_json_failed(root) && l->values > l->nope + l->rotated)
		hspmd_json_fail(&at, "not supported; expected at most the width of keys, %lld", (long long)(l->nope + l->rotated));
}

static void read_experts(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_latent *l, const struct hspmd_latent_defaults *absent)
{
	struct hspmd_decoder *d = &l->d;
	hspmd_decoder_read_experts(root, d, "n_routed_experts", absent->experts, absent->per_token, 0);
	d->experts.aux_coef = 0; /* this type of model balances experts by other means */
	d->experts.ffn = hspmd_json_int(root, "moe_intermediate_size", 1, HSPMD_FFN_MAX);
	d->experts.weight_scale = hspmd_json_number_or(root, "routed_scaling_factor", HSPMD_JSON_POSITIVE, 1e6, absent->weight_scale);
	d->experts.groups = (int)hspmd_json_int_or(root, "n_group", 1, 64, absent->groups);
	d->experts.top_groups = (int)hspmd_json_int_or(root, "topk_group", 1, 64, absent->top_groups);
	bool none = json_is_null(json_object_get(root->value, "n_shared_experts"));
	d->experts.shared_ffn =
	        d->experts.ffn * hspmd_json_int_or(root, "n_shared_experts", 0, HSPMD_EXPERTS_MAX, none ? 0 : absent->shared);
	int64_t dense = hspmd_json_int_or(root, "first_k_dense_replace", 0, HSPMD_BLOCKS_MAX, absent->first_dense);
	hspmd_refuse_number_unless(root, "moe_layer_freq", 1);
	for (int64_t i = 0; i < m->block_count; i++)
		d->layers[i].is_dense = i < dense;
}

/* With yarn the scores grow with the factor of mscale_all_dim, squared. */
static double score_scale(struct hspmd_json *root, const struct hspmd_latent *l)
{
	const struct hspmd_rope *r = &l->d.rope[0];
	double all = 0, scale = 1 / sqrt((double)l->d.head_dim);
	static const char *const keys[] = { "rope_parameters", "rope_scaling" };
	for (int i = 0; i < 2; i++) {
		struct hspmd_json at = hspmd_json_object_or_none(root, keys[i]);
		if (at.value)
			all = hspmd_json_number_or(&at, "mscale_all_dim", 0, 1e3, all);
	}
	if (r->kind == HSPMD_ROPE_PLAIN || all <= 0 || r->factor <= 1)
		return scale;
	double m = 0.1 * all * log(r->factor) + 1;
	return scale * m * m;
}

struct hspmd_latent *hspmd_latent_read(struct hspmd_json *root, struct hspmd_model *m, const struct hspmd_latent_defaults *absent)
{
	int64_t rotated = hspmd_json_int_or(root, "qk_rope_head_dim", 1, HSPMD_HIDDEN_MAX, absent->rotated);
	const struct hspmd_decoder_defaults decoder = {
		.kv_heads = absent->heads_kv, .head_dim = rotated, .max_positions = absent->positions, .norm_eps = 1e-6, .rope_theta = 1e4
	};
	struct hspmd_latent *l = (struct hspmd_latent *)hspmd_decoder_read(root, m, sizeof *l, &decoder);
	if (!l)
		return NULL;
	l->rotated = rotated;
	read_sizes(root, l, absent);
	struct hspmd_json at = hspmd_json_any(root, "num_key_value_heads");
	if (l->d.kv_heads != l->d.heads)
		hspmd_json_fail(&at, "not supported; expected as many as heads, %lld", (long long)l->d.heads);
	if (l->d.rope[0].dims != rotated)
		hspmd_json_fail(root, "heads of which %lld elements are rotated, but head_dim is %lld", (long long)rotated,
		                (long long)l->d.rope[0].dims);
	l->d.head_dim = l->nope + l->rotated;
	l->d.attention_scale = score_scale(root, l);
	l->d.rope[0].interleaved = hspmd_json_bool_or(root, "rope_interleave", true);
	l->d.qkv_bias = l->d.out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	hspmd_refuse_unless(root, "mlp_bias", false);
	hspmd_decoder_read_window(root, m, 0, NULL, 0);
	read_experts(root, m, l, absent);
	hspmd_decoder_check(root, m);
	return hspmd_json_failed(root) ? NULL : l;
}

/* ---- building */

/* Parts of heads, made of x by "self_attn.<name>". */
static int heads(struct hspmd_builder *b, int x, const char *name, int64_t in, int64_t size)
{
	return hspmd_builder_projection(b, x, name, b->d->heads * size, in, false, (struct hspmd_cut){ 0, size });
}

/* A vector that all heads have in common, on every device. */
static int common(struct hspmd_builder *b, int x, const char *name, int64_t size)
{
	return hspmd_builder_projection(b, x, name, size, b->m->hidden, b->d->qkv_bias, (struct hspmd_cut){ -1, 1 });
}

static int join(struct hspmd_builder *b, int first, int rest, int64_t part, bool shared)
{
	struct hspmd_op_attr attr = { .head_dim = b->d->head_dim, .part = part, .whole_kv = shared };
	return hspmd_builder_op(b, HSPMD_OP_JOIN_HEADS, &attr, (int[]){ first, rest }, rest >= 0 ? 2 : 1, NULL);
}

static int queries(struct hspmd_builder *b, int x)
{
	const struct hspmd_latent *l = latent_of(b->m);
	int64_t in = l->q_rank ? l->q_rank : b->m->hidden;
	if (l->q_rank)
		x = hspmd_builder_rms_norm(b, common(b, x, "self_attn.q_a_proj", l->q_rank), "self_attn.q_a_layernorm", l->q_rank,
		                           LATENT_EPS);
	int plain = heads(b, x, l->q_rank ? "self_attn.q_b_nope_proj" : "self_attn.q_nope_proj", in, l->nope);
	int turned = heads(b, x, l->q_rank ? "self_attn.q_b_rope_proj" : "self_attn.q_rope_proj", in, l->rotated);
	return join(b, plain, hspmd_builder_rotate(b, turned, l->rotated), l->nope, false);
}

static int attention(struct hspmd_builder *b, int x)
{
	const struct hspmd_latent *l = latent_of(b->m);
	const struct hspmd_decoder *d = b->d;
	struct hspmd_op_attr attr = {
		.head_dim = d->head_dim, .heads = d->heads, .kv_heads = d->heads, .scale = d->attention_scale, .part = l->values
	};
	int q = queries(b, x);
	int turned = hspmd_builder_rotate(b, common(b, x, "self_attn.kv_a_rope_proj", l->rotated), l->rotated);
	int latent = hspmd_builder_rms_norm(b, common(b, x, "self_attn.kv_a_latent_proj", l->kv_rank), "self_attn.kv_a_layernorm",
	                                    l->kv_rank, LATENT_EPS);
	int k = join(b, heads(b, latent, "self_attn.k_b_proj", l->kv_rank, l->nope), turned, l->nope, true);
	int v = heads(b, latent, "self_attn.v_b_proj", l->kv_rank, l->values);
	bool filled = l->values < d->head_dim;
	int o = hspmd_builder_attention(b, &attr, (int[]){ q, k, filled ? join(b, v, -1, l->values, false) : v }, 3, -1);
	if (filled)
		o = hspmd_builder_op(b, HSPMD_OP_TAKE_HEADS, &attr, &o, 1, NULL);
	return hspmd_builder_projection(b, o, "self_attn.o_proj", b->m->hidden, d->heads * l->values, d->out_bias,
	                                (struct hspmd_cut){ 1, l->values });
}

int hspmd_latent_block(struct hspmd_builder *b, int x)
{
	static const struct hspmd_expert_names names = {
		.router = "mlp.gate",
		.gate = "mlp.experts.gate_proj",
		.up = "mlp.experts.up_proj",
		.down = "mlp.experts.down_proj",
		.shared = "mlp.shared_experts",
	};
	x = hspmd_builder_add(b, x, attention(b, hspmd_builder_norm(b, x, "input_layernorm", b->m->hidden)));
	return hspmd_builder_add_mlp(b, x, &names);
}

/* ---- weights: a file's rows of a head are those without rotation, then the rotated ones; or those of the key, then those of the value */

static void place_q_nope(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_latent *l = latent_of(m);
	(void)ours;
	hspmd_piece_blocks(piece, 0, l->nope, l->nope + l->rotated);
}

static void place_q_rope(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_latent *l = latent_of(m);
	(void)ours;
	hspmd_piece_blocks(piece, l->nope, l->rotated, l->nope + l->rotated);
}

static void place_k(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_latent *l = latent_of(m);
	(void)ours;
	hspmd_piece_blocks(piece, 0, l->nope, l->nope + l->values);
}

static void place_v(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_latent *l = latent_of(m);
	(void)ours;
	hspmd_piece_blocks(piece, l->nope, l->values, l->nope + l->values);
}

static void place_latent(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_latent *l = latent_of(m);
	(void)ours;
	hspmd_piece_rows(piece, 0, l->kv_rank + l->rotated);
}

static void place_k_rope(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_latent *l = latent_of(m);
	(void)ours;
	hspmd_piece_rows(piece, l->kv_rank, l->kv_rank + l->rotated);
}

const struct hspmd_weight_name hspmd_latent_weights[] = {
	{ ".q_nope_proj.", ".q_proj.", place_q_nope },
	{ ".q_rope_proj.", ".q_proj.", place_q_rope },
	{ ".q_b_nope_proj.", ".q_b_proj.", place_q_nope },
	{ ".q_b_rope_proj.", ".q_b_proj.", place_q_rope },
	{ ".kv_a_latent_proj.", ".kv_a_proj_with_mqa.", place_latent },
	{ ".kv_a_rope_proj.", ".kv_a_proj_with_mqa.", place_k_rope },
	{ ".k_b_proj.", ".kv_b_proj.", place_k },
	{ ".v_b_proj.", ".kv_b_proj.", place_v },
	{ ".experts.gate_proj", ".experts.%d.gate_proj", NULL },
	{ ".experts.up_proj", ".experts.%d.up_proj", NULL },
	{ ".experts.down_proj", ".experts.%d.down_proj", NULL },
	{ 0 },
};
