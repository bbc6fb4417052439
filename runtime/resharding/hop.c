/* SPDX-License-Identifier: Apache-2.0 */
/* One hop: the variants that lead from one placement to another, and the cheapest of them. */
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/resolve_internal.h"

/* Limits of what a bounded search lists and visits. */
#define ADD_LIMIT 4096
#define CELL_LIMIT 65536
/* Above this number of deliveries, they are not listed if all-gathers serve them all, nor by a bounded search. */
#define DELIVERY_LIMIT 16384

struct variant {
	bool collectives, gather, balanced;
};

/* Deliveries of regions that are no sums and not done. */
static size_t deliveries_left(const struct hop_view *v, const bool *done)
{
	size_t count = 0;
	for (size_t i = 0; i < v->region_count; i++)
		count += done[i] || v->x->piece[v->region[i].x[0]].addends > 1 ? 0 : (size_t)v->region[i].y_count;
	return count;
}

/* 0 or -1 (memory). */
static int count_seconds(struct resolver *r, struct hop *hop)
{
	for (size_t s = 0; s < hop->count; s++)
		if (hspmd_step_cost(r, &hop->step[s], hop->network_busy) != 0)
			return -1;
	if (hspmd_steps_reorder(r, hop->step, hop->count) != 0)
		return -1;
	hop->seconds = hspmd_steps_seconds(r, hop->step, hop->count, hop->network_busy);
	return 0;
}

/* 0 built, 1 too laborious for a bounded search, -1 memory. */
static int build(struct resolver *r, const struct hop_view *v, const struct variant *how, bool bounded, struct hop *hop)
{
	struct move_list moves = { 0 };
	bool *done = hspmd_arena_alloc(r->arena, v->region_count, sizeof *done);
	*hop = (struct hop){ .network_busy = hspmd_arena_alloc(r->arena, 2 * (size_t)r->node_count, sizeof *hop->network_busy) };
	if (!done || !hop->network_busy)
		return -1;
	int rc = hspmd_hop_reduce(r, v, how->collectives, bounded ? ADD_LIMIT : SIZE_MAX, hop, &moves);
	if (rc != 0)
		return rc;
	if (how->gather && hspmd_hop_gather(r, v, done, hop) != 0)
		return -1;
	if (bounded && deliveries_left(v, done) > DELIVERY_LIMIT)
		return 1;
	if (hspmd_hop_exchange(r, v, done, how->balanced, hop, &moves) != 0 || hspmd_hop_batch(r, hop, HSPMD_COMM_BATCHED, &moves) != 0)
		return -1;
	return count_seconds(r, hop);
}

/* The variant that sends only rows of experts. 0 built, 1 not possible, -1 memory. */
static int build_rows(struct resolver *r, const struct hop_view *v, struct hop *hop)
{
	*hop = (struct hop){ .network_busy = hspmd_arena_alloc(r->arena, 2 * (size_t)r->node_count, sizeof *hop->network_busy) };
	if (!hop->network_busy)
		return -1;
	int rc = hspmd_hop_rows(r, v, hop);
	return rc == 0 ? count_seconds(r, hop) : rc;
}

/* 1: too many regions. */
static int view(struct resolver *r, const struct placement *x, const struct placement *y, bool bounded, struct hop_view *v)
{
	struct hspmd_box *box = hspmd_arena_alloc(r->arena, (size_t)x->count + (size_t)y->count, sizeof *box);
	if (!box)
		return hspmd_fail_memory(r->err, "resolving");
	for (int i = 0; i < x->count; i++)
		box[i] = x->piece[i].box;
	for (int i = 0; i < y->count; i++)
		box[x->count + i] = y->piece[i].box;
	struct hspmd_region *region = NULL;
	*v = (struct hop_view){ .x = x, .y = y };
	int rc = hspmd_regions_find(r->arena, r->shape->rank, box, x->count, box + x->count, y->count, bounded ? CELL_LIMIT : 0, &region,
	                            &v->region_count, r->err);
	if (rc != 0)
		return rc;
	v->region = region;
	for (size_t i = 0; i < v->region_count; i++)
		if (region[i].x_count == 0) {
			char text[256];
			return hspmd_fail(r->err, "no device holds %s of the source", hspmd_box_text(&region[i].box, text, sizeof text));
		}
	return 0;
}

/* The properties of these regions by which variants differ. */
struct region_kinds {
	bool sums;         /* some region is a sum */
	bool copies;       /* some region that is no sum is on several devices */
	size_t deliveries; /* of regions that are no sums */
};

static struct region_kinds kinds_of_regions(const struct hop_view *v)
{
	struct region_kinds c = { 0 };
	for (size_t i = 0; i < v->region_count; i++) {
		const struct hspmd_region *region = &v->region[i];
		bool sum = v->x->piece[region->x[0]].addends > 1;
		c.sums = c.sums || sum;
		c.copies = c.copies || (!sum && region->x_count > 1);
		c.deliveries += sum ? 0 : (size_t)region->y_count;
	}
	return c;
}

/* Returns true if the hop has only collectives and copies. */
static bool is_collective(const struct hop *hop)
{
	for (size_t s = 0; s < hop->count; s++) {
		enum hspmd_comm_kind kind = hop->step[s].kind;
		if (kind == HSPMD_COMM_SEND_RECEIVE || kind == HSPMD_COMM_ALL_TO_ALL || kind == HSPMD_COMM_BATCHED)
			return false;
	}
	return true;
}

/* ---- what a search leaves: its arrays are many times as large as its result */

static bool keep(struct hspmd_arena *arena, void *array, size_t count, size_t size)
{
	void **at = array;
	void *copy = *at ? hspmd_arena_alloc(arena, count, size) : NULL;
	if (!*at)
		return true;
	if (copy && count)
		memcpy(copy, *at, count * size);
	*at = copy;
	return copy;
}

/* Moves a hop from the arena of the search to the resolver's. 0 or -1 (memory). */
static int keep_hop(struct resolver *r, struct hop *hop)
{
	bool kept = keep(r->arena, &hop->network_busy, 2 * (size_t)r->node_count, sizeof *hop->network_busy) &&
	            keep(r->arena, &hop->step, hop->count, sizeof *hop->step);
	hop->capacity = hop->count;
	for (size_t s = 0; kept && s < hop->count; s++) {
		struct hspmd_comm_step *step = &hop->step[s];
		size_t members = (size_t)step->member_count;
		kept = keep(r->arena, &step->members, members, sizeof *step->members) &&
		       keep(r->arena, &step->in, members, sizeof *step->in) && keep(r->arena, &step->out, members, sizeof *step->out) &&
		       keep(r->arena, &step->moves, (size_t)step->move_count, sizeof *step->moves) &&
		       keep(r->arena, &step->experts, members, sizeof *step->experts);
	}
	return kept ? 0 : hspmd_fail_memory(r->err, "resolving");
}

/* The arena for the next variant, while the other one has the best so far. */
static struct hspmd_arena *next_arena(const struct resolver *r, int best)
{
	struct hspmd_arena *next = r->scratch[SCRATCH_VARIANTS + !best];
	hspmd_arena_clear(next);
	return next;
}

/* Like hspmd_hop_find, in the arenas of the search. */
static int search(struct resolver *r, const struct placement *x, const struct placement *y, bool bounded, struct hop *hop)
{
	/* On a tie the first wins: collectives before batches. */
	static const struct variant variants[] = { { true, true, false },  { true, false, false },  { true, false, true },
		                                   { false, true, false }, { false, false, false }, { false, false, true } };
	struct hop_view v;
	int best = 0; /* of the arenas of variants */
	r->arena = r->scratch[SCRATCH_REGIONS];
	int rc = view(r, x, y, bounded, &v);
	if (rc != 0)
		return rc;
	struct region_kinds kinds = kinds_of_regions(&v);
	bool found = false;
	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
		struct hop candidate;
		if ((!kinds.sums && !variants[i].collectives) || (!kinds.copies && variants[i].balanced))
			continue;
		if (found && kinds.deliveries > DELIVERY_LIMIT && is_collective(hop))
			break;
		r->arena = next_arena(r, best);
		rc = build(r, &v, &variants[i], bounded, &candidate);
		if (rc < 0)
			return hspmd_fail_memory(r->err, "resolving");
		if (rc == 0 && (!found || hspmd_cheaper(candidate.seconds, hop->seconds))) {
			*hop = candidate;
			best = !best;
		}
		found = found || rc == 0;
	}
	struct hop chosen;
	r->arena = next_arena(r, best);
	rc = x->experts || y->experts ? build_rows(r, &v, &chosen) : 1;
	if (rc < 0)
		return hspmd_fail_memory(r->err, "resolving");
	if (rc == 0 && (!found || hspmd_cheaper(chosen.seconds, hop->seconds)))
		*hop = chosen;
	return found || rc == 0 ? 0 : 1;
}

int hspmd_hop_find(struct resolver *r, const struct placement *x, const struct placement *y, bool bounded, struct hop *hop)
{
	struct hspmd_arena *own = r->arena;
	int rc = search(r, x, y, bounded, hop);
	r->arena = own;
	if (rc == 0)
		rc = keep_hop(r, hop);
	for (int i = SCRATCH_REGIONS; i < SCRATCH_ARENAS; i++)
		hspmd_arena_clear(r->scratch[i]);
	return rc;
}
