/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the program that was found into a graph. */
#include "common/alloc.h"
#include "runtime/synthesis/synthesis_internal.h"

/* Dimensions of an input of which a device can read a part. */
enum { SAMPLES, POSITIONS };

static int annotate(const struct hspmd_synthesis *s, struct hspmd_graph *g, int tensor, int like, int layout)
{
	hspmd_annotation_destroy(g->tensors[tensor].annotation);
	g->tensors[tensor].annotation = hspmd_synthesis_numbered(s, like, layout);
	return g->tensors[tensor].annotation ? 0 : -1;
}

static int take(const struct hspmd_synthesis *s, struct hspmd_op *op, int input, int like, int layout)
{
	if (!op->take)
		op->take = hspmd_calloc((size_t)op->input_count, sizeof(struct hspmd_annotation *));
	if (!op->take)
		return -1;
	hspmd_annotation_destroy(op->take[input]);
	op->take[input] = hspmd_synthesis_numbered(s, like, layout);
	return op->take[input] ? 0 : -1;
}

static int apply_forward(const struct hspmd_synthesis *s, struct hspmd_graph *g, const struct group *group, const struct choice *choice)
{
	struct hspmd_op *op = &g->ops[group->op];
	for (int i = 0; i < op->input_count; i++) {
		int t = op->in[i], status = 0;
		if (t < 0)
			continue;
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER && !g->tensors[t].annotation)
			status = annotate(s, g, t, t, choice->kept[i]);
		bool read_in_parts = choice->take[i] == SAMPLES || choice->take[i] == POSITIONS;
		if (g->tensors[t].role == HSPMD_TENSOR_INPUT && read_in_parts && !g->tensors[t].annotation)
			status = annotate(s, g, t, t, choice->take[i]);
		if (status || take(s, op, i, t, choice->take[i]))
			return -1;
	}
	return 0;
}

/* The tensor whose layouts input i of a backward operator has: an output of the forward operator for its gradient. */
static int like_of(const struct hspmd_graph *g, const struct group *group, int tensor)
{
	const struct hspmd_op *forward = &g->ops[group->op];
	for (int o = 0; o < forward->output_count; o++)
		if (forward->out[o] >= 0 && g->tensors[forward->out[o]].grad == tensor)
			return forward->out[o];
	return tensor;
}

static int apply_backward(const struct hspmd_synthesis *s, struct hspmd_graph *g, const struct group *group, const struct choice *choice)
{
	for (int b = 0; b < group->backward_count; b++) {
		struct hspmd_op *op = &g->ops[group->backward[b]];
		for (int i = 0; i < op->input_count; i++)
			if (op->in[i] >= 0 && choice->backward_take[b][i] != LAYOUT_NONE &&
			    take(s, op, i, like_of(g, group, op->in[i]), choice->backward_take[b][i]))
				return -1;
	}
	return 0;
}

/* The layout to which an activation's gradient is brought. */
static int gradient_layout(const struct hspmd_synthesis *s, int tensor)
{
	const struct group *group = &s->groups[s->group_of_op[s->g->tensors[tensor].producer]];
	const struct hspmd_op *op = &s->g->ops[group->op];
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] == tensor)
			return group->choices[s->chosen[s->group_of_op[group->op]]].gradient[o];
	return LAYOUT_NONE;
}

/* The gradient of an activation gets the layout in which its producer reads it; its parts are added up in that, or as sums. */
static int apply_gradient(struct hspmd_synthesis *s, struct hspmd_graph *g, int tensor)
{
	const struct tensor_facts *t = &s->tensors[tensor];
	int home = gradient_layout(s, tensor), added = t->add_count && hspmd_synthesis_adds_sums(s, tensor, home) ? LAYOUT_SUM : home;
	for (int a = 0; a < t->add_count; a++)
		for (int i = 0; i < 2; i++)
			if (take(s, &g->ops[t->adds[a]], i, tensor, added))
				return -1;
	/* Of tensors that share it, the last one counts. Rows of experts are read so by their operator alone. */
	return home == LAYOUT_ROWS ? 0 : annotate(s, g, g->tensors[tensor].grad, tensor, home);
}

int hspmd_synthesis_apply(struct hspmd_synthesis *s, struct hspmd_graph *g, struct hspmd_error *err)
{
	for (int n = 0; n < s->group_count; n++) {
		const struct choice *choice = &s->groups[n].choices[s->chosen[n]];
		if (apply_forward(s, g, &s->groups[n], choice) || apply_backward(s, g, &s->groups[n], choice))
			return hspmd_fail_memory(err, "searching a program");
	}
	for (size_t t = 0; t < g->tensor_count; t++)
		if (g->tensors[t].role == HSPMD_TENSOR_ACTIVATION && g->tensors[t].grad >= 0 && apply_gradient(s, g, (int)t))
			return hspmd_fail_memory(err, "searching a program");
	return 0;
}
