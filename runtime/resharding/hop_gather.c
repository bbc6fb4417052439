/* SPDX-License-Identifier: Apache-2.0 */
/* All-gathers, whole and split. The regions that the same devices need form a group. If each of those devices holds its own part of the
 * group, they gather the parts among themselves; if m devices hold each part, m gathers run concurrently. */
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/resolve_internal.h"

/* Regions that the same devices need. */
struct group {
	const struct hop_view *v;
	const size_t *index; /* into v->region */
	size_t count;
	int member_count;
	const int *member; /* pieces of y */
	int *member_of;    /* per device: which member it is, -1: none */
	int *first;        /* per member: the first region of the group that it holds, -1: none */
	int *holders;      /* per region of the group: members that have it as their first */
};

static int need_order(const struct hspmd_region *p, const struct hspmd_region *q)
{
	if (p->y_count != q->y_count)
		return p->y_count < q->y_count ? -1 : 1;
	return p->y == q->y ? 0 : memcmp(p->y, q->y, (size_t)p->y_count * sizeof *p->y);
}

static int indirect_order(const void *a, const void *b, void *context)
{
	const struct hspmd_region *region = context;
	size_t p = *(const size_t *)a, q = *(const size_t *)b;
	int order = need_order(&region[p], &region[q]);
	return order ? order : (p > q) - (p < q);
}

static const struct hspmd_region *region_of(const struct group *g, size_t i)
{
	return &g->v->region[g->index[i]];
}

static int member_device(const struct group *g, int m)
{
	return g->v->y->piece[g->member[m]].device;
}

/* The member that is the k-th device that holds the region; -1: it is none. */
static int holding_member(const struct group *g, const struct hspmd_region *region, int k)
{
	return g->member_of[g->v->x->piece[region->x[k]].device];
}

static void find_first(struct group *g)
{
	for (int m = 0; m < g->member_count; m++)
		g->first[m] = -1;
	for (size_t i = 0; i < g->count; i++)
		for (int k = 0; k < region_of(g, i)->x_count; k++) {
			int m = holding_member(g, region_of(g, i), k);
			if (m < 0 || g->first[m] >= 0)
				continue;
			g->first[m] = (int)i;
			g->holders[i]++;
		}
}

/* The number of members that hold every part, if there are several parts, the parts that members hold are the same or disjoint, and each
 * has equally many holders; else 0. */
static int copies(struct group *g)
{
	find_first(g);
	int common = 0, parts = 0;
	for (size_t i = 0; i < g->count; i++) {
		int part = -1, count = 0;
		for (int k = 0; k < region_of(g, i)->x_count; k++) {
			int m = holding_member(g, region_of(g, i), k);
			if (m < 0)
				continue;
			if (part >= 0 && g->first[m] != part)
				return 0;
			part = g->first[m];
			count++;
		}
		if (part < 0 || count != g->holders[part] || (common && count != common))
			return 0;
		common = count;
	}
	for (size_t i = 0; i < g->count; i++)
		parts += g->holders[i] > 0;
	return parts > 1 ? common : 0;
}

/* Which of `rounds` gathers each member joins: holders of a part by their number, the others round-robin. */
static void assign_rounds(const struct group *g, int rounds, int *next_round, int *round_of)
{
	int idle = 0;
	memset(next_round, 0, g->count * sizeof *next_round);
	for (int m = 0; m < g->member_count; m++)
		round_of[m] = g->first[m] >= 0 ? next_round[g->first[m]]++ : idle++ % rounds;
}

/* 1: its parts are not boxes. */
static int gather(struct resolver *r, const struct group *g, int round, const int *round_of, struct hop *hop)
{
	int n = 0;
	for (int m = 0; m < g->member_count; m++)
		n += round_of[m] == round;
	struct hspmd_comm_step *step = hspmd_hop_step(r, hop, HSPMD_COMM_ALL_GATHER, n);
	int *place = hspmd_arena_alloc(r->arena, (size_t)g->member_count, sizeof *place); /* in the step, per member of this round */
	int64_t *volume = hspmd_arena_alloc(r->arena, (size_t)n, sizeof *volume);
	if (!step || !place || !volume)
		return -1;
	n = 0;
	for (int m = 0; m < g->member_count; m++)
		if (round_of[m] == round) {
			step->members[n] = member_device(g, m);
			place[m] = n++;
		}
	struct hspmd_box whole = { 0 };
	int64_t total = 0;
	for (size_t i = 0; i < g->count; i++) {
		const struct hspmd_region *region = region_of(g, i);
		hspmd_hull_add(&whole, &total, &region->box);
		for (int k = 0; k < region->x_count; k++) {
			int m = holding_member(g, region, k);
			if (m >= 0 && round_of[m] == round)
				hspmd_hull_add(&step->in[place[m]], &volume[place[m]], &region->box);
		}
	}
	bool joins = hspmd_hull_is_box(&whole, total);
	for (int k = 0; k < n; k++) {
		joins = joins && (volume[k] == 0 || hspmd_hull_is_box(&step->in[k], volume[k]));
		step->out[k] = whole;
	}
	if (joins)
		return 0;
	hop->count--;
	return 1;
}

static int gather_group(struct resolver *r, struct group *g, bool *done, struct hop *hop)
{
	g->first = hspmd_arena_alloc(r->arena, (size_t)g->member_count, sizeof *g->first);
	g->holders = hspmd_arena_alloc(r->arena, g->count, sizeof *g->holders);
	int *next_round = hspmd_arena_alloc(r->arena, g->count, sizeof *next_round);
	int *round_of = hspmd_arena_alloc(r->arena, (size_t)g->member_count, sizeof *round_of);
	if (!g->first || !g->holders || !next_round || !round_of)
		return -1;
	int rounds = copies(g);
	if (rounds == 0)
		return 0;
	size_t before = hop->count;
	assign_rounds(g, rounds, next_round, round_of);
	for (int round = 0; round < rounds; round++) {
		int rc = gather(r, g, round, round_of, hop);
		if (rc < 0)
			return -1;
		if (rc > 0) {
			hop->count = before;
			return 0;
		}
	}
	for (size_t i = 0; i < g->count; i++)
		done[g->index[i]] = true;
	return 0;
}

/* Returns true for a region that is no sum, and that several devices need but not all of them hold. */
static bool worth_gathering(const struct hop_view *v, const struct hspmd_region *region)
{
	if (region->y_count < 2 || v->x->piece[region->x[0]].addends > 1)
		return false;
	for (int i = 0; i < region->y_count; i++) {
		int piece = v->x->piece_of[v->y->piece[region->y[i]].device];
		if (piece < 0 || !hspmd_box_contains(&v->x->piece[piece].box, &region->box))
			return true;
	}
	return false;
}

int hspmd_hop_gather(struct resolver *r, const struct hop_view *v, bool *done, struct hop *hop)
{
	size_t *index = hspmd_arena_alloc(r->arena, v->region_count, sizeof *index);
	int *member_of = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *member_of);
	if (!index || !member_of)
		return -1;
	size_t count = 0;
	for (int d = 0; d < r->device_count; d++)
		member_of[d] = -1;
	for (size_t i = 0; i < v->region_count; i++)
		if (worth_gathering(v, &v->region[i]))
			index[count++] = i;
	qsort_r(index, count, sizeof *index, indirect_order, (void *)v->region);
	for (size_t i = 0, end; i < count; i = end) {
		const struct hspmd_region *first = &v->region[index[i]];
		for (end = i + 1; end < count && need_order(first, &v->region[index[end]]) == 0;)
			end++;
		struct group g = { .v = v,
			           .index = index + i,
			           .count = end - i,
			           .member_count = first->y_count,
			           .member = first->y,
			           .member_of = member_of };
		for (int m = 0; m < g.member_count; m++)
			member_of[member_device(&g, m)] = m;
		if (gather_group(r, &g, done, hop) != 0)
			return -1;
		for (int m = 0; m < g.member_count; m++)
			member_of[member_device(&g, m)] = -1;
	}
	return 0;
}
