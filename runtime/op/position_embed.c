/* SPDX-License-Identifier: Apache-2.0 */
/* x[B,T,H], table[P,H] -> x + table[position]. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 3, false, err) || hspmd_op_expect(v, 1, 2, false, err) ||
	    hspmd_op_expect_dim(v, 1, 1, v->in[0].dim[2], "the width of input 0", err))
		return -1;
	if (v->in[0].dim[1] > v->in[1].dim[0])
		return hspmd_fail(err, "%" PRId64 " positions, but the table has %" PRId64, v->in[0].dim[1], v->in[1].dim[0]);
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "bth", "!h" }, .out = { "bth" } };
}

static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "+bth" }, .out = { "!h/bt" } };
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	if (hspmd_graph_append_grad(g, HSPMD_OP_POSITION_EMBED_GRAD, &op->attr, op->layer, &dy, 1, &op->in[1], 1) < 0)
		return -1;
	return hspmd_graph_pass_grad(g, dy, op->in[0], op->layer);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 1, flops, bytes);
}

const struct hspmd_op_type hspmd_op_position_embed = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.in_place = { 1 },
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_position_embed_grad = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost,
	.accumulates = 1,
};
