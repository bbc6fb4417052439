/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/comm/devcomm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/alloc.h"
#include "common/log.h"
#include "common/order.h"
#include "runtime/comm/devcomm_internal.h"

/* ---- the groups that the program uses */

static uint64_t name_hash(const struct hspmd_devcomm *d, int rank, uint64_t seed)
{
	return d->o.names ? XXH3_64bits_withSeed(d->o.names[rank], strnlen(d->o.names[rank], sizeof d->o.names[rank]), seed)
	                  : XXH3_64bits_withSeed(&rank, sizeof rank, seed);
}

static struct devcomm_group *find_group(const struct hspmd_devcomm *d, bool pair, const int *ranks, int count)
{
	for (size_t i = 0; i < d->group_count; i++) {
		struct devcomm_group *g = &d->groups[i];
		if (g->pair == pair && g->count == count && !memcmp(g->ranks, ranks, (size_t)count * sizeof *ranks))
			return g;
	}
	return NULL;
}

/* Register a call of the group of these ranks (which include this device). NULL: memory. */
static struct devcomm_group *enter_call(struct hspmd_devcomm *d, bool pair, const int *ranks, int count, uint64_t call)
{
	struct devcomm_group *g = find_group(d, pair, ranks, count);
	if (!g) {
		int *copy = hspmd_calloc((size_t)count, sizeof *copy);
		if (!copy || hspmd_array_grow(&d->groups, &d->group_capacity, d->group_count, sizeof *d->groups)) {
			free(copy);
			return NULL;
		}
		memcpy(copy, ranks, (size_t)count * sizeof *copy);
		g = &d->groups[d->group_count++];
		*g = (struct devcomm_group){ .key = (uint64_t)d->o.lane << 1 | pair, .pair = pair, .count = count, .ranks = copy };
		for (int i = 0; i < count; i++) {
			g->key = name_hash(d, ranks[i], g->key);
			if (ranks[i] == d->o.rank)
				g->self = i;
		}
	}
	g->order = XXH3_64bits_withSeed(&call, sizeof call, g->order);
	return g;
}

struct ring {
	const struct hspmd_link_cost *cost;
	const struct hspmd_comm_step *step;
};

static double ring_link(const void *context, int i, double bytes)
{
	const struct ring *ring = context;
	const struct hspmd_comm_step *step = ring->step;
	if (!ring->cost || !ring->cost->seconds)
		return 1e-5 + bytes / 1e9;
	return ring->cost->seconds(ring->cost->context, step->members[i], step->members[(i + 1) % step->member_count], bytes);
}

/* The form that the resolver has reckoned with; for a step that it has not seen as one of these devices, what it would have chosen. *form.
 * -1: memory. */
static int choose_form(const struct hspmd_devcomm *d, const struct hspmd_comm_step *step, enum hspmd_collective_form *form)
{
	const struct hspmd_box *boxes = step->kind == HSPMD_COMM_ALL_GATHER ? step->in : step->out;
	struct ring ring = { d->o.cost, step };
	*form = step->form;
	if (*form != HSPMD_FORM_DIRECT)
		return 0;
	double *parts = hspmd_calloc((size_t)step->member_count, sizeof *parts);
	for (int i = 0; parts && i < step->member_count; i++)
		parts[i] = 4 *
		           (double)hspmd_box_elements(&boxes[i]); /* with two bytes per element, both forms are faster by the same factor */
	if (parts)
		hspmd_ring_seconds(parts, step->member_count, ring_link, &ring, form);
	free(parts);
	return parts ? 0 : -1;
}

static int add_collective(struct hspmd_devcomm *d, const struct hspmd_devcomm_use *use, struct hspmd_error *err)
{
	const struct hspmd_comm_step *step = use->step;
	int *ranks = hspmd_calloc((size_t)step->member_count, sizeof *ranks);
	bool mine = false;
	if (!ranks)
		return hspmd_fail_memory(err, "preparing communication");
	for (int i = 0; i < step->member_count; i++) {
		ranks[i] = d->o.rank_of[step->members[i]];
		mine |= ranks[i] == d->o.rank;
	}
	qsort(ranks, (size_t)step->member_count, sizeof *ranks, hspmd_int_order);
	struct devcomm_group *g = NULL;
	bool known = false;
	if (mine && step->member_count > 1 && ranks[0] >= 0) {
		g = enter_call(d, false, ranks, step->member_count, use->tag);
		for (size_t i = 0; i < d->step_count && !known; i++)
			known = d->steps[i].step == step;
	}
	free(ranks);
	if (!mine || step->member_count == 1 || (g && known))
		return 0;
	enum hspmd_collective_form form;
	if (!g || choose_form(d, step, &form) || hspmd_array_grow(&d->steps, &d->step_capacity, d->step_count, sizeof *d->steps))
		return hspmd_fail_memory(err, "preparing communication");
	d->steps[d->step_count++] = (struct devcomm_step){ step, (int)(g - d->groups), form };
	return 0;
}

static int add_pairs(struct hspmd_devcomm *d, const struct hspmd_move *moves, int count, uint64_t tag, struct hspmd_error *err)
{
	for (int i = 0; i < count; i++) {
		int pair[2] = { d->o.rank_of[moves[i].from], d->o.rank_of[moves[i].to] };
		if (pair[0] == pair[1] || pair[0] < 0 || pair[1] < 0 || (pair[0] != d->o.rank && pair[1] != d->o.rank))
			continue;
		if (!enter_call(d, true, pair, 2, tag << 1 | (moves[i].add != 0)))
			return hspmd_fail_memory(err, "preparing communication");
	}
	return 0;
}

static int by_step(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const struct devcomm_step *)a)->step, y = (uintptr_t)((const struct devcomm_step *)b)->step;
	return x < y ? -1 : x > y;
}

static int list_groups(struct hspmd_devcomm *d, struct hspmd_error *err)
{
	for (size_t i = 0; i < d->o.use_count; i++) {
		const struct hspmd_comm_step *step = d->o.uses[i].step;
		struct hspmd_move single;
		int rv = 0;
		switch (step->kind) {
		case HSPMD_COMM_SEND_RECEIVE:
			single = (struct hspmd_move){ .from = step->members[0], .to = step->members[1] };
			rv = add_pairs(d, &single, 1, d->o.uses[i].tag, err);
			break;
		case HSPMD_COMM_BATCHED:
			rv = add_pairs(d, step->moves, step->move_count, d->o.uses[i].tag, err);
			break;
		case HSPMD_COMM_ALL_REDUCE:
		case HSPMD_COMM_REDUCE_SCATTER:
		case HSPMD_COMM_ALL_GATHER:
		case HSPMD_COMM_ALL_TO_ALL:
			rv = add_collective(d, &d->o.uses[i], err);
			break;
		case HSPMD_COMM_DISPATCH: /* among devices that compute in host memory */
		case HSPMD_COMM_COMBINE:
		case HSPMD_COMM_COPY:
		case HSPMD_COMM_ZERO:
		case HSPMD_COMM_KIND_COUNT:
			break;
		}
		if (rv)
			return -1;
	}
	if (d->step_count)
		qsort(d->steps, d->step_count, sizeof *d->steps, by_step);
	return 0;
}

/* ---- opening */

/* Identifies this process and device among all possible members. */
static uint64_t own_device_id(const struct hspmd_devcomm *d)
{
	char host[65] = "";
	gethostname(host, sizeof host - 1);
	return XXH3_64bits_withSeed(host, sizeof host, (uint64_t)getpid() << 32 | d->o.device->ops->communicators->device_id(d->o.device));
}

int hspmd_devcomm_open(const struct hspmd_devcomm_options *o, struct hspmd_devcomm **out, struct hspmd_error *err)
{
	const struct hspmd_communicator_ops *ops = o->device->ops->communicators;
	static atomic_bool told;
	struct hspmd_error why;
	*out = NULL;
	if (!ops)
		return 0;
	struct hspmd_devcomm *d = hspmd_calloc(1, sizeof *d);
	if (!d)
		return hspmd_fail_memory(err, "preparing communication");
	d->o = *o;
	if (ops->probe(o->device, d->kind, &why)) {
		if (!atomic_exchange(&told, true))
			hspmd_warn("%s; GPUs communicate through host memory", why.text);
		free(d);
		return 0;
	}
	d->device_id = own_device_id(d);
	int rv = list_groups(d, err);
	for (size_t i = 0; !rv && i < d->group_count; i++) {
		struct devcomm_group *g = &d->groups[i];
		int least = g->pair && g->ranks[1] < g->ranks[0] ? 1 : 0;
		if (g->self == least && !hspmd_communicator_cached_origin(o->cache, g->key))
			rv = ops->unique_id(o->device, g->id, err);
	}
	if (rv) {
		hspmd_devcomm_close(d, true);
		return -1;
	}
	*out = d;
	return 0;
}

static void release_groups(struct hspmd_devcomm *d, bool broken)
{
	for (size_t i = 0; i < d->group_count; i++) {
		if (d->groups[i].made)
			hspmd_communicator_release(d->o.cache, d->groups[i].made, d->watched, broken);
		d->groups[i].made = NULL;
	}
	d->span_count = 0;
}

void hspmd_devcomm_abort(struct hspmd_devcomm *d)
{
	if (d)
		release_groups(d, true);
}

void hspmd_devcomm_close(struct hspmd_devcomm *d, bool broken)
{
	struct hspmd_error ignored;
	if (!d)
		return;
	struct hspmd_device *dev = d->o.device;
	if (!broken && hspmd_devcomm_stream_wait(d, NULL, 0, &ignored))
		broken = true;
	/* Wait until the device is done with the buffers, unless communication was aborted. */
	if (!broken && d->buffers && dev->ops->synchronise(dev, &ignored))
		broken = true;
	release_groups(d, broken);
	for (size_t i = 0; i < d->group_count; i++)
		free(d->groups[i].ranks);
	while (d->buffers) {
		struct devcomm_buffer *next = d->buffers->next;
		dev->ops->release(dev, d->buffers->data);
		free(d->buffers);
		d->buffers = next;
	}
	if (d->watched)
		dev->ops->communicators->unwatch(dev, d->o.abort);
	free(d->groups);
	free(d->steps);
	free(d->spans);
	free(d);
}

void hspmd_devcomm_counts(const struct hspmd_devcomm *d, int *groups, int *devcomm)
{
	*groups = *devcomm = 0;
	for (size_t i = 0; d && i < d->group_count; i++) {
		++*groups;
		*devcomm += d->groups[i].made != NULL;
	}
}
