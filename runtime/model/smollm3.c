/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM3 as SmolLM3ForCausalLM stores it: Llama where every no_rope_layer_interval-th layer rotates neither queries nor keys. If there
 * is a window, these layers have it. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

/* no_rope_layers has 1 for a layer that rotates. */
static void read_rotations(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_decoder *d, int64_t interval)
{
	size_t blocks = (size_t)m->block_count;
	for (int64_t l = 0; l < m->block_count; l++)
		d->layers[l].rotation = (l + 1) % interval ? HSPMD_ROTATION : HSPMD_ROTATION_NONE;
	struct hspmd_json list = hspmd_json_array_or_none(root, "no_rope_layers", blocks, blocks);
	for (size_t i = 0; i < hspmd_json_length(&list) && !hspmd_json_failed(root); i++) {
		struct hspmd_json at = hspmd_json_at(&list, i);
		d->layers[i].rotation = hspmd_json_int_value(&at, 0, 1) ? HSPMD_ROTATION : HSPMD_ROTATION_NONE;
	}
}

static bool slides(const struct hspmd_decoder *d, int64_t layer, int64_t n)
{
	(void)n;
	return d->layers[layer].rotation == HSPMD_ROTATION_NONE;
}

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = {
		.kv_heads = 4, .max_positions = 32768, .norm_eps = 1e-6, .rope_theta = 2e6, .tied = true
	};
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->qkv_bias = d->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
	d->mlp_bias = hspmd_json_bool_or(root, "mlp_bias", false);
	int64_t interval = hspmd_json_int_or(root, "no_rope_layer_interval", 1, HSPMD_BLOCKS_MAX, 4);
	int64_t window = hspmd_json_bool_or(root, "use_sliding_window", false) ? hspmd_window_of(root, 0) : 0;
	if (hspmd_json_failed(root))
		return;
	read_rotations(root, m, d, interval);
	hspmd_decoder_read_window(root, m, window, slides, 0);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_smollm3;
const struct hspmd_model_type hspmd_model_smollm3 = { .names = { "smollm3" }, .read = read, .block = hspmd_builder_dense_block };
