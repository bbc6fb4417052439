/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax over the last dimension, which cannot be split. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (v->in[0].rank < 1)
		return hspmd_fail(err, "input 0 is a scalar");
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	for (int i = 0; i < v->input_count; i++)
		snprintf(r->in[i], sizeof r->in[i], "%s!", hspmd_rule_leading(v->in[0].rank - 1));
	snprintf(r->out[0], sizeof r->out[0], "%s!", hspmd_rule_leading(v->in[0].rank - 1));
	snprintf(r->priority, sizeof r->priority, "%s", v->input_count > 1 ? "10" : "0");
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->out[0] };
	return hspmd_graph_append_grad(g, HSPMD_OP_SOFTMAX_GRAD, &op->attr, op->layer, in, 2, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 12, flops, bytes);
}

static const struct hspmd_op_example examples[] = {
	{ "softmax", { .kind = 0 }, { { "x", { 3, { 3, 5, 37 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_softmax = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
	.examples = examples,
};
const struct hspmd_op_type hspmd_op_softmax_grad = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule,
	.cost = cost,
	.in_place = { 1 },
};
