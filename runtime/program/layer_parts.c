/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of which only parts are kept (zero_stage 3) are gathered before a pass enters a layer that uses them, all of the layer's, and
 * dropped when it leaves the layer; their gradients (zero_stage 2 and 3) are then scattered and added to the parts. Pipelines that exchange
 * such parts come to the same layers in the same order (hspmd_plan_in_step), and what they exchange does not depend on anything in which
 * they may differ, so that all wait for the same transfer.
 *
 * A layer's parameters are gathered while the layer computes that the device comes to before it, in whichever pass (prefetching; Zhao et
 * al., "PyTorch FSDP", arXiv 2304.11277, section 3.3.2): so the device has those of two layers. If a plan has no memory for this
 * (no_prefetch), they are gathered when the pass comes to the layer. */
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/op/op.h"
#include "runtime/program/walk.h"

static int compare_sharded(const void *a, const void *b)
{
	const struct hspmd_sharded *x = a, *y = b;
	return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer) : (x->number > y->number) - (x->number < y->number);
}

static void mark_parts(struct hspmd_walk *w, const struct hspmd_program_state *s, int number, int *number_of)
{
	if (!s->scatter)
		return;
	number_of[s->tensor] = number;
	w->in_parts[s->tensor] = s->gather != NULL;
	w->in_parts[w->p->graph->tensors[s->tensor].grad] = true;
}

int hspmd_walk_find_sharded(struct hspmd_walk *w)
{
	const struct hspmd_program *p = w->p;
	const struct hspmd_graph *g = p->graph;
	size_t capacity = 0;
	int count = 0, *number = malloc((g->tensor_count + 1) * sizeof *number), status = number ? 0 : -1;
	for (size_t t = 0; number && t < g->tensor_count; t++)
		number[t] = -1;
	for (int i = 0; number && i < p->state_count; i++)
		mark_parts(w, &p->states[i], i, number);
	for (size_t i = 0; !status && i < g->op_count; i++)
		for (int k = 0; !status && !g->ops[i].backward && k < g->ops[i].input_count; k++) {
			if (g->ops[i].in[k] < 0 || number[g->ops[i].in[k]] < 0)
				continue;
			status = hspmd_array_grow(&w->sharded, &capacity, (size_t)w->sharded_count, sizeof *w->sharded);
			if (!status)
				w->sharded[w->sharded_count++] = (struct hspmd_sharded){ g->ops[i].layer, number[g->ops[i].in[k]] };
		}
	free(number);
	if (status)
		return hspmd_fail_memory(w->err, "specialising");
	if (w->sharded_count)
		qsort(w->sharded, (size_t)w->sharded_count, sizeof *w->sharded, compare_sharded);
	for (int i = 0; i < w->sharded_count; i++)
		if (!i || compare_sharded(&w->sharded[i], &w->sharded[i - 1]))
			w->sharded[count++] = w->sharded[i];
	w->sharded_count = count;
	w->joined = hspmd_calloc((size_t)count + 1, sizeof *w->joined);
	return w->joined ? 0 : hspmd_fail_memory(w->err, "specialising");
}

/* The first value of a tensor on this device; -1: none. */
static int own_value(const struct hspmd_walk *w, int tensor)
{
	return tensor < 0 ? -1 : hspmd_spmd_value(w->p->spmd, tensor, w->p->stage);
}

static struct hspmd_transfer_binding bind(const struct hspmd_walk *w, int number, bool back, const struct hspmd_visit *visit)
{
	const struct hspmd_parameter_layout *l = &w->p->layouts->parameters[number];
	return (struct hspmd_transfer_binding){ .tensor = l->tensor,
		                                .dtype = back ? hspmd_parameter_used_type(w->p, l) : hspmd_parameter_kept_type(w->p, l),
		                                .in = -1,
		                                .out = -1,
		                                .choice = -1,
		                                .micro_batch = visit->micro_batch,
		                                .layer = visit->layer,
		                                .backward = visit->backward,
		                                .recomputed = back && visit->backward,
		                                .number = HSPMD_PARAMETER_TRANSFER(number, back),
		                                .peer_pipeline_rank = -1 };
}

/* The next of the transfers that a layer begins or ends with. */
static struct hspmd_bound_transfer *add_route(struct hspmd_walk *w, const struct hspmd_transfer *t,
                                              const struct hspmd_transfer_binding *route)
{
	w->joined[w->joined_count] = (struct hspmd_bound_transfer){ .transfer = t, .route = *route };
	return &w->joined[w->joined_count++];
}

/* Add the instructions of all transfers that were noted: one message has what it can have of them, but for the last `apart`. */
static int add_routes(struct hspmd_walk *w, int apart, hspmd_after_transfer *after)
{
	int count = w->joined_count, first = count > apart ? count - apart : 0;
	w->joined_count = 0;
	return hspmd_program_add_transfers(w->p, w->joined, first, after, w, w->err) ||
	                       hspmd_program_add_transfers(w->p, w->joined + first, count - first, after, w, w->err)
	               ? -1
	               : 0;
}

/* Where it is noted which slot has a parameter that is gathered; NULL: this one is not, or not here. */
static int *gathered_slot(const struct hspmd_walk *w, int number, int micro_batch)
{
	const struct hspmd_program_state *s = &w->p->states[number];
	int value = s->gather ? own_value(w, s->tensor) : -1;
	return value < 0 ? NULL : hspmd_walk_slot(w, value, micro_batch);
}

/* Gathers what is not there yet of the parameters for a visit. ahead: an earlier one still uses its own. */
static int gather_layer(struct hspmd_walk *w, const struct hspmd_visit *visit, bool ahead)
{
	for (int i = 0; i < w->sharded_count; i++) {
		int number = w->sharded[i].number,
		    *at = w->sharded[i].layer == visit->layer ? gathered_slot(w, number, visit->micro_batch) : NULL;
		if (!at || *at >= 0)
			continue;
		const struct hspmd_program_state *s = &w->p->states[number];
		struct hspmd_transfer_binding route = bind(w, number, true, visit);
		route.ahead = ahead;
		route.in = s->copy >= 0 ? s->copy : s->param;
		route.out = hspmd_walk_new_slot(w, own_value(w, s->tensor), visit->micro_batch);
		if (route.out == -2)
			return -1;
		add_route(w, s->gather, &route);
	}
	return add_routes(w, 0, NULL);
}

int hspmd_walk_find_visits(struct hspmd_walk *w, const struct hspmd_schedule_entry *entries, int count)
{
	const struct hspmd_program *p = w->p;
	size_t capacity = 0;
	for (int t = 0; w->sharded_count && !w->plan->no_prefetch && t < count; t++) {
		int layer = -1, stage = p->stage + entries[t].chunk * p->pipeline_ranks;
		for (size_t i = 0; i < p->spmd->node_count; i++) {
			const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
			if (n->stage != stage || n->layer == layer || !hspmd_walk_has_node(w, &entries[t], i))
				continue;
			if (hspmd_array_grow(&w->visits, &capacity, w->visit_count, sizeof *w->visits))
				return hspmd_fail_memory(w->err, "specialising");
			layer = n->layer;
			w->visits[w->visit_count++] = (struct hspmd_visit){ layer, entries[t].micro_batch, n->backward };
		}
	}
	return 0;
}

/* The visit that comes next, whose parameters are gathered already; NULL: none. */
static const struct hspmd_visit *coming(const struct hspmd_walk *w)
{
	return w->next_visit < w->visit_count ? &w->visits[w->next_visit] : NULL;
}

static bool uses(const struct hspmd_walk *w, int layer, int number)
{
	const struct hspmd_sharded one = { layer, number };
	return bsearch(&one, w->sharded, (size_t)w->sharded_count, sizeof one, compare_sharded);
}

/* The pass leaves the layer: its parameters are dropped, but for those that the next visit uses in the same micro-batch, as the last
 * layer's backward pass does behind its forward pass. */
static void drop_layer(struct hspmd_walk *w, int micro_batch)
{
	const struct hspmd_visit *next = coming(w);
	for (int i = 0; w->layer >= 0 && i < w->sharded_count; i++) {
		int number = w->sharded[i].number, *at = w->sharded[i].layer == w->layer ? gathered_slot(w, number, micro_batch) : NULL;
		if (at && !(next && next->micro_batch == micro_batch && uses(w, next->layer, number)))
			*at = -1;
	}
}

/* Adds what this device gets of a micro-batch's gradient to what it keeps. */
static int keep_part(void *walk, const struct hspmd_bound_transfer *one)
{
	static const struct hspmd_op_attr none = { 0 };
	struct hspmd_walk *w = walk;
	int part = one->route.out, kept = w->p->states[one->number].grad;
	if (part < 0 || part == kept)
		return 0;
	struct hspmd_instruction *i = hspmd_program_add_instruction(w->p, HSPMD_INSTRUCTION_RUN, w->err);
	if (!i)
		return -1;
	i->opcode = HSPMD_OP_ACCUMULATE;
	i->attr = &none;
	i->micro_batch = one->route.micro_batch;
	i->layer = w->layer;
	i->backward = true;
	i->input_count = 2;
	i->in[0] = part;
	i->in[1] = -1;
	i->output_count = 1;
	i->out[0] = kept;
	i->accumulate = 1;
	return 0;
}

/* Notes how a gradient is scattered: to where it is kept, or to a slot that is added to that. */
static int scatter(struct hspmd_walk *w, int number, int micro_batch)
{
	struct hspmd_program *p = w->p;
	const struct hspmd_program_state *s = &p->states[number];
	int gradient = p->graph->tensors[s->tensor].grad, value = own_value(w, gradient);
	struct hspmd_transfer_binding route = bind(w, number, false, &(struct hspmd_visit){ w->layer, micro_batch, true });
	if (value < 0 || (route.in = *hspmd_walk_slot(w, value, micro_batch)) < 0)
		return 0; /* no operator of this layer adds to it */
	*hspmd_walk_slot(w, value, micro_batch) = -1;
	bool first = !w->written[gradient];
	w->written[gradient] = true;
	route.out = s->grad;
	if (s->grad >= 0 && !first) {
		route.out =
		        hspmd_parameter_slot(p, &p->layouts->parameters[number], &s->shard.box,
		                             hspmd_parameter_kept_type(p, &p->layouts->parameters[number]), HSPMD_ARENA_TRANSIENT, w->err);
		if (route.out < 0)
			return -1;
		p->slots[route.out].micro_batch = micro_batch;
	}
	add_route(w, s->scatter, &route)->number = number;
	return 0;
}

/* The gradients of the layer that a backward pass leaves, to those that keep parts of them. The last one, of the layer's first parameter,
 * mostly a vector, goes by itself: by that message the others are surely taken (memory_plan.c), so that their memory is free for the next
 * layer's pass. */
static int scatter_layer(struct hspmd_walk *w, int micro_batch)
{
	for (int i = w->sharded_count - 1; i >= 0; i--)
		if (w->sharded[i].layer == w->layer && scatter(w, w->sharded[i].number, micro_batch))
			return -1;
	return add_routes(w, 1, keep_part);
}

int hspmd_walk_enter_layer(struct hspmd_walk *w, int layer, int micro_batch, bool backward)
{
	if (backward && w->layer >= 0 && scatter_layer(w, micro_batch))
		return -1;
	drop_layer(w, micro_batch);
	w->layer = layer;
	if (layer < 0)
		return 0;
	w->next_visit++;
	const struct hspmd_visit *next = coming(w);
	return gather_layer(w, &(struct hspmd_visit){ layer, micro_batch, backward }, false) || (next && gather_layer(w, next, true)) ? -1
	                                                                                                                              : 0;
}
