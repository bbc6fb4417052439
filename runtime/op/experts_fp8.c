/* SPDX-License-Identifier: Apache-2.0 */
/* Experts whose products are of FP8 operands, without biases: activations and matrices as E4M3 numbers, gradients as E5M2 ones. They are
 * divided as other experts are, but dy may not be partial, for rounding is not linear. Gradients are those of the products of rounded
 * operands (the rounding counts as if it were the identity). The backward operator also writes the thermometers of the amax of everything
 * that is rounded, of the rows and parts of its device alone: their sum over all devices, as the gradient of the amax history
 * (runtime/tensor/fp8.h), is that of the largest. */
#include <string.h>

#include "runtime/op/moe.h"
#include "runtime/tensor/fp8.h"

enum { HISTORY = 6 }; /* input; of the backward operator it is the next */

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_experts_shape(v, err) || hspmd_op_expect(v, HISTORY, 2, false, err) ||
	    hspmd_op_expect_dim(v, HISTORY, 0, HSPMD_EXPERTS_OPERANDS, "the number of operands of experts", err))
		return -1;
	return hspmd_op_expect_dim(v, HISTORY, 1, HSPMD_AMAX_BINS, "the bins of an amax history", err);
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

/* Besides: codes of two matrices of all local experts, and `columns` codes of each row; or in F32 one rounded matrix of one expert. */
static double rounded(const struct hspmd_op_view *v, int x, int gate, double columns, bool at_once)
{
	double elements = hspmd_op_elements(&v->in[gate]), rows = (double)(v->in[x].dim[0] * v->in[x].dim[1]) * v->attr->experts_per_token;
	return at_once ? 2 * elements + rows * columns : 4 * elements / (double)v->in[gate].dim[0];
}

/* x and act are codes instead of elements. */
static double workspace(const struct hspmd_op_view *v, bool at_once)
{
	double columns = (double)(v->in[3].dim[1] + v->in[3].dim[2]);
	return hspmd_experts_workspace(v, at_once) + rounded(v, 0, 3, (1 - (double)hspmd_dtype_bytes(v->in_dtype[0])) * columns, at_once);
}

/* x, dy and gradients of gate and up are codes, too. */
static double workspace_grad(const struct hspmd_op_view *v, bool at_once)
{
	double columns = (double)(v->in[4].dim[1] + v->in[4].dim[2]);
	return hspmd_experts_workspace_grad(v, at_once) + rounded(v, 1, 4, 2 * columns, at_once);
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
	.product = hspmd_experts_product,
	.rows = { .choice = 1 + 1, .in = 1 << 0, .out = 1 << 0 },
	.adds_gradients = true,
	.fp8 = true,
	.fp8_units = 1,
};
const struct hspmd_op_type hspmd_op_experts_fp8_grad = {
	.min_inputs = 8,
	.max_inputs = 8,
	.output_count = 6,
	.rule = rule_grad,
	.cost = cost_grad,
	.workspace = workspace_grad,
	.product = hspmd_experts_product_grad,
	.rows = { .choice = 1 + 2, .in = 1 << 0 | 1 << 1, .out = 1 << 0 },
	.accumulates = 0x3c,
	.fp8 = true,
	.fp8_units = 5.0 / 8, /* the depth of gradients of matrices is the rows, along which their operands do not lie */
};
