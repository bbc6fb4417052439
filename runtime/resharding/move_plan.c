/* SPDX-License-Identifier: Apache-2.0 */
/* Planning moves. Each tensor is cut into regions whose elements all have the same holders and are needed by the same devices. A device
 * that has a region keeps it; every other one fetches it from the holders with the fastest links to it, among which send_assignment.c
 * spreads the load. So every missing byte is moved once, which is the lower bound, and the load of the busiest sender is within 2 % of the
 * least possible, given those links. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "runtime/resharding/move_plan_internal.h"
#include "runtime/resharding/regions.h"
#include "runtime/resharding/resolve_internal.h"

struct planner {
	struct hspmd_arena *arena;
	const struct hspmd_holding *have;
	const struct hspmd_need *need;
	const size_t *element_bytes;
	const struct hspmd_link_cost *cost;
	struct hspmd_error *err;
	int location_count;
	int *location; /* dense -> holder or device, ascending */
	int *stamp;    /* per location: last region that counted it */
	int stamps;
	struct sender_sets *sets;
	size_t fetch_count, fetch_capacity, move_count, move_capacity;
	struct fetch *fetch;
	int *fetch_tensor;
	size_t fetch_tensor_capacity;
	struct hspmd_planned_move *move;
};

static int have_order(const void *a, const void *b)
{
	const struct hspmd_holding *x = *(const struct hspmd_holding *const *)a, *y = *(const struct hspmd_holding *const *)b;
	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	if (x->holder != y->holder)
		return x->holder < y->holder ? -1 : 1;
	return (x > y) - (x < y);
}

static int need_order(const void *a, const void *b)
{
	const struct hspmd_need *x = *(const struct hspmd_need *const *)a, *y = *(const struct hspmd_need *const *)b;
	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return (x > y) - (x < y);
}

static int number_locations(struct planner *p, size_t have_count, size_t need_count)
{
	size_t count = 0;
	p->location = hspmd_arena_alloc(p->arena, have_count + need_count, sizeof *p->location);
	p->stamp = hspmd_arena_alloc(p->arena, have_count + need_count, sizeof *p->stamp);
	if (!p->location || !p->stamp)
		return -1;
	for (size_t i = 0; i < have_count; i++)
		p->location[count++] = p->have[i].holder;
	for (size_t i = 0; i < need_count; i++)
		p->location[count++] = p->need[i].device;
	qsort(p->location, count, sizeof *p->location, hspmd_int_order);
	for (size_t i = 0; i < count; i++)
		if (i == 0 || p->location[i] != p->location[p->location_count - 1])
			p->location[p->location_count++] = p->location[i];
	return 0;
}

static int dense(const struct planner *p, int location)
{
	return (int)((const int *)bsearch(&location, p->location, (size_t)p->location_count, sizeof *p->location, hspmd_int_order) -
	             p->location);
}

static int add_move(struct planner *p, int tensor, int from, int to, const struct hspmd_box *box)
{
	if (hspmd_arena_array_grow(p->arena, &p->move, &p->move_capacity, p->move_count, sizeof *p->move) != 0)
		return -1;
	p->move[p->move_count++] = (struct hspmd_planned_move){ .tensor = tensor, .from = from, .to = to, .box = *box };
	return 0;
}

/* One tensor at a time. */
struct tensor_work {
	int tensor;
	int have_count, need_count;
	int *holder, *device; /* dense, by box */
	struct hspmd_box *have, *need;
	int *senders; /* of the current region */
};

static int add_fetch(struct planner *p, const struct tensor_work *w, const struct hspmd_region *region, const struct sender_set *holders,
                     int to)
{
	if (hspmd_arena_array_grow(p->arena, &p->fetch, &p->fetch_capacity, p->fetch_count, sizeof *p->fetch) != 0 ||
	    hspmd_arena_array_grow(p->arena, &p->fetch_tensor, &p->fetch_tensor_capacity, p->fetch_count, sizeof *p->fetch_tensor) != 0)
		return -1;
	struct fetch f = { .to = to, .box = region->box, .element_bytes = p->element_bytes[w->tensor] };
	f.senders = hspmd_sender_set_fastest(p->sets, holders, to, (double)hspmd_box_elements(&region->box) * (double)f.element_bytes);
	if (!f.senders)
		return -1;
	p->fetch_tensor[p->fetch_count] = w->tensor;
	p->fetch[p->fetch_count++] = f;
	return 0;
}

static int plan_region(struct planner *p, const struct tensor_work *w, const struct hspmd_region *region)
{
	int senders = 0, held = ++p->stamps, served = ++p->stamps;
	if (region->x_count == 0) {
		char text[256];
		return hspmd_fail(p->err, "tensor %d: no copy of %s is left", w->tensor, hspmd_box_text(&region->box, text, sizeof text));
	}
	for (int i = 0; i < region->x_count; i++) { /* ascending, as pieces are ordered by holder */
		int holder = w->holder[region->x[i]];
		if (p->stamp[holder] != held)
			w->senders[senders++] = holder;
		p->stamp[holder] = held;
	}
	const struct sender_set *holders = hspmd_sender_set(p->sets, w->senders, senders);
	if (!holders)
		return hspmd_fail_memory(p->err, "planning moves");
	for (int i = 0; i < region->y_count; i++) {
		int to = w->device[region->y[i]], rc = 0;
		if (p->stamp[to] == served)
			continue;
		if (p->stamp[to] == held)
			rc = add_move(p, w->tensor, p->location[to], p->location[to], &region->box);
		else
			rc = add_fetch(p, w, region, holders, to);
		p->stamp[to] = served;
		if (rc != 0)
			return hspmd_fail_memory(p->err, "planning moves");
	}
	return 0;
}

static int plan_tensor(struct planner *p, const struct tensor_work *w)
{
	struct hspmd_arena *arena = hspmd_arena_create();
	if (!arena)
		return hspmd_fail_memory(p->err, "planning moves");
	struct hspmd_region *regions;
	size_t count;
	int rc = hspmd_regions_find(arena, w->need_count ? w->need[0].rank : 0, w->have, w->have_count, w->need, w->need_count, 0, &regions,
	                            &count, p->err);
	if (rc != 0)
		hspmd_error_prefix(p->err, "tensor %d", w->tensor);
	for (size_t i = 0; i < count && rc == 0; i++)
		rc = plan_region(p, w, &regions[i]);
	hspmd_arena_destroy(arena);
	return rc;
}

static int work_alloc(struct planner *p, struct tensor_work *w, size_t have_count, size_t need_count)
{
	w->holder = hspmd_arena_alloc(p->arena, have_count, sizeof *w->holder);
	w->senders = hspmd_arena_alloc(p->arena, have_count, sizeof *w->senders);
	w->have = hspmd_arena_alloc(p->arena, have_count, sizeof *w->have);
	w->device = hspmd_arena_alloc(p->arena, need_count, sizeof *w->device);
	w->need = hspmd_arena_alloc(p->arena, need_count, sizeof *w->need);
	return w->holder && w->senders && w->have && w->device && w->need ? 0 : -1;
}

static int plan_tensors(struct planner *p, size_t have_count, size_t need_count)
{
	struct tensor_work w = { 0 };
	const struct hspmd_holding **have = hspmd_arena_alloc(p->arena, have_count, sizeof *have);
	const struct hspmd_need **need = hspmd_arena_alloc(p->arena, need_count, sizeof *need);
	if (!have || !need || work_alloc(p, &w, have_count, need_count) != 0)
		return hspmd_fail_memory(p->err, "planning moves");
	for (size_t i = 0; i < have_count; i++)
		have[i] = &p->have[i];
	for (size_t i = 0; i < need_count; i++)
		need[i] = &p->need[i];
	qsort(have, have_count, sizeof *have, have_order);
	qsort(need, need_count, sizeof *need, need_order);
	for (size_t n = 0, h = 0; n < need_count;) {
		w.tensor = need[n]->tensor;
		w.have_count = w.need_count = 0;
		for (; n < need_count && need[n]->tensor == w.tensor; n++) {
			w.device[w.need_count] = dense(p, need[n]->device);
			w.need[w.need_count++] = need[n]->box;
		}
		while (h < have_count && have[h]->tensor < w.tensor)
			h++;
		for (; h < have_count && have[h]->tensor == w.tensor; h++) {
			w.holder[w.have_count] = dense(p, have[h]->holder);
			w.have[w.have_count++] = have[h]->box;
		}
		if (plan_tensor(p, &w) != 0)
			return -1;
	}
	return 0;
}

int hspmd_planned_move_order(const void *a, const void *b)
{
	const struct hspmd_planned_move *x = a, *y = b;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	if (x->to != y->to)
		return x->to < y->to ? -1 : 1;
	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	for (int d = 0; d < x->box.rank; d++)
		if (x->box.lo[d] != y->box.lo[d])
			return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
	return 0;
}

/* Sorts the moves, and joins those between one pair of one tensor if together they are one box. */
static void tidy(struct planner *p)
{
	size_t out = 0;
	if (p->move_count == 0)
		return;
	qsort(p->move, p->move_count, sizeof *p->move, hspmd_planned_move_order);
	for (size_t i = 0, end; i < p->move_count; i = end) {
		const struct hspmd_planned_move *first = &p->move[i];
		struct hspmd_box hull = { 0 };
		int64_t volume = 0;
		for (end = i; end < p->move_count && p->move[end].from == first->from && p->move[end].to == first->to &&
		              p->move[end].tensor == first->tensor;
		     end++)
			hspmd_hull_add(&hull, &volume, &p->move[end].box);
		if (hspmd_hull_is_box(&hull, volume)) {
			p->move[out] = *first;
			p->move[out++].box = hull;
			continue;
		}
		for (size_t k = i; k < end; k++)
			p->move[out++] = p->move[k];
	}
	p->move_count = out;
}

static int plan(struct planner *p, size_t have_count, size_t need_count)
{
	struct sends sends = { 0 };
	if (number_locations(p, have_count, need_count) != 0 || !(p->sets = hspmd_sender_sets_create(p->arena, p->cost, p->location)))
		return hspmd_fail_memory(p->err, "planning moves");
	if (plan_tensors(p, have_count, need_count) != 0)
		return -1;
	if (hspmd_assign_senders(p->arena, p->fetch, p->fetch_count, p->location_count, false, &sends) != 0)
		return hspmd_fail_memory(p->err, "planning moves");
	for (size_t i = 0; i < sends.count; i++) {
		const struct send *e = &sends.send[i];
		if (add_move(p, p->fetch_tensor[e->fetch], p->location[e->from], p->location[p->fetch[e->fetch].to], &e->box) != 0)
			return hspmd_fail_memory(p->err, "planning moves");
	}
	tidy(p);
	return 0;
}

int hspmd_plan_moves(const struct hspmd_holding *have, size_t have_count, const struct hspmd_need *need, size_t need_count,
                     const size_t *element_bytes, const struct hspmd_link_cost *cost, struct hspmd_planned_move **moves, size_t *move_count,
                     struct hspmd_error *err)
{
	struct planner p = {
		.arena = hspmd_arena_create(), .have = have, .need = need, .element_bytes = element_bytes, .cost = cost, .err = err
	};
	if (!p.arena)
		return hspmd_fail_memory(err, "planning moves");
	int rc = plan(&p, have_count, need_count);
	struct hspmd_planned_move *result = rc == 0 ? hspmd_calloc(p.move_count, sizeof *result) : NULL;
	if (rc == 0 && !result)
		rc = hspmd_fail_memory(err, "planning moves");
	if (rc == 0) {
		for (size_t i = 0; i < p.move_count; i++)
			result[i] = p.move[i];
		*moves = result;
		*move_count = p.move_count;
	}
	hspmd_arena_destroy(p.arena);
	return rc;
}
