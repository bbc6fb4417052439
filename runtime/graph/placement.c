/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/resolver.h"

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
		if (at < 0 || a->piece[i].addends != 1 || b->piece[at].addends != 1 || !hspmd_box_equal(&a->piece[i].box, &b->piece[at].box))
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
		piece.copy = piece.copies = 0; /* no longer told apart */
		hspmd_placement_add(reduced, &piece);
	}
	hspmd_placement_finish(r, reduced);
	return reduced;
}

/* A piece while pieces are put together by box: what it has in `near` orders it among those with the same box. */
struct sharer {
	const struct piece *piece;
	const struct hspmd_box *near;
};

static int corner_order(const struct hspmd_box *x, const struct hspmd_box *y)
{
	for (int d = 0; d < x->rank; d++)
		if (x->lo[d] != y->lo[d])
			return x->lo[d] < y->lo[d] ? -1 : 1;
	for (int d = 0; d < x->rank; d++)
		if (x->hi[d] != y->hi[d])
			return x->hi[d] < y->hi[d] ? -1 : 1;
	return 0;
}

static int sharer_order(const void *a, const void *b)
{
	const struct sharer *x = a, *y = b;
	int order = corner_order(&x->piece->box, &y->piece->box);
	if (order == 0 && x->near && y->near)
		order = corner_order(x->near, y->near);
	if (order == 0)
		order = (x->near == NULL) - (y->near == NULL);
	/* Copy before addend: what the holders of one set of addends share out is then one box. */
	if (order == 0)
		order = (x->piece->copy > y->piece->copy) - (x->piece->copy < y->piece->copy);
	if (order == 0)
		order = (x->piece->addend > y->piece->addend) - (x->piece->addend < y->piece->addend);
	return order ? order : (x->piece->device > y->piece->device) - (x->piece->device < y->piece->device);
}

/* Part k of n of a box: cut along its outermost dimension that is long enough, else along its longest. Empty when there are too few elements. */
static struct hspmd_box nth_part(const struct hspmd_box *box, int n, int k)
{
	int dim = -1;
	for (int d = 0; d < box->rank && dim < 0; d++)
		if (box->hi[d] - box->lo[d] >= n)
			dim = d;
	for (int d = 0; d < box->rank && (dim < 0 || box->hi[dim] - box->lo[dim] < n); d++)
		if (dim < 0 || box->hi[d] - box->lo[d] > box->hi[dim] - box->lo[dim])
			dim = d;
	struct hspmd_box part = *box;
	if (dim >= 0) {
		int64_t extent = box->hi[dim] - box->lo[dim], lo, hi;
		int parts = extent < n ? (int)extent : n;
		lo = hi = extent;
		if (k < parts)
			hspmd_part_range(extent, 1, parts, NULL, k, &lo, &hi);
		part.lo[dim] = box->lo[dim] + lo;
		part.hi[dim] = box->lo[dim] + hi;
	} else if (k > 0) {
		part.rank = -1; /* a scalar cannot be shared */
	}
	return part;
}

/* sharers[0..n) hold the same box; have they every addend of it? */
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

const struct placement *hspmd_placement_scattered(struct resolver *r, const struct placement *p, const struct placement *near)
{
	struct placement *scattered = hspmd_placement_create(r, p->count);
	struct sharer *sharers = hspmd_arena_alloc(r->arena, (size_t)p->count, sizeof *sharers);
	if (!scattered || !sharers)
		return NULL;
	for (int i = 0; i < p->count; i++) {
		int at = near ? near->piece_of[p->piece[i].device] : -1;
		sharers[i] = (struct sharer){ &p->piece[i], at < 0 ? NULL : &near->piece[at].box };
	}
	qsort(sharers, (size_t)p->count, sizeof *sharers, sharer_order);
	bool shared = false;
	for (int i = 0, n; i < p->count; i += n) {
		for (n = 1; i + n < p->count && hspmd_box_equal(&sharers[i + n].piece->box, &sharers[i].piece->box);)
			n++;
		if (!complete(sharers + i, n))
			return p;
		shared = shared || n > 1;
		for (int k = 0; k < n; k++) {
			struct piece part = { .device = sharers[i + k].piece->device,
					      .box = nth_part(&sharers[i].piece->box, n, k),
					      .addends = 1,
					      .copies = 1 };
			if (part.box.rank >= 0 && !hspmd_box_empty(&part.box))
				hspmd_placement_add(scattered, &part);
		}
	}
	if (!shared)
		return p;
	hspmd_placement_finish(r, scattered);
	return scattered;
}
