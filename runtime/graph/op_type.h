/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph must know of an operator: the functions that every operator brings (runtime/op). */
#ifndef HSPMD_GRAPH_OP_TYPE_H
#define HSPMD_GRAPH_OP_TYPE_H

#include "common/error.h"
#include "runtime/annotation/annotation.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/opcode.h"

struct hspmd_graph;
struct hspmd_op;
struct hspmd_op_rule;

/* Shapes and annotations of the operator's inputs, as its rules see them. Absent optionals have rank -1 and annotation NULL. */
struct hspmd_op_view {
	const struct hspmd_op_attr *attr;
	int input_count, output_count;
	struct hspmd_shape in[HSPMD_OP_MAX_IO];
	enum hspmd_dtype in_dtype[HSPMD_OP_MAX_IO];
	struct hspmd_shape out[HSPMD_OP_MAX_IO];
	enum hspmd_dtype out_dtype[HSPMD_OP_MAX_IO];
	const struct hspmd_annotation *annotation[HSPMD_OP_MAX_IO]; /* of the inputs; deduction only */
	bool sequence_parallel; /* deduction: a partial value that must be summed is best left split along dimension 1 */
};

/* Two operators at once: the second takes the first's output 0. Inputs: all that the first may have (-1 where one is not given), then the
 * second's others. Outputs: the second's, then the first's, without the value between where that is gone. Never part of a graph. */
struct hspmd_op_pair {
	bool is_pair; /* else the type is of one operator */
	enum hspmd_opcode first, second;
	enum hspmd_op_intermediate {
		HSPMD_OP_INTERMEDIATE_GONE, /* nobody else may read it */
		HSPMD_OP_INTERMEDIATE_KEPT,
		HSPMD_OP_INTERMEDIATE_WANTED, /* kept where somebody else reads it */
	} intermediate;
};

struct hspmd_op_type {
	int min_inputs, max_inputs, output_count;
	/* Fill out[], out_dtype[] and output_count from the inputs, or fail with what does not fit. NULL: the outputs' shapes are given by
	 * the graph (gradients have those of what they are gradients of). */
	int (*shape)(struct hspmd_op_view *v, struct hspmd_error *err);
	/* How the dimensions of inputs and outputs belong together (runtime/op/rule.h); deduction follows from it. NULL: never part of a
	 * graph. */
	void (*rule)(const struct hspmd_op_view *v, struct hspmd_op_rule *rule);
	/* Append the operators that compute gradients of the inputs from the gradients of the outputs. NULL: has none. */
	int (*backward)(struct hspmd_graph *g, const struct hspmd_op *op);
	/* Cost of one call: floating-point operations and bytes moved. Inputs' and outputs' shapes are set. */
	void (*cost)(const struct hspmd_op_view *v, double *flops, double *bytes);
	/* Per output: 1 + the input whose buffer it may take when that input dies here (every device's kernel allows it), 0: none. */
	signed char in_place[HSPMD_OP_MAX_IO];
	struct hspmd_op_pair pair;
};

#endif
