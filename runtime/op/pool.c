/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional pooling: the largest or the mean of a window of each channel. Positions cannot be split. numbers: window, stride and padding,
 * each for rows and columns. Padding counts as elements of value 0 for the mean, and not at all for the largest. */
#include <inttypes.h>
#include <string.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const int64_t *n = v->attr->numbers;
	if (hspmd_op_expect(v, 0, 4, false, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	for (int d = 0; d < 2; d++) {
		int64_t room = v->in[0].dim[2 + d] + 2 * n[4 + d] - n[d];
		if (n[d] < 1 || n[2 + d] < 1 || n[4 + d] < 0 || 2 * n[4 + d] > n[d] || room < 0)
			return hspmd_fail(err, "a window of %" PRId64 " with padding %" PRId64 " does not fit into %" PRId64 " positions",
			                  n[d], n[4 + d], v->in[0].dim[2 + d]);
		v->out[0].dim[2 + d] = room / n[2 + d] + 1;
	}
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .out = { "bc!!" } };
	strcpy(r->in[0], v->attr->kind == HSPMD_REDUCE_SUM ? "+bc!!" : "bc!!");
}

/* Inputs: dy, x (unread by the mean's gradient, which takes its layout). */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "", "bc!!" }, .out = { "bc!!" }, .priority = "10" };
	strcpy(r->in[0], v->attr->kind == HSPMD_REDUCE_SUM ? "+bc!!" : "bc!!");
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0] };
	return hspmd_graph_append_grad(g, HSPMD_OP_POOL_GRAD, &op->attr, op->layer, in, 2, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = hspmd_op_elements(&v->out[0]) * (double)(v->attr->numbers[0] * v->attr->numbers[1]);
	*bytes = hspmd_op_bytes(v);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(&v->in[0]) * (double)(v->attr->numbers[0] * v->attr->numbers[1]);
	*bytes = hspmd_op_bytes(v);
}

#define CASE(text, how, ...)                                                                                                               \
	{                                                                                                                                  \
		text, { .kind = HSPMD_REDUCE_##how, .numbers = { __VA_ARGS__ } },                                                          \
		{                                                                                                                          \
			{                                                                                                                  \
				"x", { 4, { 3, 4, 6, 7 } }, HSPMD_EXAMPLE_REAL                                                             \
			}                                                                                                                  \
		}                                                                                                                          \
	}
static const struct hspmd_op_example examples[] = {
	CASE("largest of windows", MAX, 2, 2, 2, 2, 0, 0),
	CASE("largest of windows that overlap", MAX, 3, 3, 2, 1, 1, 0),
	CASE("mean of windows", SUM, 3, 2, 2, 2, 1, 1),
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_pool = {
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
const struct hspmd_op_type hspmd_op_pool_grad = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost_grad,
};
