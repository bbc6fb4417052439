/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of which the variants of a hop are made: steps, moves, and the hull of a set of boxes. */
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
