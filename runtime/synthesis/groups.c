/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of operators that are divided together, the parts of which gradients are sums, and which tensors are alive between groups. */
#include <string.h>

#include "runtime/synthesis/synthesis_internal.h"

static bool is_sum(const struct hspmd_op *op)
{
	return op->backward && op->opcode == HSPMD_OP_ADD;
}

static bool is_forward(const struct hspmd_tensor *t)
{
	return t->role == HSPMD_TENSOR_ACTIVATION || t->role == HSPMD_TENSOR_PARAMETER || t->role == HSPMD_TENSOR_INPUT;
}

static bool reads(const struct hspmd_op *op, int tensor)
{
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] == tensor)
			return true;
	return false;
}

static bool has_backward(const struct hspmd_graph *g, int op)
{
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].backward && g->ops[i].of == op)
			return true;
	return false;
}

/* An output, other than `tensor`, of a forward operator that reads it, whose gradient is `gradient`; -1: none. If there are several, as of
 * x + f(x), it is that of an operator that computes no gradient itself: it passes this one on. */
static int passed_from(const struct hspmd_graph *g, int tensor, int gradient)
{
	int from = -1;
	for (size_t i = 0; i < g->op_count && !g->ops[i].backward; i++)
		for (int o = 0; reads(&g->ops[i], tensor) && o < g->ops[i].output_count; o++)
			if (g->ops[i].out[o] >= 0 && g->tensors[g->ops[i].out[o]].grad == gradient &&
			    (from < 0 || !has_backward(g, (int)i)))
				from = g->ops[i].out[o];
	return from;
}

static int add_contribution(struct hspmd_synthesis *s, int group, struct contribution what, size_t *capacity, struct hspmd_error *err)
{
	struct group *g = &s->groups[group];
	if (g->contribution_count >= 2 * HSPMD_OP_MAX_IO)
		return hspmd_fail(err, "operator %s adds to too many gradients", hspmd_opcode_names[s->g->ops[g->op].opcode]);
	if (hspmd_arena_array_grow(s->arena, &g->contributions, &capacity[group], (size_t)g->contribution_count, sizeof what))
		return hspmd_fail_memory(err, "searching a program");
	g->contributions[g->contribution_count++] = what;
	s->tensors[what.of].contributions++;
	return 0;
}

/* Finds the parts of `gradient`, which is (a part of) the gradient of `of`. */
static int find_parts(struct hspmd_synthesis *s, int of, int gradient, size_t *capacity, struct hspmd_error *err)
{
	const struct hspmd_graph *g = s->g;
	int from = passed_from(g, of, gradient), producer = g->tensors[gradient].producer;
	struct tensor_facts *t = &s->tensors[of];
	if (from >= 0)
		return add_contribution(s, s->group_of_op[g->tensors[from].producer], (struct contribution){ of, -1, from }, capacity, err);
	if (!is_sum(&g->ops[producer]))
		return add_contribution(s, s->group_of_op[g->ops[producer].of], (struct contribution){ of, gradient, -1 }, capacity, err);
	size_t room = (size_t)t->add_count;
	int *adds = hspmd_arena_alloc(s->arena, room + 1, sizeof *adds);
	if (!adds)
		return hspmd_fail_memory(err, "searching a program");
	for (int i = 0; i < t->add_count; i++)
		adds[i] = t->adds[i];
	adds[t->add_count++] = producer;
	t->adds = adds;
	return find_parts(s, of, g->ops[producer].in[0], capacity, err) || find_parts(s, of, g->ops[producer].in[1], capacity, err) ? -1
	                                                                                                                            : 0;
}

/* ---- which groups touch which tensors */

static int touch(struct hspmd_synthesis *s, int group, int tensor, struct hspmd_error *err)
{
	struct group *g = &s->groups[group];
	struct tensor_facts *t = &s->tensors[tensor];
	const struct hspmd_tensor *what = &s->g->tensors[tensor];
	if (what->role != HSPMD_TENSOR_ACTIVATION && what->role != HSPMD_TENSOR_PARAMETER)
		return 0;
	for (int i = 0; i < g->touched_count; i++)
		if (g->touched[i] == tensor)
			return 0;
	if (g->touched_count == 4 * HSPMD_OP_MAX_IO)
		return hspmd_fail(err, "operator %s reads too many tensors", hspmd_opcode_names[s->g->ops[g->op].opcode]);
	g->touched[g->touched_count++] = tensor;
	if (t->last_group < 0)
		t->first_group = group;
	else
		t->shared = true;
	t->last_group = group;
	return 0;
}

/* A gradient that a backward operator reads is of an output of its forward operator, or is made by another operator of the group. */
static int touch_backward(struct hspmd_synthesis *s, int group, const struct hspmd_op *op, struct hspmd_error *err)
{
	const struct hspmd_op *forward = &s->g->ops[s->groups[group].op];
	for (int i = 0; i < op->input_count; i++) {
		int t = op->in[i];
		if (t < 0)
			continue;
		if (is_forward(&s->g->tensors[t])) {
			if (touch(s, group, t, err))
				return -1;
			continue;
		}
		bool known = s->g->tensors[t].producer >= 0 && s->g->ops[s->g->tensors[t].producer].of == op->of &&
		             !is_sum(&s->g->ops[s->g->tensors[t].producer]);
		for (int o = 0; o < forward->output_count; o++)
			if (forward->out[o] >= 0 && s->g->tensors[forward->out[o]].grad == t)
				known = s->tensors[forward->out[o]].read_gradient = true;
		if (!known)
			return hspmd_fail(err, "operator %s (layer %d) reads the gradient of another operator's result",
			                  hspmd_opcode_names[op->opcode], op->layer);
	}
	return 0;
}

static int touch_all(struct hspmd_synthesis *s, int number, struct hspmd_error *err)
{
	struct group *g = &s->groups[number];
	const struct hspmd_op *op = &s->g->ops[g->op];
	g->touched = hspmd_arena_alloc(s->arena, 4 * HSPMD_OP_MAX_IO, sizeof *g->touched);
	if (!g->touched)
		return hspmd_fail_memory(err, "searching a program");
	for (int i = 0; i < op->input_count; i++)
		if (op->in[i] >= 0 && touch(s, number, op->in[i], err))
			return -1;
	for (int b = 0; b < g->backward_count; b++)
		if (touch_backward(s, number, &s->g->ops[g->backward[b]], err))
			return -1;
	for (int c = 0; c < g->contribution_count; c++)
		if (touch(s, number, g->contributions[c].of, err))
			return -1;
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] >= 0 && touch(s, number, op->out[o], err))
			return -1;
	return 0;
}

/* ---- all */

static int make_groups(struct hspmd_synthesis *s)
{
	const struct hspmd_graph *g = s->g;
	s->groups = hspmd_arena_alloc(s->arena, g->op_count, sizeof *s->groups);
	s->group_of_op = hspmd_arena_alloc(s->arena, g->op_count, sizeof *s->group_of_op);
	if (!s->groups || !s->group_of_op)
		return -1;
	for (size_t i = 0; i < g->op_count; i++)
		if (!g->ops[i].backward) {
			s->groups[s->group_count].op = (int)i;
			s->group_of_op[i] = s->group_count++;
		}
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].backward && !is_sum(&g->ops[i]))
			s->groups[s->group_of_op[g->ops[i].of]].backward_count++;
	for (int n = 0; n < s->group_count; n++) {
		s->groups[n].backward = hspmd_arena_alloc(s->arena, (size_t)s->groups[n].backward_count, sizeof(int));
		if (!s->groups[n].backward)
			return -1;
		s->groups[n].backward_count = 0;
	}
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].backward && !is_sum(&g->ops[i])) {
			struct group *group = &s->groups[s->group_of_op[g->ops[i].of]];
			group->backward[group->backward_count++] = (int)i;
		}
	return 0;
}

static bool touches(const struct group *g, int tensor)
{
	for (int i = 0; i < g->touched_count; i++)
		if (g->touched[i] == tensor)
			return true;
	return false;
}

/* Tensors are part of the state from the group that makes (or, parameters, first reads) them to the one that touches them last. */
static int list_live(struct hspmd_synthesis *s, struct hspmd_error *err)
{
	size_t points = (size_t)s->group_count + 1;
	s->live_count = hspmd_arena_alloc(s->arena, points, sizeof *s->live_count);
	s->live = hspmd_arena_alloc(s->arena, points, sizeof *s->live);
	s->live_next = hspmd_arena_alloc(s->arena, points, sizeof *s->live_next);
	if (!s->live_count || !s->live || !s->live_next)
		return hspmd_fail_memory(err, "searching a program");
	for (size_t p = 0; p < points; p++) {
		s->live[p] = hspmd_arena_alloc(s->arena, MAX_LIVE, sizeof **s->live);
		s->live_next[p] = hspmd_arena_alloc(s->arena, MAX_LIVE, sizeof **s->live_next);
		if (!s->live[p] || !s->live_next[p])
			return hspmd_fail_memory(err, "searching a program");
		for (size_t t = 0; t < s->g->tensor_count; t++) {
			const struct tensor_facts *f = &s->tensors[t];
			if (f->last_group < (int)p || f->first_group >= (int)p || s->live_count[p] == MAX_LIVE)
				continue;
			int next = (int)p;
			while (!touches(&s->groups[next], (int)t))
				next++;
			s->live_next[p][s->live_count[p]] = next;
			s->live[p][s->live_count[p]++] = (int)t;
		}
		if (s->live_count[p] == MAX_LIVE)
			return hspmd_fail(err, "more than %d tensors are in use between two operators: too many for the search",
			                  MAX_LIVE - 1);
	}
	return 0;
}

int hspmd_synthesis_groups(struct hspmd_synthesis *s, struct hspmd_error *err)
{
	if (make_groups(s))
		return hspmd_fail_memory(err, "searching a program");
	size_t *capacity = hspmd_arena_alloc(s->arena, (size_t)s->group_count, sizeof *capacity);
	if (!capacity)
		return hspmd_fail_memory(err, "searching a program");
	for (size_t t = 0; t < s->g->tensor_count; t++) {
		const struct hspmd_tensor *what = &s->g->tensors[t];
		s->tensors[t].last_group = -1;
		if (what->role == HSPMD_TENSOR_ACTIVATION && what->grad >= 0 && find_parts(s, (int)t, what->grad, capacity, err))
			return -1;
	}
	for (int n = 0; n < s->group_count; n++)
		if (touch_all(s, n, err))
			return -1;
	return list_live(s, err);
}
