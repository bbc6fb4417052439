/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors one after another along dimension numbers[0], which cannot be split. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	int64_t axis = v->attr->numbers[0], size = 0;
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (axis < 0 || axis >= v->in[0].rank)
		return hspmd_fail(err, "there is no dimension %" PRId64, axis);
	hspmd_op_output_like(v, 0, 0);
	for (int i = 0; i < v->input_count; i++) {
		if (hspmd_op_expect(v, i, v->in[0].rank, false, err))
			return -1;
		for (int d = 0; d < v->in[0].rank; d++)
			if (d != axis && hspmd_op_expect_dim(v, i, d, v->in[0].dim[d], "that of input 0", err))
				return -1;
		size += v->in[i].dim[axis];
	}
	v->out[0].dim[axis] = size;
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->in[0].rank));
	r->out[0][v->attr->numbers[0]] = '!';
	for (int i = 0; i < v->input_count; i++)
		snprintf(r->in[i], sizeof r->in[i], "+%.*s", HSPMD_MAX_RANK, r->out[0]);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	int64_t axis = op->attr.numbers[0], at = 0;
	for (int i = 0; i < op->input_count; i++) {
		struct hspmd_shape x = g->tensors[op->in[i]].shape;
		struct hspmd_op_attr attr = { 0 };
		for (int d = 0; d < x.rank; d++)
			attr.numbers[HSPMD_MAX_RANK + d] = x.dim[d];
		attr.numbers[axis] = at;
		at += x.dim[axis];
		if (hspmd_graph_append_grad(g, HSPMD_OP_SLICE, &attr, op->layer, &dy, 1, &op->in[i], 1))
			return -1;
	}
	return 0;
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 0, flops, bytes);
}

static const struct hspmd_op_example examples[] = {
	{ "concatenate along the middle",
	  { .numbers = { 1 } },
	  { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL },
	    { "y", { 3, { 3, 1, 7 } }, HSPMD_EXAMPLE_REAL },
	    { "z", { 3, { 3, 2, 7 } }, 0 } } },
	{ "concatenate along the last",
	  { .numbers = { 1 } },
	  { { "x", { 2, { 6, 5 } }, HSPMD_EXAMPLE_REAL }, { "y", { 2, { 6, 18 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_concat = {
	.min_inputs = 1,
	.max_inputs = HSPMD_OP_MAX_IO,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.examples = examples,
};
