/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sharding/spmd_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/op/op.h"

static const char *tensor_name(const struct hspmd_spmd_builder *p, int value)
{
	return p->g->tensors[p->s->values[value].tensor].name;
}

/* ---- annotate */

static int add_split(struct hspmd_annotation *a, int dim, int parts, int64_t unit, const int64_t *weights, struct hspmd_error *err)
{
	if (parts == 1)
		return 0;
	if (hspmd_annotation_split(a, 0, dim, parts, dim < 0 ? 1 : unit, dim < 0 ? NULL : weights))
		return hspmd_fail_memory(err, "annotating");
	return 0;
}

/* Returns true if the annotation covers each of the stage's devices (numbered from 0), and no other. */
static bool is_over(const struct hspmd_annotation *a, const struct hspmd_spmd_stage *stage)
{
	int count = 0;
	for (int g = 0; g < a->hsize; g++)
		for (int d = 0; d < a->groups[g].device_count; d++, count++)
			if (a->groups[g].devices[d] >= stage->device_count)
				return false;
	return count == stage->device_count;
}

static void renumber(struct hspmd_annotation *a, const struct hspmd_spmd_stage *stage)
{
	for (int g = 0; g < a->hsize; g++)
		for (int d = 0; d < a->groups[g].device_count; d++)
			a->groups[g].devices[d] = stage->devices[a->groups[g].devices[d]];
}

/* An annotation that is set in the graph, on the stage's devices. */
static struct hspmd_annotation *on_stage(const struct hspmd_annotation *given, const struct hspmd_spmd_stage *stage,
                                         struct hspmd_error *err)
{
	if (!is_over(given, stage)) {
		char *text = hspmd_annotation_text(given);
		hspmd_fail(err, "annotation %s is not over the %d devices of its stage, numbered from 0", text ? text : "?",
		           stage->device_count);
		free(text);
		return NULL;
	}
	struct hspmd_annotation *a = hspmd_annotation_copy(given);
	if (a)
		renumber(a, stage);
	if (a && a->rows)
		renumber(a->rows->experts, stage);
	if (!a)
		hspmd_fail_memory(err, "annotating");
	return a;
}

/* -1 and err if tensor parallelism asks for more parts of a parameter than it has: heads and experts are not divided. */
static int check_width(const struct hspmd_tensor *parameter, int width, struct hspmd_error *err)
{
	if (parameter->split_dim < 0)
		return 0;
	int64_t parts = parameter->shape.dim[parameter->split_dim] / parameter->split_unit;
	if (width <= parts)
		return 0;
	return hspmd_fail(err,
	                  "tensor parallelism %d, but parameter %s has %" PRId64 " parts, which are not divided: expected at most %" PRId64
	                  " devices in a tensor-parallel group; give the others stages or pipelines of their own, or \"context\"",
	                  width, parameter->name, parts, parts);
}

struct hspmd_annotation *hspmd_spmd_parameter(const struct hspmd_tensor *parameter, const struct hspmd_spmd_stage *stage,
                                              struct hspmd_error *err)
{
	int width = stage->device_count / stage->context;
	if (!parameter->annotation && check_width(parameter, width, err))
		return NULL;
	struct hspmd_annotation *a = parameter->annotation ? on_stage(parameter->annotation, stage, err)
	                                                   : hspmd_annotation_single(stage->devices, stage->device_count);
	if (parameter->annotation && !a)
		hspmd_error_prefix(err, "parameter %s", parameter->name);
	if (parameter->annotation)
		return a;
	if (!a) {
		hspmd_fail_memory(err, "annotating");
		return NULL;
	}
	int dim = parameter->split_dim < 0 ? HSPMD_DUPLICATE : parameter->split_dim;
	if (add_split(a, HSPMD_DUPLICATE, stage->context, 1, NULL, err) ||
	    add_split(a, dim, width, parameter->split_unit, stage->tensor_weights, err) ||
	    hspmd_annotation_check(a, &parameter->shape, err)) {
		hspmd_error_prefix(err, "parameter %s", parameter->name);
		hspmd_annotation_destroy(a);
		return NULL;
	}
	return a;
}

/* Default layout of activations [B, T, ..] in a stage. */
static struct hspmd_annotation *activation(const struct hspmd_spmd_stage *stage, const struct hspmd_shape *shape, bool plain,
                                           struct hspmd_error *err)
{
	int width = stage->device_count / stage->context;
	struct hspmd_annotation *a = hspmd_annotation_single(stage->devices, stage->device_count);
	if (!a) {
		hspmd_fail_memory(err, "annotating");
		return NULL;
	}
	int sequence = shape->rank >= 2 ? 1 : HSPMD_DUPLICATE;
	int inner = stage->sequence_parallel && !plain && shape->rank >= 2 ? 1 : HSPMD_DUPLICATE;
	if (add_split(a, sequence, stage->context, 1, stage->context_weights, err) || add_split(a, inner, width, 1, NULL, err) ||
	    hspmd_annotation_check(a, shape, err)) {
		hspmd_annotation_destroy(a);
		return NULL;
	}
	return a;
}

/* ---- values and nodes */

/* The first stage that these devices run: it holds parameters and their gradients, also for the stages of later chunks (interleaved
 * schedules). */
static int home_of(const struct hspmd_spmd_builder *p, int stage)
{
	int home = 0;
	while (p->stages[home].devices[0] != p->stages[stage].devices[0])
		home++;
	return home;
}

int hspmd_spmd_value(const struct hspmd_spmd *s, int tensor, int stage)
{
	int v = s->first_value[tensor];
	while (v >= 0 && s->values[v].stage != stage)
		v = s->values[v].next;
	return v;
}

/* A tensor's value in a stage that takes the least reduction: what is computed from it needs no more. The first of them, -1: none. */
static int best_value(const struct hspmd_spmd *s, int tensor, int stage)
{
	int best = -1, least = 0;
	for (int v = s->first_value[tensor]; v >= 0; v = s->values[v].next) {
		const struct hspmd_annotation *a = s->values[v].annotation;
		int addends = s->values[v].stage == stage ? hspmd_annotation_addends(a) : 0;
		if (a->rows && addends == 1)
			continue; /* copies that lack rows */
		if (addends && (best < 0 || addends < least)) {
			best = v;
			least = addends;
		}
	}
	return best;
}

/* The value of an operator's input in the operator's stage: an existing one, a new one of a parameter or input, or a reshard from the stage
 * that computes the tensor. */
static int input_value(struct hspmd_spmd_builder *p, int tensor, int stage, int layer, bool backward)
{
	const struct hspmd_tensor *t = &p->g->tensors[tensor];
	if (t->role == HSPMD_TENSOR_PARAMETER)
		stage = home_of(p, stage);
	int v = best_value(p->s, tensor, stage);
	if (v >= 0)
		return v;
	struct hspmd_annotation *a = t->role == HSPMD_TENSOR_PARAMETER ? hspmd_spmd_parameter(t, &p->stages[stage], p->err)
	                             : t->annotation && t->role == HSPMD_TENSOR_INPUT
	                                     ? on_stage(t->annotation, &p->stages[stage], p->err)
	                                     : activation(&p->stages[stage], &t->shape, t->role == HSPMD_TENSOR_INPUT, p->err);
	if (!a)
		return t->role == HSPMD_TENSOR_PARAMETER ? -1 : hspmd_error_prefix(p->err, "tensor %s", t->name);
	if (t->role == HSPMD_TENSOR_INPUT && !hspmd_spmd_is_readable(a, &t->shape)) {
		hspmd_annotation_destroy(a);
		return hspmd_fail(p->err, "tensor %s: an input can be split along samples and positions only", t->name);
	}
	if (t->role == HSPMD_TENSOR_PARAMETER || t->role == HSPMD_TENSOR_INPUT)
		return hspmd_spmd_add_value(p, tensor, stage, a);
	if (p->s->first_value[tensor] >= 0)
		return hspmd_spmd_reshard(p, p->s->first_value[tensor], a, -1, stage, layer, backward);
	hspmd_annotation_destroy(a);
	return hspmd_fail(p->err, "tensor %s is used before an operator outputs it", t->name);
}

/* Later operators find the tensor of `value` with another annotation. Takes ownership of the annotation (NULL: err is set). */
static int replace(struct hspmd_spmd_builder *p, int value, struct hspmd_annotation *a, int layer, bool backward)
{
	struct hspmd_spmd *s = p->s;
	int tensor = s->values[value].tensor, split = a ? hspmd_spmd_reshard(p, value, a, -1, s->values[value].stage, layer, backward) : -1;
	if (split < 0 || split == value)
		return split < 0 ? -1 : 0;
	int *link = &s->first_value[tensor]; /* lookups take the first value of a stage */
	while (*link != split)
		link = &s->values[*link].next;
	*link = s->values[split].next;
	s->values[split].next = s->first_value[tensor];
	s->first_value[tensor] = split;
	return 0;
}

/* Sequence parallelism begins where a stage's first activation is made as a sum: later operators find it split along the sequence. */
static int enter_sequence(struct hspmd_spmd_builder *p, int value, int layer)
{
	const struct hspmd_value *v = &p->s->values[value];
	return replace(p, value, activation(&p->stages[v->stage], &p->g->tensors[v->tensor].shape, false, p->err), layer, false);
}

/* Brings the results that are annotated in the graph to their annotations. */
static int annotate_results(struct hspmd_spmd_builder *p, const struct hspmd_op *op, const int *made)
{
	for (int o = 0; o < op->output_count; o++) {
		const struct hspmd_tensor *t = op->out[o] < 0 ? NULL : &p->g->tensors[op->out[o]];
		if (!t || !t->annotation || (t->role != HSPMD_TENSOR_ACTIVATION && t->role != HSPMD_TENSOR_GRADIENT))
			continue;
		if (replace(p, made[o], on_stage(t->annotation, &p->stages[p->s->values[made[o]].stage], p->err), op->layer, op->backward))
			return hspmd_error_prefix(p->err, "tensor %s", t->name);
	}
	return 0;
}

static bool same_split(const struct hspmd_split *a, const struct hspmd_split *b)
{
	return a->dim == b->dim && a->unit == b->unit && !a->weights == !b->weights &&
	       (!a->weights || !memcmp(a->weights, b->weights, (size_t)a->parts * sizeof *a->weights));
}

/* Returns true if devices that hold different parts by `finer` have copies by `a`, and both are alike otherwise: the parts can be cut from
 * the copies without a message. */
static bool copies_parts_of(const struct hspmd_annotation *a, const struct hspmd_annotation *finer)
{
	const struct hspmd_subgroup *x = a->groups, *y = finer->groups;
	bool differs = false;
	if (a->hsize != 1 || finer->hsize != 1 || x->split_count != y->split_count || x->device_count != y->device_count ||
	    hspmd_annotation_is_partial(finer))
		return false;
	for (int i = 0; i < x->split_count; i++) {
		if (x->splits[i].parts != y->splits[i].parts)
			return false;
		if (x->splits[i].dim == HSPMD_DUPLICATE)
			differs |= y->splits[i].dim != HSPMD_DUPLICATE;
		else if (!same_split(&x->splits[i], &y->splits[i]))
			return false;
	}
	return differs && !memcmp(x->devices, y->devices, (size_t)x->device_count * sizeof *x->devices);
}

/* A gradient of which every device has a copy (that of a norm over heads that are divided) is cut as what it is the gradient of, which
 * takes no message: operators before it then work on parts. One that is annotated in the graph has been brought to its annotation. */
static int cut_gradients(struct hspmd_spmd_builder *p, const struct hspmd_op *op, const int *made)
{
	for (int o = 0; o < op->output_count; o++) {
		int of = op->out[o] < 0 ? -1 : p->of_gradient[op->out[o]];
		int forward = of < 0 ? -1 : hspmd_spmd_value(p->s, of, p->s->values[made[o]].stage);
		const struct hspmd_annotation *like = forward < 0 ? NULL : p->s->values[forward].annotation;
		if (!like || p->g->tensors[op->out[o]].annotation || !copies_parts_of(p->s->values[made[o]].annotation, like))
			continue;
		struct hspmd_annotation *a = hspmd_annotation_copy(like);
		if (!a)
			return hspmd_fail_memory(p->err, "annotating");
		if (replace(p, made[o], a, op->layer, true))
			return hspmd_error_prefix(p->err, "tensor %s", p->g->tensors[op->out[o]].name);
	}
	return 0;
}

/* ---- deduce */

static void destroy_all(struct hspmd_annotation **list)
{
	for (int i = 0; i < HSPMD_OP_MAX_IO; i++)
		hspmd_annotation_destroy(list[i]);
}

/* Describes the operator and its inputs to the rule; the inputs have the annotations of `values`. */
static void describe(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int stage, const int *values,
                     struct hspmd_op_view *view)
{
	*view = (struct hspmd_op_view){ .attr = &op->attr,
		                        .input_count = op->input_count,
		                        .output_count = op->output_count,
		                        .sequence_parallel = p->stages[stage].sequence_parallel };
	for (int i = 0; i < op->input_count; i++) {
		view->in[i].rank = -1;
		if (op->in[i] < 0)
			continue;
		view->in[i] = p->g->tensors[op->in[i]].shape;
		view->in_dtype[i] = p->g->tensors[op->in[i]].dtype;
		view->annotation[i] = p->s->values[values[i]].annotation;
	}
	for (int o = 0; o < op->output_count; o++) {
		view->out[o].rank = -1;
		if (op->out[o] >= 0) {
			view->out[o] = p->g->tensors[op->out[o]].shape;
			view->out_dtype[o] = p->g->tensors[op->out[o]].dtype;
		}
	}
}

/* The value of an output with the annotation that the rule gives. An accumulator that another operator has written keeps its annotation,
 * which must be the same. */
static int output_value(struct hspmd_spmd_builder *p, int tensor, int stage, struct hspmd_annotation *a)
{
	const struct hspmd_tensor *t = &p->g->tensors[tensor];
	if (hspmd_annotation_check(a, &t->shape, p->err)) {
		hspmd_annotation_destroy(a);
		return hspmd_error_prefix(p->err, "tensor %s", t->name);
	}
	if (t->role == HSPMD_TENSOR_PARAMETER_GRADIENT)
		stage = home_of(p, stage);
	int v = hspmd_spmd_value(p->s, tensor, stage);
	if (v < 0)
		return hspmd_spmd_add_value(p, tensor, stage, a);
	bool same = hspmd_annotation_equal(a, p->s->values[v].annotation, &t->shape);
	if (!same) {
		char *is = hspmd_annotation_text(a), *was = hspmd_annotation_text(p->s->values[v].annotation);
		hspmd_fail(p->err, "tensor %s is accumulated as %s and as %s", t->name, was ? was : "?", is ? is : "?");
		free(is);
		free(was);
	}
	hspmd_annotation_destroy(a);
	return same ? v : -1;
}

static int plain_node(struct hspmd_spmd_builder *p, size_t number, int stage, const int *in, const int *out)
{
	const struct hspmd_op *op = &p->g->ops[number];
	struct hspmd_spmd_node *n = hspmd_spmd_add_node(p, (int)number, stage, op->layer, op->backward);
	if (!n)
		return -1;
	n->input_count = op->input_count;
	n->output_count = op->output_count;
	memcpy(n->in, in, (size_t)op->input_count * sizeof *in);
	memcpy(n->out, out, (size_t)op->output_count * sizeof *out);
	return 0;
}

/* The order in which an operator's inputs are resharded: the choice of experts first, by which rows of others are sent. */
static int nth_input(const struct hspmd_op_type *type, int n)
{
	int choice = type->rows.choice - 1;
	return choice < 0 || n > choice ? n : n == 0 ? choice : n - 1;
}

static int choice_of(const struct hspmd_op_type *type, const int *in)
{
	return type->rows.choice ? in[type->rows.choice - 1] : -1;
}

/* The values of an operator's inputs, as they are or, if the graph says so, as they are taken. */
static int find_inputs(struct hspmd_spmd_builder *p, const struct hspmd_op *op, int stage, int *in)
{
	const struct hspmd_op_type *type = hspmd_op_types[op->opcode];
	for (int n = 0; n < op->input_count; n++) {
		int i = nth_input(type, n);
		in[i] = op->in[i] < 0 ? -1 : input_value(p, op->in[i], stage, op->layer, op->backward);
		if (op->in[i] >= 0 && in[i] < 0)
			return -1;
		if (op->in[i] < 0 || !op->take || !op->take[i])
			continue;
		struct hspmd_annotation *taken = on_stage(op->take[i], &p->stages[stage], p->err);
		in[i] = taken ? hspmd_spmd_reshard(p, in[i], taken, choice_of(type, in), stage, op->layer, op->backward) : -1;
		if (in[i] < 0)
			return -1;
	}
	return 0;
}

static int emit_op(struct hspmd_spmd_builder *p, size_t number, int stage)
{
	const struct hspmd_op *op = &p->g->ops[number];
	const struct hspmd_op_type *type = hspmd_op_types[op->opcode];
	int in[HSPMD_OP_MAX_IO];
	if (find_inputs(p, op, stage, in))
		return -1;
	struct hspmd_op_view view;
	struct hspmd_annotation *want[HSPMD_OP_MAX_IO] = { NULL }, *out[HSPMD_OP_MAX_IO] = { NULL };
	describe(p, op, stage, in, &view);
	if (hspmd_op_deduce(type, &view, want, out, p->err)) {
		hspmd_error_prefix(p->err, "operator %s (layer %d, %s)", hspmd_opcode_names[op->opcode], op->layer,
		                   op->in[0] >= 0 ? tensor_name(p, in[0]) : "-");
		goto fail;
	}
	bool ring = hspmd_ring_attention_fits(p, op, stage, in, want);
	for (int n = 0; n < op->input_count; n++) {
		int i = nth_input(type, n);
		if (!want[i])
			continue;
		struct hspmd_annotation *w = want[i];
		want[i] = NULL;
		in[i] = hspmd_spmd_reshard(p, in[i], w, choice_of(type, in), stage, op->layer, op->backward);
		if (in[i] < 0)
			goto fail;
	}
	int made[HSPMD_OP_MAX_IO];
	for (int o = 0; o < op->output_count; o++) {
		made[o] = -1;
		if (op->out[o] < 0)
			continue;
		if (!out[o]) {
			hspmd_fail(p->err, "the rule of operator %s gives no annotation for output %d", hspmd_opcode_names[op->opcode], o);
			goto fail;
		}
		struct hspmd_annotation *a = ring ? hspmd_ring_attention_output(p, op, o, in, out[o]) : out[o];
		out[o] = NULL;
		made[o] = a ? output_value(p, op->out[o], stage, a) : hspmd_fail_memory(p->err, "annotating");
		if (made[o] < 0)
			goto fail;
		if (p->s->values[made[o]].annotation->rows)
			p->s->values[made[o]].choice = choice_of(type, in);
	}
	if (ring ? hspmd_ring_attention_emit(p, number, stage, in, made) : plain_node(p, number, stage, in, made))
		goto fail;
	destroy_all(want);
	destroy_all(out);
	if (annotate_results(p, op, made) || (op->backward && cut_gradients(p, op, made)))
		return -1;
	return type->begins_sequence && p->stages[stage].sequence_parallel ? enter_sequence(p, made[0], op->layer) : 0;
fail:
	destroy_all(want);
	destroy_all(out);
	return -1;
}

/* By tensor: the activation whose gradient it is. NULL: memory. */
static int *find_gradients(const struct hspmd_graph *g)
{
	int *of = hspmd_calloc(g->tensor_count + 1, sizeof *of);
	for (size_t t = 0; of && t < g->tensor_count; t++)
		of[t] = -1;
	for (size_t t = 0; of && t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_ACTIVATION && g->tensors[t].grad >= 0)
			of[g->tensors[t].grad] = (int)t;
	return of;
}

/* Returns true if some operator reads rows of experts. */
static bool reads_rows(const struct hspmd_graph *g)
{
	for (size_t i = 0; i < g->op_count; i++)
		if (hspmd_op_types[g->ops[i].opcode]->rows.choice)
			return true;
	return false;
}

static struct hspmd_spmd *run_passes(const struct hspmd_graph *g, const struct hspmd_spmd_stage *stages, const int *stage_of_layer,
                                     const struct hspmd_link_cost *cost, bool deduce_only, struct hspmd_error *err)
{
	struct hspmd_spmd *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "annotating");
		return NULL;
	}
	s->graph = g;
	s->first_value = malloc(g->tensor_count * sizeof *s->first_value);
	if (!s->first_value) {
		hspmd_fail_memory(err, "annotating");
		hspmd_spmd_destroy(s);
		return NULL;
	}
	for (size_t t = 0; t < g->tensor_count; t++)
		s->first_value[t] = -1;
	struct hspmd_spmd_builder p = { s, g, stages, cost, deduce_only, err, find_gradients(g), NULL };
	int status = p.of_gradient ? 0 : hspmd_fail_memory(err, "annotating");
	if (!status && !deduce_only && reads_rows(g)) {
		p.deduced = run_passes(g, stages, stage_of_layer, NULL, true, err);
		status = p.deduced ? 0 : -1;
	}
	for (size_t i = 0; !status && i < g->op_count; i++)
		if ((status = emit_op(&p, i, stage_of_layer[g->ops[i].layer])))
			hspmd_error_prefix(err, "stages[%d]", stage_of_layer[g->ops[i].layer]);
	free(p.of_gradient);
	hspmd_spmd_destroy(p.deduced);
	if (!status)
		return s;
	hspmd_spmd_destroy(s);
	return NULL;
}

struct hspmd_spmd *hspmd_spmd_build(const struct hspmd_graph *g, const struct hspmd_spmd_stage *stages, const int *stage_of_layer,
                                    const struct hspmd_link_cost *cost, struct hspmd_error *err)
{
	return run_passes(g, stages, stage_of_layer, cost, false, err);
}

struct hspmd_spmd *hspmd_spmd_deduce(const struct hspmd_graph *g, const struct hspmd_spmd_stage *stages, const int *stage_of_layer,
                                     struct hspmd_error *err)
{
	return run_passes(g, stages, stage_of_layer, NULL, true, err);
}

void hspmd_spmd_destroy(struct hspmd_spmd *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->value_count; i++)
		hspmd_annotation_destroy(s->values[i].annotation);
	for (size_t i = 0; i < s->node_count; i++)
		hspmd_transfer_destroy(s->nodes[i].transfer);
	free(s->first_value);
	free(s->values);
	free(s->nodes);
	free(s);
}

static void print_value(FILE *f, const struct hspmd_spmd *s, int v)
{
	if (v < 0) {
		fputs(" -", f);
		return;
	}
	char *a = hspmd_annotation_text(s->values[v].annotation);
	fprintf(f, " %s %s", s->graph->tensors[s->values[v].tensor].name, a ? a : "?");
	free(a);
}

char *hspmd_spmd_text(const struct hspmd_spmd *s)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	for (size_t i = 0; i < s->node_count; i++) {
		const struct hspmd_spmd_node *n = &s->nodes[i];
		fprintf(f, "%4zu S%d L%-3d %c %-16s", i, n->stage, n->layer, n->backward ? 'B' : 'F',
		        n->op < 0 ? "reshard" : hspmd_opcode_names[s->graph->ops[n->op].opcode]);
		for (int k = 0; k < n->input_count; k++)
			print_value(f, s, n->in[k]);
		fputs(" ->", f);
		for (int k = 0; k < n->output_count; k++)
			print_value(f, s, n->out[k]);
		for (int k = 0; n->transfer && k < n->transfer->step_count; k++)
			fprintf(f, " %s%s", k ? "+ " : "by ", hspmd_comm_kind_names[n->transfer->steps[k].kind]);
		fputc('\n', f);
	}
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
