/* SPDX-License-Identifier: Apache-2.0 */
/* The faces of all boxes cut the index space into a grid of cells. Cells that are in the same boxes form a class (found by partition
 * refinement, so that memory does not grow with boxes x cells); the cells of a class are then joined to boxes again. The boxes x and y have
 * classes of their own: a cell's class is the pair. With thousands of devices there are few different boxes on one side:
 * equal ones are visited once. */
#include "runtime/resharding/regions.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/order.h"

#define MAX_CELLS (INT64_C(1) << 24)

/* The boxes x, or y. */
struct region_side {
	int count;
	const struct hspmd_box *box;
	struct hspmd_box *span; /* each box in cell indexes */
	int distinct_count;
	int *distinct;   /* per different box: the first that is equal to it */
	int *next;       /* per box: the next one that is equal; -1: none */
	int *class_of;   /* per cell; -1: taken */
	int class_limit; /* classes have smaller numbers */
	struct cell_class *classes;
};

enum { X, Y, SIDES };

struct grid {
	int rank;
	int64_t *coordinate[HSPMD_MAX_RANK]; /* ascending faces of dimension d */
	int64_t extent[HSPMD_MAX_RANK];      /* cells along d */
	int64_t stride[HSPMD_MAX_RANK];
	int64_t cells;
	struct region_side side[SIDES];
};

struct cell_class {
	int64_t first; /* its first cell, which represents all; -1: no cell */
	int count;
	int *boxes; /* that contain it, ascending */
};

static int number_order(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static int64_t face_index(const struct grid *g, int d, int64_t at)
{
	const int64_t *found = bsearch(&at, g->coordinate[d], (size_t)g->extent[d] + 1, sizeof at, number_order);
	return found - g->coordinate[d];
}

/* Iterates over the cells of a span, one innermost run at a time: `at` is the multi-index of a run's first cell. */
static bool next_run(const struct hspmd_box *span, int64_t *at)
{
	for (int d = span->rank - 2; d >= 0; d--) {
		if (++at[d] < span->hi[d])
			return true;
		at[d] = span->lo[d];
	}
	return false;
}

static int64_t cell_index(const struct grid *g, const int64_t *at)
{
	int64_t cell = 0;
	for (int d = 0; d < g->rank; d++)
		cell += at[d] * g->stride[d];
	return cell;
}

static int64_t run_length(const struct hspmd_box *span)
{
	return span->rank ? span->hi[span->rank - 1] - span->lo[span->rank - 1] : 1;
}

/* The faces of one dimension. */
static int list_faces(struct grid *g, struct hspmd_arena *arena, int d)
{
	size_t faces = 0, distinct = 0;
	int64_t *c = hspmd_arena_alloc(arena, 2 * ((size_t)g->side[X].count + (size_t)g->side[Y].count), sizeof *c);
	if (!c)
		return -1;
	for (int k = X; k < SIDES; k++)
		for (int i = 0; i < g->side[k].count; i++) {
			c[faces++] = g->side[k].box[i].lo[d];
			c[faces++] = g->side[k].box[i].hi[d];
		}
	qsort(c, faces, sizeof *c, number_order);
	for (size_t i = 0; i < faces; i++)
		if (i == 0 || c[i] != c[distinct - 1])
			c[distinct++] = c[i];
	g->coordinate[d] = c;
	g->extent[d] = (int64_t)distinct - 1;
	return 0;
}

static int find_spans(struct grid *g, struct hspmd_arena *arena, struct region_side *side)
{
	side->span = hspmd_arena_alloc(arena, (size_t)side->count, sizeof *side->span);
	side->class_of = hspmd_arena_alloc(arena, (size_t)g->cells, sizeof *side->class_of);
	if (!side->span || !side->class_of)
		return -1;
	for (int i = 0; i < side->count; i++) {
		side->span[i].rank = g->rank;
		for (int d = 0; d < g->rank; d++) {
			side->span[i].lo[d] = face_index(g, d, side->box[i].lo[d]);
			side->span[i].hi[d] = face_index(g, d, side->box[i].hi[d]);
		}
	}
	return 0;
}

/* Returns 1 if there are more cells than cell_limit (not 0). */
static int grid_build(struct grid *g, struct hspmd_arena *arena, int64_t cell_limit, struct hspmd_error *err)
{
	g->cells = 1;
	for (int d = 0; d < g->rank; d++) {
		if (list_faces(g, arena, d))
			return hspmd_fail_memory(err, "cutting a tensor into regions");
		if (__builtin_mul_overflow(g->cells, g->extent[d], &g->cells))
			g->cells = INT64_MAX;
		if (cell_limit && g->cells > cell_limit)
			return 1;
		if (g->cells > MAX_CELLS)
			return hspmd_fail(err, "annotations cut the tensor into more than %lld cells", (long long)MAX_CELLS);
	}
	int64_t stride = 1;
	for (int d = g->rank - 1; d >= 0; d--) {
		g->stride[d] = stride;
		stride *= g->extent[d];
	}
	if (find_spans(g, arena, &g->side[X]) || find_spans(g, arena, &g->side[Y]))
		return hspmd_fail_memory(err, "cutting a tensor into regions");
	return 0;
}

/* ---- classes of one side */

/* Finds equal boxes by a hash table that is at most half full. */
static int find_distinct(struct region_side *side, struct hspmd_arena *arena)
{
	size_t slots = 4;
	while (slots < 2 * (size_t)side->count)
		slots *= 2;
	int *table = hspmd_arena_alloc(arena, slots, sizeof *table); /* the last of equal boxes, from 1; 0: free */
	side->distinct = hspmd_arena_alloc(arena, (size_t)side->count, sizeof *side->distinct);
	side->next = hspmd_arena_alloc(arena, (size_t)side->count, sizeof *side->next);
	if (!table || !side->distinct || !side->next)
		return -1;
	for (int i = 0; i < side->count; i++) {
		const struct hspmd_box *span = &side->span[i];
		size_t at = XXH3_64bits_withSeed(span->lo, sizeof span->lo, XXH3_64bits(span->hi, sizeof span->hi)) & (slots - 1);
		while (table[at] && !hspmd_box_equal(&side->span[table[at] - 1], span))
			at = (at + 1) & (slots - 1);
		if (table[at])
			side->next[table[at] - 1] = i;
		else
			side->distinct[side->distinct_count++] = i;
		side->next[i] = -1;
		table[at] = i + 1;
	}
	return 0;
}

/* Numbers the classes of cells that are in the same boxes of the side. */
static int refine(const struct grid *g, struct region_side *side, struct hspmd_arena *arena)
{
	size_t limit = (size_t)g->cells * 2 + 1;                     /* live classes before and after one box */
	int *moved = hspmd_arena_alloc(arena, limit, sizeof *moved); /* new class of the cells of a class that are in this box */
	int *stamp = hspmd_arena_alloc(arena, limit, sizeof *stamp); /* box (from 1) for which `moved` is valid */
	int *size = hspmd_arena_alloc(arena, limit, sizeof *size);
	int *spare = hspmd_arena_alloc(arena, limit, sizeof *spare); /* numbers of classes that became empty */
	int spare_count = 0, used = 1;
	if (!moved || !stamp || !size || !spare)
		return -1;
	size[0] = (int)g->cells;
	for (int i = 0; i < side->distinct_count; i++) {
		const struct hspmd_box *span = &side->span[side->distinct[i]];
		int64_t at[HSPMD_MAX_RANK];
		memcpy(at, span->lo, sizeof at);
		do {
			int *cell = &side->class_of[cell_index(g, at)];
			for (int64_t k = run_length(span); k > 0; k--, cell++) {
				int old = *cell;
				if (stamp[old] != i + 1) {
					stamp[old] = i + 1;
					moved[old] = spare_count ? spare[--spare_count] : used++;
					stamp[moved[old]] = 0;
				}
				*cell = moved[old];
				size[moved[old]]++;
				if (--size[old] == 0)
					spare[spare_count++] = old;
			}
		} while (next_run(span, at));
	}
	side->class_limit = used;
	return 0;
}

/* For every class, counts (fill false) or lists (fill true) the boxes that contain its first cell. */
static void visit_first_cells(const struct grid *g, const struct region_side *side, bool fill)
{
	for (int i = 0; i < side->distinct_count; i++) {
		const struct hspmd_box *span = &side->span[side->distinct[i]];
		int64_t at[HSPMD_MAX_RANK];
		memcpy(at, span->lo, sizeof at);
		do {
			int64_t cell = cell_index(g, at);
			for (int64_t k = run_length(span); k > 0; k--, cell++) {
				struct cell_class *c = &side->classes[side->class_of[cell]];
				if (c->first != cell)
					continue;
				for (int box = side->distinct[i]; box >= 0; box = side->next[box], c->count++)
					if (fill)
						c->boxes[c->count] = box;
			}
		} while (next_run(span, at));
	}
}

static int list_classes(const struct grid *g, struct region_side *side, struct hspmd_arena *arena)
{
	if (find_distinct(side, arena) || refine(g, side, arena))
		return -1;
	side->classes = hspmd_arena_alloc(arena, (size_t)side->class_limit, sizeof *side->classes);
	if (!side->classes)
		return -1;
	for (int c = 0; c < side->class_limit; c++)
		side->classes[c].first = -1;
	for (int64_t cell = g->cells - 1; cell >= 0; cell--)
		side->classes[side->class_of[cell]].first = cell;
	visit_first_cells(g, side, false);
	for (int c = 0; c < side->class_limit; c++) {
		if (!(side->classes[c].boxes = hspmd_arena_alloc(arena, (size_t)side->classes[c].count, sizeof(int))))
			return -1;
		side->classes[c].count = 0;
	}
	visit_first_cells(g, side, true);
	for (int c = 0; c < side->class_limit; c++)
		hspmd_sort_if_needed(side->classes[c].boxes, (size_t)side->classes[c].count, sizeof(int), hspmd_int_order);
	return 0;
}

/* ---- regions */

/* Returns true if all cells of the span are of these classes. */
static bool uniform(const struct grid *g, const struct hspmd_box *span, int x, int y)
{
	int64_t at[HSPMD_MAX_RANK];
	memcpy(at, span->lo, sizeof at);
	do {
		int64_t cell = cell_index(g, at);
		for (int64_t k = run_length(span); k > 0; k--, cell++)
			if (g->side[X].class_of[cell] != x || g->side[Y].class_of[cell] != y)
				return false;
	} while (next_run(span, at));
	return true;
}

/* The largest span of one pair of classes that grows from a cell, innermost dimension first; marks its cells -1 (taken). */
static struct hspmd_box take_span(struct grid *g, const int64_t *from, int x, int y)
{
	struct hspmd_box span = { .rank = g->rank };
	for (int d = 0; d < g->rank; d++) {
		span.lo[d] = from[d];
		span.hi[d] = from[d] + 1;
	}
	for (int d = g->rank - 1; d >= 0; d--) {
		struct hspmd_box next = span;
		for (next.lo[d] = span.hi[d], next.hi[d] = span.hi[d] + 1; next.lo[d] < g->extent[d]; next.lo[d]++, next.hi[d]++)
			if (!uniform(g, &next, x, y))
				break;
		span.hi[d] = next.lo[d];
	}
	int64_t at[HSPMD_MAX_RANK];
	memcpy(at, span.lo, sizeof at);
	do {
		int *cell = &g->side[X].class_of[cell_index(g, at)];
		for (int64_t k = run_length(&span); k > 0; k--)
			*cell++ = -1;
	} while (next_run(&span, at));
	return span;
}

static int join_cells(struct grid *g, struct hspmd_arena *arena, struct hspmd_region **regions, size_t *count)
{
	size_t capacity = 0;
	*regions = NULL;
	*count = 0;
	for (int64_t cell = 0; cell < g->cells; cell++) {
		int class_x = g->side[X].class_of[cell], class_y = g->side[Y].class_of[cell];
		if (class_x < 0 || g->side[Y].classes[class_y].count == 0)
			continue;
		int64_t from[HSPMD_MAX_RANK];
		for (int d = 0; d < g->rank; d++)
			from[d] = cell / g->stride[d] % g->extent[d];
		const struct cell_class *x = &g->side[X].classes[class_x], *y = &g->side[Y].classes[class_y];
		struct hspmd_box span = take_span(g, from, class_x, class_y);
		if (hspmd_arena_array_grow(arena, regions, &capacity, *count, sizeof **regions) != 0)
			return -1;
		struct hspmd_region *r = &(*regions)[(*count)++];
		*r = (struct hspmd_region){ .x_count = x->count, .y_count = y->count, .x = x->boxes, .y = y->boxes };
		r->box.rank = g->rank;
		for (int d = 0; d < g->rank; d++) {
			r->box.lo[d] = g->coordinate[d][span.lo[d]];
			r->box.hi[d] = g->coordinate[d][span.hi[d]];
		}
	}
	return 0;
}

int hspmd_regions_find(struct hspmd_arena *arena, int rank, const struct hspmd_box *x, int x_count, const struct hspmd_box *y, int y_count,
                       int64_t cell_limit, struct hspmd_region **regions, size_t *count, struct hspmd_error *err)
{
	struct grid g = { .rank = rank, .side = { { .count = x_count, .box = x }, { .count = y_count, .box = y } } };
	*count = 0;
	if (y_count == 0)
		return 0;
	int rc = grid_build(&g, arena, cell_limit, err);
	if (rc != 0)
		return rc;
	if (list_classes(&g, &g.side[X], arena) || list_classes(&g, &g.side[Y], arena) || join_cells(&g, arena, regions, count))
		return hspmd_fail_memory(err, "cutting a tensor into regions");
	return 0;
}
