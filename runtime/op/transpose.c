/* SPDX-License-Identifier: Apache-2.0 */
/* Dimension d of y is dimension numbers[d] of x. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	unsigned seen = 0;
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	for (int d = 0; d < v->in[0].rank; d++) {
		int64_t from = v->attr->numbers[d];
		if (from < 0 || from >= v->in[0].rank || seen >> from & 1)
			return hspmd_fail(err, "the order does not name each of %d dimensions once", v->in[0].rank);
		seen |= 1u << from;
		v->out[0].dim[d] = v->in[0].dim[from];
	}
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	const char *x = hspmd_rule_leading(v->in[0].rank);
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "+%s", x);
	for (int d = 0; d < v->in[0].rank; d++)
		r->out[0][d] = x[v->attr->numbers[d]];
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	struct hspmd_op_attr attr = op->attr;
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	for (int d = 0; d < g->tensors[op->in[0]].shape.rank; d++)
		attr.numbers[op->attr.numbers[d]] = d;
	return hspmd_graph_append_grad(g, HSPMD_OP_TRANSPOSE, &attr, op->layer, &dy, 1, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 0, flops, bytes);
}

static const struct hspmd_op_example examples[] = {
	{ "transpose the last two", { .numbers = { 0, 2, 1 } }, { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL } } },
	{ "transpose heads and positions", { .numbers = { 0, 2, 1, 3 } }, { { "x", { 4, { 2, 5, 3, 6 } }, HSPMD_EXAMPLE_REAL } } },
	{ "transpose all", { .numbers = { 3, 1, 0, 2 } }, { { "x", { 4, { 2, 3, 5, 4 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_transpose = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.examples = examples,
};
