/* SPDX-License-Identifier: Apache-2.0 */
/* Experts whose products are of FP8 operands, without biases: activations and matrices as E4M3 numbers, gradients as E5M2 ones. They are
 * divided as other experts are, but dy may not be partial, for rounding is not linear. Gradients are those of the products of rounded
 * operands (the rounding counts as if it were the identity). The backward operator also writes the thermometers of the amax of everything
 * that is rounded, of the rows and parts of its device alone: their sum over all devices, as the gradient of the amax history
 * (runtime/tensor/fp8.h), is that of the largest. */
#include <math.h>
#include <string.h>

#include "runtime/op/moe.h"
#include "runtime/tensor/fp8.h"

enum { HISTORY = 6 }; /* input; of the backward operator it is the next */

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	return hspmd_experts_shape(v, err) ? -1 : hspmd_op_expect_history(v, HISTORY, HSPMD_EXPERTS_OPERANDS, err);
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	hspmd_experts_rule(v, r);
	strcpy(r->in[HISTORY], "!!");
	strcpy(r->priority, "3450126");
}

static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	hspmd_experts_rule_grad(v, r);
	memmove(r->in[0], r->in[0] + 1, strlen(r->in[0])); /* without '+' */
	strcpy(r->in[HISTORY + 1], "!!");
	strcpy(r->out[5], "!!/btef");
	strcpy(r->priority, "45612307");
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = {
		hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->in[1], op->in[2], op->in[3], op->in[4], op->in[5], op->in[HISTORY]
	};
	int wrt[] = { op->in[0], op->in[2], op->in[3], op->in[4], op->in[5], op->in[HISTORY] };
	return hspmd_graph_append_grad(g, HSPMD_OP_EXPERTS_FP8_GRAD, &op->attr, op->layer, in, 8, wrt, 6);
}

/* The matrices' codes are written and read; for gradients of rows those of gate and up are made anew, in another order. */
static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_experts_cost(v, flops, bytes);
	*bytes += 2 * 3 * hspmd_op_elements(&v->in[3]);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_experts_cost_grad(v, flops, bytes);
	*bytes += (2 * 5 + 2 * (double)hspmd_dtype_bytes(v->in_dtype[4])) * hspmd_op_elements(&v->in[4]);
}

/* Rounded matrices: two of all experts as a GPU keeps them that has no products of codes; or one of one expert in F32. */
static double matrices(const struct hspmd_op_view *v, int x, bool at_once)
{
	double stack = hspmd_op_elements(&v->in[x + 3]), size = (double)hspmd_dtype_bytes(v->in_dtype[x]);
	return at_once ? 2 * size * stack : sizeof(float) * stack / (double)v->in[x + 3].dim[0];
}

/* A GPU has either elements of rows or, where it multiplies codes (runtime/device/cuda/experts.h), codes of them, in the backward pass also
 * turned: the larger counts, for which it is, is not known here. */
static double rows(const struct hspmd_op_view *v, int x, double elements, bool at_once)
{
	const struct hspmd_shape *gate = &v->in[x + 3];
	double all = (double)(v->in[x].dim[0] * v->in[x].dim[1]) * v->attr->experts_per_token;
	double turned = all + (double)gate->dim[0] * HSPMD_TURNED_ROWS;
	double inner = (double)gate->dim[1], width = (double)gate->dim[2], wide = fmax(width, inner);
	double codes = all * (width + inner + 2 * wide);
	if (x)
		codes = all * (width + 2 * inner + wide) + 2 * turned * width + 2 * fmax(2 * all, turned) * inner +
		        fmax(2 * all * wide, turned * inner);
	return at_once && hspmd_dtype_bytes(v->in_dtype[x]) == 2 ? fmax(elements, codes) : elements;
}

static bool rows_fit(const struct hspmd_shape *gate)
{
	return gate->dim[1] % HSPMD_FP8_ROW == 0 && gate->dim[2] % HSPMD_FP8_ROW == 0;
}

static bool fits(const struct hspmd_op_view *v)
{
	return rows_fit(&v->in[3]);
}

static bool fits_grad(const struct hspmd_op_view *v)
{
	return rows_fit(&v->in[4]);
}

static double weights_workspace(const struct hspmd_op_view *v, bool at_once)
{
	return matrices(v, 0, at_once);
}

static double workspace(const struct hspmd_op_view *v, bool at_once)
{
	return rows(v, 0, hspmd_experts_workspace(v, at_once), at_once) + matrices(v, 0, at_once);
}

static double weights_workspace_grad(const struct hspmd_op_view *v, bool at_once)
{
	return matrices(v, 1, at_once);
}

static double workspace_grad(const struct hspmd_op_view *v, bool at_once)
{
	return rows(v, 1, hspmd_experts_workspace_grad(v, at_once), at_once) + matrices(v, 1, at_once);
}

const struct hspmd_op_type hspmd_op_experts_fp8 = {
	.min_inputs = 7,
	.max_inputs = 7,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.workspace = workspace,
	.weights_workspace = weights_workspace,
	.product = hspmd_experts_product,
	.rows = { .choice = 1 + 1, .in = 1 << 0, .out = 1 << 0 },
	.adds_gradients = true,
	.fp8 = true,
	.fp8_fits = fits,
};
const struct hspmd_op_type hspmd_op_experts_fp8_grad = {
	.min_inputs = 8,
	.max_inputs = 8,
	.output_count = 6,
	.rule = rule_grad,
	.cost = cost_grad,
	.workspace = workspace_grad,
	.weights_workspace = weights_workspace_grad,
	.product = hspmd_experts_product_grad,
	.rows = { .choice = 1 + 2, .in = 1 << 0 | 1 << 1, .out = 1 << 0 },
	.accumulates = 0x3c,
	.fp8 = true,
	.fp8_fits = fits_grad,
};
