/* SPDX-License-Identifier: Apache-2.0 */
/* Small graphs around one operator each, with odd shapes, and functions that run them unsplit on one device: shared by the tests of
 * operators. */
#ifndef HSPMD_TEST_OP_CASE_H
#define HSPMD_TEST_OP_CASE_H

#include "runtime/device/device.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/op_type.h"

enum { OP_CASE_VOCAB = 11 }; /* tokens are less */

struct op_case {
	const char *name;
	/* Appends inputs and the operator(s); returns the tensor whose random projection is the test's loss, or an HSPMD_OP_LOSS's
	 * output. */
	int (*build)(struct hspmd_graph *g, enum hspmd_dtype type);
	bool large; /* slow: not for tests that run a case many times */
	const struct hspmd_op_example *example; /* instead of `build` */
};
/* Where documents begin, after the first, in tensors "segments, ascending", "segments, descending" and "segments, returning": these say how
 * their numbers go on. */
extern const int64_t op_case_documents[];
extern const size_t op_case_document_count;
/* The cases of op_case.c, and the examples of all operators. */
size_t op_case_count(void);
const struct op_case *op_case_at(size_t number);

/* For building cases: a parameter, which is differentiated; an operator, whose first output is returned (out: all outputs, or NULL). On an
 * error they fail the test. */
int op_case_parameter(struct hspmd_graph *g, enum hspmd_dtype type, const char *name, struct hspmd_shape shape);
int op_case_append(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *in, int count, int *out);
#define SHAPE(...) ((struct hspmd_shape){ .rank = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .dim = { __VA_ARGS__ } })

/* The case's graph with its backward operators. The tensor that starts the differentiation ("seed") is an input. Never NULL: fails the
 * test. */
struct hspmd_graph *op_case_graph(const struct op_case *c, enum hspmd_dtype type);

/* The values of all tensors of a graph, on a device with host memory. */
struct op_values {
	const struct hspmd_graph *g;
	struct hspmd_device *dev;
	void **data; /* per tensor, unsplit */
	void *workspace;
	size_t workspace_bytes;
};
void op_values_open(struct op_values *v, const struct hspmd_graph *g, int threads);
/* A tensor's value, made of a random one: of tensors "positive..." far from 0. */
double op_case_value(const char *tensor, double value);
/* Fills inputs and parameters: a pure function of `seed` and the tensor's number. */
void op_values_fill(struct op_values *v, unsigned seed);
void op_values_run(struct op_values *v, bool backward); /* runs all operators in order; accumulated outputs start from 0 */
void op_values_close(struct op_values *v);
struct hspmd_view op_values_view(const struct op_values *v, int tensor); /* of the full tensor; tensor -1: absent */
/* Runs one operator on the given views; provides the workspace. */
void op_values_kernel(struct op_values *v, enum hspmd_opcode opcode, struct hspmd_kernel_args *args);

double op_value_get(const void *data, enum hspmd_dtype type, int64_t i);
void op_value_set(void *data, enum hspmd_dtype type, int64_t i, double value);
/* The value that is differentiated: the sum of all losses and of the result's projection onto the seed. */
double op_case_loss(const struct op_values *v);

#endif
