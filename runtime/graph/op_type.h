/* SPDX-License-Identifier: Apache-2.0 */
/* The part of an operator that a graph uses: the functions that every operator supplies (runtime/op). */
#ifndef HSPMD_GRAPH_OP_TYPE_H
#define HSPMD_GRAPH_OP_TYPE_H

#include "common/error.h"
#include "common/format/attention_memory.h"
#include "runtime/annotation/annotation.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/opcode.h"

struct hspmd_graph;
struct hspmd_op;
struct hspmd_op_rule;

/* Shapes and annotations of an operator's inputs, for the operator's rules. Absent optionals have rank -1 and annotation NULL. */
struct hspmd_op_view {
	const struct hspmd_op_attr *attr;
	int input_count, output_count;
	struct hspmd_shape in[HSPMD_OP_MAX_IO];
	enum hspmd_dtype in_dtype[HSPMD_OP_MAX_IO];
	struct hspmd_shape out[HSPMD_OP_MAX_IO];
	enum hspmd_dtype out_dtype[HSPMD_OP_MAX_IO];
	const struct hspmd_annotation *annotation[HSPMD_OP_MAX_IO]; /* of the inputs; only for deduction */
	bool sequence_parallel; /* for deduction: a partial value that must be summed is preferably left split along dimension 1 */
};

/* Fills the view of an operator of the graph: its shapes and types, without annotations. */
void hspmd_op_view_of(const struct hspmd_graph *g, const struct hspmd_op *op, struct hspmd_op_view *view);

/* Two operators in one kernel: the second takes output 0 of the first. Inputs: all possible inputs of the first (-1 if absent), then the
 * second's other inputs. Outputs: the second's, then the first's, without the intermediate value if it is not kept. Never part of a
 * graph. */
struct hspmd_op_pair {
	bool is_pair; /* else the type is of one operator */
	enum hspmd_opcode first, second;
	enum hspmd_op_intermediate {
		HSPMD_OP_INTERMEDIATE_GONE, /* no other operator may read it */
		HSPMD_OP_INTERMEDIATE_KEPT,
		HSPMD_OP_INTERMEDIATE_WANTED, /* kept if another operator reads it */
		HSPMD_OP_INTERMEDIATE_TWO,    /* of attention's gradient the second operator takes outputs 0 and 1; both are gone */
	} intermediate;
};

/* A small case of the operator, from which the tests of all operators make graphs: odd sizes, and every branch of the kernels once. */
struct hspmd_op_example {
	const char *name; /* unique; tests/golden/operators.py has its formula. NULL: the end of the list */
	struct hspmd_op_attr attr;
	struct {
		const char *name; /* NULL: absent. "positive...": no values near or below 0 */
		struct hspmd_shape shape;
		enum {
			HSPMD_EXAMPLE_REAL,    /* differentiated */
			HSPMD_EXAMPLE_GIVEN,   /* real, has no gradient */
			HSPMD_EXAMPLE_INTEGER, /* I32, below 11; targets: or -1 */
		} kind;
	} in[HSPMD_OP_MAX_IO];
};

struct hspmd_op_type {
	int min_inputs, max_inputs, output_count;
	/* Fills out[], out_dtype[] and output_count from the inputs, or fails with the mismatch. NULL: the graph gives the outputs' shapes
	 * (a gradient has the shape of the tensor it is the gradient of). */
	int (*shape)(struct hspmd_op_view *v, struct hspmd_error *err);
	/* How the dimensions of inputs and outputs correspond (runtime/op/rule.h); deduction uses only this. NULL: never part of a
	 * graph. */
	void (*rule)(const struct hspmd_op_view *v, struct hspmd_op_rule *rule);
	/* Appends the operators that compute gradients of the inputs from gradients of the outputs. NULL: none. */
	int (*backward)(struct hspmd_graph *g, const struct hspmd_op *op);
	/* Cost of one call: floating-point operations and bytes moved. The shapes of inputs and outputs are set. */
	void (*cost)(const struct hspmd_op_view *v, double *flops, double *bytes);
	/* Bytes of its windows, which a CPU device lays out as a factor of a matrix product. NULL: it has none. */
	double (*windows)(const struct hspmd_op_view *v);
	/* The integers that it takes are 0 or more, and below this: the rows or classes that they choose among. NULL: any are fine. */
	int64_t (*choices)(const struct hspmd_graph *g, const struct hspmd_op *op);
	/* Most bytes of values within the operator that a device needs while it runs, if they are not small. at_once: on a device that
	 * computes all parts of the operator at once (a GPU). NULL: they are small. */
	double (*workspace)(const struct hspmd_op_view *v, bool at_once);
	/* The same for any number of samples. NULL: it computes all samples at a time. */
	double (*most_workspace)(const struct hspmd_op_view *v, bool at_once);
	/* Of these, the bytes of weights, which are as many for any number of samples. NULL: there are none. */
	double (*weights_workspace)(const struct hspmd_op_view *v, bool at_once);
	/* Sizes of the attention whose gradient it is. NULL: of none. */
	void (*attention)(const struct hspmd_op_view *v, struct hspmd_attention_sizes *sizes);
	/* Matrix products that it consists of: sets *extent to the most rows or columns of a factor, apart from positions, of which *rows
	 * are summed. NULL: it has none that a device packs (common/format/cluster.h). */
	void (*product)(const struct hspmd_op_view *v, double *extent, double *rows);
	/* Per output: 1 + the input whose buffer it may take if that input is not read later (every device's kernel allows it), 0: none. */
	signed char in_place[HSPMD_OP_MAX_IO];
	/* Bit k: kernels of devices that want rows aligned honour row_stride of the view of input or output k. */
	unsigned padded_in, padded_out;
	/* Of a mixture of experts: where devices divide the rule's index 'e', only the rows of a device's experts count (annotation.h). */
	struct {
		signed char choice; /* 1 + the input that says which experts each row chose; 0: the operator has no such rows */
		unsigned in, out;   /* bit k: so it is for input, or for output, k */
	} rows;
	unsigned accumulates;    /* bit o: output o honours view.accumulate (every device's kernel does) */
	bool adds_gradients;     /* its backward operators add to gradients of weights, and lay them out as those of other such types do */
	signed char loss_output; /* 1 + the scalar F64 output that is a part of the loss: the backward pass starts from it. 0: none */
	bool begins_sequence;    /* with sequence parallelism, output 0 is split along the sequence for all operators that follow */
	bool fp8; /* operands of its products are rounded to FP8 numbers, which GPUs multiply on units for FP8, if they can, and ... */
	bool (*fp8_fits)(const struct hspmd_op_view *v); /* ... this returns true for its shapes. NULL: any */
	bool streams; /* reads and writes every element about once, with few operations for each: bound by memory */
	bool cheap;              /* few operations for the size of its results: "selective" recomputation runs it again */
	struct hspmd_op_pair pair;
	const struct hspmd_op_example *examples; /* NULL: cases of this operator are in tests/unit/op_case.c */
};

#endif
