/* SPDX-License-Identifier: Apache-2.0 */
/* qkv[B,T,3,H] -> q, k, v [B,T,H] each: for ring attention (ring_attention.c), whose keys and values are passed on in parts without the
 * queries. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 4, false, err) || hspmd_op_expect_dim(v, 0, 2, 3, "query, key and value", err))
		return -1;
	for (int o = 0; o < 3; o++) {
		v->out[o] = (struct hspmd_shape){ 3, { v->in[0].dim[0], v->in[0].dim[1], v->in[0].dim[3] } };
		v->out_dtype[o] = v->in_dtype[0];
	}
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "+bt!h" }, .out = { "bth", "bth", "bth" } };
}

static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "bth", "bth", "bth" }, .out = { "bt!h" } };
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[3];
	for (int o = 0; o < 3; o++)
		in[o] = hspmd_graph_grad_of(g, op->out[o]);
	return hspmd_graph_append_grad(g, HSPMD_OP_SPLIT_QKV_GRAD, &op->attr, op->layer, in, 3, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 0, flops, bytes);
}

const struct hspmd_op_type hspmd_op_split_qkv = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 3,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
};
const struct hspmd_op_type hspmd_op_split_qkv_grad = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost,
};
