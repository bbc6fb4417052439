/* SPDX-License-Identifier: Apache-2.0 */
/* What linear layers in all types of numbers share: inputs x, w and bias, gradients from dy and w, and from dy and x. op_type.h says what
 * each function does. */
#ifndef HSPMD_OP_LINEAR_H
#define HSPMD_OP_LINEAR_H

#include "runtime/op/op_internal.h"

/* Indices of x's rows, of the outputs, and of w, which has both. */
struct hspmd_linear_indices {
	char rows[HSPMD_MAX_RANK + 1], columns[4], weight[8];
};
/* rows, columns: numbers of dimensions. */
struct hspmd_linear_indices hspmd_linear_indices_of(bool transposed, int rows, int columns);

int hspmd_linear_shape(struct hspmd_op_view *v, struct hspmd_error *err);
void hspmd_linear_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r);
void hspmd_linear_rule_grad_x(const struct hspmd_op_view *v, struct hspmd_op_rule *r);
void hspmd_linear_rule_grad_w(const struct hspmd_op_view *v, struct hspmd_op_rule *r);
void hspmd_linear_cost(const struct hspmd_op_view *v, double *flops, double *bytes);
void hspmd_linear_cost_grad_x(const struct hspmd_op_view *v, double *flops, double *bytes);
void hspmd_linear_cost_grad_w(const struct hspmd_op_view *v, double *flops, double *bytes);
void hspmd_linear_product(const struct hspmd_op_view *v, double *extent, double *rows);
void hspmd_linear_product_grad_x(const struct hspmd_op_view *v, double *extent, double *rows);
void hspmd_linear_product_grad_w(const struct hspmd_op_view *v, double *extent, double *rows);

#endif
