/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of regions that are no sums. Every device that needs a region and does not hold it gets it from one that does. Devices joined by
 * such moves form a component, and the shape of a component decides its kind: only copies, one message, an all-to-all, or a batch. */
#include <stdlib.h>
#include <string.h>

#include "common/order.h"
#include "runtime/resharding/move_plan_internal.h"
#include "runtime/resharding/resolve_internal.h"

struct delivery {
	int from, to;
	struct hspmd_box box;
	const struct hspmd_region *region;
};

struct component {
	int device_count;
	int remote;    /* deliveries from one device to another */
	bool exchange; /* its members exchange everything they have and need, and each part is held once */
	bool listed;
};

struct exchange {
	struct resolver *r;
	const struct hop_view *v;
	size_t count, capacity;
	struct delivery *delivery;
	int *parent;             /* union-find over devices */
	struct component *about; /* by root */
	int64_t *received;       /* per device: elements delivered */
};

static int root(struct exchange *e, int d)
{
	while (e->parent[d] != d)
		d = e->parent[d] = e->parent[e->parent[d]];
	return d;
}

/* The sender for the n-th device that fetches a region: the one with the cheapest link; among equals the search starts at the n-th holder,
 * so that n-th copies serve n-th copies and the load spreads. */
static int choose_sender(struct exchange *e, const struct hspmd_region *region, int n, int to)
{
	double bytes = (double)hspmd_box_elements(&region->box) * (double)e->r->element_bytes, least = 0;
	int best = -1;
	for (int i = 0; i < region->x_count; i++) {
		int from = e->v->x->piece[region->x[(n + i) % region->x_count]].device;
		double t = hspmd_message_seconds(e->r->cost, e->r->real[from], e->r->real[to], bytes);
		if (best < 0 || t < least) {
			best = from;
			least = t;
		}
	}
	return best;
}

static bool has(const struct exchange *e, int device, const struct hspmd_region *region)
{
	int piece = e->v->x->piece_of[device];
	return piece >= 0 && hspmd_box_contains(&e->v->x->piece[piece].box, &region->box);
}

/* Returns true for a region that is no sum and that no other step serves. */
static bool wanted(const struct exchange *e, const bool *done, size_t region)
{
	return !done[region] && e->v->x->piece[e->v->region[region].x[0]].addends == 1;
}

static int add_delivery(struct exchange *e, int from, int to, const struct hspmd_box *box, const struct hspmd_region *region)
{
	if (hspmd_arena_array_grow(e->r->arena, &e->delivery, &e->capacity, e->count, sizeof *e->delivery) != 0)
		return -1;
	e->delivery[e->count++] = (struct delivery){ from, to, *box, region };
	return 0;
}

static int deliver_nearest(struct exchange *e, const bool *done)
{
	for (size_t i = 0; i < e->v->region_count; i++) {
		const struct hspmd_region *region = &e->v->region[i];
		int fetching = 0;
		for (int j = 0; j < region->y_count && wanted(e, done, i); j++) {
			int to = e->v->y->piece[region->y[j]].device;
			int from = has(e, to, region) ? to : choose_sender(e, region, fetching++, to);
			if (add_delivery(e, from, to, &region->box, region) != 0)
				return -1;
		}
	}
	return 0;
}

/* The devices that hold a region, as a set. */
static const struct sender_set *holders_of(struct exchange *e, struct sender_sets *sets, const struct hspmd_region *region, int *scratch)
{
	for (int i = 0; i < region->x_count; i++)
		scratch[i] = e->v->x->piece[region->x[i]].device;
	hspmd_sort_if_needed(scratch, (size_t)region->x_count, sizeof *scratch, hspmd_int_order);
	return hspmd_sender_set(sets, scratch, region->x_count);
}

/* Like deliver_nearest, but the fastest holders of all regions together share the load evenly. */
static int deliver_balanced(struct exchange *e, const bool *done)
{
	size_t most = 0, count = 0;
	for (size_t i = 0; i < e->v->region_count; i++)
		most += (size_t)e->v->region[i].y_count;
	struct fetch *fetch = hspmd_arena_alloc(e->r->arena, most, sizeof *fetch);
	const struct hspmd_region **from = hspmd_arena_alloc(e->r->arena, most, sizeof *from);
	int *scratch = hspmd_arena_alloc(e->r->arena, (size_t)e->v->x->count, sizeof *scratch);
	struct sender_sets *sets = hspmd_sender_sets_create(e->r->arena, e->r->cost, e->r->real);
	struct sends sends = { 0 };
	if (!fetch || !from || !scratch || !sets)
		return -1;
	for (size_t i = 0; i < e->v->region_count; i++) {
		const struct hspmd_region *region = &e->v->region[i];
		if (!wanted(e, done, i))
			continue;
		const struct sender_set *holders = holders_of(e, sets, region, scratch);
		double bytes = (double)hspmd_box_elements(&region->box) * (double)e->r->element_bytes;
		if (!holders)
			return -1;
		for (int j = 0; j < region->y_count; j++) {
			int to = e->v->y->piece[region->y[j]].device;
			if (has(e, to, region)) {
				if (add_delivery(e, to, to, &region->box, region) != 0)
					return -1;
				continue;
			}
			struct fetch f = { .to = to, .box = region->box, .element_bytes = e->r->element_bytes };
			f.senders = hspmd_sender_set_fastest(sets, holders, to, bytes);
			if (!f.senders)
				return -1;
			from[count] = region;
			fetch[count++] = f;
		}
	}
	bool whole = e->r->cost && e->r->cost->whole_dims > 0; /* a cut in row-major order is one along the outermost dimension */
	if (hspmd_assign_senders(e->r->arena, fetch, count, e->r->device_count, whole, &sends) != 0)
		return -1;
	for (size_t i = 0; i < sends.count; i++) {
		const struct send *send = &sends.send[i];
		if (add_delivery(e, send->from, fetch[send->fetch].to, &send->box, from[send->fetch]) != 0)
			return -1;
	}
	return 0;
}

static int delivery_order(const void *a, const void *b)
{
	const struct delivery *x = a, *y = b;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	if (x->to != y->to)
		return x->to < y->to ? -1 : 1;
	return (x->region > y->region) - (x->region < y->region); /* row-major, as regions are */
}

static bool same_pair(const struct delivery *x, const struct delivery *y)
{
	return x->from == y->from && x->to == y->to;
}

/* Joins the regions that go between one pair if together they are one box; returns the number of deliveries afterwards. */
static size_t join_pairs(struct delivery *d, size_t count)
{
	size_t out = 0;
	for (size_t i = 0, end; i < count; i = end) {
		struct hspmd_box hull = { 0 };
		int64_t volume = 0;
		for (end = i; end < count && same_pair(&d[i], &d[end]); end++)
			hspmd_hull_add(&hull, &volume, &d[end].box);
		if (hspmd_hull_is_box(&hull, volume)) {
			d[out] = d[i];
			d[out++].box = hull;
			continue;
		}
		for (size_t k = i; k < end; k++)
			d[out++] = d[k];
	}
	return out;
}

/* Checks whether each region of an exchange is on one member only: then every member sends each other exactly what that one needs. */
static void check_held_once(struct exchange *e)
{
	for (size_t i = 0; i < e->count; i++) {
		const struct hspmd_region *region = e->delivery[i].region;
		struct component *c = &e->about[root(e, e->delivery[i].to)];
		int holders = 0;
		for (int k = 0; c->exchange && k < region->x_count && holders < 2; k++)
			holders += &e->about[root(e, e->v->x->piece[region->x[k]].device)] == c;
		c->exchange = c->exchange && holders == 1;
	}
}

static void find_components(struct exchange *e)
{
	for (int d = 0; d < e->r->device_count; d++)
		e->parent[d] = d;
	for (size_t i = 0; i < e->count; i++)
		e->parent[root(e, e->delivery[i].from)] = root(e, e->delivery[i].to);
	for (size_t i = 0; i < e->count; i++) {
		const struct delivery *d = &e->delivery[i];
		e->received[d->to] += hspmd_box_elements(&d->box);
		e->about[root(e, d->to)].exchange |= d->from != d->to;
	}
	check_held_once(e);
	for (int d = 0; d < e->r->device_count; d++) {
		struct component *c = &e->about[root(e, d)];
		int x = e->v->x->piece_of[d], y = e->v->y->piece_of[d];
		c->device_count++;
		c->exchange = c->exchange && x >= 0 && y >= 0 && e->received[d] == hspmd_box_elements(&e->v->y->piece[y].box);
	}
}

static int add_copies(struct exchange *e, struct hop *hop, struct move_list *moves)
{
	/* A device copies one box, unless other steps serve what it contains. */
	int members = 0;
	for (size_t i = 0; i < e->count; i++)
		members += e->delivery[i].from == e->delivery[i].to;
	if (members == 0)
		return 0;
	struct hspmd_comm_step *step = hspmd_hop_step(e->r, hop, HSPMD_COMM_COPY, members);
	if (!step)
		return -1;
	members = 0;
	for (size_t i = 0; i < e->count; i++) {
		const struct delivery *d = &e->delivery[i];
		const struct component *c = &e->about[root(e, d->to)];
		if (d->from != d->to || (c->exchange && c->remote > 1))
			continue;
		if (members && step->members[members - 1] == d->to) {
			if (hspmd_hop_move(e->r, moves, d->from, d->to, &d->box, 0) != 0)
				return -1;
			continue;
		}
		step->in[members] = step->out[members] = d->box;
		step->members[members++] = d->to;
	}
	step->member_count = members;
	hop->count -= members == 0;
	return 0;
}

static int add_all_to_all(struct exchange *e, int top, struct hop *hop)
{
	struct hspmd_comm_step *step = hspmd_hop_step(e->r, hop, HSPMD_COMM_ALL_TO_ALL, e->about[top].device_count);
	if (!step)
		return -1;
	int n = 0;
	for (int d = 0; d < e->r->device_count; d++) {
		if (root(e, d) != top)
			continue;
		step->members[n] = d;
		step->in[n] = e->v->x->piece[e->v->x->piece_of[d]].box;
		step->out[n++] = e->v->y->piece[e->v->y->piece_of[d]].box;
	}
	return 0;
}

static int add_message(struct exchange *e, const struct delivery *d, struct hop *hop)
{
	struct hspmd_comm_step *step = hspmd_hop_step(e->r, hop, HSPMD_COMM_SEND_RECEIVE, 2);
	if (!step)
		return -1;
	step->members[0] = d->from;
	step->members[1] = d->to;
	step->in[0] = step->out[1] = d->box;
	return 0;
}

static int add_remote(struct exchange *e, struct hop *hop, struct move_list *moves)
{
	for (size_t i = 0; i < e->count; i++) {
		const struct delivery *d = &e->delivery[i];
		struct component *c = &e->about[root(e, d->to)];
		if (d->from == d->to)
			continue;
		int rc = 0;
		if (c->remote == 1)
			rc = add_message(e, d, hop);
		else if (!c->exchange)
			rc = hspmd_hop_move(e->r, moves, d->from, d->to, &d->box, 0);
		else if (!c->listed)
			rc = add_all_to_all(e, root(e, d->to), hop);
		c->listed = true;
		if (rc != 0)
			return -1;
	}
	return 0;
}

int hspmd_hop_exchange(struct resolver *r, const struct hop_view *v, const bool *done, bool balanced, struct hop *hop,
                       struct move_list *moves)
{
	struct exchange e = { .r = r, .v = v };
	e.parent = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *e.parent);
	e.about = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *e.about);
	e.received = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *e.received);
	if (!e.parent || !e.about || !e.received || (balanced ? deliver_balanced(&e, done) : deliver_nearest(&e, done)) != 0)
		return -1;
	if (e.count == 0)
		return 0;
	qsort(e.delivery, e.count, sizeof *e.delivery, delivery_order);
	find_components(&e);
	e.count = join_pairs(e.delivery, e.count);
	for (size_t i = 0; i < e.count; i++)
		e.about[root(&e, e.delivery[i].to)].remote += e.delivery[i].from != e.delivery[i].to;
	return add_remote(&e, hop, moves) != 0 || add_copies(&e, hop, moves) != 0 ? -1 : 0;
}
