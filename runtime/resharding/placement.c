/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/resolve_internal.h"

struct placement *hspmd_placement_create(struct resolver *r, int capacity)
{
	struct placement *p = hspmd_arena_alloc(r->arena, 1, sizeof *p);
	if (!p)
		return NULL;
	p->piece = hspmd_arena_alloc(r->arena, (size_t)capacity, sizeof *p->piece);
	p->piece_of = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *p->piece_of);
	return p->piece && p->piece_of ? p : NULL;
}

void hspmd_placement_add(struct placement *p, const struct piece *piece)
{
	p->piece[p->count++] = *piece;
}

static int piece_order(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	if (x->addend != y->addend)
		return x->addend < y->addend ? -1 : 1;
	if (x->copy != y->copy)
		return x->copy < y->copy ? -1 : 1;
	return (x->device > y->device) - (x->device < y->device);
}

void hspmd_placement_finish(const struct resolver *r, struct placement *p)
{
	qsort(p->piece, (size_t)p->count, sizeof *p->piece, piece_order);
	for (int d = 0; d < r->device_count; d++)
		p->piece_of[d] = -1;
	for (int i = 0; i < p->count; i++)
		p->piece_of[p->piece[i].device] = i;
}

bool hspmd_placement_equal(const struct placement *a, const struct placement *b)
{
	if (a->count != b->count)
		return false;
	for (int i = 0; i < a->count; i++) {
		int at = b->piece_of[a->piece[i].device];
		if (at < 0 || a->piece[i].addends != 1 || b->piece[at].addends != 1 ||
		    !hspmd_box_equal(&a->piece[i].box, &b->piece[at].box))
			return false;
	}
	return true;
}

bool hspmd_placement_is_partial(const struct placement *p)
{
	for (int i = 0; i < p->count; i++)
		if (p->piece[i].addends > 1)
			return true;
	return false;
}

struct placement *hspmd_placement_reduced(struct resolver *r, const struct placement *p)
{
	struct placement *reduced = hspmd_placement_create(r, p->count);
	if (!reduced)
		return NULL;
	int common = r->device_count; /* copies that every addend has */
	for (int i = 0; i < p->count; i++)
		if (p->piece[i].addends > 1 && p->piece[i].copies < common)
			common = p->piece[i].copies;
	for (int i = 0; i < p->count; i++) {
		struct piece piece = p->piece[i];
		if (piece.addends > 1 && piece.copy >= common)
			continue;
		piece.addend = 0;
		piece.addends = 1;
		piece.copy = piece.copies = 0; /* no longer distinguished */
		hspmd_placement_add(reduced, &piece);
	}
	hspmd_placement_finish(r, reduced);
	return reduced;
}

/* A piece while pieces are assembled by box: its box in `near` orders it among those with the same box. */
struct sharer {
	const struct piece *piece;
	const struct hspmd_box *near;
	int node; /* if nodes are distinguished, else 0 */
};

int hspmd_box_order(const struct hspmd_box *a, const struct hspmd_box *b)
{
	for (int d = 0; d < a->rank; d++)
		if (a->lo[d] != b->lo[d])
			return a->lo[d] < b->lo[d] ? -1 : 1;
	for (int d = 0; d < a->rank; d++)
		if (a->hi[d] != b->hi[d])
			return a->hi[d] < b->hi[d] ? -1 : 1;
	return 0;
}

static int near_order(const struct sharer *x, const struct sharer *y)
{
	if (x->near && y->near)
		return hspmd_box_order(x->near, y->near);
	return (x->near == NULL) - (y->near == NULL);
}

static int sharer_order(const void *a, const void *b)
{
	const struct sharer *x = a, *y = b;
	int order = hspmd_box_order(&x->piece->box, &y->piece->box);
	if (order == 0)
		order = (x->node > y->node) - (x->node < y->node);
	/* The holders of one set of addends are consecutive, so that they divide one box. */
	if (order == 0 && x->piece->addends > 1)
		order = (x->piece->copy > y->piece->copy) - (x->piece->copy < y->piece->copy);
	if (order == 0)
		order = near_order(x, y);
	if (order == 0)
		order = (x->piece->addend > y->piece->addend) - (x->piece->addend < y->piece->addend);
	return order ? order : (x->piece->device > y->piece->device) - (x->piece->device < y->piece->device);
}

static int64_t extent(const struct hspmd_box *box, int dim)
{
	return box->hi[dim] - box->lo[dim];
}

/* The dimension, `first` or later, along which to cut a box in n: one that is cut in `near` (may be NULL), so that the parts match the
 * boxes there; else the outermost that is long enough; else the longest. -1: there is none. */
static int cut_dimension(const struct hspmd_box *box, int first, int n, const struct hspmd_box *near)
{
	for (int d = first; near && d < box->rank; d++)
		if (extent(box, d) >= n && extent(near, d) < extent(box, d))
			return d;
	for (int d = first; d < box->rank; d++)
		if (extent(box, d) >= n)
			return d;
	int longest = -1;
	for (int d = first; d < box->rank; d++)
		if (longest < 0 || extent(box, d) > extent(box, longest))
			longest = d;
	return longest;
}

/* Part k of n of a box; false: it has too few elements for that. */
static bool nth_part(const struct hspmd_box *box, int dim, int n, int k, struct hspmd_box *part)
{
	*part = *box;
	if (dim < 0)
		return k == 0;
	int64_t length = extent(box, dim), lo, hi;
	int parts = length < n ? (int)length : n;
	if (k >= parts)
		return false;
	hspmd_split_range(length, 1, parts, NULL, k, &lo, &hi);
	part->lo[dim] = box->lo[dim] + lo;
	part->hi[dim] = box->lo[dim] + hi;
	return true;
}

/* sharers[0..n) hold the same box; returns true if they have every addend of it. */
static bool complete(const struct sharer *sharers, int n)
{
	int addends = sharers[0].piece->addends, missing = addends;
	for (int a = 0; a < addends; a++)
		for (int i = 0; i < n; i++)
			if (sharers[i].piece->addend == a) {
				missing--;
				break;
			}
	return missing == 0;
}

static struct sharer *list_sharers(struct resolver *r, const struct placement *p, const struct placement *near, bool by_node)
{
	struct sharer *sharers = hspmd_arena_alloc(r->arena, (size_t)p->count, sizeof *sharers);
	if (!sharers)
		return NULL;
	for (int i = 0; i < p->count; i++) {
		int at = near ? near->piece_of[p->piece[i].device] : -1;
		sharers[i] =
		        (struct sharer){ &p->piece[i], at < 0 ? NULL : &near->piece[at].box, by_node ? r->node[p->piece[i].device] : 0 };
	}
	qsort(sharers, (size_t)p->count, sizeof *sharers, sharer_order);
	return sharers;
}

/* The number of sharers from the start of sharers[0..count) that hold the same box as the first, on the same node if by_node. */
static int same_box(const struct sharer *sharers, int count, bool by_node)
{
	int n = 1;
	while (n < count && (!by_node || sharers[n].node == sharers[0].node) &&
	       hspmd_box_equal(&sharers[n].piece->box, &sharers[0].piece->box))
		n++;
	return n;
}

/* Divides the box of sharers[0..n) among them; their parts are pieces of the given addend. */
static void share_out(const struct resolver *r, struct placement *p, const struct sharer *sharers, int n, int addend, int addends)
{
	int dim = cut_dimension(&sharers[0].piece->box, r->cost ? r->cost->whole_dims : 0, n, sharers[0].near);
	for (int k = 0; k < n; k++) {
		struct piece part = { .device = sharers[k].piece->device, .addend = addend, .addends = addends, .copies = 1 };
		if (nth_part(&sharers[0].piece->box, dim, n, k, &part.box))
			hspmd_placement_add(p, &part);
	}
}

const struct placement *hspmd_placement_scattered(struct resolver *r, const struct placement *p, const struct placement *near, bool by_node)
{
	struct placement *scattered = hspmd_placement_create(r, p->count);
	struct sharer *sharers = list_sharers(r, p, near, by_node);
	if (!scattered || !sharers)
		return NULL;
	bool shared = false;
	for (int i = 0, n; i < p->count; i += n) {
		n = same_box(sharers + i, p->count - i, by_node);
		if (!complete(sharers + i, n))
			return p;
		shared = shared || n > 1;
		share_out(r, scattered, sharers + i, n, 0, 1);
	}
	if (!shared)
		return p;
	hspmd_placement_finish(r, scattered);
	return scattered;
}

/* Holders of all addends of one box, node by node: one addend per node. */
static void share_out_nodes(const struct resolver *r, struct placement *p, const struct sharer *sharers, int count)
{
	int nodes = 0, addend = 0;
	for (int i = 0, n; i < count; i += n, nodes++)
		n = same_box(sharers + i, count - i, true);
	for (int i = 0, n; i < count; i += n, addend++) {
		n = same_box(sharers + i, count - i, true);
		share_out(r, p, sharers + i, n, addend, nodes);
	}
}

const struct placement *hspmd_placement_reduced_per_node(struct resolver *r, const struct placement *p, const struct placement *near)
{
	struct placement *within = hspmd_placement_create(r, p->count);
	struct sharer *sharers = list_sharers(r, p, near, true);
	if (!within || !sharers)
		return NULL;
	bool across = false, together = false; /* sums across nodes; several addends of one sum on a node */
	for (int i = 0, n; i < p->count; i += n) {
		n = same_box(sharers + i, p->count - i, false);
		const struct piece *first = sharers[i].piece;
		if (first->addends == 1) {
			n = 1;
			hspmd_placement_add(within, first);
			continue;
		}
		if (n != first->addends || !complete(sharers + i, n))
			return p;
		across = across || sharers[i].node != sharers[i + n - 1].node;
		together = together || same_box(sharers + i, n, true) > 1;
		share_out_nodes(r, within, sharers + i, n);
	}
	if (!across || !together)
		return p;
	hspmd_placement_finish(r, within);
	return within;
}

struct placement *hspmd_placement_of_node(struct resolver *r, const struct placement *p, int node)
{
	int count = 0;
	for (int i = 0; i < p->count; i++)
		count += r->node[p->piece[i].device] == node;
	struct placement *there = hspmd_placement_create(r, count), *part = hspmd_placement_create(r, count);
	for (int i = 0; there && i < p->count; i++)
		if (r->node[p->piece[i].device] == node)
			hspmd_placement_add(there, &p->piece[i]);
	struct sharer *sharers = there ? list_sharers(r, there, NULL, true) : NULL;
	if (!part || !sharers)
		return NULL;
	for (int i = 0, n; i < count; i += n) {
		n = same_box(sharers + i, count - i, true);
		for (int k = 0; k < n; k++) {
			struct piece piece = *sharers[i + k].piece;
			if (piece.addends > 1) {
				piece.addend = k;
				piece.addends = n;
			}
			hspmd_placement_add(part, &piece);
		}
	}
	part->experts = p->experts;
	part->expert_count = p->expert_count;
	part->per_token = p->per_token;
	hspmd_placement_finish(r, part);
	return part;
}
