/* SPDX-License-Identifier: Apache-2.0 */
/* The same tensor, which the user annotates: where a communication is placed by hand. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "+%s", hspmd_rule_leading(v->in[0].rank));
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->in[0].rank));
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	return hspmd_graph_pass_grad(g, hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->layer);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 0, flops, bytes);
}

static const struct hspmd_op_example examples[] = {
	{ "reshard", { .kind = 0 }, { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_reshard = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.in_place = { 1 },
	.examples = examples,
};
