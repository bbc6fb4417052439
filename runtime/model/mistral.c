/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral (arXiv 2310.06825): Llama with a window of attention in all layers. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .kv_heads = 8, .max_positions = 131072, .norm_eps = 1e-6, .rope_theta = 1e4 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	hspmd_decoder_refuse_biases(root, d, false);
	hspmd_decoder_read_window(root, m, hspmd_window_of(root, 4096), NULL, 0);
	hspmd_decoder_check(root, m);
}

extern const struct hspmd_model_type hspmd_model_mistral;
const struct hspmd_model_type hspmd_model_mistral = { .names = { "mistral" }, .read = read, .block = hspmd_builder_dense_block };
