/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 3 (arXiv 2503.19786), its language model: as Gemma 2, with norms of queries and keys instead of attention's soft cap, which
 * Transformers reads and does not apply. Layers with a window have rotary positions of their own. */
#include <math.h>

#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

/* The key rope_local_base_freq, or an object of rope_parameters. */
static void read_local_rope(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d)
{
	struct hspmd_rope *local = &d->rope[HSPMD_ROTATION_LOCAL];
	struct hspmd_json parameters = hspmd_json_object_or_none(root, "rope_parameters");
	struct hspmd_json own = { 0 };
	if (parameters.value)
		own = hspmd_json_object_or_none(&parameters, "sliding_attention");
	*local = (struct hspmd_rope){ .dims = d->head_dim, .scale = 1 };
	local->theta = hspmd_json_number_or(root, "rope_local_base_freq", HSPMD_JSON_POSITIVE, 1e18, 1e4);
	if (own.value)
		local->theta = hspmd_json_number_or(&own, "rope_theta", HSPMD_JSON_POSITIVE, 1e18, local->theta);
	for (int l = 0; l < m->block_count; l++)
		d->layers[l].rotation = d->layers[l].slides ? HSPMD_ROTATION_LOCAL : HSPMD_ROTATION;
}

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = {
		.kv_heads = 4,
		.head_dim = 256,
		.max_positions = 131072,
		.norm_eps = 1e-6,
		.rope_theta = 1e6,
		.tied = true,
		.logit_softcap = true,
		.activation_key = "hidden_activation",
		.activation = HSPMD_GELU_TANH,
	};
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	hspmd_refuse_unless(root, "use_bidirectional_attention", false);
	d->gain_plus_one = true;
	d->qk_norm = HSPMD_QK_NORM_HEADS;
	d->embedding_scale = sqrt((double)m->hidden);
	d->attention_scale = 1 / sqrt(hspmd_json_number_or(root, "query_pre_attn_scalar", HSPMD_JSON_POSITIVE, 1e9, 256));
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	int64_t period = hspmd_json_int_or(root, "sliding_window_pattern", 1, HSPMD_BLOCKS_MAX, 6);
	if (hspmd_json_failed(root))
		return;
	hspmd_decoder_read_window(root, m, hspmd_window_of(root, 4096), hspmd_slides_but_each, period);
	read_local_rope(root, m, d);
	hspmd_decoder_check(root, m);
}

/* The files of models that also see images. */
static const char *const prefixes[] = { "model.", "language_model.model.", "model.language_model.", "language_model.", NULL };

extern const struct hspmd_model_type hspmd_model_gemma3;
const struct hspmd_model_type hspmd_model_gemma3 = {
	.names = { "gemma3_text", "gemma3" },
	.read = read,
	.block = hspmd_builder_sandwich_block,
	.prefixes = prefixes,
	.inner = "text_config",
};
