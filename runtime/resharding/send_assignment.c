/* SPDX-License-Identifier: Apache-2.0 */
/* From quotas to boxes: the fetches that have the same possible senders form a row, the row's bytes are divided at the quotas, and a
 * division inside a fetch moves to the fetch's end if that is near enough or fetches stay whole, else cuts the fetch. */
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/move_plan_internal.h"

/* How far a division may move, as a fraction of the smaller of its two quotas: no sender's load grows by more than twice this. */
#define LEEWAY 0.01

struct assigner {
	struct hspmd_arena *arena;
	const struct fetch *fetch;
	struct sends *out;
	bool whole;  /* no fetch is cut */
	size_t *row; /* fetches in the order of their classes */
	size_t row_count;
};

static int64_t fetch_bytes(const struct fetch *f)
{
	return hspmd_box_elements(&f->box) * (int64_t)f->element_bytes;
}

/* By senders, then receivers, so that the fetches of one receiver tend to come from one sender. */
static int row_order(const void *a, const void *b, void *context)
{
	const struct fetch *fetch = context;
	size_t i = *(const size_t *)a, j = *(const size_t *)b;
	if (fetch[i].senders->id != fetch[j].senders->id)
		return fetch[i].senders->id < fetch[j].senders->id ? -1 : 1;
	if (fetch[i].to != fetch[j].to)
		return fetch[i].to < fetch[j].to ? -1 : 1;
	return (i > j) - (i < j);
}

static int add_send(struct assigner *d, size_t fetch, int from, const struct hspmd_box *box)
{
	if (hspmd_box_empty(box))
		return 0;
	if (hspmd_arena_array_grow(d->arena, &d->out->send, &d->out->capacity, d->out->count, sizeof *d->out->send) != 0)
		return -1;
	d->out->send[d->out->count++] = (struct send){ fetch, from, *box };
	return 0;
}

/* Elements [lo, hi) of `part` in row-major order, as boxes of dimension `dim` and inner ones. */
static int add_range(struct assigner *d, size_t fetch, int from, const struct hspmd_box *part, int dim, int64_t lo, int64_t hi)
{
	if (lo >= hi)
		return 0;
	if (dim == part->rank)
		return add_send(d, fetch, from, part);
	int64_t row = hspmd_box_elements(part) / (part->hi[dim] - part->lo[dim]), first = lo / row, last = hi / row;
	struct hspmd_box at = *part;
	if (lo % row != 0 || first == last) { /* begins inside a row */
		at.lo[dim] = part->lo[dim] + first;
		at.hi[dim] = at.lo[dim] + 1;
		if (add_range(d, fetch, from, &at, dim + 1, lo % row, first == last ? hi % row : row) != 0 || first == last)
			return first == last ? 0 : -1;
		first++;
	}
	at.lo[dim] = part->lo[dim] + first;
	at.hi[dim] = part->lo[dim] + last;
	if (add_send(d, fetch, from, &at) != 0)
		return -1;
	at.lo[dim] = at.hi[dim]++;
	return add_range(d, fetch, from, &at, dim + 1, 0, hi % row);
}

/* The position near `at` that cuts the fewest boxes: the box's end, else whole rows of the outermost dimension that is possible. */
static int64_t round_cut(const struct hspmd_box *box, int64_t at, int64_t leeway)
{
	int64_t row = hspmd_box_elements(box);
	for (int dim = -1; dim < box->rank; dim++) {
		if (dim >= 0)
			row /= box->hi[dim] - box->lo[dim];
		int64_t below = at / row * row, nearest = at - below > row - (at - below) ? below + row : below;
		if (llabs(nearest - at) <= leeway)
			return nearest;
	}
	return at;
}

/* Assigns row[0..count), which have one set of senders, by that set's quotas. */
static int assign_row(struct assigner *d, const size_t *row, size_t count, const struct balance_class *class)
{
	int sender = 0;
	int64_t start = 0, bound = class->quota[0]; /* of the fetch, and of the current sender, in bytes of the row */
	for (size_t i = 0; i < count; i++) {
		const struct fetch *f = &d->fetch[row[i]];
		int64_t unit = (int64_t)f->element_bytes, elements = hspmd_box_elements(&f->box), at = 0;
		while (at < elements) {
			int next = sender + 1;
			while (next < class->senders->count && class->quota[next] == 0)
				next++;
			int64_t cut = elements;
			if (next < class->senders->count && bound < start + elements * unit) {
				int64_t smaller = class->quota[sender] < class->quota[next] ? class->quota[sender] : class->quota[next];
				int64_t leeway = d->whole ? elements : (int64_t)(LEEWAY * (double)smaller) / unit;
				cut = round_cut(&f->box, (bound - start) / unit, leeway);
			}
			if (cut > at && add_range(d, row[i], class->senders->senders[sender], &f->box, 0, at, cut) != 0)
				return -1;
			at = cut > at ? cut : at;
			if (next < class->senders->count && (at < elements || bound <= start + elements * unit)) {
				bound += class->quota[next];
				sender = next;
			}
		}
		start += elements * unit;
	}
	return 0;
}

static int classify(struct assigner *d, struct balance_class *classes, size_t *first, size_t *class_count)
{
	*class_count = 0;
	for (size_t i = 0; i < d->row_count; i++) {
		const struct fetch *f = &d->fetch[d->row[i]];
		if (i == 0 || f->senders != d->fetch[d->row[i - 1]].senders) {
			struct balance_class *c = &classes[*class_count];
			c->senders = f->senders;
			c->quota = hspmd_arena_alloc(d->arena, (size_t)f->senders->count, sizeof *c->quota);
			if (!c->quota)
				return -1;
			first[(*class_count)++] = i;
		}
		classes[*class_count - 1].bytes += fetch_bytes(f);
	}
	first[*class_count] = d->row_count;
	return 0;
}

int hspmd_assign_senders(struct hspmd_arena *arena, const struct fetch *fetches, size_t count, int senders, bool whole, struct sends *sends)
{
	struct assigner d = { .arena = arena, .fetch = fetches, .out = sends, .whole = whole, .row_count = count };
	struct balance_class *classes = hspmd_arena_alloc(arena, count, sizeof *classes);
	size_t *first = hspmd_arena_alloc(arena, count + 1, sizeof *first), class_count;
	int64_t most;
	d.row = hspmd_arena_alloc(arena, count, sizeof *d.row);
	if (!classes || !first || !d.row)
		return -1;
	for (size_t i = 0; i < count; i++)
		d.row[i] = i;
	qsort_r(d.row, count, sizeof *d.row, row_order, (void *)fetches);
	if (classify(&d, classes, first, &class_count) != 0 || hspmd_balance(arena, classes, class_count, senders, &most) != 0)
		return -1;
	for (size_t c = 0; c < class_count; c++)
		if (assign_row(&d, d.row + first[c], first[c + 1] - first[c], &classes[c]) != 0)
			return -1;
	return 0;
}
