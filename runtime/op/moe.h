/* SPDX-License-Identifier: Apache-2.0 */
/* What experts in all types of numbers share: inputs x, choice, weights and the matrices gate, up and down; gradients from dy and all of
 * these. op_type.h says what each function does. */
#ifndef HSPMD_OP_MOE_H
#define HSPMD_OP_MOE_H

#include "runtime/op/op_internal.h"

/* Of the first six inputs. */
int hspmd_experts_shape(struct hspmd_op_view *v, struct hspmd_error *err);
void hspmd_experts_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r);
void hspmd_experts_rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r);
void hspmd_experts_cost(const struct hspmd_op_view *v, double *flops, double *bytes);
void hspmd_experts_cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes);
double hspmd_experts_workspace(const struct hspmd_op_view *v, bool at_once);
double hspmd_experts_workspace_grad(const struct hspmd_op_view *v, bool at_once);
void hspmd_experts_product(const struct hspmd_op_view *v, double *extent, double *rows);
void hspmd_experts_product_grad(const struct hspmd_op_view *v, double *extent, double *rows);

#endif
