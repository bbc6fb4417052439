/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of which the variants of a hop are made: steps, moves, and the hull of a set of boxes. */
#include <stdlib.h>

#include "runtime/resharding/resolve_internal.h"

void hspmd_hull_add(struct hspmd_box *hull, int64_t *volume, const struct hspmd_box *box)
{
	if (*volume == 0)
		*hull = *box;
	for (int d = 0; d < box->rank; d++) {
		hull->lo[d] = box->lo[d] < hull->lo[d] ? box->lo[d] : hull->lo[d];
		hull->hi[d] = box->hi[d] > hull->hi[d] ? box->hi[d] : hull->hi[d];
	}
	*volume += hspmd_box_elements(box);
}

bool hspmd_hull_is_box(const struct hspmd_box *hull, int64_t volume)
{
	return hspmd_box_elements(hull) == volume;
}

struct hspmd_comm_step *hspmd_hop_step(struct resolver *r, struct hop *hop, enum hspmd_comm_kind kind, int members)
{
	if (hspmd_arena_array_grow(r->arena, &hop->step, &hop->capacity, hop->count, sizeof *hop->step) != 0)
		return NULL;
	struct hspmd_comm_step step = { .kind = kind, .member_count = members };
	step.members = hspmd_arena_alloc(r->arena, (size_t)members, sizeof *step.members);
	step.in = hspmd_arena_alloc(r->arena, (size_t)members, sizeof *step.in);
	step.out = hspmd_arena_alloc(r->arena, (size_t)members, sizeof *step.out);
	if (!step.members || !step.in || !step.out)
		return NULL;
	struct hspmd_box nothing = { .rank = r->shape->rank };
	if (nothing.rank == 0)
		nothing.rank = 1; /* a box without dimensions holds one element */
	for (int i = 0; i < members; i++)
		step.in[i] = step.out[i] = nothing;
	hop->step[hop->count] = step;
	return &hop->step[hop->count++];
}

int hspmd_hop_move(struct resolver *r, struct move_list *l, int from, int to, const struct hspmd_box *box, int add)
{
	if (hspmd_arena_array_grow(r->arena, &l->move, &l->capacity, l->count, sizeof *l->move) != 0)
		return -1;
	l->move[l->count++] = (struct hspmd_move){ .from = from, .to = to, .box = *box, .add = add };
	return 0;
}

static int move_order(const void *a, const void *b)
{
	const struct hspmd_move *x = a, *y = b;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	if (x->to != y->to)
		return x->to < y->to ? -1 : 1;
	for (int d = 0; d < x->box.rank; d++)
		if (x->box.lo[d] != y->box.lo[d])
			return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
	return 0;
}

int hspmd_hop_batch(struct resolver *r, struct hop *hop, enum hspmd_comm_kind kind, struct move_list *moves)
{
	if (moves->count == 0)
		return 0;
	qsort(moves->move, moves->count, sizeof *moves->move, move_order);
	bool *takes_part = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *takes_part);
	if (!takes_part)
		return -1;
	int members = 0;
	for (size_t i = 0; i < moves->count; i++)
		takes_part[moves->move[i].from] = takes_part[moves->move[i].to] = true;
	for (int d = 0; d < r->device_count; d++)
		members += takes_part[d];
	struct hspmd_comm_step *step = hspmd_hop_step(r, hop, kind, members);
	if (!step)
		return -1;
	members = 0;
	for (int d = 0; d < r->device_count; d++)
		if (takes_part[d])
			step->members[members++] = d;
	step->moves = moves->move;
	step->move_count = (int)moves->count;
	return 0;
}
