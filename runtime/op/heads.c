/* SPDX-License-Identifier: Apache-2.0 */
/* Joins and cuts the elements of heads: queries and keys of latent attention have a rotated part, which all heads of keys share
 * (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1). */
#include <inttypes.h>
#include <string.h>

#include "runtime/op/op_internal.h"

static int expect_parts(const struct hspmd_op_view *v, int64_t size, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 3, false, err))
		return -1;
	if (v->attr->part < 1 || v->attr->part > v->attr->head_dim || v->in[0].dim[2] % size)
		return hspmd_fail(err, "width %" PRId64 " does not consist of heads of %" PRId64 " elements", v->in[0].dim[2], size);
	return 0;
}

static int join_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	int64_t p = v->attr->part, q = v->attr->head_dim - p;
	if (expect_parts(v, p, err))
		return -1;
	int64_t heads = v->in[0].dim[2] / p;
	if (hspmd_op_has_input(v, 1) &&
	    (hspmd_op_expect(v, 1, 3, false, err) || hspmd_op_expect_dim(v, 1, 0, v->in[0].dim[0], "the samples of input 0", err) ||
	     hspmd_op_expect_dim(v, 1, 1, v->in[0].dim[1], "the positions of input 0", err) ||
	     hspmd_op_expect_dim(v, 1, 2, v->attr->whole_kv ? q : heads * q, "the rest of the heads", err)))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	v->out[0].dim[2] = heads * v->attr->head_dim;
	return 0;
}

static int take_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (expect_parts(v, v->attr->head_dim, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	v->out[0].dim[2] = v->in[0].dim[2] / v->attr->head_dim * v->attr->part;
	return 0;
}

/* All three only move elements, and a gradient shared by heads is a sum over them: addends stay addends. */
static void join_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "+bth", "+bth" }, .out = { "bth" } };
	if (v->attr->whole_kv)
		strcpy(r->in[1], "+bt!");
	r->in_step[0] = v->attr->part;
	r->in_step[1] = v->attr->head_dim - v->attr->part;
	r->out_step[0] = v->attr->head_dim;
}

static void join_grad_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "+bth" }, .out = { "bth", "bth" } };
	if (v->attr->whole_kv)
		strcpy(r->out[1], "bt!/h");
	r->in_step[0] = v->attr->head_dim;
	r->out_step[0] = v->attr->part;
	r->out_step[1] = v->attr->head_dim - v->attr->part;
}

static void take_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "+bth" }, .out = { "bth" } };
	r->in_step[0] = v->attr->head_dim;
	r->out_step[0] = v->attr->part;
}

static int join_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_append_grad(g, HSPMD_OP_JOIN_HEADS_GRAD, &op->attr, op->layer, &dy, 1, op->in, op->input_count);
}

static int take_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_append_grad(g, HSPMD_OP_JOIN_HEADS, &op->attr, op->layer, &dy, 1, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 0, flops, bytes);
}

const struct hspmd_op_type hspmd_op_join_heads = {
	.min_inputs = 1,
	.max_inputs = 2,
	.output_count = 1,
	.shape = join_shape,
	.rule = join_rule,
	.backward = join_backward,
	.cheap = true,
	.cost = cost,
};
const struct hspmd_op_type hspmd_op_join_heads_grad = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 2,
	.rule = join_grad_rule,
	.cost = cost,
};
const struct hspmd_op_type hspmd_op_take_heads = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = take_shape,
	.rule = take_rule,
	.backward = take_backward,
	.cheap = true,
	.cost = cost,
};
