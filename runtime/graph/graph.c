/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/graph/graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/fnv.h"
#include "runtime/graph/op_type.h"
#include "runtime/tensor/fp8.h"

struct hspmd_graph *hspmd_graph_create(const struct hspmd_op_type *const *types)
{
	struct hspmd_graph *g = calloc(1, sizeof *g);
	if (g)
		g->types = types;
	return g;
}

void hspmd_graph_destroy(struct hspmd_graph *g)
{
	if (!g)
		return;
	for (size_t i = 0; i < g->tensor_count; i++) {
		free(g->tensors[i].name);
		hspmd_annotation_destroy(g->tensors[i].annotation);
	}
	for (size_t i = 0; i < g->op_count; i++) {
		for (int k = 0; g->ops[i].take && k < g->ops[i].input_count; k++)
			hspmd_annotation_destroy(g->ops[i].take[k]);
		free(g->ops[i].take);
	}
	for (size_t i = 0; i < g->constant_count; i++)
		free(g->constants[i]);
	free(g->constants);
	free(g->tensors);
	free(g->ops);
	free(g);
}

static int refuse(struct hspmd_graph *g)
{
	g->failed = true;
	return -1;
}

static uint64_t hash_of(const char *name)
{
	return hspmd_fnv1a(name, strlen(name));
}

/* Takes ownership of name (NULL: memory was short when it was made). */
static int add_tensor(struct hspmd_graph *g, char *name, enum hspmd_tensor_role role, enum hspmd_dtype dtype, struct hspmd_shape shape,
                      int layer)
{
	if (!name || hspmd_array_grow(&g->tensors, &g->tensor_capacity, g->tensor_count, sizeof *g->tensors)) {
		free(name);
		hspmd_fail_memory(&g->error, "building the graph");
		return refuse(g);
	}
	g->tensors[g->tensor_count] = (struct hspmd_tensor){
		.name = name,
		.name_hash = hash_of(name),
		.role = role,
		.dtype = dtype,
		.shape = shape,
		.layer = layer,
		.producer = -1,
		.grad = -1,
	};
	return (int)g->tensor_count++;
}

static int named_tensor(struct hspmd_graph *g, const char *name, enum hspmd_tensor_role role, enum hspmd_dtype dtype,
                        struct hspmd_shape shape, int layer)
{
	if (g->failed)
		return -1;
	if (shape.rank < 0 || shape.rank > HSPMD_MAX_RANK) {
		hspmd_fail(&g->error, "tensor %s: rank %d is not 0..%d", name, shape.rank, HSPMD_MAX_RANK);
		return refuse(g);
	}
	for (int d = 0; d < shape.rank; d++)
		if (shape.dim[d] < 1) {
			hspmd_fail(&g->error, "tensor %s: dimension %d is %" PRId64 ", expected at least 1", name, d, shape.dim[d]);
			return refuse(g);
		}
	if (hspmd_graph_find(g, name) >= 0) {
		hspmd_fail(&g->error, "tensor %s exists already", name);
		return refuse(g);
	}
	return add_tensor(g, strdup(name), role, dtype, shape, layer);
}

int hspmd_graph_input(struct hspmd_graph *g, const char *name, enum hspmd_dtype dtype, struct hspmd_shape shape, int layer)
{
	return named_tensor(g, name, HSPMD_TENSOR_INPUT, dtype, shape, layer);
}

int hspmd_graph_parameter(struct hspmd_graph *g, const char *name, struct hspmd_shape shape, int layer, double mean, double deviation,
                          bool decay, int split_dim, int64_t split_unit)
{
	int t = named_tensor(g, name, HSPMD_TENSOR_PARAMETER, g->compute_dtype, shape, layer);
	if (t >= 0) {
		g->tensors[t].init_mean = mean;
		g->tensors[t].init_std = deviation;
		g->tensors[t].decay = decay;
		g->tensors[t].split_dim = split_dim;
		g->tensors[t].split_unit = split_unit;
	}
	return t;
}

int hspmd_graph_history(struct hspmd_graph *g, const char *name, int64_t rows, int layer)
{
	struct hspmd_shape shape = { .rank = 2, .dim = { rows, HSPMD_AMAX_BINS } };
	int t = hspmd_graph_parameter(g, name, shape, layer, 0, 0, false, -1, 1);
	if (t >= 0)
		g->tensors[t].history = true;
	return t;
}

int hspmd_graph_annotate(struct hspmd_graph *g, int tensor, struct hspmd_annotation *annotation)
{
	if (!g->failed && tensor >= 0 && annotation) {
		struct hspmd_tensor *t = &g->tensors[tensor];
		char *text = hspmd_annotation_text(annotation);
		if (t->role != HSPMD_TENSOR_PARAMETER && t->role != HSPMD_TENSOR_INPUT && t->role != HSPMD_TENSOR_ACTIVATION)
			hspmd_fail(&g->error, "tensor %s is annotated as %s, but losses and gradients cannot be annotated", t->name,
			           text ? text : "?");
		else if (hspmd_annotation_is_partial(annotation))
			hspmd_fail(&g->error, "tensor %s is annotated as %s, expected nothing partial", t->name, text ? text : "?");
		else if (hspmd_annotation_check(annotation, &t->shape, &g->error))
			hspmd_error_prefix(&g->error, "tensor %s", t->name);
		else {
			hspmd_annotation_destroy(t->annotation);
			t->annotation = annotation;
			annotation = NULL;
		}
		free(text);
	}
	if (!annotation)
		return g->failed ? -1 : 0;
	hspmd_annotation_destroy(annotation);
	return g->failed ? -1 : refuse(g);
}

const double *hspmd_graph_constant(struct hspmd_graph *g, const double *values, size_t count)
{
	if (g->failed)
		return NULL;
	double *copy = hspmd_calloc(count, sizeof *copy);
	if (!copy || hspmd_array_grow(&g->constants, &g->constant_capacity, g->constant_count, sizeof *g->constants)) {
		free(copy);
		hspmd_fail_memory(&g->error, "building the graph");
		refuse(g);
		return NULL;
	}
	memcpy(copy, values, count * sizeof *copy);
	return g->constants[g->constant_count++] = copy;
}

void hspmd_op_view_of(const struct hspmd_graph *g, const struct hspmd_op *op, struct hspmd_op_view *view)
{
	*view = (struct hspmd_op_view){ .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
	for (int i = 0; i < op->input_count; i++) {
		view->in[i].rank = -1;
		if (op->in[i] < 0)
			continue;
		view->in[i] = g->tensors[op->in[i]].shape;
		view->in_dtype[i] = g->tensors[op->in[i]].dtype;
	}
	for (int o = 0; o < op->output_count; o++) {
		view->out[o].rank = -1;
		if (op->out[o] < 0)
			continue;
		view->out[o] = g->tensors[op->out[o]].shape;
		view->out_dtype[o] = g->tensors[op->out[o]].dtype;
	}
}

/* Reserves space for an operator, checks its inputs and fills *view for the operator's rules. NULL on failure. */
static struct hspmd_op *new_op(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer,
                               const int *inputs, int input_count, struct hspmd_op_view *view)
{
	if (g->failed)
		return NULL;
	const struct hspmd_op_type *type = g->types[opcode];
	if (input_count < type->min_inputs || input_count > type->max_inputs) {
		hspmd_fail(&g->error, "operator %s takes %d to %d inputs, got %d", hspmd_opcode_names[opcode], type->min_inputs,
		           type->max_inputs, input_count);
		refuse(g);
		return NULL;
	}
	if (hspmd_array_grow(&g->ops, &g->op_capacity, g->op_count, sizeof *g->ops)) {
		hspmd_fail_memory(&g->error, "building the graph");
		refuse(g);
		return NULL;
	}
	struct hspmd_op *op = &g->ops[g->op_count];
	*op = (struct hspmd_op){ .opcode = opcode, .input_count = input_count, .layer = layer, .backward = g->in_backward };
	op->of = g->in_backward ? g->backward_of : -1;
	if (attr)
		op->attr = *attr;
	*view = (struct hspmd_op_view){ .attr = &op->attr, .input_count = input_count, .output_count = type->output_count };
	for (int i = 0; i < input_count; i++) {
		op->in[i] = inputs[i];
		view->in[i].rank = -1;
		if (inputs[i] >= (int)g->tensor_count) {
			hspmd_fail(&g->error, "operator %s: input %d is no tensor of this graph", hspmd_opcode_names[opcode], i);
			refuse(g);
			return NULL;
		}
		if (inputs[i] >= 0) {
			view->in[i] = g->tensors[inputs[i]].shape;
			view->in_dtype[i] = g->tensors[inputs[i]].dtype;
		}
	}
	return op;
}

int hspmd_graph_append(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer, const int *inputs,
                       int input_count, int *outputs)
{
	struct hspmd_op_view view;
	struct hspmd_op *op = new_op(g, opcode, attr, layer, inputs, input_count, &view);
	if (!op)
		return -1;
	const struct hspmd_op_type *type = g->types[opcode];
	if (!type->shape)
		hspmd_fail(&g->error, "only differentiation appends gradient operators");
	if (!type->shape || type->shape(&view, &g->error)) {
		hspmd_error_prefix(&g->error, "operator %s", hspmd_opcode_names[opcode]);
		return refuse(g);
	}
	op->output_count = view.output_count;
	int number = (int)g->op_count;
	for (int o = 0; o < view.output_count; o++) {
		enum hspmd_tensor_role role = o + 1 == type->loss_output ? HSPMD_TENSOR_LOSS
		                              : g->in_backward           ? HSPMD_TENSOR_GRADIENT
		                                                         : HSPMD_TENSOR_ACTIVATION;
		int t = add_tensor(g, hspmd_asprintf("%s.%d:%d", hspmd_opcode_names[opcode], number, o), role, view.out_dtype[o],
		                   view.out[o], layer);
		if (t < 0)
			return -1;
		g->tensors[t].producer = number;
		op->out[o] = t;
		if (outputs)
			outputs[o] = t;
	}
	g->op_count++;
	return op->out[0];
}

int hspmd_graph_grad_of(const struct hspmd_graph *g, int tensor)
{
	return tensor >= 0 ? g->tensors[tensor].grad : -1;
}

/* Number of forward operators that read a tensor. *alike: their backward operators lay out its gradient alike. */
static int uses_of(const struct hspmd_graph *g, int tensor, bool *alike)
{
	int uses = 0;
	*alike = true;
	for (size_t i = 0; i < g->op_count && !g->ops[i].backward; i++)
		for (int k = 0; k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] == tensor) {
				uses++;
				*alike &= g->types[g->ops[i].opcode]->adds_gradients;
			}
	return uses;
}

/* Adds a gradient to a parameter's accumulator. Contributions of several operators must be laid out alike: as the parameter. */
static int add_to_parameter(struct hspmd_graph *g, int grad, int wrt, int layer)
{
	bool alike;
	struct hspmd_op_attr attr = { .kind = uses_of(g, wrt, &alike) > 1 };
	return hspmd_graph_append_grad(g, HSPMD_OP_ACCUMULATE, &attr, layer, (int[]){ grad, wrt }, 2, &wrt, 1);
}

int hspmd_graph_pass_grad(struct hspmd_graph *g, int grad, int wrt, int layer)
{
	if (g->failed || wrt < 0 || g->tensors[wrt].role == HSPMD_TENSOR_INPUT)
		return g->failed ? -1 : 0;
	if (g->tensors[wrt].role == HSPMD_TENSOR_PARAMETER)
		return add_to_parameter(g, grad, wrt, layer);
	if (g->tensors[wrt].grad < 0) {
		g->tensors[wrt].grad = grad;
		return 0;
	}
	int sum = hspmd_graph_append(g, HSPMD_OP_ADD, NULL, layer, (int[]){ g->tensors[wrt].grad, grad }, 2, NULL);
	if (sum < 0)
		return -1;
	g->tensors[wrt].grad = sum;
	return 0;
}

/* The tensor that output o of a gradient operator writes: the parameter's accumulator if the operator can add to it and no other needs
 * another layout, or a new one. -1: not wanted; -2: failed. */
static int grad_target(struct hspmd_graph *g, enum hspmd_opcode opcode, int wrt, int o)
{
	const char *op_name = hspmd_opcode_names[opcode];
	if (wrt < 0 || g->tensors[wrt].role == HSPMD_TENSOR_INPUT)
		return -1;
	const struct hspmd_tensor *of = &g->tensors[wrt];
	bool alike = true, adds = opcode == HSPMD_OP_ACCUMULATE;
	if (of->role == HSPMD_TENSOR_PARAMETER && !adds && g->types[opcode]->accumulates >> o & 1)
		adds = uses_of(g, wrt, &alike) == 1 || alike;
	if (of->role == HSPMD_TENSOR_PARAMETER && adds) {
		if (of->grad >= 0)
			return of->grad;
		int t = add_tensor(g, hspmd_asprintf("%s.grad", of->name), HSPMD_TENSOR_PARAMETER_GRADIENT, hspmd_dtype_master(of->dtype),
		                   of->shape, of->layer);
		if (t >= 0)
			g->tensors[wrt].grad = t;
		return t < 0 ? -2 : t;
	}
	int t = add_tensor(g, hspmd_asprintf("%s.%zu:%d", op_name, g->op_count, o), HSPMD_TENSOR_GRADIENT, of->dtype, of->shape, of->layer);
	return t < 0 ? -2 : t;
}

int hspmd_graph_append_grad(struct hspmd_graph *g, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int layer, const int *inputs,
                            int input_count, const int *wrt, int wrt_count)
{
	struct hspmd_op_view view;
	struct hspmd_op *op = new_op(g, opcode, attr, layer, inputs, input_count, &view);
	if (!op)
		return -1;
	int wanted = 0;
	op->output_count = wrt_count;
	for (int o = 0; o < wrt_count; o++) {
		op->out[o] = grad_target(g, opcode, wrt[o], o);
		if (op->out[o] < -1)
			return -1;
		wanted += op->out[o] >= 0;
	}
	if (!wanted)
		return 0; /* all outputs are unwanted: the operator is not appended */
	size_t number = g->op_count++;
	for (int o = 0; o < wrt_count; o++) {
		int t = g->ops[number].out[o]; /* op may have moved */
		if (t < 0)
			continue;
		if (g->tensors[t].producer < 0)
			g->tensors[t].producer = (int)number;
		if (g->tensors[t].role != HSPMD_TENSOR_PARAMETER_GRADIENT && hspmd_graph_pass_grad(g, t, wrt[o], layer))
			return -1;
	}
	return 0;
}

int hspmd_graph_differentiate(struct hspmd_graph *g)
{
	if (g->failed)
		return -1;
	g->in_backward = true;
	for (size_t i = g->op_count; i-- > 0;) {
		struct hspmd_op op = g->ops[i]; /* a copy: backward rules append operators, which may move the array */
		const struct hspmd_op_type *type = g->types[op.opcode];
		bool reached = type->loss_output > 0;
		for (int o = 0; o < op.output_count; o++)
			reached |= g->tensors[op.out[o]].grad >= 0;
		g->backward_of = (int)i;
		if (reached && type->backward && type->backward(g, &op))
			return refuse(g);
	}
	g->in_backward = false;
	return g->failed ? -1 : 0;
}

int hspmd_graph_find(const struct hspmd_graph *g, const char *name)
{
	uint64_t hash = hash_of(name);
	for (size_t i = 0; i < g->tensor_count; i++)
		if (g->tensors[i].name_hash == hash && !strcmp(g->tensors[i].name, name))
			return (int)i;
	return -1;
}

bool hspmd_graph_op_weight(const struct hspmd_graph *g, const struct hspmd_op *op, char *name, size_t size)
{
	int weight = op->input_count > 1 ? op->in[1] : -1;
	if (weight < 0 || g->tensors[weight].role != HSPMD_TENSOR_PARAMETER)
		return false;
	const char *at = g->tensors[weight].name;
	for (bool is_number = false; !is_number;) {
		size_t part = strcspn(at, ".");
		if (!at[part])
			return false;
		is_number = part > 0 && strspn(at, "0123456789") == part;
		at += part + 1;
	}
	size_t end = strlen(at);
	end -= end > 7 && !strcmp(at + end - 7, ".weight") ? 7 : 0;
	bool named = end > 0 && end < size && strcmp(at, "weight") != 0;
	if (named)
		snprintf(name, size, "%.*s", (int)end, at);
	return named;
}

bool hspmd_graph_op_repeats(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] >= 0 && g->tensors[op->out[o]].role == HSPMD_TENSOR_LOSS)
			return false;
	return !op->backward;
}

static void print_tensor(FILE *f, const struct hspmd_graph *g, int t)
{
	if (t < 0) {
		fputs(" -", f);
		return;
	}
	fprintf(f, " %s[", g->tensors[t].name);
	for (int d = 0; d < g->tensors[t].shape.rank; d++)
		fprintf(f, "%s%" PRId64, d ? "," : "", g->tensors[t].shape.dim[d]);
	fputc(']', f);
}

char *hspmd_graph_text(const struct hspmd_graph *g)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	for (size_t i = 0; i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		fprintf(f, "%4zu L%-3d %c %-16s", i, op->layer, op->backward ? 'B' : 'F', hspmd_opcode_names[op->opcode]);
		for (int k = 0; k < op->input_count; k++)
			print_tensor(f, g, op->in[k]);
		fputs(" ->", f);
		for (int k = 0; k < op->output_count; k++)
			print_tensor(f, g, op->out[k]);
		fputc('\n', f);
	}
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
