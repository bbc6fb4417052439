/* SPDX-License-Identifier: Apache-2.0 */
/* The faces of all boxes cut the index space into a grid of cells. Cells that are in the same boxes form a class (found by partition
 * refinement, so that memory does not grow with boxes x cells); the cells of a class are then joined to boxes again. */
#include "runtime/resharding/regions.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CELLS (INT64_C(1) << 24)

struct grid {
	int rank, box_count;
	int64_t *coordinate[HSPMD_MAX_RANK]; /* ascending faces of dimension d */
	int64_t extent[HSPMD_MAX_RANK];      /* cells along d */
	int64_t stride[HSPMD_MAX_RANK];
	int64_t cells;
	struct hspmd_box *span; /* each box in cell indexes */
	int *class_of;          /* per cell */
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

static const struct hspmd_box *nth_box(const struct hspmd_box *x, int x_count, const struct hspmd_box *y, int i)
{
	return i < x_count ? &x[i] : &y[i - x_count];
}

/* Returns 1 if there are more cells than cell_limit (not 0). */
static int grid_build(struct grid *g, struct hspmd_arena *arena, const struct hspmd_box *x, int x_count, const struct hspmd_box *y,
                      int64_t cell_limit, struct hspmd_error *err)
{
	size_t faces = (size_t)g->box_count * 2;
	g->cells = 1;
	for (int d = 0; d < g->rank; d++) {
		int64_t *c = g->coordinate[d] = hspmd_arena_alloc(arena, faces, sizeof *c);
		if (!c)
			return hspmd_fail_memory(err, "cutting a tensor into regions");
		for (int i = 0; i < g->box_count; i++) {
			const struct hspmd_box *box = nth_box(x, x_count, y, i);
			c[2 * i] = box->lo[d];
			c[2 * i + 1] = box->hi[d];
		}
		qsort(c, faces, sizeof *c, number_order);
		size_t distinct = 0;
		for (size_t i = 0; i < faces; i++)
			if (i == 0 || c[i] != c[distinct - 1])
				c[distinct++] = c[i];
		g->extent[d] = (int64_t)distinct - 1;
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
	g->span = hspmd_arena_alloc(arena, (size_t)g->box_count, sizeof *g->span);
	g->class_of = hspmd_arena_alloc(arena, (size_t)g->cells, sizeof *g->class_of);
	if (!g->span || !g->class_of)
		return hspmd_fail_memory(err, "cutting a tensor into regions");
	for (int i = 0; i < g->box_count; i++) {
		const struct hspmd_box *box = nth_box(x, x_count, y, i);
		g->span[i].rank = g->rank;
		for (int d = 0; d < g->rank; d++) {
			g->span[i].lo[d] = face_index(g, d, box->lo[d]);
			g->span[i].hi[d] = face_index(g, d, box->hi[d]);
		}
	}
	return 0;
}

/* Numbers the classes of cells that are in the same boxes; the numbers are below *class_limit. */
static int refine(struct grid *g, struct hspmd_arena *arena, int *class_limit)
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
	for (int i = 0; i < g->box_count; i++) {
		const struct hspmd_box *span = &g->span[i];
		int64_t at[HSPMD_MAX_RANK];
		memcpy(at, span->lo, sizeof at);
		do {
			int *cell = &g->class_of[cell_index(g, at)];
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
	*class_limit = used;
	return 0;
}

struct class
{
	int64_t first; /* its first cell, which represents all; -1: no cell */
	int x_count, y_count;
	int *x, *y;
};

static bool stands_for_class(const struct grid *g, const struct class *classes, int64_t cell)
{
	return classes[g->class_of[cell]].first == cell;
}

/* For every class, counts (fill false) or lists (fill true) the boxes that contain its first cell. */
static void visit_first_cells(const struct grid *g, struct class *classes, int x_count, bool fill)
{
	for (int i = 0; i < g->box_count; i++) {
		const struct hspmd_box *span = &g->span[i];
		int64_t at[HSPMD_MAX_RANK];
		memcpy(at, span->lo, sizeof at);
		do {
			int64_t cell = cell_index(g, at);
			for (int64_t k = run_length(span); k > 0; k--, cell++) {
				if (!stands_for_class(g, classes, cell))
					continue;
				struct class *c = &classes[g->class_of[cell]];
				int *list = i < x_count ? c->x : c->y;
				int *count = i < x_count ? &c->x_count : &c->y_count;
				if (fill)
					list[*count] = i < x_count ? i : i - x_count;
				++*count;
			}
		} while (next_run(span, at));
	}
}

static struct class *list_classes(const struct grid *g, struct hspmd_arena *arena, int class_limit, int x_count)
{
	struct class *classes = hspmd_arena_alloc(arena, (size_t)class_limit, sizeof *classes);
	if (!classes)
		return NULL;
	for (int c = 0; c < class_limit; c++)
		classes[c].first = -1;
	for (int64_t cell = g->cells - 1; cell >= 0; cell--)
		classes[g->class_of[cell]].first = cell;
	visit_first_cells(g, classes, x_count, false);
	for (int c = 0; c < class_limit; c++) {
		if (classes[c].first < 0)
			continue;
		classes[c].x = hspmd_arena_alloc(arena, (size_t)classes[c].x_count, sizeof(int));
		classes[c].y = hspmd_arena_alloc(arena, (size_t)classes[c].y_count, sizeof(int));
		if (!classes[c].x || !classes[c].y)
			return NULL;
		classes[c].x_count = classes[c].y_count = 0;
	}
	visit_first_cells(g, classes, x_count, true);
	return classes;
}

/* Returns true if all cells of the span are of this class. */
static bool uniform(const struct grid *g, const struct hspmd_box *span, int class)
{
	int64_t at[HSPMD_MAX_RANK];
	memcpy(at, span->lo, sizeof at);
	do {
		int64_t cell = cell_index(g, at);
		for (int64_t k = run_length(span); k > 0; k--, cell++)
			if (g->class_of[cell] != class)
				return false;
	} while (next_run(span, at));
	return true;
}

/* The largest span of one class that grows from a cell, innermost dimension first; marks its cells -1 (taken). */
static struct hspmd_box take_span(struct grid *g, const int64_t *from, int class)
{
	struct hspmd_box span = { .rank = g->rank };
	for (int d = 0; d < g->rank; d++) {
		span.lo[d] = from[d];
		span.hi[d] = from[d] + 1;
	}
	for (int d = g->rank - 1; d >= 0; d--) {
		struct hspmd_box next = span;
		for (next.lo[d] = span.hi[d], next.hi[d] = span.hi[d] + 1; next.lo[d] < g->extent[d]; next.lo[d]++, next.hi[d]++)
			if (!uniform(g, &next, class))
				break;
		span.hi[d] = next.lo[d];
	}
	int64_t at[HSPMD_MAX_RANK];
	memcpy(at, span.lo, sizeof at);
	do {
		int *cell = &g->class_of[cell_index(g, at)];
		for (int64_t k = run_length(&span); k > 0; k--)
			*cell++ = -1;
	} while (next_run(&span, at));
	return span;
}

static int join_cells(struct grid *g, struct hspmd_arena *arena, const struct class *classes, struct hspmd_region **regions, size_t *count)
{
	size_t capacity = 0;
	*regions = NULL;
	*count = 0;
	for (int64_t cell = 0; cell < g->cells; cell++) {
		int class = g->class_of[cell];
		if (class < 0 || classes[class].y_count == 0)
			continue;
		int64_t from[HSPMD_MAX_RANK];
		for (int d = 0; d < g->rank; d++)
			from[d] = cell / g->stride[d] % g->extent[d];
		struct hspmd_box span = take_span(g, from, class);
		if (hspmd_arena_array_grow(arena, regions, &capacity, *count, sizeof **regions) != 0)
			return -1;
		struct hspmd_region *r = &(*regions)[(*count)++];
		*r = (struct hspmd_region){
			.x_count = classes[class].x_count, .y_count = classes[class].y_count, .x = classes[class].x, .y = classes[class].y
		};
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
	struct grid g = { .rank = rank, .box_count = x_count + y_count };
	*count = 0;
	if (y_count == 0)
		return 0;
	int rc = grid_build(&g, arena, x, x_count, y, cell_limit, err);
	if (rc != 0)
		return rc;
	int class_limit;
	if (refine(&g, arena, &class_limit) != 0)
		return hspmd_fail_memory(err, "cutting a tensor into regions");
	struct class *classes = list_classes(&g, arena, class_limit, x_count);
	if (!classes || join_cells(&g, arena, classes, regions, count) != 0)
		return hspmd_fail_memory(err, "cutting a tensor into regions");
	return 0;
}
