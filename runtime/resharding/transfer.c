/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/resharding/transfer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"

const char *const hspmd_comm_kind_names[] = { "copy",       "zero",       "send-receive", "all-reduce", "reduce-scatter",
	                                      "all-gather", "all-to-all", "batched",      "dispatch",   "combine",
	                                      NULL };

void hspmd_transfer_destroy(struct hspmd_transfer *t)
{
	if (!t || t->refs-- > 0)
		return;
	int saved = errno;
	for (int v = 0; t->layout && v < t->value_count; v++) {
		free(t->layout[v].devices);
		free(t->layout[v].box);
	}
	for (int s = 0; t->steps && s < t->step_count; s++) {
		free(t->steps[s].members);
		free(t->steps[s].in);
		free(t->steps[s].out);
		free(t->steps[s].moves);
		free(t->steps[s].experts);
	}
	free(t->layout);
	free(t->steps);
	free(t->why);
	free(t);
	errno = saved;
}

/* A malloc'd copy of `count` elements; NULL stays NULL. Sets *failed if memory was short. */
static void *copy_of(const void *of, int count, size_t size, bool *failed)
{
	void *copy = of ? hspmd_calloc((size_t)count, size) : NULL;
	if (copy)
		memcpy(copy, of, (size_t)count * size);
	*failed |= of && !copy;
	return copy;
}

struct hspmd_transfer *hspmd_transfer_copy(const struct hspmd_transfer *t)
{
	bool failed = false;
	struct hspmd_transfer *c = copy_of(t, 1, sizeof *t, &failed);
	if (!c)
		return NULL;
	c->refs = 0;
	c->layout = copy_of(t->layout, t->value_count, sizeof *t->layout, &failed);
	c->steps = copy_of(t->steps, t->step_count, sizeof *t->steps, &failed);
	c->why = t->why ? strdup(t->why) : NULL;
	failed |= t->why && !c->why;
	for (int v = 0; c->layout && v < t->value_count; v++) {
		c->layout[v].devices = copy_of(t->layout[v].devices, t->layout[v].device_count, sizeof *t->layout[v].devices, &failed);
		c->layout[v].box = copy_of(t->layout[v].box, t->layout[v].device_count, sizeof *t->layout[v].box, &failed);
	}
	for (int s = 0; c->steps && s < t->step_count; s++) {
		const struct hspmd_comm_step *from = &t->steps[s];
		c->steps[s].members = copy_of(from->members, from->member_count, sizeof *from->members, &failed);
		c->steps[s].in = copy_of(from->in, from->member_count, sizeof *from->in, &failed);
		c->steps[s].out = copy_of(from->out, from->member_count, sizeof *from->out, &failed);
		c->steps[s].moves = copy_of(from->moves, from->move_count, sizeof *from->moves, &failed);
		c->steps[s].experts = copy_of(from->experts, from->member_count, sizeof *from->experts, &failed);
	}
	if (!failed)
		return c;
	hspmd_transfer_destroy(c);
	return NULL;
}

int hspmd_layout_find(const struct hspmd_layout *layout, int device)
{
	int low = 0, high = layout->device_count;
	while (low < high) {
		int middle = low + (high - low) / 2;
		if (layout->devices[middle] < device)
			low = middle + 1;
		else
			high = middle;
	}
	return low < layout->device_count && layout->devices[low] == device ? low : -1;
}

int hspmd_transfer_append(struct resolver *r, struct transfer_plan *plan, const struct route *route)
{
	int value = 0;
	for (int h = 0; h < route->hop_count; h++) {
		int next = TRANSFER_LAST;
		if (h < route->hop_count - 1) {
			if (hspmd_arena_array_grow(r->arena, &plan->between, &plan->between_capacity, plan->between_count,
			                           sizeof *plan->between) != 0)
				return -1;
			plan->between[plan->between_count++] = route->between[h];
			next = (int)plan->between_count;
		}
		for (size_t s = 0; s < route->hop[h].count; s++) {
			if (hspmd_arena_array_grow(r->arena, &plan->step, &plan->step_capacity, plan->step_count, sizeof *plan->step) != 0)
				return -1;
			struct hspmd_comm_step *step = &plan->step[plan->step_count++];
			*step = route->hop[h].step[s];
			step->input = value;
			step->output = next;
		}
		for (int p = 0; p < 2 * r->node_count && route->hop[h].network_busy; p++)
			plan->network_busy[p] += route->hop[h].network_busy[p];
		value = next;
	}
	return 0;
}

struct held {
	int device;
	struct hspmd_box box;
};

static int held_order(const void *a, const void *b)
{
	const struct held *x = a, *y = b;
	return (x->device > y->device) - (x->device < y->device);
}

/* Sorts `held`. */
static int fill_layout(struct hspmd_layout *layout, struct held *held, int count)
{
	layout->devices = hspmd_calloc((size_t)count, sizeof *layout->devices);
	layout->box = hspmd_calloc((size_t)count, sizeof *layout->box);
	if (!layout->devices || !layout->box)
		return -1;
	hspmd_sort_if_needed(held, (size_t)count, sizeof *held, held_order);
	layout->device_count = count;
	for (int i = 0; i < count; i++) {
		layout->devices[i] = held[i].device;
		layout->box[i] = held[i].box;
	}
	return 0;
}

static int annotated_layout(const struct resolver *r, const struct hspmd_annotation *a, struct hspmd_layout *layout)
{
	int count = hspmd_annotation_local_shards(a, r->shape, NULL, NULL);
	int *devices = hspmd_calloc((size_t)count, sizeof *devices);
	struct hspmd_local_shard *shards = hspmd_calloc((size_t)count, sizeof *shards);
	struct held *held = hspmd_calloc((size_t)count, sizeof *held);
	int rc = -1;
	if (devices && shards && held) {
		hspmd_annotation_local_shards(a, r->shape, devices, shards);
		for (int i = 0; i < count; i++)
			held[i] = (struct held){ devices[i], shards[i].box };
		rc = fill_layout(layout, held, count);
	}
	free(devices);
	free(shards);
	free(held);
	return rc;
}

static int placed_layout(const struct resolver *r, const struct placement *p, struct hspmd_layout *layout)
{
	struct held *held = hspmd_calloc((size_t)p->count, sizeof *held);
	if (!held)
		return -1;
	for (int i = 0; i < p->count; i++)
		held[i] = (struct held){ r->real[p->piece[i].device], p->piece[i].box };
	int rc = fill_layout(layout, held, p->count);
	free(held);
	return rc;
}

/* *to is blank; on failure its owner frees the part made so far. */
static int copy_step(const struct resolver *r, const struct hspmd_comm_step *from, int last, struct hspmd_comm_step *to)
{
	size_t members = (size_t)from->member_count, moves = (size_t)from->move_count;
	*to = (struct hspmd_comm_step){ .kind = from->kind,
		                        .input = from->input,
		                        .output = from->output == TRANSFER_LAST ? last : from->output,
		                        .member_count = from->member_count,
		                        .move_count = from->move_count,
		                        .expert_count = from->expert_count,
		                        .per_token = from->per_token,
		                        .seconds = from->seconds,
		                        .form = from->form };
	to->members = hspmd_calloc(members, sizeof *to->members);
	to->in = hspmd_calloc(members, sizeof *to->in);
	to->out = hspmd_calloc(members, sizeof *to->out);
	to->moves = moves ? hspmd_calloc(moves, sizeof *to->moves) : NULL;
	to->experts = from->experts ? hspmd_calloc(members, sizeof *to->experts) : NULL;
	if (!to->members || !to->in || !to->out || (moves && !to->moves) || (from->experts && !to->experts))
		return -1;
	if (from->experts)
		memcpy(to->experts, from->experts, members * sizeof *to->experts);
	memcpy(to->in, from->in, members * sizeof *to->in);
	memcpy(to->out, from->out, members * sizeof *to->out);
	for (size_t i = 0; i < members; i++)
		to->members[i] = r->real[from->members[i]];
	for (size_t i = 0; i < moves; i++) {
		to->moves[i] = from->moves[i];
		to->moves[i].from = r->real[from->moves[i].from];
		to->moves[i].to = r->real[from->moves[i].to];
	}
	return 0;
}

struct hspmd_transfer *hspmd_transfer_create(const struct resolver *r, const struct transfer_plan *plan,
                                             const struct hspmd_annotation *source, const struct hspmd_annotation *destination,
                                             const char *why)
{
	struct hspmd_transfer *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->shape = *r->shape;
	t->element_bytes = r->element_bytes;
	t->seconds = plan->seconds;
	t->value_count = plan->step_count ? (int)plan->between_count + 2 : 1;
	t->step_count = (int)plan->step_count;
	t->layout = hspmd_calloc((size_t)t->value_count, sizeof *t->layout);
	t->steps = hspmd_calloc((size_t)t->step_count, sizeof *t->steps);
	t->why = strdup(why);
	int last = t->value_count - 1;
	if (!t->layout || !t->steps || !t->why || annotated_layout(r, source, &t->layout[0]) != 0)
		goto failed;
	if (last > 0 && annotated_layout(r, destination, &t->layout[last]) != 0)
		goto failed;
	for (int v = 1; v < last; v++)
		if (placed_layout(r, plan->between[v - 1], &t->layout[v]) != 0)
			goto failed;
	for (int s = 0; s < t->step_count; s++)
		if (copy_step(r, &plan->step[s], last, &t->steps[s]) != 0)
			goto failed;
	return t;
failed:
	hspmd_transfer_destroy(t);
	return NULL;
}
