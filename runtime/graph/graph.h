/* SPDX-License-Identifier: Apache-2.0 */
/* A graph: the work of one device for one micro-batch, forward and backward, if the device held the whole model. Two arrays, tensors and
 * operators, indexed by small integers in the order of creation, which is a valid order of execution. runtime/model or a user of libhspmd
 * builds it; later passes only read it. */
#ifndef HSPMD_GRAPH_GRAPH_H
#define HSPMD_GRAPH_GRAPH_H

#include <stdint.h>

#include "common/error.h"
#include "runtime/annotation/annotation.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/opcode.h"

struct hspmd_op_type;

enum hspmd_tensor_role {
	HSPMD_TENSOR_INPUT, /* tokens, targets, segments: filled by the data reader */
	HSPMD_TENSOR_PARAMETER,
	HSPMD_TENSOR_ACTIVATION,         /* output of a forward operator */
	HSPMD_TENSOR_GRADIENT,           /* of an activation: output of a backward operator */
	HSPMD_TENSOR_PARAMETER_GRADIENT, /* accumulated over micro-batches */
	HSPMD_TENSOR_LOSS                /* a scalar F64 output: a part of the loss, accumulated over micro-batches */
};

struct hspmd_tensor {
	char *name; /* parameters: the Hugging Face name; unique */
	uint64_t name_hash;
	enum hspmd_tensor_role role;
	enum hspmd_dtype dtype;
	struct hspmd_shape shape;
	int layer;                  /* plan layer of the tensor */
	int producer;               /* operator, -1: input or parameter */
	int grad;                   /* tensor that is its gradient, -1: none (yet) */
	double init_std, init_mean; /* parameters: random initial values; deviation 0: constant init_mean */
	bool decay;                 /* parameters: weight decay applies */
	bool history;               /* parameters: an amax history (runtime/tensor/fp8.h), which no optimizer trains and no norm counts */
	int split_dim;      /* parameters: the dimension that tensor parallelism splits, -1: none (every device holds the full tensor) */
	int64_t split_unit; /* granularity of that split: heads for attention, else 1 */
	struct hspmd_annotation *annotation; /* layout on a stage whose devices are numbered from 0; NULL: as the stage splits its
	                                        tensors (parameters and inputs), or as deduced */
};

struct hspmd_op {
	enum hspmd_opcode opcode;
	int input_count, output_count;
	int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO]; /* -1: absent optional */
	struct hspmd_op_attr attr;
	int layer;
	bool backward;
	int of;                         /* backward operators: the forward operator whose gradients they compute; else -1 */
	struct hspmd_annotation **take; /* per input: the layout in which it is read, on a stage whose devices are numbered from 0; NULL (an
	                                   element, or the array): as deduced. Set by runtime/synthesis; owned */
};

struct hspmd_graph {
	const struct hspmd_op_type *const *types; /* by opcode; borrowed */
	size_t tensor_count, tensor_capacity, op_count, op_capacity;
	struct hspmd_tensor *tensors;
	struct hspmd_op *ops;
	enum hspmd_dtype compute_dtype; /* dtype of parameters as operators use them, and so of all results; F32 unless set before the
	                                   parameters are created. Summed gradients of parameters have hspmd_dtype_master of it */
	size_t constant_count, constant_capacity;
	double **constants;             /* arrays that attributes of operators point to */
	bool in_backward;               /* operators appended now are backward ones, ... */
	int backward_of;                /* ... of this forward operator */
	bool failed;                    /* a building call failed: later ones do nothing and return -1 */
	struct hspmd_error error;
};

/* `types`: the operators that the graph may contain, by opcode (runtime/op/op.h); borrowed. NULL: memory. */
struct hspmd_graph *hspmd_graph_create(const struct hspmd_op_type *const *types);
void hspmd_graph_destroy(struct hspmd_graph *g);

/* Building. Each call returns a tensor number (for operators that of the first output), or -1 with g->failed and g->error set. After a
 * failure, negative tensor numbers may be passed as inputs, so a builder can check once at the end. */
int hspmd_graph_input(struct hspmd_graph *g, const char *name, enum hspmd_dtype dtype, struct hspmd_shape shape, int layer);
int hspmd_graph_parameter(struct hspmd_graph *g, const char *name, struct hspmd_shape shape, int layer, double mean, double deviation,
                          bool decay, int split_dim, int64_t split_unit);
/* A parameter that holds amax histories of `rows` tensors: [rows, HSPMD_AMAX_BINS], at first empty, not split. Its gradient is the sum of
 * thermometers. */
int hspmd_graph_history(struct hspmd_graph *g, const char *name, int64_t rows, int layer);
/* Sets the layout of a parameter or input on the devices of every stage that uses it, or of an activation on the devices of the stage
 * that computes it, numbered from 0. The annotation must not be partial. Takes ownership of the annotation, also on failure. 0 or -1 as
 * above. */
int hspmd_graph_annotate(struct hspmd_graph *g, int tensor, struct hspmd_annotation *annotation);
/* A copy of an array, for attributes of operators: lives as long as the graph. NULL: failed as above. */
const double *hspmd_graph_constant(struct hspmd_graph *g, const double *values, size_t count);
/* Appends an operator. The operator's shape rule gives the outputs' shapes and dtypes. Inputs of -1 are absent optionals. `outputs` (may be
 * NULL) receives all output tensors. */
int hspmd_graph_append(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer, const int *inputs,
                       int input_count, int *outputs);

/* For the backward rules of operators. */
int hspmd_graph_grad_of(const struct hspmd_graph *g, int tensor); /* gradient so far, -1: none yet */
/* Like hspmd_graph_append, but output i becomes (a contribution to) the gradient of tensor wrt[i]; wrt[i] -1: that output is not wanted.
 * Gradients of parameters accumulate in place, by the operator itself or by an ACCUMULATE; an ADD sums further contributions to an
 * activation's gradient. Outputs have the shapes of wrt[i]. */
int hspmd_graph_append_grad(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer, const int *inputs,
                            int input_count, const int *wrt, int wrt_count);
/* `grad` (a tensor of wrt's shape) is, unchanged, (a contribution to) the gradient of wrt: for operators that pass a gradient through. */
int hspmd_graph_pass_grad(struct hspmd_graph *g, int grad, int wrt, int layer);
/* Appends the backward operators for everything that the losses (loss_output in op_type.h) depend on. 0 or -1. */
int hspmd_graph_differentiate(struct hspmd_graph *g);

int hspmd_graph_find(const struct hspmd_graph *g, const char *name); /* tensor by name, -1: none */
/* How a list of operators to recompute names a forward operator (common/format/recompute_sets.h): by its weight's name without the block
 * and ".weight"; of `size` bytes. Returns false if it has no such weight, or that does not name the block: then it goes by its opcode. */
bool hspmd_graph_op_weight(const struct hspmd_graph *g, const struct hspmd_op *op, char *name, size_t size);
/* Returns true if running the forward operator twice in a step counts nothing twice. */
bool hspmd_graph_op_repeats(const struct hspmd_graph *g, const struct hspmd_op *op);
/* The whole graph for readers, one operator per line. malloc'd. */
char *hspmd_graph_text(const struct hspmd_graph *g);

#endif
