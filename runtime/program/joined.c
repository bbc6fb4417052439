/* SPDX-License-Identifier: Apache-2.0 */
/* Adds transfers to a program. Steps of several transfers are joined where they can be, so that a pair of devices exchanges one message
 * instead of one per tensor. */
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/comm/comm.h"
#include "runtime/program/joined.h"

/* Messages between two devices are distinguished by transfer, step, recomputation, whether they are joined, and micro-batch (modulo 256:
 * messages with equal tags arrive in order, and both sides process micro-batches in the same order). A tied parameter may travel with
 * others in one layer and alone in another: only the receives of the latter are posted early, and must not take the former's messages.
 * comm.h requires the low 8 bits to be free, transport.h tags below 2^44. */
static uint64_t make_tag(const struct hspmd_transfer_binding *route, int step, bool joined)
{
	return route->number << 24 | (uint64_t)(step & (HSPMD_PROGRAM_MAX_TRANSFER_STEPS - 1)) << 18 | (uint64_t)route->recomputed << 17 |
	       (uint64_t)joined << 16 | ((uint64_t)(route->micro_batch + 1) & 0xff) << 8;
}

static bool takes_part(const struct hspmd_comm_step *step, int device)
{
	for (int m = 0; m < step->member_count; m++)
		if (step->members[m] == device)
			return true;
	return false;
}

/* The slot of a transfer's value on this device: passed in for the first and last value, added for intermediate ones. -1: nothing on
 * this device; -2: failed. */
static int value_slot(struct hspmd_program *p, const struct hspmd_transfer *t, int value, const struct hspmd_transfer_binding *route,
                      int *slots, struct hspmd_error *err)
{
	if (value == 0)
		return route->in;
	if (value == t->value_count - 1)
		return route->out;
	int at = hspmd_layout_find(&t->layout[value], p->device);
	if (at < 0)
		return -1;
	if (slots[value] < 0) {
		struct hspmd_slot_type slot_type = {
			.tensor = route->tensor, .dtype = route->dtype, .box = t->layout[value].box[at], .full = t->shape
		};
		int f = hspmd_program_add_slot_type(p, &slot_type, err);
		slots[value] = f < 0 ? -1 : hspmd_program_add_slot(p, f, HSPMD_ARENA_TRANSIENT, route->micro_batch, err);
		if (slots[value] < 0)
			return -2;
	}
	return slots[value];
}

/* Add this device's part of one step. joined_to: the first of those whose messages are joined; NULL: it has its own. */
static int add_step(struct hspmd_program *p, const struct hspmd_bound_transfer *one, int step,
                    const struct hspmd_transfer_binding *joined_to, int *slots, struct hspmd_error *err)
{
	const struct hspmd_transfer *t = one->transfer;
	const struct hspmd_transfer_binding *route = &one->route;
	int in = value_slot(p, t, t->steps[step].input, route, slots, err),
	    out = value_slot(p, t, t->steps[step].output, route, slots, err);
	struct hspmd_instruction *i = in == -2 || out == -2 ? NULL : hspmd_program_add_instruction(p, HSPMD_INSTRUCTION_COMM, err);
	if (!i)
		return -1;
	i->micro_batch = route->micro_batch;
	i->layer = route->layer;
	i->backward = route->backward;
	i->ahead = route->ahead;
	i->input_count = i->output_count = 1;
	i->in[0] = in;
	i->out[0] = out;
	if (hspmd_comm_chooses_rows(&t->steps[step])) {
		i->in[i->input_count++] = route->choice;
		if (route->choice < 0)
			return hspmd_fail(err, "tensor %s: device %d does not know which experts its rows chose",
			                  p->graph->tensors[route->tensor].name, p->device);
	}
	i->transfer = t;
	i->step = step;
	i->tag = make_tag(joined_to ? joined_to : route, step, joined_to != NULL);
	i->peer_pipeline_rank = route->peer_pipeline_rank;
	i->peer_schedule_index = route->peer_schedule_index;
	i->sends = route->sends;
	return 0;
}

static bool is_local(enum hspmd_comm_kind kind)
{
	return kind == HSPMD_COMM_COPY || kind == HSPMD_COMM_ZERO;
}

/* Add one step of transfers whose steps can be joined. */
static int add_joined_step(struct hspmd_program *p, const struct hspmd_bound_transfer *const *all, int count, int step, int *slots,
                           struct hspmd_error *err)
{
	size_t first = p->instruction_count;
	bool joins = count > 1 && !is_local(all[0]->transfer->steps[step].kind) && !getenv("HSPMD_UNJOINED");
	if (!takes_part(&all[0]->transfer->steps[step], p->device))
		return 0;
	for (int i = 0; i < count; i++) {
		if (add_step(p, all[i], step, joins ? &all[0]->route : NULL, slots + i * all[0]->transfer->value_count, err))
			return -1;
		p->instructions[p->instruction_count - 1].joins = joins && i;
	}
	p->instructions[first].joined = joins ? count - 1 : 0;
	return 0;
}

static int add_joined(struct hspmd_program *p, const struct hspmd_bound_transfer *const *all, int count, struct hspmd_error *err)
{
	const struct hspmd_transfer *first = all[0]->transfer;
	size_t cells = (size_t)count * (size_t)first->value_count;
	int *slots = malloc(cells * sizeof *slots), status = 0;
	if (!slots)
		return hspmd_fail_memory(err, "specialising");
	for (size_t i = 0; i < cells; i++)
		slots[i] = -1;
	for (int s = 0; !status && s < first->step_count; s++)
		status = add_joined_step(p, all, count, s, slots, err);
	free(slots);
	return status;
}

int hspmd_program_add_transfer(struct hspmd_program *p, const struct hspmd_transfer *t, const struct hspmd_transfer_binding *route,
                               struct hspmd_error *err)
{
	struct hspmd_bound_transfer only = { .transfer = t, .route = *route };
	const struct hspmd_bound_transfer *all = &only;
	return add_joined(p, &all, 1, err);
}

int64_t hspmd_transfer_device_bytes(const struct hspmd_transfer *t)
{
	int64_t most = 0;
	for (int v = 0; v<t->value_count; v += t->value_count> 1 ? t->value_count - 1 : 1)
		for (int d = 0; d < t->layout[v].device_count; d++) {
			int64_t elements = hspmd_box_elements(&t->layout[v].box[d]);
			most = elements > most ? elements : most;
		}
	return most * (int64_t)t->element_bytes;
}

/* Of the transfers from number `first` on that are not taken, those that travel with this one; marks them as taken. Returns how many. */
static int take_joined(const struct hspmd_bound_transfer *all, int count, int first, bool *taken, const struct hspmd_bound_transfer **group)
{
	int64_t bytes = 0;
	int found = 0;
	for (int i = first; i < count; i++) {
		if (taken[i] || (i > first && !hspmd_transfers_join(all[first].transfer, all[i].transfer)))
			continue;
		bytes += hspmd_transfer_device_bytes(all[i].transfer);
		if (found && bytes > HSPMD_PROGRAM_BUCKET)
			break;
		taken[i] = true;
		group[found++] = &all[i];
	}
	return found;
}

int hspmd_program_add_transfers(struct hspmd_program *p, const struct hspmd_bound_transfer *all, int count, hspmd_after_transfer *after,
                                void *context, struct hspmd_error *err)
{
	const struct hspmd_bound_transfer **group = hspmd_calloc((size_t)count + 1, sizeof(*group));
	bool *taken = hspmd_calloc((size_t)count + 1, sizeof *taken);
	int status = group && taken ? 0 : hspmd_fail_memory(err, "specialising");
	for (int i = 0; !status && i < count; i++) {
		if (taken[i] || !all[i].transfer->step_count)
			continue;
		int found = take_joined(all, count, i, taken, group);
		status = add_joined(p, group, found, err);
		for (int k = 0; !status && after && k < found; k++)
			status = after(context, group[k]);
	}
	free(group);
	free(taken);
	return status;
}

/* ---- costs */

#define LIKELY_BYTES ((double)HSPMD_PROGRAM_BUCKET_MIN)

int hspmd_joined_costs_init(struct hspmd_joined_costs *all, const struct hspmd_link_cost *base, struct hspmd_error *err)
{
	*all = (struct hspmd_joined_costs){ .base = base, .likely = hspmd_resolve_cache_create() };
	return all->likely ? 0 : hspmd_fail_memory(err, "specialising");
}

int hspmd_joined_keep(struct hspmd_joined_costs *all, struct hspmd_transfer *likely, struct hspmd_error *err)
{
	if (hspmd_array_grow(&all->kept, &all->kept_capacity, all->kept_count, sizeof(*all->kept))) {
		hspmd_transfer_destroy(likely);
		return hspmd_fail_memory(err, "specialising");
	}
	all->kept[all->kept_count++] = likely;
	return 0;
}

void hspmd_joined_forget(struct hspmd_joined_costs *all)
{
	while (all->kept_count)
		hspmd_transfer_destroy(all->kept[--all->kept_count]);
	if (all->likely)
		hspmd_resolve_cache_clear(all->likely);
}

void hspmd_joined_costs_clear(struct hspmd_joined_costs *all)
{
	hspmd_joined_forget(all);
	free(all->kept);
	hspmd_resolve_cache_destroy(all->likely);
	for (size_t i = 0; i < all->count; i++)
		hspmd_resolve_cache_destroy(all->list[i].cache);
	free(all->list);
	*all = (struct hspmd_joined_costs){ 0 };
}

struct hspmd_link_cost hspmd_joined_likely(const struct hspmd_joined_costs *all, const struct hspmd_shape *shape, size_t element_bytes)
{
	return (struct hspmd_link_cost){ .cache = all->likely,
		                         .together = LIKELY_BYTES / ((double)hspmd_shape_elements(shape) * (double)element_bytes) };
}

int hspmd_joined_cost(struct hspmd_joined_costs *all, const struct hspmd_joined_bytes *bytes, struct hspmd_link_cost *cost,
                      struct hspmd_error *err)
{
	size_t at = 0;
	*cost = *all->base;
	if (bytes->own >= bytes->total || bytes->own <= 0)
		return 0;
	while (at < all->count && all->list[at].bytes != bytes->total)
		at++;
	if (at == all->count) {
		if (hspmd_array_grow(&all->list, &all->capacity, all->count, sizeof *all->list) ||
		    !(all->list[at].cache = hspmd_resolve_cache_create()))
			return hspmd_fail_memory(err, "specialising");
		all->list[all->count++].bytes = bytes->total;
	}
	cost->cache = all->list[at].cache;
	cost->together = (double)bytes->total / (double)bytes->own;
	return 0;
}

/* Transfers that can be joined. */
struct class
{
	const struct hspmd_transfer *like;
	int group;
	int64_t bytes;
};

int hspmd_joined_totals(const struct hspmd_transfer *const *likely, const int *group, int count, struct hspmd_joined_bytes *bytes,
                        struct hspmd_error *err)
{
	struct class *classes = hspmd_calloc((size_t)count + 1, sizeof *classes);
	int *of = hspmd_calloc((size_t)count + 1, sizeof *of), found = 0;
	int status = classes && of ? 0 : hspmd_fail_memory(err, "specialising");
	for (int i = 0; !status && i < count; i++) {
		int at = 0;
		if (!likely[i])
			continue;
		while (at < found && (classes[at].group != group[i] || !hspmd_transfers_join(classes[at].like, likely[i])))
			at++;
		if (at == found)
			classes[found++] = (struct class){ .like = likely[i], .group = group[i] };
		of[i] = at;
		bytes[i].own = hspmd_transfer_device_bytes(likely[i]);
		classes[at].bytes += bytes[i].own;
	}
	for (int i = 0; !status && i < count; i++) {
		int64_t own = likely[i] ? bytes[i].own : 0, all = likely[i] ? classes[of[i]].bytes : 0;
		int64_t total = own > HSPMD_PROGRAM_BUCKET ? own : all > HSPMD_PROGRAM_BUCKET ? HSPMD_PROGRAM_BUCKET : all;
		bytes[i] = (struct hspmd_joined_bytes){ own, total };
	}
	free(classes);
	free(of);
	return status;
}
