/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/wide_case.h"

#include "runtime/tensor/fp8.h"

/* Rows of complete packs, and rows longer than a block keeps in registers. */
static int norm(struct hspmd_graph *g, enum hspmd_dtype type, enum hspmd_opcode opcode, int64_t width)
{
	struct hspmd_op_attr attr = { .eps = 1e-5 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 5, width)), op_case_parameter(g, type, "gain", SHAPE(width)), -1 };
	if (opcode == HSPMD_OP_LAYERNORM)
		in[2] = op_case_parameter(g, type, "bias", SHAPE(width));
	return op_case_append(g, opcode, &attr, in, opcode == HSPMD_OP_LAYERNORM ? 3 : 2, NULL);
}

static int layernorm_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return norm(g, type, HSPMD_OP_LAYERNORM, 768);
}

static int rmsnorm_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return norm(g, type, HSPMD_OP_RMSNORM, 768);
}

static int rmsnorm_very_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return norm(g, type, HSPMD_OP_RMSNORM, 9003);
}

static int layernorm_very_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return norm(g, type, HSPMD_OP_LAYERNORM, 8448);
}

static int embed_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { hspmd_graph_input(g, "tokens", HSPMD_I32, SHAPE(4, 150), 0), op_case_parameter(g, type, "table", SHAPE(11, 64)) };
	return op_case_append(g, HSPMD_OP_EMBED, NULL, in, 2, NULL);
}

static int gelu_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 17, 64)) };
	return op_case_append(g, HSPMD_OP_GELU, NULL, in, 1, NULL);
}

static int rope_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 64, .theta = 10000 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 37, 192)) };
	return op_case_append(g, HSPMD_OP_ROPE, &attr, in, 1, NULL);
}

static int attention(struct hspmd_graph *g, enum hspmd_dtype type, int64_t t, int64_t heads, int64_t kv, int64_t d, int64_t window,
                     bool segments)
{
	struct hspmd_op_attr attr = { .head_dim = d, .heads = heads, .kv_heads = kv, .scale = 0.12, .window = window };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, t, heads * d)), op_case_parameter(g, type, "k", SHAPE(2, t, kv * d)),
		     op_case_parameter(g, type, "v", SHAPE(2, t, kv * d)),
		     segments ? hspmd_graph_input(g, "segments", HSPMD_I32, SHAPE(2, t), 0) : -1 };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, segments ? 4 : 3, NULL);
}

static int attention_64(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 70, 2, 1, 64, 0, false);
}

static int attention_64_grouped(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 70, 4, 2, 64, 0, false);
}

/* As many heads as a block of queries of attention_queries_grad.h computes together. */
static int attention_64_four_a_kv_head(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 200, 4, 1, 64, 0, false);
}

static int attention_128(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 130, 2, 2, 128, 0, false);
}

/* Queries that see keys far ahead. */
static int attention_across(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 64, .heads = 4, .kv_heads = 2, .scale = 0.12, .bidirectional = true };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, 20, 256)), op_case_parameter(g, type, "k", SHAPE(2, 300, 128)),
		     op_case_parameter(g, type, "v", SHAPE(2, 300, 128)) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 3, NULL);
}

/* The last queries are beyond every key's window. */
static int attention_unseen(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 64, .heads = 2, .kv_heads = 1, .scale = 0.12, .bidirectional = true, .window = 40 };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, 150, 128)), op_case_parameter(g, type, "k", SHAPE(2, 50, 64)),
		     op_case_parameter(g, type, "v", SHAPE(2, 50, 64)) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 3, NULL);
}

/* More tiles than a kernel has stages; the last tile of queries that see the first keys is not whole. */
static int attention_128_window_segments(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 600, 2, 1, 128, 420, true);
}

static int attention_64_window_segments(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 150, 4, 2, 64, 50, true);
}

/* More tiles of 128 than documents reach across; half a tile that is within one document. */
static int attention_documents(struct hspmd_graph *g, enum hspmd_dtype type, const char *segments)
{
	struct hspmd_op_attr attr = { .head_dim = 64, .heads = 2, .kv_heads = 1, .scale = 0.12 };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, 600, 128)), op_case_parameter(g, type, "k", SHAPE(2, 600, 64)),
		     op_case_parameter(g, type, "v", SHAPE(2, 600, 64)), hspmd_graph_input(g, segments, HSPMD_I32, SHAPE(2, 600), 0) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 4, NULL);
}

static int attention_ascending(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention_documents(g, type, "segments, ascending");
}

static int attention_descending(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention_documents(g, type, "segments, descending");
}

static int attention_returning(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention_documents(g, type, "segments, returning");
}

static int attention_200(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 40, 1, 1, 200, 0, false);
}

static int attention_packed_64(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 64, .heads = 2, .kv_heads = 2, .scale = 0.125 };
	int in[] = { op_case_parameter(g, type, "qkv", SHAPE(2, 97, 3, 128)) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 1, NULL);
}

static int attention_tiled_grouped(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 128, 4, 2, 64, 0, false);
}

static int attention_tiled_window(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 128, 2, 2, 128, 50, false);
}

static int attention_1024_grouped(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 1024, 8, 2, 64, 0, false);
}

static int attention_1000_grouped(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 1000, 8, 2, 64, 0, false);
}

static int attention_777_window(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return attention(g, type, 777, 4, 4, 128, 300, false);
}

/* x, choice, weights, gate, up and down: what all experts read. */
static void experts_inputs(struct hspmd_graph *g, enum hspmd_dtype type, int64_t tokens, const struct hspmd_op_attr *attr, int64_t width,
                           int64_t inner, int *in)
{
	int64_t count = attr->experts;
	int logits = op_case_parameter(g, type, "logits", SHAPE(1, tokens, count)), routed[HSPMD_OP_MAX_IO];
	op_case_append(g, HSPMD_OP_TOPK_ROUTER, attr, &logits, 1, routed);
	in[0] = op_case_parameter(g, type, "x", SHAPE(1, tokens, width));
	in[1] = routed[1];
	in[2] = routed[0];
	in[3] = op_case_parameter(g, type, "gate", SHAPE(count, inner, width));
	in[4] = op_case_parameter(g, type, "up", SHAPE(count, inner, width));
	in[5] = op_case_parameter(g, type, "down", SHAPE(count, width, inner));
}

static int experts_of(struct hspmd_graph *g, enum hspmd_dtype type, int64_t tokens, int64_t count, int64_t each, int64_t width,
                      int64_t inner, enum hspmd_activation activation, bool biases)
{
	struct hspmd_op_attr attr = {
		.experts = (int)count, .experts_per_token = (int)each, .scale = 0.7, .activation = activation, .limit = 25
	};
	int in[9];
	experts_inputs(g, type, tokens, &attr, width, inner, in);
	in[6] = biases ? op_case_parameter(g, type, "gate_bias", SHAPE(count, inner)) : -1;
	in[7] = biases ? op_case_parameter(g, type, "up_bias", SHAPE(count, inner)) : -1;
	in[8] = biases ? op_case_parameter(g, type, "down_bias", SHAPE(count, width)) : -1;
	return op_case_append(g, HSPMD_OP_EXPERTS, &attr, in, biases ? 9 : 6, NULL);
}

static int experts(struct hspmd_graph *g, enum hspmd_dtype type, int64_t tokens, int64_t count, int64_t each, int64_t width, int64_t inner)
{
	return experts_of(g, type, tokens, count, each, width, inner, HSPMD_SILU, false);
}

static int experts_biased(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_of(g, type, 90, 3, 2, 40, 136, HSPMD_CLAMPED, true);
}

static int experts_gelu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_of(g, type, 50, 3, 2, 72, 40, HSPMD_GELU_TANH, true);
}

static int experts_gelu_erf(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_of(g, type, 50, 3, 1, 72, 40, HSPMD_GELU_ERF, false);
}

static int experts_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts(g, type, 90, 3, 2, 40, 48);
}

/* More rows, columns and depth than a tile of grouped_gemm.cu has, none of them a whole number of tiles. */
static int experts_tiled(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts(g, type, 230, 2, 1, 136, 168);
}

/* Experts with rows of several tiles of 128, more than 256 columns; the depth of a gradient ends within a step. */
static int experts_wide_tiled(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts(g, type, 330, 3, 1, 264, 72);
}

/* More tiles of rows than a band of grouped_gemm_wgmma.cu has. */
static int experts_banded(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts(g, type, 600, 2, 2, 16, 272);
}

/* Experts whose products are of FP8 operands: in codes, if rows are whole 16 of them. */
static int experts_fp8(struct hspmd_graph *g, enum hspmd_dtype type, int64_t tokens, int64_t count, int64_t width, int64_t inner)
{
	struct hspmd_op_attr attr = { .experts = (int)count, .experts_per_token = 2, .scale = 1.0 / 256 };
	int in[7];
	experts_inputs(g, type, tokens, &attr, width, inner, in);
	in[6] = op_case_parameter(g, type, "history", SHAPE(HSPMD_EXPERTS_OPERANDS, HSPMD_AMAX_BINS));
	return op_case_append(g, HSPMD_OP_EXPERTS_FP8, &attr, in, 7, NULL);
}

static int experts_fp8_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_fp8(g, type, 90, 3, 40, 136);
}

static int experts_fp8_tiled(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_fp8(g, type, 230, 2, 144, 176);
}

static int experts_fp8_few(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_fp8(g, type, 5, 16, 32, 16);
}

/* Rows of several tiles of 128, more than 256 columns, a depth of more than one step. */
static int experts_fp8_wide_tiled(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts_fp8(g, type, 330, 3, 272, 144);
}

/* Experts that nobody chooses, or few. */
static int experts_few(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return experts(g, type, 5, 16, 1, 24, 16);
}

static int loss_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .parts = 1, .scale = 0.3 };
	int targets = hspmd_graph_input(g, "targets", HSPMD_I32, SHAPE(3, 50), 0),
	    in[] = { op_case_parameter(g, type, "logits", SHAPE(3, 50, 1000)), targets };
	in[0] = op_case_append(g, HSPMD_OP_VOCAB_STATS, &attr, in, 2, NULL);
	return op_case_append(g, HSPMD_OP_LOSS, &attr, in, 2, NULL);
}

/* Several tiles of 64 and parts of some, in both orders of the weight. */
static int linear_fp8(struct hspmd_graph *g, enum hspmd_dtype type, bool transposed)
{
	struct hspmd_op_attr attr = { .scale = 1.0 / 64, .transposed = transposed };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 80, 96)),
		     op_case_parameter(g, type, "w", transposed ? SHAPE(96, 208) : SHAPE(208, 96)),
		     op_case_parameter(g, type, "bias", SHAPE(208)), op_case_parameter(g, type, "history", SHAPE(2, HSPMD_AMAX_BINS)),
		     op_case_parameter(g, type, "weight_history", SHAPE(1, HSPMD_AMAX_BINS)) };
	return op_case_append(g, HSPMD_OP_LINEAR_FP8, &attr, in, 5, NULL);
}

static int linear_fp8_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return linear_fp8(g, type, false);
}

static int linear_fp8_turned(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return linear_fp8(g, type, true);
}

const struct op_case wide_cases[] = {
	{ "layernorm of 768", layernorm_wide, false, NULL },
	{ "rmsnorm of 768", rmsnorm_wide, false, NULL },
	{ "layernorm of 8448", layernorm_very_wide, false, NULL },
	{ "rmsnorm of 9003", rmsnorm_very_wide, false, NULL },
	{ "embed of 600 tokens", embed_wide, false, NULL },
	{ "gelu of whole packs", gelu_wide, false, NULL },
	{ "rope of whole packs", rope_wide, false, NULL },
	{ "attention, heads of 64", attention_64, false, NULL },
	{ "attention, heads of 64, two a kv head", attention_64_grouped, true, NULL },
	{ "attention, heads of 64, four a kv head", attention_64_four_a_kv_head, true, NULL },
	{ "attention, heads of 128", attention_128, true, NULL },
	{ "attention, heads of 64, window and segments", attention_64_window_segments, true, NULL },
	{ "attention, heads of 128, window and segments", attention_128_window_segments, true, NULL },
	{ "attention across", attention_across, true, NULL },
	{ "attention, queries that see no key", attention_unseen, true, NULL },
	{ "attention, heads of 200", attention_200, true, NULL },
	{ "attention packed, heads of 64", attention_packed_64, true, NULL },
	{ "experts of 90 tokens", experts_wide, false, NULL },
	{ "experts of 230 tokens", experts_tiled, false, NULL },
	{ "experts with biases, clamped", experts_biased, false, NULL },
	{ "experts with biases, gelu", experts_gelu, false, NULL },
	{ "experts, gelu by erf", experts_gelu_erf, false, NULL },
	{ "experts of 5 tokens", experts_few, false, NULL },
	{ "experts in FP8 of 90 tokens", experts_fp8_wide, false, NULL },
	{ "experts in FP8 of 230 tokens", experts_fp8_tiled, false, NULL },
	{ "experts in FP8 of 5 tokens", experts_fp8_few, false, NULL },
	{ "experts in FP8 of 330 tokens", experts_fp8_wide_tiled, true, NULL },
	{ "experts of 330 tokens", experts_wide_tiled, true, NULL },
	{ "experts of 600 tokens", experts_banded, true, NULL },
	{ "loss over 1000", loss_wide, false, NULL },
	{ "FP8 linear of 96 to 208", linear_fp8_wide, false, NULL },
	{ "FP8 linear of 96 to 208, transposed", linear_fp8_turned, false, NULL },
};
const size_t wide_case_count = sizeof wide_cases / sizeof *wide_cases;

const struct op_case tiled_cases[] = {
	{ "attention of 128 positions, two a kv head", attention_tiled_grouped, true, NULL },
	{ "attention of 128 positions, heads of 128, window", attention_tiled_window, true, NULL },
};
const size_t tiled_case_count = sizeof tiled_cases / sizeof *tiled_cases;

const struct op_case document_cases[] = {
	{ "attention within documents whose numbers ascend", attention_ascending, true, NULL },
	{ "attention within documents whose numbers descend", attention_descending, true, NULL },
	{ "attention within documents whose numbers return", attention_returning, true, NULL },
};
const size_t document_case_count = sizeof document_cases / sizeof *document_cases;

const struct op_case long_cases[] = {
	{ "attention of 1024 positions, four a kv head", attention_1024_grouped, true, NULL },
	{ "attention of 1000 positions, four a kv head", attention_1000_grouped, true, NULL },
	{ "attention of 777 positions, heads of 128, window", attention_777_window, true, NULL },
};
const size_t long_case_count = sizeof long_cases / sizeof *long_cases;
