/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of two tensors. Dimensions are aligned at the last; a dimension that one tensor lacks, or where it has one element, is
 * repeated as the other has it. Where a tensor was repeated, its gradient is the sum over the copies. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err) || hspmd_op_expect(v, 1, -1, false, err))
		return -1;
	int wide = v->in[1].rank > v->in[0].rank;
	hspmd_op_output_like(v, 0, wide);
	const struct hspmd_shape *other = &v->in[!wide];
	for (int d = 0; d < other->rank; d++) {
		int64_t *to = &v->out[0].dim[d + v->out[0].rank - other->rank];
		if (*to != other->dim[d] && *to != 1 && other->dim[d] != 1)
			return hspmd_fail(err, "a dimension of %" PRId64 " meets one of %" PRId64, *to, other->dim[d]);
		*to = *to == 1 ? other->dim[d] : *to;
	}
	return 0;
}

/* Sums and differences are linear in both, products and quotients in the first. */
static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	bool sum = v->attr->kind == HSPMD_BINARY_ADD || v->attr->kind == HSPMD_BINARY_SUB;
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->out[0].rank));
	for (int i = 0; i < 2; i++) {
		char pattern[HSPMD_MAX_RANK + 1];
		hspmd_rule_repeated(pattern, &v->in[i], &v->out[0]);
		snprintf(r->in[i], sizeof r->in[i], "%s%s", sum || i == 0 ? "+" : "", pattern);
	}
	bool partial = v->annotation[0] && hspmd_annotation_is_partial(v->annotation[0]);
	if (hspmd_op_elements(&v->in[1]) > hspmd_op_elements(&v->in[0]) || (partial && sum))
		snprintf(r->priority, sizeof r->priority, "10");
}

static bool is_wanted(const struct hspmd_graph *g, int tensor)
{
	return tensor >= 0 && g->tensors[tensor].role != HSPMD_TENSOR_INPUT;
}

static int apply(struct hspmd_graph *g, const struct hspmd_op *op, enum hspmd_binary kind, int a, int b)
{
	return hspmd_graph_append(g, HSPMD_OP_BINARY, &(struct hspmd_op_attr){ .kind = kind }, op->layer, (int[]){ a, b }, 2, NULL);
}

static int negative(struct hspmd_graph *g, const struct hspmd_op *op, int x)
{
	return hspmd_graph_append(g, HSPMD_OP_SCALE, &(struct hspmd_op_attr){ .scale = -1 }, op->layer, &x, 1, NULL);
}

/* `grad` has the shape of the result. */
static int pass(struct hspmd_graph *g, const struct hspmd_op *op, int grad, int wrt)
{
	return grad < 0 ? -1 : hspmd_op_sum_to(g, grad, wrt, op->layer);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]), a = op->in[0], b = op->in[1], status = 0;
	enum hspmd_binary kind = (enum hspmd_binary)op->attr.kind;
	bool product = kind == HSPMD_BINARY_MUL || kind == HSPMD_BINARY_DIV;
	if (is_wanted(g, a))
		status = pass(g, op, product ? apply(g, op, kind, dy, b) : dy, a);
	if (status || !is_wanted(g, b))
		return status;
	if (kind == HSPMD_BINARY_DIV) { /* -dy (a / b) / b */
		int of = apply(g, op, HSPMD_BINARY_MUL, dy, op->out[0]);
		return pass(g, op, of < 0 ? -1 : negative(g, op, apply(g, op, HSPMD_BINARY_DIV, of, b)), b);
	}
	/* The value comes first: it may be partial, and so may then the product, which is smaller where it is summed. */
	return pass(g, op, kind == HSPMD_BINARY_ADD ? dy : kind == HSPMD_BINARY_SUB ? negative(g, op, dy) : apply(g, op, kind, a, dy), b);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = hspmd_op_elements(&v->out[0]);
	*bytes = hspmd_op_bytes(v);
}

#define CASE(text, function, b, ...)                                                                                                       \
	{                                                                                                                                  \
		text, { .kind = HSPMD_BINARY_##function },                                                                                 \
		{                                                                                                                          \
			{ "a", { 4, { 3, 2, 5, 9 } }, HSPMD_EXAMPLE_REAL },                                                                \
			{                                                                                                                  \
				b, __VA_ARGS__, HSPMD_EXAMPLE_REAL                                                                         \
			}                                                                                                                  \
		}                                                                                                                          \
	}
static const struct hspmd_op_example examples[] = {
	CASE("sum of equals", ADD, "b", { 4, { 3, 2, 5, 9 } }),
	CASE("sum with a row", ADD, "b", { 1, { 9 } }),
	CASE("difference of channels", SUB, "b", { 3, { 2, 1, 1 } }),
	CASE("product of equals", MUL, "b", { 4, { 3, 2, 5, 9 } }),
	CASE("product with columns", MUL, "b", { 4, { 3, 1, 5, 1 } }),
	CASE("quotient of equals", DIV, "positive", { 4, { 3, 2, 5, 9 } }),
	CASE("quotient by one", DIV, "positive", { 1, { 1 } }),
	{ "column less row",
	  { .kind = HSPMD_BINARY_SUB },
	  { { "a", { 3, { 3, 5, 1 } }, HSPMD_EXAMPLE_REAL }, { "b", { 2, { 1, 18 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_binary = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.examples = examples,
};
