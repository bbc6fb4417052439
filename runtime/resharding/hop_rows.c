/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of experts: where only the rows of a device's experts count, these alone are sent (expert parallelism: Lepikhin et al., "GShard",
 * arXiv 2006.16668, section 3.2, without its limit of rows per expert). */
#include "runtime/resharding/resolve_internal.h"

/* Returns true if the device holds all of these rows in a placement of rows of experts: then it knows their choice. */
static bool knows(const struct placement *p, int device, const struct hspmd_box *box)
{
	int piece = p->piece_of[device];
	return piece >= 0 && hspmd_box_contains(&p->piece[piece].box, box);
}

static bool has_whole_rows(const struct resolver *r, const struct hspmd_box *box)
{
	int last = r->shape->rank - 1;
	return last >= 1 && box->lo[last] == 0 && box->hi[last] == r->shape->dim[last];
}

static bool is_sum(const struct hop_view *v, const struct hspmd_region *region)
{
	return v->x->piece[region->x[0]].addends > 1;
}

/* Copies, to every device that needs them, by the cheapest link. */
static int fetch_copies(struct resolver *r, const struct hop_view *v, const struct hspmd_region *region, struct move_list *moves)
{
	double bytes = (double)hspmd_box_elements(&region->box) * (double)r->element_bytes;
	for (int j = 0; j < region->y_count; j++) {
		int to = v->y->piece[region->y[j]].device, best = -1;
		double least = 0;
		for (int i = 0; i < region->x_count; i++) {
			int from = v->x->piece[region->x[(i + j) % region->x_count]].device;
			double t = from == to ? -1 : hspmd_message_seconds(r->cost, r->real[from], r->real[to], bytes);
			if (best < 0 || t < least) {
				best = from;
				least = t;
			}
		}
		if (hspmd_hop_move(r, moves, best, to, &region->box, 0) != 0)
			return -1;
	}
	return 0;
}

/* Returns true if all of these moves are of whole rows, among devices that can choose rows and know the choice of these. */
static bool can_choose(const struct resolver *r, const struct placement *with_experts, const struct move_list *moves)
{
	const struct hspmd_link_cost *cost = r->cost;
	for (size_t i = 0; i < moves->count; i++) {
		const struct hspmd_move *m = &moves->move[i];
		if (!has_whole_rows(r, &m->box) || !knows(with_experts, m->from, &m->box) || !knows(with_experts, m->to, &m->box) ||
		    !cost->dispatches(cost->context, r->real[m->from]) || !cost->dispatches(cost->context, r->real[m->to]))
			return false;
	}
	return true;
}

/* What the members hold before and after, and their experts. */
static int describe_members(struct resolver *r, const struct hop_view *v, const struct placement *with_experts,
                            struct hspmd_comm_step *step)
{
	step->experts = hspmd_arena_alloc(r->arena, (size_t)step->member_count, sizeof *step->experts);
	for (int m = 0; step->experts && m < step->member_count; m++) {
		int device = step->members[m], x = v->x->piece_of[device], y = v->y->piece_of[device];
		if (x >= 0)
			step->in[m] = v->x->piece[x].box;
		if (y >= 0)
			step->out[m] = v->y->piece[y].box;
		step->experts[m] = with_experts->experts[device];
	}
	step->expert_count = with_experts->expert_count;
	step->per_token = with_experts->per_token;
	return step->experts ? 0 : -1;
}

int hspmd_hop_rows(struct resolver *r, const struct hop_view *v, struct hop *hop)
{
	bool combine = v->x->experts != NULL;
	const struct placement *with_experts = combine ? v->x : v->y;
	struct move_list moves = { 0 };
	if (!r->cost || !r->cost->dispatches)
		return 1;
	for (size_t i = 0; i < v->region_count; i++) {
		const struct hspmd_region *region = &v->region[i];
		if (is_sum(v, region) != combine)
			return 1;
		if ((combine ? hspmd_hop_fetch_addends(r, v, region, &moves) : fetch_copies(r, v, region, &moves)) != 0)
			return -1;
	}
	for (size_t i = 0; i < moves.count; i++)
		moves.move[i].add = 0;
	if (!moves.count || !can_choose(r, with_experts, &moves))
		return 1;
	if (hspmd_hop_batch(r, hop, combine ? HSPMD_COMM_COMBINE : HSPMD_COMM_DISPATCH, &moves) != 0)
		return -1;
	return describe_members(r, v, with_experts, &hop->step[hop->count - 1]);
}
