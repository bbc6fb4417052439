/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many matrices: y = A B for every combination of the leading dimensions, which both have. */
#include <inttypes.h>
#include <math.h>

#include "runtime/op/op_internal.h"

static bool is_transposed(const struct hspmd_op_attr *attr, int input)
{
	return attr->kind >> input & 1;
}

/* Size of a matrix before transposing: dimension `which` (0: rows, 1: columns) of op(input). */
static int64_t size_of(const struct hspmd_op_view *v, int input, int which)
{
	int rank = v->in[input].rank;
	return v->in[input].dim[rank - 2 + (which != is_transposed(v->attr, input))];
}

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	int rank = v->in[0].rank;
	if (hspmd_op_expect(v, 0, -1, false, err) || hspmd_op_expect(v, 1, rank, false, err))
		return -1;
	if (rank < 2)
		return hspmd_fail(err, "%d dimensions, expected matrices", rank);
	for (int d = 0; d < rank - 2; d++)
		if (hspmd_op_expect_dim(v, 1, d, v->in[0].dim[d], "that of input 0", err))
			return -1;
	if (size_of(v, 0, 1) != size_of(v, 1, 0))
		return hspmd_fail(err, "%" PRId64 " columns and %" PRId64 " rows, expected the same", size_of(v, 0, 1), size_of(v, 1, 0));
	hspmd_op_output_like(v, 0, 0);
	v->out[0].dim[rank - 2] = size_of(v, 0, 0);
	v->out[0].dim[rank - 1] = size_of(v, 1, 1);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	char batch[8];
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(batch, sizeof batch, "%.*s", v->in[0].rank - 2, "bcde");
	snprintf(r->in[0], sizeof r->in[0], "+%s%s", batch, is_transposed(v->attr, 0) ? "km" : "mk");
	snprintf(r->in[1], sizeof r->in[1], "%s%s", batch, is_transposed(v->attr, 1) ? "nk" : "kn");
	snprintf(r->out[0], sizeof r->out[0], "%smn/k", batch);
}

/* The gradient of a factor is a product of the other factor and the result's gradient. */
static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]), a = op->in[0], b = op->in[1];
	bool ta = is_transposed(&op->attr, 0), tb = is_transposed(&op->attr, 1);
	struct hspmd_op_attr for_a = { .kind = ta ? tb | 2 : !tb << 1 }, for_b = { .kind = tb ? 1 | ta << 1 : !ta };
	int in_a[] = { ta ? b : dy, ta ? dy : b }, in_b[] = { tb ? dy : a, tb ? a : dy };
	return hspmd_graph_append_grad(g, HSPMD_OP_MATMUL, &for_a, op->layer, in_a, 2, &op->in[0], 1) ||
	                       hspmd_graph_append_grad(g, HSPMD_OP_MATMUL, &for_b, op->layer, in_b, 2, &op->in[1], 1)
	               ? -1
	               : 0;
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(&v->out[0]) * (double)size_of(v, 0, 1);
	*bytes = hspmd_op_bytes(v);
}

static void product(const struct hspmd_op_view *v, double *extent, double *rows)
{
	*extent = fmax((double)hspmd_op_last_dim(&v->out[0]), (double)size_of(v, 0, 1));
	*rows = 0;
}

#define CASE(text, transposed, a, b, c, d)                                                                                                 \
	{                                                                                                                                  \
		text, { .kind = transposed },                                                                                              \
		{                                                                                                                          \
			{ "a", { 4, { 2, 3, a, b } }, HSPMD_EXAMPLE_REAL },                                                                \
			{                                                                                                                  \
				"b", { 4, { 2, 3, c, d } }, HSPMD_EXAMPLE_REAL                                                             \
			}                                                                                                                  \
		}                                                                                                                          \
	}
static const struct hspmd_op_example examples[] = {
	CASE("matrix products", 0, 5, 9, 9, 7),
	CASE("matrix products, first transposed", 1, 9, 5, 9, 7),
	CASE("matrix products, second transposed", 2, 5, 9, 7, 9),
	CASE("matrix products, both transposed", 3, 9, 5, 7, 9),
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_matmul = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.accumulates = 1,
	.cost = cost,
	.product = product,
	.examples = examples,
};
