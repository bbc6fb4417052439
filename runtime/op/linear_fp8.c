/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers of FP8 operands: x and w as E4M3 numbers, dy as E5M2 ones. They are divided as other linear layers are. Rounding is not
 * linear, so that no operand may be partial. Gradients are those of the products of rounded operands (the rounding counts as if it were the
 * identity). The backward operators also write the thermometers of the amax of what they read, as gradients of the amax histories
 * (runtime/tensor/fp8.h): that of w by the one that reads w, so that each history has one writer. */
#include <string.h>

#include "runtime/tensor/fp8.h"
#include "runtime/op/linear.h"

enum { HISTORY = 3, WEIGHT_HISTORY = 4 }; /* inputs */

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_linear_shape(v, err) || hspmd_op_expect_history(v, HISTORY, 2, err))
		return -1;
	return hspmd_op_expect_history(v, WEIGHT_HISTORY, 1, err);
}

/* Input 0 must be whole; `history` and the one after it, if any, on every device. */
static void read_whole(struct hspmd_op_rule *r, int history, int count)
{
	size_t n = strlen(r->priority);
	if (r->in[0][0] == '+')
		memmove(r->in[0], r->in[0] + 1, strlen(r->in[0]));
	for (int i = history; i < history + count; i++) {
		strcpy(r->in[i], "!!");
		snprintf(r->priority + n, sizeof r->priority - n, "%d", i);
		n = strlen(r->priority);
	}
}

/* Parts of any operand, and copies of it, add to its thermometer. */
static void sum_history(struct hspmd_op_rule *r, int output, const struct hspmd_linear_indices *x)
{
	snprintf(r->out[output], sizeof r->out[output], "!!/%s%sk", x->rows, x->columns);
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	hspmd_linear_rule(v, r);
	read_whole(r, HISTORY, 2);
}

static void rule_grad_x(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	int columns = v->in[1].rank - 1;
	struct hspmd_linear_indices x = hspmd_linear_indices_of(v->attr->transposed, v->in[0].rank - columns, columns);
	hspmd_linear_rule_grad_x(v, r);
	read_whole(r, 2, 2);
	sum_history(r, 1, &x);
}

static void rule_grad_w(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	int rows = v->in[1].rank - 1;
	struct hspmd_linear_indices x = hspmd_linear_indices_of(v->attr->transposed, rows, v->in[0].rank - rows);
	hspmd_linear_rule_grad_w(v, r);
	read_whole(r, 2, 1);
	sum_history(r, 2, &x);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]), x = op->in[0], w = op->in[1], history = op->in[HISTORY], own = op->in[WEIGHT_HISTORY];
	int for_x[] = { dy, w, history, own }, for_w[] = { dy, x, history }, wrt_x[] = { x, own }, wrt_w[] = { w, op->in[2], history };
	if (hspmd_graph_append_grad(g, HSPMD_OP_LINEAR_FP8_GRAD_W, &op->attr, op->layer, for_w, 3, wrt_w, 3) < 0)
		return -1;
	return hspmd_graph_append_grad(g, HSPMD_OP_LINEAR_FP8_GRAD_X, &op->attr, op->layer, for_x, 4, wrt_x, 2);
}

/* Of both operands, which are written once and read once as FP8 numbers, too. */
static double rounded_elements(const struct hspmd_op_view *v)
{
	return hspmd_op_elements(&v->in[0]) + hspmd_op_elements(&v->in[1]);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_linear_cost(v, flops, bytes);
	*bytes += 2 * rounded_elements(v);
}

static void cost_grad_x(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_linear_cost_grad_x(v, flops, bytes);
	*bytes += 2 * rounded_elements(v);
}

static void cost_grad_w(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_linear_cost_grad_w(v, flops, bytes);
	*bytes += 2 * rounded_elements(v);
}

/* Bytes of a rounded element: of the type of x on a GPU that has no such products, else less; F32 on others. */
static double rounded_size(const struct hspmd_op_view *v, bool at_once)
{
	return at_once ? (double)hspmd_dtype_bytes(v->in_dtype[0]) : sizeof(float);
}

static double workspace(const struct hspmd_op_view *v, bool at_once)
{
	return rounded_elements(v) * rounded_size(v, at_once);
}

/* Of the products that read w. */
static double weights_workspace(const struct hspmd_op_view *v, bool at_once)
{
	return hspmd_op_elements(&v->in[1]) * rounded_size(v, at_once);
}

#define HISTORIES                                                                                                                          \
	{ "history", { 2, { 2, HSPMD_AMAX_BINS } }, HSPMD_EXAMPLE_REAL },                                                                  \
	{                                                                                                                                  \
		"weight_history", { 2, { 1, HSPMD_AMAX_BINS } }, HSPMD_EXAMPLE_REAL                                                        \
	}
/* GPUs have products of FP8 operands for the second and the last. */
static const struct hspmd_op_example examples[] = {
	{ "FP8 linear",
	  { .scale = 1.0 / 64 },
	  { { "x", { 3, { 3, 5, 9 } }, HSPMD_EXAMPLE_REAL },
	    { "w", { 2, { 13, 9 } }, HSPMD_EXAMPLE_REAL },
	    { "bias", { 1, { 13 } }, HSPMD_EXAMPLE_REAL },
	    HISTORIES } },
	{ "FP8 linear without bias",
	  { .scale = 1.0 / 64 },
	  { { "x", { 3, { 2, 8, 16 } }, HSPMD_EXAMPLE_REAL },
	    { "w", { 2, { 32, 16 } }, HSPMD_EXAMPLE_REAL },
	    { NULL, { 0 }, HSPMD_EXAMPLE_REAL },
	    HISTORIES } },
	{ "FP8 linear transposed",
	  { .scale = 1.0 / 64, .transposed = true },
	  { { "x", { 3, { 3, 5, 9 } }, HSPMD_EXAMPLE_REAL },
	    { "w", { 3, { 9, 3, 7 } }, HSPMD_EXAMPLE_REAL },
	    { "bias", { 2, { 3, 7 } }, HSPMD_EXAMPLE_REAL },
	    HISTORIES } },
	{ "FP8 linear transposed, whole tiles",
	  { .scale = 1.0 / 64, .transposed = true },
	  { { "x", { 3, { 2, 16, 32 } }, HSPMD_EXAMPLE_REAL },
	    { "w", { 3, { 32, 3, 16 } }, HSPMD_EXAMPLE_REAL },
	    { "bias", { 2, { 3, 16 } }, HSPMD_EXAMPLE_REAL },
	    HISTORIES } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_linear_fp8 = {
	.min_inputs = 5,
	.max_inputs = 5,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.workspace = workspace,
	.weights_workspace = weights_workspace,
	.product = hspmd_linear_product,
	.adds_gradients = true,
	.fp8 = true,
	.examples = examples,
};
const struct hspmd_op_type hspmd_op_linear_fp8_grad_x = {
	.min_inputs = 4,
	.max_inputs = 4,
	.output_count = 2,
	.rule = rule_grad_x,
	.cost = cost_grad_x,
	.workspace = workspace,
	.weights_workspace = weights_workspace,
	.product = hspmd_linear_product_grad_x,
	.accumulates = 1 << 0 | 1 << 1,
	.fp8 = true,
};
const struct hspmd_op_type hspmd_op_linear_fp8_grad_w = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 3,
	.rule = rule_grad_w,
	.cost = cost_grad_w,
	.workspace = workspace,
	.product = hspmd_linear_product_grad_w,
	.accumulates = 1 << 0 | 1 << 1 | 1 << 2,
	.fp8 = true,
};
