/* SPDX-License-Identifier: Apache-2.0 */
/* SLICE takes a box out of a tensor, PAD puts a tensor into zeros: either is the gradient of the other. numbers[d] is where the box begins,
 * numbers[6 + d] the size of the result in dimension d. A dimension that is cut cannot be split. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int shape_of(struct hspmd_op_view *v, bool pads, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	for (int d = 0; d < v->in[0].rank; d++) {
		int64_t first = v->attr->numbers[d], size = v->attr->numbers[HSPMD_MAX_RANK + d], x = v->in[0].dim[d];
		if (first < 0 || size < 1 || (pads ? first + x > size : first + size > x))
			return hspmd_fail(err, "dimension %d of %" PRId64 ": %" PRId64 " elements from %" PRId64 " on", d, x, size, first);
		v->out[0].dim[d] = size;
	}
	return 0;
}

static int slice_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	return shape_of(v, false, err);
}

static int pad_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	return shape_of(v, true, err);
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->in[0].rank));
	for (int d = 0; d < v->in[0].rank; d++)
		if (v->in[0].dim[d] != v->out[0].dim[d])
			r->out[0][d] = '!';
	snprintf(r->in[0], sizeof r->in[0], "+%.*s", HSPMD_MAX_RANK, r->out[0]);
}

static int backward_by(struct hspmd_graph *g, const struct hspmd_op *op, enum hspmd_opcode opcode)
{
	struct hspmd_op_attr attr = op->attr;
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	for (int d = 0; d < g->tensors[op->in[0]].shape.rank; d++)
		attr.numbers[HSPMD_MAX_RANK + d] = g->tensors[op->in[0]].shape.dim[d];
	return hspmd_graph_append_grad(g, opcode, &attr, op->layer, &dy, 1, op->in, 1);
}

static int slice_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	return backward_by(g, op, HSPMD_OP_PAD);
}

static int pad_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	return backward_by(g, op, HSPMD_OP_SLICE);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	double least = hspmd_op_elements(&v->out[0]);
	*flops = 0;
	*bytes = 2 * least * (double)hspmd_dtype_bytes(v->out_dtype[0]);
}

static const struct hspmd_op_example slice_examples[] = {
	{ "slice of the middle", { .numbers = { 0, 1, 0, 0, 0, 0, 3, 2, 7 } }, { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL } } },
	{ "slice of two", { .numbers = { 0, 0, 2, 3, 0, 0, 2, 4, 1, 4 } }, { { "x", { 4, { 2, 4, 3, 9 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};
static const struct hspmd_op_example pad_examples[] = {
	{ "pad", { .numbers = { 0, 1, 2, 0, 0, 0, 3, 5, 9 } }, { { "x", { 3, { 3, 3, 7 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_slice = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = slice_shape,
	.rule = rule,
	.backward = slice_backward,
	.cheap = true,
	.cost = cost,
	.examples = slice_examples,
};
const struct hspmd_op_type hspmd_op_pad = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = pad_shape,
	.rule = rule,
	.backward = pad_backward,
	.cheap = true,
	.cost = cost,
	.examples = pad_examples,
};
