/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout (Srivastava et al., JMLR 15, 2014). Noise is an input, so that an element's fate does not depend on who computes it, and that a
 * recomputation repeats it. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 3, false, err) || hspmd_op_expect(v, 1, 2, true, err) ||
	    hspmd_op_expect_dim(v, 1, 0, v->in[0].dim[0], "the samples of input 0", err) ||
	    hspmd_op_expect_dim(v, 1, 1, v->in[0].dim[1], "the positions of input 0", err))
		return -1;
	if (!(v->attr->rate >= 0 && v->attr->rate < 1))
		return hspmd_fail(err, "dropout of %g, expected 0 .. 1", v->attr->rate);
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

/* Linear in x. */
static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "+bth", "bt" }, .out = { "bth" } };
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[1] };
	return hspmd_graph_append_grad(g, HSPMD_OP_DROPOUT, &op->attr, op->layer, in, 2, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 10, flops, bytes);
}

const struct hspmd_op_type hspmd_op_dropout = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
};
