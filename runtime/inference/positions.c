/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/inference/positions.h"

#include <ctype.h>
#include <string.h>

#include "runtime/op/op.h"

static int refuse(const struct hspmd_op *op, struct hspmd_error *err)
{
	return hspmd_fail(err, "operator %s of layer %d needs all positions at once", hspmd_opcode_names[op->opcode], op->layer);
}

/* The character of a dimension (rule.h). '\0': there is none. */
static char character(const char *pattern, int dim)
{
	pattern += *pattern == '+';
	size_t length = strcspn(pattern, "/");
	return dim >= 0 && (size_t)dim < length ? pattern[dim] : '\0';
}

static int dimension_of(const char *pattern, char index)
{
	size_t length = strcspn(pattern, "/");
	const char *at = memchr(pattern, index, length);
	return at ? (int)(at - pattern) : -1;
}

/* Queries may be fewer than keys; causal attention does not look at what follows. */
static int attention(const struct hspmd_op *op, int *dim, struct hspmd_error *err)
{
	bool separate = op->input_count >= 3 && op->in[1] >= 0 && op->in[2] >= 0, more = false;
	for (int i = 3; i < op->input_count; i++)
		more |= i != 4 && op->in[i] >= 0; /* all but sinks */
	if (!separate || more || op->attr.bidirectional || dim[op->in[0]] != 1 || dim[op->in[1]] != 1 || dim[op->in[2]] != 1)
		return refuse(op, err);
	dim[op->out[0]] = 1;
	dim[op->out[1]] = 2;
	return 0;
}

/* Weights and choice of each position follow from its own logits. The other results, which are of the whole sequence, are for training. */
static int router(const struct hspmd_op *op, int *dim, struct hspmd_error *err)
{
	if (dim[op->in[0]] != 1)
		return refuse(op, err);
	dim[op->out[0]] = dim[op->out[1]] = 1;
	return 0;
}

static int by_rule(const struct hspmd_graph *g, const struct hspmd_op *op, int *dim, struct hspmd_error *err)
{
	struct hspmd_op_view view;
	struct hspmd_op_rule rule = { 0 };
	char index = '\0';
	hspmd_op_view_of(g, op, &view);
	g->types[op->opcode]->rule(&view, &rule);
	for (int i = 0; i < op->input_count; i++) {
		char c = op->in[i] < 0 ? '\0' : character(rule.in[i], dim[op->in[i]]);
		if (c && (!islower((unsigned char)c) || (index && c != index)))
			return refuse(op, err);
		index = c ? c : index;
	}
	if (!index)
		return 0;                         /* computed of parameters alone */
	for (int i = 0; i < op->input_count; i++) /* one value per position, but not of these */
		if (op->in[i] >= 0 && dim[op->in[i]] < 0 && dimension_of(rule.in[i], index) >= 0)
			return refuse(op, err);
	for (int o = 0; o < op->output_count; o++) {
		if (op->out[o] < 0)
			continue;
		dim[op->out[o]] = dimension_of(rule.out[o], index);
		if (dim[op->out[o]] < 0)
			return refuse(op, err);
	}
	return 0;
}

int inference_positions(const struct hspmd_graph *g, const bool *runs, int *dim, struct hspmd_error *err)
{
	for (size_t t = 0; t < g->tensor_count; t++)
		dim[t] = g->tensors[t].role == HSPMD_TENSOR_INPUT ? 1 : -1;
	for (size_t i = 0; i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		if (runs[i] && (op->opcode == HSPMD_OP_ATTENTION     ? attention(op, dim, err)
		                : op->opcode == HSPMD_OP_TOPK_ROUTER ? router(op, dim, err)
		                                                     : by_rule(g, op, dim, err)))
			return -1;
	}
	return 0;
}
