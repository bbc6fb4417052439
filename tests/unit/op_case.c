/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/op_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "runtime/device/cpu/cpu.h"
#include "runtime/device/random.h"
#include "runtime/op/op.h"
#include "runtime/tensor/fp8.h"

int op_case_parameter(struct hspmd_graph *g, enum hspmd_dtype type, const char *name, struct hspmd_shape shape)
{
	int t = hspmd_graph_parameter(g, name, shape, 0, 0, 1, true, -1, 1);
	assert_true(t >= 0);
	g->tensors[t].dtype = type;
	return t;
}

int op_case_append(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *in, int count, int *out)
{
	int own[HSPMD_OP_MAX_IO], t = hspmd_graph_append(g, opcode, attr, 0, in, count, out ? out : own);
	if (t < 0)
		fail_msg("%s", g->error.text);
	return t;
}

static int build_embed(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { hspmd_graph_input(g, "tokens", HSPMD_I32, SHAPE(3, 5), 0),
		     op_case_parameter(g, type, "table", SHAPE(OP_CASE_VOCAB, 7)) };
	return op_case_append(g, HSPMD_OP_EMBED, NULL, in, 2, NULL);
}

static int build_embed_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { hspmd_graph_input(g, "tokens", HSPMD_I32, SHAPE(3, 5), 0),
		     op_case_parameter(g, type, "table", SHAPE(OP_CASE_VOCAB, 37)) };
	return op_case_append(g, HSPMD_OP_EMBED, NULL, in, 2, NULL);
}

static int build_position(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 7)), op_case_parameter(g, type, "table", SHAPE(6, 7)) };
	return op_case_append(g, HSPMD_OP_POSITION_EMBED, NULL, in, 2, NULL);
}

static int build_layernorm(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .eps = 1e-5 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 37)), op_case_parameter(g, type, "gain", SHAPE(37)),
		     op_case_parameter(g, type, "bias", SHAPE(37)) };
	return op_case_append(g, HSPMD_OP_LAYERNORM, &attr, in, 3, NULL);
}

static int build_rmsnorm(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .eps = 1e-5 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 37)), op_case_parameter(g, type, "gain", SHAPE(37)) };
	return op_case_append(g, HSPMD_OP_RMSNORM, &attr, in, 2, NULL);
}

static int build_rmsnorm_heads(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .eps = 1e-5, .plus_one = true };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 4 * 6)), op_case_parameter(g, type, "gain", SHAPE(6)) };
	return op_case_append(g, HSPMD_OP_RMSNORM, &attr, in, 2, NULL);
}

static int build_linear(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 9)), op_case_parameter(g, type, "w", SHAPE(13, 9)) };
	return op_case_append(g, HSPMD_OP_LINEAR, NULL, in, 2, NULL);
}

static int build_linear_bias(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 9)), op_case_parameter(g, type, "w", SHAPE(13, 9)),
		     op_case_parameter(g, type, "bias", SHAPE(13)) };
	return op_case_append(g, HSPMD_OP_LINEAR, NULL, in, 3, NULL);
}

static int build_linear_transposed(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .transposed = true };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 9)), op_case_parameter(g, type, "w", SHAPE(9, 3, 7)),
		     op_case_parameter(g, type, "bias", SHAPE(3, 7)) };
	return op_case_append(g, HSPMD_OP_LINEAR, &attr, in, 3, NULL);
}

/* Large enough for several blocks in every direction. */
static int build_linear_large(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 101, 407)), op_case_parameter(g, type, "w", SHAPE(67, 407)),
		     op_case_parameter(g, type, "bias", SHAPE(67)) };
	return op_case_append(g, HSPMD_OP_LINEAR, NULL, in, 3, NULL);
}

static int separate_attention(struct hspmd_graph *g, enum hspmd_dtype type, int64_t t, int64_t heads, int64_t kv, int64_t d, int64_t window,
                              bool segments)
{
	struct hspmd_op_attr attr = { .head_dim = d, .heads = heads, .kv_heads = kv, .scale = 0.4, .window = window };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, t, heads * d)), op_case_parameter(g, type, "k", SHAPE(2, t, kv * d)),
		     op_case_parameter(g, type, "v", SHAPE(2, t, kv * d)), -1 };
	if (segments)
		in[3] = hspmd_graph_input(g, "segments", HSPMD_I32, SHAPE(2, t), 0);
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, segments ? 4 : 3, NULL);
}

static int build_attention(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return separate_attention(g, type, 13, 4, 2, 6, 0, false);
}

static int build_attention_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return separate_attention(g, type, 19, 2, 1, 38, 0, false);
}

static int build_attention_window(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return separate_attention(g, type, 135, 2, 1, 5, 40, false);
}

static int build_attention_segments(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return separate_attention(g, type, 130, 3, 3, 4, 0, true);
}

/* A soft cap, sinks and documents; keys and values of two heads for any part of the queries' heads. */
static int build_attention_sinks(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 6, .heads = 4, .kv_heads = 2, .scale = 0.4, .softcap = 1.5, .whole_kv = true };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, 13, 24)), op_case_parameter(g, type, "k", SHAPE(2, 13, 12)),
		     op_case_parameter(g, type, "v", SHAPE(2, 13, 12)), hspmd_graph_input(g, "segments", HSPMD_I32, SHAPE(2, 13), 0),
		     op_case_parameter(g, type, "sinks", SHAPE(4)) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 5, NULL);
}

static int build_attention_packed(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 5, .heads = 4, .kv_heads = 4, .scale = 0.4 };
	int in[] = { op_case_parameter(g, type, "qkv", SHAPE(2, 17, 3, 20)) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 1, NULL);
}

static int build_attention_unpacked(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 5, .heads = 4, .kv_heads = 4, .scale = 0.4 };
	int qkv = op_case_parameter(g, type, "qkv", SHAPE(2, 17, 3, 20)), in[HSPMD_OP_MAX_IO];
	op_case_append(g, HSPMD_OP_SPLIT_QKV, NULL, &qkv, 1, in);
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 3, NULL);
}

static int build_rope_wide(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 38, .theta = 10000 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 9, 76)) };
	return op_case_append(g, HSPMD_OP_ROPE, &attr, in, 1, NULL);
}

static int build_rope(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 6, .theta = 10000 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 70, 12)) };
	return op_case_append(g, HSPMD_OP_ROPE, &attr, in, 1, NULL);
}

static int build_rope_scaled(struct hspmd_graph *g, enum hspmd_dtype type)
{
	static const double frequencies[] = { 0.9, 0.25, 0.03 };
	struct hspmd_op_attr attr = { .head_dim = 8, .rotary = 6, .rotation_scale = 1.25, .interleaved = true };
	attr.frequencies = hspmd_graph_constant(g, frequencies, 3);
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 70, 16)) };
	return op_case_append(g, HSPMD_OP_ROPE, &attr, in, 1, NULL);
}

static int build_rope_partial(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 6, .rotary = 4, .theta = 100 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(2, 9, 12)) };
	return op_case_append(g, HSPMD_OP_ROPE, &attr, in, 1, NULL);
}

static int build_gelu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_GELU, NULL, in, 1, NULL);
}

static int build_gelu_exact(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .exact = true };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_GELU, &attr, in, 1, NULL);
}

static int build_swiglu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "gate", SHAPE(3, 5, 7)), op_case_parameter(g, type, "up", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_SWIGLU, NULL, in, 2, NULL);
}

static int gated(struct hspmd_graph *g, enum hspmd_dtype type, enum hspmd_activation activation)
{
	struct hspmd_op_attr attr = { .activation = activation, .limit = 0.8 };
	int in[] = { op_case_parameter(g, type, "gate", SHAPE(3, 5, 7)), op_case_parameter(g, type, "up", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_SWIGLU, &attr, in, 2, NULL);
}

static int build_geglu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return gated(g, type, HSPMD_GELU_TANH);
}

static int build_geglu_exact(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return gated(g, type, HSPMD_GELU_ERF);
}

static int build_clamped(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return gated(g, type, HSPMD_CLAMPED);
}

static int build_scale(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .scale = 1.5 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_SCALE, &attr, in, 1, NULL);
}

static int build_softcap(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .softcap = 0.9 };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_SOFTCAP, &attr, in, 1, NULL);
}

static int build_dropout(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .rate = 0.3, .random = { .stream = 5 } };
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 5, 7)), hspmd_graph_input(g, "noise", HSPMD_I32, SHAPE(3, 5), 0) };
	return op_case_append(g, HSPMD_OP_DROPOUT, &attr, in, 2, NULL);
}

static int build_attention_dropout(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 6, .heads = 4, .kv_heads = 2, .scale = 0.4, .rate = 0.3, .random = { .stream = 6 } };
	int in[] = { op_case_parameter(g, type, "q", SHAPE(2, 13, 24)),
		     op_case_parameter(g, type, "k", SHAPE(2, 13, 12)),
		     op_case_parameter(g, type, "v", SHAPE(2, 13, 12)),
		     -1,
		     -1,
		     hspmd_graph_input(g, "noise", HSPMD_I32, SHAPE(2, 13), 0) };
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 6, NULL);
}

static int build_add(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "a", SHAPE(3, 5, 7)), op_case_parameter(g, type, "b", SHAPE(3, 5, 7)) };
	return op_case_append(g, HSPMD_OP_ADD, NULL, in, 2, NULL);
}

static int build_route(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .experts = 5, .experts_per_token = 2, .scale = 0.7 };
	int in[] = { op_case_parameter(g, type, "logits", SHAPE(3, 6, 5)) };
	return op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, in, 1, NULL);
}

static int build_route_all(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .experts = 5, .experts_per_token = 2, .scale = 0.7, .router = HSPMD_ROUTER_ALL };
	int in[] = { op_case_parameter(g, type, "logits", SHAPE(3, 6, 5)) };
	return op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, in, 1, NULL);
}

/* fp8: its products are of FP8 operands. */
static int mixture(struct hspmd_graph *g, enum hspmd_dtype type, enum hspmd_activation activation, bool fp8)
{
	struct hspmd_op_attr attr = { .experts = 5, .experts_per_token = 2, .scale = 0.7, .activation = activation };
	int logits = op_case_parameter(g, type, "logits", SHAPE(3, 6, 5)), routed[HSPMD_OP_MAX_IO];
	op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, &logits, 1, routed);
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 6, 7)),
		     routed[1],
		     routed[0],
		     op_case_parameter(g, type, "gate", SHAPE(5, 9, 7)),
		     op_case_parameter(g, type, "up", SHAPE(5, 9, 7)),
		     op_case_parameter(g, type, "down", SHAPE(5, 7, 9)),
		     -1 };
	if (!fp8)
		return op_case_append(g, HSPMD_OP_EXPERTS, &attr, in, 6, NULL);
	attr.scale = 1.0 / 64;
	in[6] = op_case_parameter(g, type, "history", SHAPE(HSPMD_EXPERTS_OPERANDS, HSPMD_AMAX_BINS));
	return op_case_append(g, HSPMD_OP_EXPERTS_FP8, &attr, in, 7, NULL);
}

static int build_experts(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return mixture(g, type, HSPMD_SILU, false);
}

static int build_experts_fp8(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return mixture(g, type, HSPMD_SILU, true);
}

static int build_experts_gelu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return mixture(g, type, HSPMD_GELU_TANH, false);
}

static int build_experts_fp8_gelu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return mixture(g, type, HSPMD_GELU_TANH, true);
}

static int routed(struct hspmd_graph *g, enum hspmd_dtype type, enum hspmd_router router, int group_best)
{
	struct hspmd_op_attr attr = { .experts = 6, .experts_per_token = 2, .scale = 0.7, .router = router, .weight_scale = 1.5 };
	attr.groups = 3;
	attr.top_groups = 2;
	attr.group_best = group_best;
	int in[] = { op_case_parameter(g, type, "logits", SHAPE(3, 6, 6)), -1 };
	if (group_best > 1)
		in[1] = op_case_parameter(g, type, "bias", SHAPE(6));
	return op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, in, group_best, NULL);
}

static int build_route_groups(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return routed(g, type, HSPMD_ROUTER_ALL, 1);
}

static int build_route_sigmoid(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return routed(g, type, HSPMD_ROUTER_SIGMOID, 2);
}

static int build_route_sigmoid_all(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return routed(g, type, HSPMD_ROUTER_SIGMOID_ALL, 2);
}

static int build_join_heads(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 5, .part = 3 };
	int in[] = { op_case_parameter(g, type, "a", SHAPE(2, 7, 12)), op_case_parameter(g, type, "b", SHAPE(2, 7, 8)) };
	return op_case_append(g, HSPMD_OP_JOIN_HEADS, &attr, in, 2, NULL);
}

/* One rest for all heads; of the result the first elements are taken, and filled up again. */
static int build_join_shared(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = 5, .part = 3, .whole_kv = true }, first = { .head_dim = 5, .part = 4 };
	int in[] = { op_case_parameter(g, type, "a", SHAPE(2, 7, 12)), op_case_parameter(g, type, "b", SHAPE(2, 7, 2)) };
	int y = op_case_append(g, HSPMD_OP_JOIN_HEADS, &attr, in, 2, NULL);
	y = op_case_append(g, HSPMD_OP_TAKE_HEADS, &first, &y, 1, NULL);
	return op_case_append(g, HSPMD_OP_JOIN_HEADS, &first, &y, 1, NULL);
}

static int build_experts_biases(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .experts = 5, .experts_per_token = 2, .scale = 0.7, .activation = HSPMD_CLAMPED, .limit = 1.1 };
	int logits = op_case_parameter(g, type, "logits", SHAPE(3, 6, 5)), routed[HSPMD_OP_MAX_IO];
	op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, &logits, 1, routed);
	int in[] = { op_case_parameter(g, type, "x", SHAPE(3, 6, 7)),
		     routed[1],
		     routed[0],
		     op_case_parameter(g, type, "gate", SHAPE(5, 9, 7)),
		     op_case_parameter(g, type, "up", SHAPE(5, 9, 7)),
		     op_case_parameter(g, type, "down", SHAPE(5, 7, 9)),
		     op_case_parameter(g, type, "gate_bias", SHAPE(5, 9)),
		     op_case_parameter(g, type, "up_bias", SHAPE(5, 9)),
		     op_case_parameter(g, type, "down_bias", SHAPE(5, 7)) };
	return op_case_append(g, HSPMD_OP_EXPERTS, &attr, in, 9, NULL);
}

static int loss_in_parts(struct hspmd_graph *g, enum hspmd_dtype type, int parts)
{
	struct hspmd_op_attr attr = { .parts = parts, .scale = 0.3 };
	int targets = hspmd_graph_input(g, "targets", HSPMD_I32, SHAPE(3, 5), 0);
	int in[] = { op_case_parameter(g, type, "logits", SHAPE(3, 5, OP_CASE_VOCAB)), targets };
	in[0] = op_case_append(g, HSPMD_OP_VOCAB_STATS, &attr, in, 2, NULL);
	return op_case_append(g, HSPMD_OP_LOSS, &attr, in, 2, NULL);
}

static int build_loss(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return loss_in_parts(g, type, 1);
}

static int build_loss_parts(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return loss_in_parts(g, type, 2);
}

static int build_loss_smoothed(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .parts = 2, .scale = 0.3, .smoothing = 0.1, .ignores = true, .numbers = { 3 } };
	int targets = hspmd_graph_input(g, "targets", HSPMD_I32, SHAPE(3, 5), 0);
	int in[] = { op_case_parameter(g, type, "logits", SHAPE(3, 5, OP_CASE_VOCAB)), targets,
		     hspmd_graph_input(g, "weights", type, SHAPE(3, 5), 0) };
	in[0] = op_case_append(g, HSPMD_OP_VOCAB_STATS, &attr, in, 2, NULL);
	return op_case_append(g, HSPMD_OP_LOSS, &attr, in, 3, NULL);
}

static const struct op_case op_cases[] = {
	{ "embed", build_embed, false, NULL },
	{ "position", build_position, false, NULL },
	/* rows of whole vectors and a part of one */
	{ "embed wide", build_embed_wide, false, NULL },
	{ "attention wide", build_attention_wide, false, NULL },
	{ "rope wide", build_rope_wide, false, NULL },
	{ "layernorm", build_layernorm, false, NULL },
	{ "rmsnorm", build_rmsnorm, false, NULL },
	{ "rmsnorm heads", build_rmsnorm_heads, false, NULL },
	{ "linear", build_linear, false, NULL },
	{ "linear with bias", build_linear_bias, false, NULL },
	{ "linear transposed", build_linear_transposed, false, NULL },
	{ "linear large", build_linear_large, true, NULL },
	{ "attention", build_attention, false, NULL },
	{ "attention window", build_attention_window, true, NULL },
	{ "attention segments", build_attention_segments, true, NULL },
	{ "attention sinks", build_attention_sinks, false, NULL },
	{ "attention packed", build_attention_packed, false, NULL },
	{ "attention unpacked", build_attention_unpacked, false, NULL },
	{ "rope", build_rope, false, NULL },
	{ "rope scaled", build_rope_scaled, false, NULL },
	{ "rope partial", build_rope_partial, false, NULL },
	{ "gelu", build_gelu, false, NULL },
	{ "gelu exact", build_gelu_exact, false, NULL },
	{ "swiglu", build_swiglu, false, NULL },
	{ "geglu", build_geglu, false, NULL },
	{ "geglu exact", build_geglu_exact, false, NULL },
	{ "clamped", build_clamped, false, NULL },
	{ "dropout", build_dropout, false, NULL },
	{ "attention dropout", build_attention_dropout, false, NULL },
	{ "add", build_add, false, NULL },
	{ "scale", build_scale, false, NULL },
	{ "softcap", build_softcap, false, NULL },
	{ "route", build_route, false, NULL },
	{ "route over all", build_route_all, false, NULL },
	{ "route in groups", build_route_groups, false, NULL },
	{ "route by sigmoid", build_route_sigmoid, false, NULL },
	{ "route by sigmoid over all", build_route_sigmoid_all, false, NULL },
	{ "join heads", build_join_heads, false, NULL },
	{ "join heads, shared", build_join_shared, false, NULL },
	{ "experts", build_experts, false, NULL },
	{ "experts gelu", build_experts_gelu, false, NULL },
	{ "experts with biases", build_experts_biases, false, NULL },
	{ "FP8 experts", build_experts_fp8, false, NULL },
	{ "FP8 experts gelu", build_experts_fp8_gelu, false, NULL },
	{ "loss", build_loss, false, NULL },
	{ "loss in 2 parts", build_loss_parts, false, NULL },
	{ "loss smoothed", build_loss_smoothed, false, NULL },
};

/* Example `number`, counted over all operators. NULL: there are fewer. */
static const struct hspmd_op_example *example_at(size_t number)
{
	for (int o = 0; o < HSPMD_OP_COUNT; o++)
		for (const struct hspmd_op_example *e = hspmd_op_types[o]->examples; e && e->name; e++)
			if (number-- == 0)
				return e;
	return NULL;
}

size_t op_case_count(void)
{
	size_t examples = 0;
	while (example_at(examples))
		examples++;
	return sizeof op_cases / sizeof *op_cases + examples;
}

const struct op_case *op_case_at(size_t number)
{
	static struct op_case of_example;
	if (number < sizeof op_cases / sizeof *op_cases)
		return &op_cases[number];
	const struct hspmd_op_example *e = example_at(number - sizeof op_cases / sizeof *op_cases);
	assert_non_null(e);
	of_example = (struct op_case){ .name = e->name, .example = e };
	return &of_example;
}

static int build_example(struct hspmd_graph *g, enum hspmd_dtype type, const struct hspmd_op_example *e)
{
	enum hspmd_opcode opcode = 0;
	int in[HSPMD_OP_MAX_IO], count = 0;
	for (int o = 0; o < HSPMD_OP_COUNT; o++)
		for (const struct hspmd_op_example *x = hspmd_op_types[o]->examples; x && x->name; x++)
			if (x == e)
				opcode = (enum hspmd_opcode)o;
	for (int i = 0; i < HSPMD_OP_MAX_IO; i++) {
		const char *name = e->in[i].name;
		in[i] = !name                                    ? -1
		        : e->in[i].kind == HSPMD_EXAMPLE_INTEGER ? hspmd_graph_input(g, name, HSPMD_I32, e->in[i].shape, 0)
		        : e->in[i].kind == HSPMD_EXAMPLE_GIVEN   ? hspmd_graph_input(g, name, type, e->in[i].shape, 0)
		                                                 : op_case_parameter(g, type, name, e->in[i].shape);
		count = name ? i + 1 : count;
	}
	return op_case_append(g, opcode, &e->attr, in, count, NULL);
}

struct hspmd_graph *op_case_graph(const struct op_case *c, enum hspmd_dtype type)
{
	struct hspmd_graph *g = hspmd_graph_create(hspmd_op_types);
	assert_non_null(g);
	int result = c->example ? build_example(g, type, c->example) : c->build(g, type);
	if (g->tensors[result].role != HSPMD_TENSOR_LOSS) {
		int seed = hspmd_graph_input(g, "seed", type, g->tensors[result].shape, 0);
		assert_true(seed >= 0);
		g->tensors[result].grad = seed;
	}
	if (hspmd_graph_differentiate(g))
		fail_msg("%s: %s", c->name, g->error.text);
	return g;
}
