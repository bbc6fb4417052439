/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/random_case.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/device/random.h"

/* The sizes are large enough that a result is not mostly cancellation; of such a result a norm in BF16 would prove nothing. */
static struct {
	int64_t batch, length, width, out;
	int64_t kv, group, head_dim, window;
	int64_t vocab, experts, each, parts;
	bool bias, transposed, segments, exact;
} drawn;

static int64_t between(unsigned seed, unsigned *count, int64_t low, int64_t high)
{
	uint32_t word[4];
	hspmd_random_words(seed, 77, (*count)++, word);
	return low + (int64_t)(word[0] % (uint64_t)(high - low + 1));
}

static void draw_all(unsigned seed)
{
	unsigned n = 0;
	drawn.batch = between(seed, &n, 1, 4);
	drawn.length = between(seed, &n, 9, 90);
	drawn.width = between(seed, &n, 17, 300);
	drawn.out = between(seed, &n, 1, 200);
	drawn.kv = between(seed, &n, 1, 3);
	drawn.group = between(seed, &n, 1, 4);
	drawn.head_dim = between(seed, &n, 4, 72);
	drawn.window = between(seed, &n, 0, 1) ? between(seed, &n, 8, drawn.length) : 0;
	drawn.vocab = between(seed, &n, 11, 700); /* no token is above 10 (op_values_fill) */
	drawn.experts = between(seed, &n, 2, 9);
	drawn.each = between(seed, &n, 1, drawn.experts < 3 ? drawn.experts : 3);
	drawn.parts = between(seed, &n, 1, 3);
	drawn.bias = between(seed, &n, 0, 1);
	drawn.transposed = between(seed, &n, 0, 1);
	drawn.segments = between(seed, &n, 0, 1);
	drawn.exact = between(seed, &n, 0, 1);
}

/* ---- kinds: each writes its parameters into its name */

static struct hspmd_shape rows(int64_t width)
{
	return SHAPE(drawn.batch, drawn.length, width);
}

static int embed(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { hspmd_graph_input(g, "tokens", HSPMD_I32, SHAPE(drawn.batch, drawn.length), 0),
		     op_case_parameter(g, type, "table", SHAPE(drawn.vocab, drawn.width)) };
	return op_case_append(g, HSPMD_OP_EMBED, NULL, in, 2, NULL);
}

static int position(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int in[] = { op_case_parameter(g, type, "x", rows(drawn.width)),
		     op_case_parameter(g, type, "table", SHAPE(drawn.length + drawn.parts, drawn.width)) };
	return op_case_append(g, HSPMD_OP_POSITION_EMBED, NULL, in, 2, NULL);
}

static int layernorm(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .eps = 1e-5 };
	int in[] = { op_case_parameter(g, type, "x", rows(drawn.width)), op_case_parameter(g, type, "gain", SHAPE(drawn.width)),
		     op_case_parameter(g, type, "bias", SHAPE(drawn.width)) };
	return op_case_append(g, HSPMD_OP_LAYERNORM, &attr, in, 3, NULL);
}

static int rmsnorm(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .eps = 1e-5 };
	int in[] = { op_case_parameter(g, type, "x", rows(drawn.width)), op_case_parameter(g, type, "gain", SHAPE(drawn.width)) };
	return op_case_append(g, HSPMD_OP_RMSNORM, &attr, in, 2, NULL);
}

static int linear(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .transposed = drawn.transposed };
	int in[] = { op_case_parameter(g, type, "x", rows(drawn.width)),
		     op_case_parameter(g, type, "w",
		                       drawn.transposed ? SHAPE(drawn.width, drawn.parts, drawn.out) : SHAPE(drawn.out, drawn.width)),
		     -1 };
	if (drawn.bias)
		in[2] = op_case_parameter(g, type, "bias", drawn.transposed ? SHAPE(drawn.parts, drawn.out) : SHAPE(drawn.out));
	return op_case_append(g, HSPMD_OP_LINEAR, &attr, in, drawn.bias ? 3 : 2, NULL);
}

static struct hspmd_op_attr heads(int64_t group)
{
	return (struct hspmd_op_attr){ .head_dim = drawn.head_dim,
		                       .heads = drawn.kv * group,
		                       .kv_heads = drawn.kv,
		                       .scale = 0.4 / (double)drawn.parts,
		                       .window = drawn.window };
}

static int attention(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = heads(drawn.group);
	int64_t kv = drawn.kv * drawn.head_dim;
	int in[] = { op_case_parameter(g, type, "q", rows(kv * drawn.group)), op_case_parameter(g, type, "k", rows(kv)),
		     op_case_parameter(g, type, "v", rows(kv)), -1 };
	if (drawn.segments)
		in[3] = hspmd_graph_input(g, "segments", HSPMD_I32, SHAPE(drawn.batch, drawn.length), 0);
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, drawn.segments ? 4 : 3, NULL);
}

static int packed(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = heads(1);
	int qkv = op_case_parameter(g, type, "qkv", SHAPE(drawn.batch, drawn.length, 3, drawn.kv * drawn.head_dim)), in[HSPMD_OP_MAX_IO];
	attr.window = 0;
	if (!drawn.bias)
		return op_case_append(g, HSPMD_OP_ATTENTION, &attr, &qkv, 1, NULL);
	op_case_append(g, HSPMD_OP_SPLIT_QKV, NULL, &qkv, 1, in);
	return op_case_append(g, HSPMD_OP_ATTENTION, &attr, in, 3, NULL);
}

static int rope(struct hspmd_graph *g, enum hspmd_dtype type)
{
	int64_t head_dim = drawn.head_dim / 2 * 2;
	struct hspmd_op_attr attr = { .head_dim = head_dim, .theta = 10000 };
	int x = op_case_parameter(g, type, "x", rows(head_dim * drawn.kv * drawn.group));
	return op_case_append(g, HSPMD_OP_ROPE, &attr, &x, 1, NULL);
}

static int gelu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .exact = drawn.exact };
	int x = op_case_parameter(g, type, "x", rows(drawn.width));
	return op_case_append(g, HSPMD_OP_GELU, &attr, &x, 1, NULL);
}

static int of_two(struct hspmd_graph *g, enum hspmd_dtype type, enum hspmd_opcode opcode)
{
	int in[] = { op_case_parameter(g, type, "a", rows(drawn.width)), op_case_parameter(g, type, "b", rows(drawn.width)) };
	return op_case_append(g, opcode, NULL, in, 2, NULL);
}

static int swiglu(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return of_two(g, type, HSPMD_OP_SWIGLU);
}

static int add(struct hspmd_graph *g, enum hspmd_dtype type)
{
	return of_two(g, type, HSPMD_OP_ADD);
}

static struct hspmd_op_attr routing(void)
{
	return (struct hspmd_op_attr){ .experts = drawn.experts, .experts_per_token = drawn.each, .scale = 0.7 };
}

static int route(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = routing();
	int logits = op_case_parameter(g, type, "logits", rows(drawn.experts));
	return op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, &logits, 1, NULL);
}

static int experts(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = routing();
	int64_t e = drawn.experts, width = drawn.width / 4, hidden = drawn.width / 3;
	int logits = op_case_parameter(g, type, "logits", rows(e)), routed[HSPMD_OP_MAX_IO];
	op_case_append(g, HSPMD_OP_TOPK_ROUTER, &attr, &logits, 1, routed);
	int in[] = { op_case_parameter(g, type, "x", rows(width)),
		     routed[1],
		     routed[0],
		     op_case_parameter(g, type, "gate", SHAPE(e, hidden, width)),
		     op_case_parameter(g, type, "up", SHAPE(e, hidden, width)),
		     op_case_parameter(g, type, "down", SHAPE(e, width, hidden)) };
	return op_case_append(g, HSPMD_OP_EXPERTS, &attr, in, 6, NULL);
}

static int loss(struct hspmd_graph *g, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .parts = (int)drawn.parts, .scale = 0.3 };
	int targets = hspmd_graph_input(g, "targets", HSPMD_I32, SHAPE(drawn.batch, drawn.length), 0);
	int in[] = { op_case_parameter(g, type, "logits", rows(drawn.vocab)), targets };
	in[0] = op_case_append(g, HSPMD_OP_VOCAB_STATS, &attr, in, 2, NULL);
	return op_case_append(g, HSPMD_OP_LOSS, &attr, in, 2, NULL);
}

struct op_case random_case(unsigned seed, char *name, size_t size)
{
	static const struct {
		const char *name;
		int (*build)(struct hspmd_graph *g, enum hspmd_dtype type);
	} kinds[RANDOM_KINDS] = {
		{ "embed", embed },         { "position", position },   { "layernorm", layernorm },
		{ "rmsnorm", rmsnorm },     { "linear", linear },       { "linear", linear },
		{ "attention", attention }, { "attention", attention }, { "packed attention", packed },
		{ "rope", rope },           { "gelu", gelu },           { "swiglu or add", swiglu },
		{ "route", route },         { "experts", experts },     { "loss", loss },
	};
	unsigned kind = seed % RANDOM_KINDS;
	draw_all(seed);
	snprintf(name, size,
	         "%s (seed %u: %" PRId64 " x %" PRId64 " x %" PRId64 " to %" PRId64 ", %" PRId64 " of %" PRId64 " heads of %" PRId64
	         ", window %" PRId64 ", %" PRId64 " words, %" PRId64 " of %" PRId64 " experts, %" PRId64 " parts)",
	         kinds[kind].name, seed, drawn.batch, drawn.length, drawn.width, drawn.out, drawn.kv, drawn.kv * drawn.group,
	         drawn.head_dim, drawn.window, drawn.vocab, drawn.each, drawn.experts, drawn.parts);
	return (struct op_case){ name, kinds[kind].build == swiglu && drawn.exact ? add : kinds[kind].build, false, NULL };
}
