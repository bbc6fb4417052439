/* SPDX-License-Identifier: Apache-2.0 */
/* A graph: what one device would run for one micro-batch, forward and backward. Two arrays, tensors and operators, named by small integers
 * in the order they were made, which is an order they can run in. Built by runtime/model or by a user of libhspmd; later passes read it
 * const. */
#ifndef HSPMD_GRAPH_GRAPH_H
#define HSPMD_GRAPH_GRAPH_H

#include "common/error.h"
#include "runtime/annotation/annotation.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/opcode.h"

struct hspmd_op_type;

enum hspmd_tensor_role {
	HSPMD_TENSOR_INPUT, /* tokens, targets, segments: filled by the data reader */
	HSPMD_TENSOR_PARAMETER,
	HSPMD_TENSOR_ACTIVATION,         /* made by a forward operator */
	HSPMD_TENSOR_GRADIENT,           /* of an activation: made by a backward operator */
	HSPMD_TENSOR_PARAMETER_GRADIENT, /* accumulated over micro-batches */
	HSPMD_TENSOR_LOSS                /* a scalar F64 output: a part of the loss, accumulated over micro-batches */
};

struct hspmd_tensor {
	char *name; /* parameters: the Hugging Face name; unique */
	enum hspmd_tensor_role role;
	enum hspmd_dtype dtype;
	struct hspmd_shape shape;
	int layer;                           /* plan layer it belongs to */
	int producer;                        /* operator, -1: input or parameter */
	int grad;                            /* tensor that is its gradient, -1: none (yet) */
	double init_std, init_mean;          /* parameters: random start; deviation 0: constant init_mean */
	bool decay;                          /* parameters: weight decay applies */
	int split_dim;                       /* parameters: the dimension that tensor parallelism splits, -1: none (every device has all) */
	int64_t split_unit;                  /* its granularity: heads for attention, else 1 */
	struct hspmd_annotation *annotation; /* parameters and inputs: how it lies on a stage whose devices are numbered from 0; NULL: as
	                                        the stage splits its tensors */
};

struct hspmd_op {
	enum hspmd_opcode opcode;
	int input_count, output_count;
	int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO]; /* -1: absent optional */
	struct hspmd_op_attr attr;
	int layer;
	bool backward;
};

struct hspmd_graph {
	const struct hspmd_op_type *const *types; /* by opcode; borrowed */
	size_t tensor_count, tensor_capacity, op_count, op_capacity;
	struct hspmd_tensor *tensors;
	struct hspmd_op *ops;
	enum hspmd_dtype compute_dtype; /* of parameters as operators use them, and so of all that follows; F32 unless set before they are
	                                 * made. Their summed gradients are hspmd_dtype_master */
	bool in_backward;               /* operators appended now are backward ones */
	bool failed;                    /* a building call failed: later ones do nothing and return -1 */
	struct hspmd_error error;
};

/* `types`: the operators that it may have, by opcode (runtime/op/op.h); borrowed. NULL: memory. */
struct hspmd_graph *hspmd_graph_create(const struct hspmd_op_type *const *types);
void hspmd_graph_destroy(struct hspmd_graph *g);

/* Building. Each returns a tensor number (the first output's for operators), or -1 with g->failed and g->error set; a negative tensor given
 * as input after a failure is passed through, so a builder may check once at the end. */
int hspmd_graph_input(struct hspmd_graph *g, const char *name, enum hspmd_dtype dtype, struct hspmd_shape shape, int layer);
int hspmd_graph_parameter(struct hspmd_graph *g, const char *name, struct hspmd_shape shape, int layer, double mean, double deviation,
                          bool decay, int split_dim, int64_t split_unit);
/* Say how a parameter or input lies on the devices of every stage that uses it, numbered from 0: nothing partial. Takes the annotation,
 * also on failure. 0 or -1 as above. */
int hspmd_graph_annotate(struct hspmd_graph *g, int tensor, struct hspmd_annotation *annotation);
/* Append an operator. Output shapes and dtypes come from the operator's shape rule. Inputs of -1 are absent optionals. `outputs` (may be
 * NULL) receives all output tensors. */
int hspmd_graph_append(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer, const int *inputs,
                       int input_count, int *outputs);

/* For the backward rules of operators. */
int hspmd_graph_grad_of(const struct hspmd_graph *g, int tensor); /* gradient so far, -1: none arrived */
/* As hspmd_graph_append, but output i becomes (a contribution to) the gradient of tensor wrt[i]; wrt[i] -1: that output is not wanted.
 * Gradients of parameters accumulate in place; further contributions to an activation's gradient are summed by an ADD. Outputs' shapes are
 * those of wrt[i]. */
int hspmd_graph_append_grad(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer, const int *inputs,
                            int input_count, const int *wrt, int wrt_count);
/* `grad` (a tensor of wrt's shape) is (a contribution to) the gradient of wrt, as it stands: for operators that pass a gradient through. */
int hspmd_graph_pass_grad(struct hspmd_graph *g, int grad, int wrt, int layer);
/* Append the backward operators for everything that `loss` (made by HSPMD_OP_LOSS) depends on. 0 or -1. */
int hspmd_graph_differentiate(struct hspmd_graph *g);

int hspmd_graph_find(const struct hspmd_graph *g, const char *name); /* tensor by name, -1: none */
/* Whole graph for people, an operator a line. malloc'd. */
char *hspmd_graph_text(const struct hspmd_graph *g);

#endif
