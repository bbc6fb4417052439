/* SPDX-License-Identifier: Apache-2.0 */
/* Which operators of a model's blocks are worth recomputing, in which order: those first that save most bytes for the time that they take
 * again (as in Checkmate, arXiv 1910.02653, but greedily, and the same in all blocks). A sequence of sets, each with all operators of the
 * one before, from the operators that are cheap (op_type.h) to all that save anything. The solver takes the first of them with which a
 * stage fits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/recompute_sets.h"
#include "runtime/facts/facts_internal.h"
#include "runtime/op/op.h"

#define NAME_BYTES 256
#define STEPS_MAX 64
/* Operations that a device computes while it reads or writes a byte. It decides only the order of operators of which one computes and the
 * other moves bytes: of products and attention, which take most of the time, operations decide. */
#define BYTE_OPERATIONS 64.0
#define AS_GOOD 0.99 /* operators that save as much for their time are added together */

/* Operators of the blocks that go by one name. */
struct group {
	char name[NAME_BYTES];
	enum hspmd_opcode opcode;
};

struct choice {
	const struct hspmd_graph *g;
	int layers;
	const double *weight;
	bool *addends;           /* per operator: its results are addends in a tensor-parallel group */
	int *group_of;           /* per operator; -1: it does not run again */
	bool *in_layer, *across; /* per tensor: needed by its own layer, or by another one */
	int group_count;
	struct group *groups;
	bool *in; /* per group */
};

/* What recomputing a set leaves: bytes kept for the backward pass, and the time of what runs again, in operations. */
struct outcome {
	double kept, again;
};

static bool is_in_block(const struct choice *c, int layer)
{
	return layer > 0 && layer < c->layers - 1;
}

static void find_groups(struct choice *c)
{
	for (size_t i = 0; i < c->g->op_count; i++) {
		const struct hspmd_op *op = &c->g->ops[i];
		struct group *new = &c->groups[c->group_count];
		int at = 0;
		c->group_of[i] = -1;
		if (!is_in_block(c, op->layer) || c->addends[i] || !hspmd_graph_op_repeats(c->g, op))
			continue;
		if (!hspmd_graph_op_weight(c->g, op, new->name, sizeof new->name))
			snprintf(new->name, sizeof new->name, "%s", hspmd_opcode_names[op->opcode]);
		new->opcode = op->opcode;
		while (strcmp(c->groups[at].name, new->name) != 0)
			at++;
		c->group_of[i] = at;
		c->group_count += at == c->group_count;
	}
}

static void need(const struct choice *c, const struct hspmd_op *by)
{
	for (int k = 0; k < by->input_count; k++)
		if (by->in[k] >= 0)
			(c->g->tensors[by->in[k]].layer == by->layer ? c->in_layer : c->across)[by->in[k]] = true;
}

static double operator_time(const struct choice *c, const struct hspmd_op *op)
{
	struct hspmd_op_view v;
	double flops = 0, bytes = 0;
	hspmd_op_view_of(c->g, op, &v);
	if (hspmd_op_types[op->opcode]->cost)
		hspmd_op_types[op->opcode]->cost(&v, &flops, &bytes);
	return flops + BYTE_OPERATIONS * bytes;
}

/* As the runtime marks what a block's backward pass wants (runtime/program/specialise.c), on one device. */
static struct outcome evaluate(struct choice *c)
{
	struct outcome out = { 0 };
	memset(c->in_layer, 0, c->g->tensor_count * sizeof *c->in_layer);
	memset(c->across, 0, c->g->tensor_count * sizeof *c->across);
	for (size_t i = 0; i < c->g->op_count; i++)
		if (c->g->ops[i].backward && is_in_block(c, c->g->ops[i].layer))
			need(c, &c->g->ops[i]);
	for (size_t i = c->g->op_count; i-- > 0;) {
		const struct hspmd_op *op = &c->g->ops[i];
		bool again = false, repeats = c->group_of[i] >= 0 && c->in[c->group_of[i]];
		if (op->backward || !is_in_block(c, op->layer))
			continue;
		for (int o = 0; o < op->output_count; o++) {
			int t = op->out[o];
			if (t < 0)
				continue;
			again |= repeats && c->in_layer[t];
			if (c->across[t] || (c->in_layer[t] && !repeats))
				out.kept += c->weight[op->layer] * (double)hspmd_shape_elements(&c->g->tensors[t].shape) *
				            (double)hspmd_dtype_bytes(c->g->tensors[t].dtype);
		}
		if (!again)
			continue;
		out.again += c->weight[op->layer] * operator_time(c, op);
		need(c, op);
	}
	return out;
}

/* What group i saves for the time that it takes, if the set has it too; 0: nothing. */
static double worth_of(struct choice *c, const struct outcome *before, int i)
{
	if (c->in[i])
		return 0;
	c->in[i] = true;
	struct outcome with = evaluate(c);
	c->in[i] = false;
	return with.kept < before->kept ? (before->kept - with.kept) / fmax(with.again - before->again, 1) : 0;
}

/* Add the operators that save most for their time. Returns false if none saves anything. */
static bool extend(struct choice *c, const struct outcome *before, double *worth)
{
	double best = 0;
	for (int i = 0; i < c->group_count; i++) {
		worth[i] = worth_of(c, before, i);
		best = fmax(best, worth[i]);
	}
	for (int i = 0; best > 0 && i < c->group_count; i++)
		c->in[i] |= worth[i] >= AS_GOOD * best;
	return best > 0;
}

/* The set as names: of a kind of operators if it has all of that kind. NULL: memory. */
static json_t *list(const struct choice *c, const bool *in)
{
	json_t *names = json_array();
	bool listed[HSPMD_OP_COUNT] = { false };
	int failed = !names;
	for (int i = 0; i < c->group_count; i++) {
		bool all = true;
		enum hspmd_opcode opcode = c->groups[i].opcode;
		for (size_t k = 0; k < c->g->op_count; k++) /* also those that do not belong to any group */
			if (!c->g->ops[k].backward && is_in_block(c, c->g->ops[k].layer) && c->g->ops[k].opcode == opcode)
				all &= c->group_of[k] >= 0 && in[c->group_of[k]];
		if (!in[i] || listed[opcode])
			continue;
		listed[opcode] = all;
		failed |= json_array_append_new(names, json_string(all ? hspmd_opcode_names[opcode] : c->groups[i].name));
	}
	if (!failed)
		return names;
	json_decref(names);
	return NULL;
}

/* Choose among `count` steps so that what they save is spread evenly; the last is always there. Returns their number. */
static int thin_out(int *steps, int count, const struct outcome *outcomes)
{
	while (count > HSPMD_RECOMPUTE_SETS) {
		int least = 0;
		double gap = INFINITY;
		for (int i = 0; i + 1 < count; i++) {
			double before = outcomes[i ? steps[i - 1] : 0].kept - outcomes[steps[i + 1]].kept;
			least = before < gap ? i : least;
			gap = fmin(gap, before);
		}
		memmove(&steps[least], &steps[least + 1], (size_t)(--count - least) * sizeof *steps);
	}
	return count;
}

static int choose(struct choice *c, json_t **sets, struct hspmd_error *err)
{
	size_t n = (size_t)c->group_count;
	int steps[STEPS_MAX], count = 0, status = 0;
	struct outcome outcomes[STEPS_MAX + 1];
	bool *in = hspmd_calloc((STEPS_MAX + 1) * (n + 1), sizeof *in);
	double *worth = hspmd_calloc(n + 1, sizeof *worth);
	*sets = json_array();
	if (!in || !worth || !*sets)
		status = -1;
	for (int i = 0; i < c->group_count; i++)
		c->in[i] = hspmd_op_types[c->groups[i].opcode]->cheap;
	outcomes[0] = evaluate(c);
	while (!status && count < STEPS_MAX && extend(c, &outcomes[count], worth)) {
		steps[count] = count + 1;
		count++;
		outcomes[count] = evaluate(c);
		memcpy(in + (size_t)count * n, c->in, n * sizeof *in);
	}
	count = thin_out(steps, count, outcomes);
	for (int i = 0; !status && i < count; i++)
		status = json_array_append_new(*sets, list(c, in + (size_t)steps[i] * n));
	free(in);
	free(worth);
	return status ? hspmd_fail_memory(err, "choosing what to recompute") : 0;
}

/* Mark the operators whose results are addends in a tensor-parallel group. */
static void find_addends(const struct hspmd_program *divided, bool *addends)
{
	for (size_t i = 0; i < divided->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &divided->spmd->nodes[i];
		for (int k = 0; n->op >= 0 && k < n->output_count; k++)
			if (n->out[k] >= 0 && hspmd_annotation_is_partial(divided->spmd->values[n->out[k]].annotation))
				addends[n->op] = true;
	}
}

int hspmd_recompute_sets_choose(const struct hspmd_program *whole, const struct hspmd_program *divided, int layers, const double *weight,
                                json_t **sets, struct hspmd_error *err)
{
	const struct hspmd_graph *g = whole->graph;
	size_t ops = g->op_count + 1, tensors = g->tensor_count + 1;
	struct choice c = { .g = g, .layers = layers, .weight = weight };
	c.group_of = hspmd_calloc(ops, sizeof *c.group_of);
	c.addends = hspmd_calloc(ops, sizeof *c.addends);
	c.groups = hspmd_calloc(ops, sizeof *c.groups);
	c.in = hspmd_calloc(ops, sizeof *c.in);
	c.in_layer = hspmd_calloc(tensors, sizeof *c.in_layer);
	c.across = hspmd_calloc(tensors, sizeof *c.across);
	bool made = c.group_of && c.addends && c.groups && c.in && c.in_layer && c.across;
	int status = made ? 0 : hspmd_fail_memory(err, "choosing what to recompute");
	if (made) {
		if (divided && divided->graph->op_count == g->op_count)
			find_addends(divided, c.addends);
		find_groups(&c);
		status = choose(&c, sets, err);
	}
	free(c.group_of);
	free(c.addends);
	free(c.groups);
	free(c.in);
	free(c.in_layer);
	free(c.across);
	return status;
}
