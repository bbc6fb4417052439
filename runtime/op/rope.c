/* SPDX-License-Identifier: Apache-2.0 */
/* x[B,T,n*head_dim] -> y: every head is rotated by the angles of its position. Linear; the gradient is the inverse rotation, with the same
 * scale. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 3, false, err))
		return -1;
	int64_t d = v->attr->head_dim, rotary = v->attr->rotary;
	if (d < 2 || (!rotary && d % 2) || v->in[0].dim[2] % d)
		return hspmd_fail(err, "width %" PRId64 " is no multiple of head_dim %" PRId64 ", or head_dim is odd", v->in[0].dim[2], d);
	if (rotary < 0 || rotary % 2 || rotary > d)
		return hspmd_fail(err, "%" PRId64 " elements of heads of %" PRId64 " cannot be rotated in pairs", rotary, d);
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){
		.in = { "+bth" }, .out = { "bth" }, .in_step = { v->attr->head_dim }, .out_step = { v->attr->head_dim }
	};
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_append_grad(g, HSPMD_OP_ROPE_GRAD, &op->attr, op->layer, &dy, 1, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 3, flops, bytes);
}

const struct hspmd_op_type hspmd_op_rope_table = { .output_count = 1 };
const struct hspmd_op_type hspmd_op_rope = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
};
const struct hspmd_op_type hspmd_op_rope_grad = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.rule = rule,
	.cost = cost,
	.in_place = { 1 },
	.streams = true,
};
