/* SPDX-License-Identifier: Apache-2.0 */
/* Phi-3 and Phi-4 (arXiv 2404.14219) as Phi3ForCausalLM stores them. Files have query, key and value in one matrix, and gate and up in
 * another; here each is a parameter of its own, so that each can be split by heads. */
#include "runtime/model/fields.h"
#include "runtime/model/model_internal.h"
#include "runtime/model/weight_pieces.h"

static void read(struct hspmd_json *root, struct hspmd_model *m)
{
	static const struct hspmd_decoder_defaults absent = { .max_positions = 4096, .norm_eps = 1e-5, .rope_theta = 1e4 };
	struct hspmd_decoder *d = hspmd_decoder_read(root, m, sizeof *d, &absent);
	if (!d)
		return;
	d->dropout.residual = hspmd_rate_of(root, "resid_pdrop", 0);
	hspmd_refuse_number_unless(root, "embd_pdrop", 0); /* Transformers reads it and does not apply it */
	hspmd_decoder_refuse_biases(root, d, false);
	hspmd_decoder_read_window(root, m, hspmd_window_of(root, 0), NULL, 0);
	hspmd_decoder_check(root, m);
}

/* ---- weights */

static int64_t qkv_rows(const struct hspmd_decoder *d)
{
	return (d->heads + 2 * d->kv_heads) * d->head_dim;
}

static void place_q(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)ours;
	hspmd_piece_rows(piece, 0, qkv_rows(hspmd_decoder_of(m)));
}

static void place_k(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_decoder *d = hspmd_decoder_of(m);
	(void)ours;
	hspmd_piece_rows(piece, d->heads * d->head_dim, qkv_rows(d));
}

static void place_v(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	const struct hspmd_decoder *d = hspmd_decoder_of(m);
	(void)ours;
	hspmd_piece_rows(piece, (d->heads + d->kv_heads) * d->head_dim, qkv_rows(d));
}

static void place_gate(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)m;
	hspmd_piece_rows(piece, 0, 2 * ours->dim[0]);
}

static void place_up(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece)
{
	(void)m;
	hspmd_piece_rows(piece, ours->dim[0], 2 * ours->dim[0]);
}

static const struct hspmd_weight_name weights[] = {
	{ ".q_proj.", ".qkv_proj.", place_q },           { ".k_proj.", ".qkv_proj.", place_k },       { ".v_proj.", ".qkv_proj.", place_v },
	{ ".gate_proj.", ".gate_up_proj.", place_gate }, { ".up_proj.", ".gate_up_proj.", place_up }, { 0 },
};

extern const struct hspmd_model_type hspmd_model_phi3;
const struct hspmd_model_type hspmd_model_phi3 = {
	.names = { "phi3" },
	.read = read,
	.block = hspmd_builder_dense_block,
	.weights = weights,
};
