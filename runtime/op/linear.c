/* SPDX-License-Identifier: Apache-2.0 */
/* x[..,K], w, bias[N..] (optional) -> y[..,N..]; w is [K,N..] (attr.transposed) or [N..,K]. The weight decides how the work is divided: a
 * split along N (column-parallel) leaves y split, a split along K (row-parallel) makes y partial (Shoeybi et al., "Megatron-LM", arXiv
 * 1909.08053, section 3). */
#include <math.h>
#include <string.h>

#include "runtime/op/linear.h"

/* *first and *end: w's output dimensions are [*first, *end). */
static void output_dims(bool transposed, int rank, int *first, int *end)
{
	*first = transposed ? 1 : 0;
	*end = transposed ? rank : rank - 1;
}

int hspmd_linear_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err) || hspmd_op_expect(v, 1, -1, false, err))
		return -1;
	const struct hspmd_shape *x = &v->in[0], *w = &v->in[1];
	int first, end, columns = w->rank - 1;
	if (x->rank < 1 || w->rank < 2)
		return hspmd_fail(err, "inputs have %d and %d dimensions, expected at least 1 and 2", x->rank, w->rank);
	if (columns > 3 || x->rank - 1 + columns > HSPMD_MAX_RANK)
		return hspmd_fail(err, "the output would have too many dimensions");
	output_dims(v->attr->transposed, w->rank, &first, &end);
	if (hspmd_op_expect_dim(v, 1, v->attr->transposed ? 0 : end, hspmd_op_last_dim(x), "the width of input 0", err))
		return -1;
	v->out[0] = (struct hspmd_shape){ .rank = x->rank - 1 + columns };
	memcpy(v->out[0].dim, x->dim, (size_t)(x->rank - 1) * sizeof *x->dim);
	memcpy(v->out[0].dim + x->rank - 1, w->dim + first, (size_t)columns * sizeof *w->dim);
	v->out_dtype[0] = v->in_dtype[0];
	if (!hspmd_op_has_input(v, 2))
		return 0;
	if (hspmd_op_expect(v, 2, columns, false, err))
		return -1;
	for (int d = 0; d < columns; d++)
		if (hspmd_op_expect_dim(v, 2, d, w->dim[first + d], "the weight's outputs", err))
			return -1;
	return 0;
}

struct hspmd_linear_indices hspmd_linear_indices_of(bool transposed, int rows, int columns)
{
	struct hspmd_linear_indices x;
	snprintf(x.rows, sizeof x.rows, "%s", hspmd_rule_leading(rows));
	snprintf(x.columns, sizeof x.columns, "%.*s", columns, "nmo");
	snprintf(x.weight, sizeof x.weight, transposed ? "k%s" : "%sk", x.columns);
	return x;
}

/* With a bias, x may not be partial: each part would add the bias. */
void hspmd_linear_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct hspmd_linear_indices x = hspmd_linear_indices_of(v->attr->transposed, v->in[0].rank - 1, v->in[1].rank - 1);
	*r = (struct hspmd_op_rule){ .priority = "1201" };
	snprintf(r->in[0], sizeof r->in[0], "%s%sk", hspmd_op_has_input(v, 2) ? "" : "+", x.rows);
	strcpy(r->in[1], x.weight);
	strcpy(r->in[2], x.columns);
	snprintf(r->out[0], sizeof r->out[0], "%s%s/k", x.rows, x.columns);
}

void hspmd_linear_rule_grad_x(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	int columns = v->in[1].rank - 1;
	struct hspmd_linear_indices x = hspmd_linear_indices_of(v->attr->transposed, v->in[0].rank - columns, columns);
	*r = (struct hspmd_op_rule){ .priority = "10" };
	snprintf(r->in[0], sizeof r->in[0], "+%s%s", x.rows, x.columns);
	strcpy(r->in[1], x.weight);
	snprintf(r->out[0], sizeof r->out[0], "%sk/%s", x.rows, x.columns);
}

/* Splits of widths have priority over those of rows: they leave dw split like the weight. */
void hspmd_linear_rule_grad_w(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	int rows = v->in[1].rank - 1;
	struct hspmd_linear_indices x = hspmd_linear_indices_of(v->attr->transposed, rows, v->in[0].rank - rows);
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->priority, sizeof r->priority, "0%s1k01", x.columns);
	snprintf(r->in[0], sizeof r->in[0], "+%s%s", x.rows, x.columns);
	snprintf(r->in[1], sizeof r->in[1], "%sk", x.rows);
	snprintf(r->out[0], sizeof r->out[0], "%s/%s", x.weight, x.rows);
	snprintf(r->out[1], sizeof r->out[1], "%s/%s", x.columns, x.rows);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	int for_x[] = { dy, op->in[1] }, for_w[] = { dy, op->in[0] };
	int wrt[] = { op->in[1], op->input_count > 2 ? op->in[2] : -1 };
	if (hspmd_graph_append_grad(g, HSPMD_OP_LINEAR_GRAD_W, &op->attr, op->layer, for_w, 2, wrt, 2) < 0)
		return -1;
	return hspmd_graph_append_grad(g, HSPMD_OP_LINEAR_GRAD_X, &op->attr, op->layer, for_x, 2, op->in, 1);
}

void hspmd_linear_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(&v->in[0]) * hspmd_op_elements(&v->in[1]) / (double)hspmd_op_last_dim(&v->in[0]);
	*bytes = hspmd_op_bytes(v);
}

void hspmd_linear_cost_grad_x(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(&v->out[0]) * hspmd_op_elements(&v->in[1]) / (double)hspmd_op_last_dim(&v->out[0]);
	*bytes = hspmd_op_bytes(v);
}

void hspmd_linear_cost_grad_w(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(&v->in[0]) * (double)hspmd_op_last_dim(&v->in[1]);
	*bytes = hspmd_op_bytes(v);
}

/* The rows and columns of the weight, whose gradient sums over all positions. */
void hspmd_linear_product(const struct hspmd_op_view *v, double *extent, double *rows)
{
	double width = (double)hspmd_op_last_dim(&v->in[0]);
	*extent = fmax(width, hspmd_op_elements(&v->in[1]) / width);
	*rows = 0;
}

void hspmd_linear_product_grad_x(const struct hspmd_op_view *v, double *extent, double *rows)
{
	double width = (double)hspmd_op_last_dim(&v->out[0]);
	*extent = fmax(width, hspmd_op_elements(&v->in[1]) / width);
	*rows = 0;
}

void hspmd_linear_product_grad_w(const struct hspmd_op_view *v, double *extent, double *rows)
{
	double width = (double)hspmd_op_last_dim(&v->in[1]);
	*rows = hspmd_op_elements(&v->in[1]) / width;
	*extent = fmax(width, hspmd_op_elements(&v->in[0]) / *rows);
}

const struct hspmd_op_type hspmd_op_linear = {
	.min_inputs = 2,
	.max_inputs = 3,
	.output_count = 1,
	.shape = hspmd_linear_shape,
	.rule = hspmd_linear_rule,
	.backward = backward,
	.cost = hspmd_linear_cost,
	.product = hspmd_linear_product,
	.adds_gradients = true,
	.padded_out = 1,
};
const struct hspmd_op_type hspmd_op_linear_grad_x = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = hspmd_linear_rule_grad_x,
	.cost = hspmd_linear_cost_grad_x,
	.product = hspmd_linear_product_grad_x,
	.padded_in = 1,
	.accumulates = 1,
};
const struct hspmd_op_type hspmd_op_linear_grad_w = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 2,
	.rule = hspmd_linear_rule_grad_w,
	.cost = hspmd_linear_cost_grad_w,
	.product = hspmd_linear_product_grad_w,
	.padded_in = 1,
	.accumulates = 1 << 0 | 1 << 1,
};
