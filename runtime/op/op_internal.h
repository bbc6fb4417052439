/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the operators' files. */
#ifndef HSPMD_OP_OP_INTERNAL_H
#define HSPMD_OP_OP_INTERNAL_H

#include <stdio.h>

#include "runtime/op/op.h"

#define OP(opcode, name) extern const struct hspmd_op_type hspmd_op_##name;
#include "runtime/tensor/opcode_list.h"

/* Size of the last dimension. */
static inline int64_t hspmd_op_last_dim(const struct hspmd_shape *s)
{
	return s->rank ? s->dim[s->rank - 1] : 1;
}

static inline bool hspmd_op_has_input(const struct hspmd_op_view *v, int input)
{
	return input < v->input_count && v->in[input].rank >= 0;
}

/* Output o has the shape and type of input i. */
static inline void hspmd_op_output_like(struct hspmd_op_view *v, int o, int i)
{
	v->out[o] = v->in[i];
	v->out_dtype[o] = v->in_dtype[i];
}

/* Input i must have `rank` dimensions (-1: any), and type I32 if `integer`, else a floating type. */
int hspmd_op_expect(const struct hspmd_op_view *v, int i, int rank, bool integer, struct hspmd_error *err);
/* Dimension d of input i must be `size`; `what` names the size in the error. */
int hspmd_op_expect_dim(const struct hspmd_op_view *v, int i, int d, int64_t size, const char *what, struct hspmd_error *err);
/* Input i must be an amax history of `rows` tensors. */
int hspmd_op_expect_history(const struct hspmd_op_view *v, int i, int64_t rows, struct hspmd_error *err);
/* Inputs i and j must have the same shape. */
int hspmd_op_expect_same(const struct hspmd_op_view *v, int i, int j, struct hspmd_error *err);

/* The indices of `shape`'s dimensions if it is repeated to `as` (aligned at the last): those of `as`, '!' where it has one element. */
void hspmd_rule_repeated(char *pattern, const struct hspmd_shape *shape, const struct hspmd_shape *as);
/* For backward(): passes a gradient on to a tensor that was repeated, as its sum over the copies. */
int hspmd_op_sum_to(struct hspmd_graph *g, int grad, int wrt, int layer);

/* For backward(): returns true if a tensor is computed from a parameter, and so would need a gradient. */
bool hspmd_op_depends_on_parameters(const struct hspmd_graph *g, int tensor);

double hspmd_op_bytes(const struct hspmd_op_view *v);  /* of all inputs and outputs */
double hspmd_op_elements(const struct hspmd_shape *s); /* 0 if absent */

/* For cost(): `per_element` operations per element of input 0; everything is read or written once. */
void hspmd_op_cost_per_element(const struct hspmd_op_view *v, double per_element, double *flops, double *bytes);

#endif
