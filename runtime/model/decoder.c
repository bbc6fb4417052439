/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/decoder.h"

#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/model/fields.h"

#define PARAMS_MAX 1e16 /* sums and products of sizes stay exact in int64_t */

struct hspmd_decoder *hspmd_decoder_create(struct hspmd_json *root, struct hspmd_model *m, size_t bytes, int64_t block_count)
{
	if (hspmd_json_failed(root))
		return NULL;
	size_t aligned = (bytes + 15) / 16 * 16;
	m->block_count = (int)block_count;
	struct hspmd_decoder *d = m->own = hspmd_calloc(1, aligned + (size_t)block_count * sizeof *d->layers);
	if (!d) {
		hspmd_json_fail_memory(root);
		return NULL;
	}
	d->layers = (struct hspmd_decoder_layer *)((char *)d + aligned);
	d->init_range = hspmd_json_number_or(root, "initializer_range", 0, 10, 0.02);
	d->embedding_scale = 1;
	return d;
}

static enum hspmd_activation activation_of(struct hspmd_json *root, const char *key, enum hspmd_activation absent)
{
	static const char *const names[] = { "silu", "swish", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu", NULL };
	static const enum hspmd_activation values[] = { HSPMD_SILU,      HSPMD_SILU,      HSPMD_GELU_TANH,
		                                        HSPMD_GELU_TANH, HSPMD_GELU_TANH, HSPMD_GELU_ERF };
	int which = hspmd_json_enum_or(root, key, names, -1);
	return which < 0 ? absent : values[which];
}

static double softcap_of(struct hspmd_json *root, const char *key, bool read)
{
	if (read)
		return hspmd_json_number_or(root, key, HSPMD_JSON_POSITIVE, 1e9, 0);
	hspmd_refuse_set(root, key);
	return 0;
}

struct hspmd_decoder *hspmd_decoder_read(struct hspmd_json *root, struct hspmd_model *m, size_t bytes,
                                         const struct hspmd_decoder_defaults *absent)
{
	m->hidden = hspmd_json_int(root, "hidden_size", 1, HSPMD_HIDDEN_MAX);
	struct hspmd_decoder *d = hspmd_decoder_create(root, m, bytes, hspmd_json_int(root, "num_hidden_layers", 1, HSPMD_BLOCKS_MAX));
	if (!d)
		return NULL;
	d->heads = hspmd_json_int(root, "num_attention_heads", 1, HSPMD_HEADS_MAX);
	bool null_kv = json_is_null(json_object_get(root->value, "num_key_value_heads"));
	d->kv_heads = hspmd_json_int_or(root, "num_key_value_heads", 1, HSPMD_HEADS_MAX,
	                                absent->kv_heads && !null_kv ? absent->kv_heads : d->heads);
	d->ffn = hspmd_json_int(root, "intermediate_size", 1, HSPMD_FFN_MAX);
	m->max_positions = hspmd_json_int_or(root, "max_position_embeddings", 1, HSPMD_POSITIONS_MAX, absent->max_positions);
	d->norm_eps = hspmd_json_number_or(root, "rms_norm_eps", HSPMD_JSON_POSITIVE, 1, absent->norm_eps);
	m->tied = hspmd_json_bool_or(root, "tie_word_embeddings", absent->tied);
	d->dropout.attention = hspmd_rate_of(root, "attention_dropout", 0);
	d->attention_softcap = softcap_of(root, "attn_logit_softcapping", absent->attention_softcap);
	d->logit_softcap = softcap_of(root, "final_logit_softcapping", absent->logit_softcap);
	d->activation = activation_of(root, absent->activation_key ? absent->activation_key : "hidden_act", absent->activation);
	if (hspmd_json_failed(root))
		return NULL;
	int64_t head_dim = absent->head_dim ? absent->head_dim : d->heads ? m->hidden / d->heads : 1;
	d->head_dim = hspmd_json_int_or(root, "head_dim", 1, HSPMD_HIDDEN_MAX, head_dim);
	if (!absent->head_dim && !hspmd_json_has(root, "head_dim"))
		hspmd_check_divides(root, "num_attention_heads", d->heads, "hidden size", m->hidden);
	struct hspmd_json parameters = hspmd_json_object_or_none(root, "rope_parameters");
	double share = hspmd_json_number_or(root, "partial_rotary_factor", 0, 1, absent->partial_rotary > 0 ? absent->partial_rotary : 1);
	share = hspmd_json_number_or(&parameters, "partial_rotary_factor", 0, 1, share);
	d->rope[0].theta = absent->rope_theta;
	d->rope[0].dims = (int64_t)((double)d->head_dim * share);
	hspmd_rope_read(root, "full_attention", m->max_positions, &d->rope[0]);
	return hspmd_json_failed(root) ? NULL : d;
}

/* ---- layers */

static void read_layer_types(struct hspmd_json *types, struct hspmd_decoder *d, bool mixed)
{
	static const char *const names[] = { "full_attention", "sliding_attention" };
	for (size_t i = 0; i < hspmd_json_length(types); i++) {
		struct hspmd_json at = hspmd_json_at(types, i);
		const char *type = hspmd_json_string_value(&at);
		bool slides = type && !strcmp(type, names[1]);
		if (!type)
			return;
		if (!slides && strcmp(type, names[0]))
			hspmd_json_fail(&at, "not supported; expected \"%s\" or \"%s\"", names[0], names[1]);
		else if ((slides && !d->window) || (!mixed && slides != d->layers[i].slides))
			hspmd_json_fail(&at, "not supported; expected \"%s\"", names[!slides]);
		d->layers[i].slides = slides;
	}
}

bool hspmd_slides_from(const struct hspmd_decoder *d, int64_t layer, int64_t n)
{
	(void)d;
	return layer >= n;
}

bool hspmd_slides_but_each(const struct hspmd_decoder *d, int64_t layer, int64_t n)
{
	(void)d;
	return (layer + 1) % n != 0;
}

void hspmd_decoder_read_window(struct hspmd_json *root, struct hspmd_model *m, int64_t window, hspmd_slides_fn *slides, int64_t n)
{
	struct hspmd_decoder *d = m->own;
	size_t blocks = (size_t)m->block_count;
	d->window = window;
	for (int64_t i = 0; i < m->block_count; i++)
		d->layers[i].slides = window > 0 && (!slides || slides(d, i, n));
	struct hspmd_json types = hspmd_json_array_or_none(root, "layer_types", blocks, blocks);
	read_layer_types(&types, d, slides != NULL);
}

void hspmd_decoder_refuse_biases(struct hspmd_json *root, struct hspmd_decoder *d, bool qkv)
{
	d->qkv_bias = qkv;
	hspmd_refuse_unless(root, "mlp_bias", false);
	hspmd_refuse_unless(root, "attention_bias", qkv);
}

void hspmd_decoder_read_experts(struct hspmd_json *root, struct hspmd_decoder *d, const char *key, int count, int per_token, double aux)
{
	d->experts.count = (int)hspmd_json_int_or(root, key, 1, HSPMD_EXPERTS_MAX, count);
	d->experts.per_token = (int)hspmd_json_int_or(root, "num_experts_per_tok", 1, HSPMD_EXPERTS_MAX, per_token);
	d->experts.aux_coef = hspmd_json_number_or(root, "router_aux_loss_coef", 0, 1e6, aux);
	d->experts.ffn = d->ffn;
	hspmd_refuse_number_unless(root, "router_jitter_noise", 0);
	struct hspmd_json at = hspmd_json_any(root, "num_experts_per_tok");
	if (!hspmd_json_failed(root) && d->experts.per_token > d->experts.count)
		hspmd_json_fail(&at, "%d is more than the %d experts there are", d->experts.per_token, d->experts.count);
}

/* ---- the whole */

/* An upper bound in floating point, computed before any integer product of sizes. */
static double params_bound(const struct hspmd_model *m, const struct hspmd_decoder *d)
{
	double h = (double)m->hidden, wide = (double)d->heads * (double)d->head_dim, experts = d->experts.count;
	double inner = (double)d->ffn + (double)d->experts.ffn * experts + (double)d->experts.shared_ffn;
	double attention = 4 * (h + 1) * wide, mlp = 3 * (h + 1) * inner;
	return m->block_count * (attention + mlp + h * (experts + 5)) + h * (2 * (double)m->vocab + (double)m->max_positions);
}

void hspmd_decoder_check(struct hspmd_json *root, struct hspmd_model *m)
{
	struct hspmd_decoder *d = m->own;
	if (hspmd_json_failed(root) || !d)
		return;
	hspmd_check_divides(root, "num_key_value_heads", d->kv_heads, "number of heads", d->heads);
	for (int r = 0; r < HSPMD_ROTATION_COUNT; r++)
		if (d->rope[r].dims % 2)
			hspmd_json_fail(root, "heads of %lld elements cannot be rotated in pairs", (long long)d->rope[r].dims);
	if (d->attention_scale == 0)
		d->attention_scale = 1 / sqrt((double)d->head_dim);
	m->dropout = d->dropout.embedding > 0 || d->dropout.residual > 0 || d->dropout.attention > 0;
	double params = params_bound(m, d);
	if (params > PARAMS_MAX)
		hspmd_json_fail(root, "these sizes make about %.0e parameters; at most %.0e can be handled", params, PARAMS_MAX);
}
