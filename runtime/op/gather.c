/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by number: x[B..,N,R..], index[B..,K..] -> y[B..,K..,R..], where numbers[0] is the number of dimensions B.. . A device that holds a
 * part of N gives zeros for the other rows, so that a split of N makes y partial. */
#include <string.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	int batch = (int)v->attr->numbers[0];
	const struct hspmd_shape *x = &v->in[0], *index = &v->in[1];
	if (hspmd_op_expect(v, 0, -1, false, err) || hspmd_op_expect(v, 1, -1, true, err))
		return -1;
	if (batch < 0 || batch >= x->rank || batch > index->rank || index->rank + x->rank - batch - 1 > HSPMD_MAX_RANK)
		return hspmd_fail(err, "%d and %d dimensions, of which %d are common, do not fit", x->rank, index->rank, batch);
	for (int d = 0; d < batch; d++)
		if (hspmd_op_expect_dim(v, 1, d, x->dim[d], "that of input 0", err))
			return -1;
	v->out[0] = *index;
	for (int d = batch + 1; d < x->rank; d++)
		v->out[0].dim[v->out[0].rank++] = x->dim[d];
	v->out_dtype[0] = v->in_dtype[0];
	return 0;
}

/* Indices of x, of the row numbers, of y, and those of the numbers that x lacks. */
struct indices {
	char x[16], index[16], y[24], chosen[8];
};

static struct indices indices_of(int batch, int x_rank, int index_rank)
{
	static const char *const common = "bcdefg", *const numbers = "tklmno", *const rows = "hpqrsu";
	struct indices i; /* at most 6 of each */
	snprintf(i.chosen, sizeof i.chosen, "%.*s", index_rank - batch, numbers);
	snprintf(i.x, sizeof i.x, "%.*sv%.*s", batch, common, x_rank - batch - 1, rows);
	snprintf(i.index, sizeof i.index, "%.*s%s", batch, common, i.chosen);
	snprintf(i.y, sizeof i.y, "%s%.*s", i.index, x_rank - batch - 1, rows);
	return i;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct indices i = indices_of((int)v->attr->numbers[0], v->in[0].rank, v->in[1].rank);
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "+%s", i.x);
	strcpy(r->in[1], i.index);
	snprintf(r->out[0], sizeof r->out[0], "%.16s/v", i.y);
}

/* x is an input only so that its gradient gets its annotation. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct indices i = indices_of((int)v->attr->numbers[0], v->in[2].rank, v->in[1].rank);
	*r = (struct hspmd_op_rule){ .priority = "210" };
	snprintf(r->in[0], sizeof r->in[0], "+%.16s", i.y);
	strcpy(r->in[1], i.index);
	strcpy(r->in[2], i.x);
	snprintf(r->out[0], sizeof r->out[0], "%.12s/%s", i.x, i.chosen);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[1], op->in[0] };
	return hspmd_graph_append_grad(g, HSPMD_OP_GATHER_GRAD, &op->attr, op->layer, in, 3, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 0;
	*bytes = 2 * hspmd_op_elements(&v->out[0]) * (double)hspmd_dtype_bytes(v->in_dtype[0]);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = hspmd_op_elements(&v->in[0]);
	*bytes = (2 * *flops + hspmd_op_elements(&v->out[0])) * (double)hspmd_dtype_bytes(v->in_dtype[0]);
}

static const struct hspmd_op_example examples[] = {
	{ "gather rows",
	  { .numbers = { 0 } },
	  { { "x", { 2, { 11, 6 } }, HSPMD_EXAMPLE_REAL }, { "index", { 2, { 3, 5 } }, HSPMD_EXAMPLE_INTEGER } } },
	{ "gather positions of samples",
	  { .numbers = { 1 } },
	  { { "x", { 4, { 3, 12, 2, 5 } }, HSPMD_EXAMPLE_REAL }, { "index", { 2, { 3, 4 } }, HSPMD_EXAMPLE_INTEGER } } },
	{ NULL, { 0 }, { { 0 } } },
};

static int64_t choices(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	return g->tensors[op->in[0]].shape.dim[op->attr.numbers[0]];
}

const struct hspmd_op_type hspmd_op_gather = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.choices = choices,
	.examples = examples,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_gather_grad = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 1,
	.rule = rule_grad,
	.accumulates = 1,
	.cost = cost_grad,
};
