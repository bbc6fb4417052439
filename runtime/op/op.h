/* SPDX-License-Identifier: Apache-2.0 */
/* What every operator brings: one file here, one line in the table of op.c, and a kernel file a device. */
#ifndef HSPMD_OP_OP_H
#define HSPMD_OP_OP_H

#include "runtime/graph/graph.h"

/* Shapes and annotations of the operator's inputs, as its rules see them. Absent optionals have rank -1 and annotation NULL. */
struct hspmd_op_view {
	const struct hspmd_op_attr *attr;
	int input_count, output_count;
	struct hspmd_shape in[HSPMD_OP_MAX_IO];
	enum hspmd_dtype in_dtype[HSPMD_OP_MAX_IO];
	struct hspmd_shape out[HSPMD_OP_MAX_IO];
	enum hspmd_dtype out_dtype[HSPMD_OP_MAX_IO];
	const struct hspmd_annotation *annotation[HSPMD_OP_MAX_IO]; /* of the inputs; deduction only */
};

struct hspmd_op_type {
	const char *name; /* "linear" */
	int min_inputs, max_inputs, output_count;
	/* Fill out[], out_dtype[] and output_count from the inputs, or fail with what does not fit. For *_GRAD operators `out` shapes are given by the graph. */
	int (*shape)(struct hspmd_op_view *v, struct hspmd_error *err);
	/* Deduction, by subgroup as in SPMD and for hdim as one dimension more (HSPMD section 4.3). From the inputs' annotations: `want[i]` = NULL
	 * when input i is fine as it lies, else the annotation it must be resharded to first (an explicit Reshard is put before the operator; this is how Partial is refused by what is not linear);
	 * `out[o]` = the outputs' annotations. All new annotations are owned by the caller. Fails only on what no Reshard can mend. */
	int (*deduce)(const struct hspmd_op_view *v, struct hspmd_annotation **want, struct hspmd_annotation **out, struct hspmd_error *err);
	/* Append the operators that compute gradients of the inputs from the gradients of the outputs. NULL: has none (not differentiable, or is itself one). */
	int (*backward)(struct hspmd_graph *g, const struct hspmd_op *op);
	/* Cost of one call on shapes: floating-point operations and bytes moved. */
	void (*cost)(const struct hspmd_op_view *v, double *flops, double *bytes);
	/* Outputs that may share the buffer of an input when that input dies here: bit o of in_place[i]... output o on input i, -1: none. */
	signed char in_place[HSPMD_OP_MAX_IO];
};

const struct hspmd_op_type *hspmd_op_type(enum hspmd_opcode opcode); /* never NULL for a legal opcode */

#endif
