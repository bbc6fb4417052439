/* SPDX-License-Identifier: Apache-2.0 */
/* tokens[B,T], table[V,H] -> x[B,T,H]. A device that holds a part of the table's rows outputs zeros for the others, so that x is
 * partial. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 2, true, err) || hspmd_op_expect(v, 1, 2, false, err))
		return -1;
	v->out[0] = (struct hspmd_shape){ 3, { v->in[0].dim[0], v->in[0].dim[1], v->in[1].dim[1] } };
	v->out_dtype[0] = v->in_dtype[1];
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "bt", "vh" }, .out = { "bth/v" }, .priority = "10" };
}

/* The table is an input only so that its gradient gets the table's annotation. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "bt", "+bth", "vh" }, .out = { "vh/bt" }, .priority = "210" };
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { op->in[0], hspmd_graph_grad_of(g, op->out[0]), op->in[1] }, wrt[] = { op->in[1] };
	return hspmd_graph_append_grad(g, HSPMD_OP_EMBED_GRAD, &op->attr, op->layer, in, 3, wrt, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 0;
	*bytes = 2 * hspmd_op_elements(&v->out[0]) * (double)hspmd_dtype_bytes(v->in_dtype[1]);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = hspmd_op_elements(&v->in[1]);
	*bytes = 3 * *flops * (double)hspmd_dtype_bytes(v->in_dtype[1]);
}

static int64_t choices(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	return g->tensors[op->in[1]].shape.dim[0];
}

const struct hspmd_op_type hspmd_op_embed = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.begins_sequence = true,
	.cost = cost,
	.choices = choices,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_embed_grad = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost_grad,
	.accumulates = 1,
};
