/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: the coarsest boxes of which each element is held by the same pieces and needed by the same pieces. A move or a collective never
 * crosses a region's boundary, so regions are the "least common multiple" granularity of two ways to cut a tensor. Internal to
 * runtime/resharding. */
#ifndef HSPMD_RESHARDING_REGIONS_H
#define HSPMD_RESHARDING_REGIONS_H

#include "common/arena.h"
#include "common/error.h"
#include "runtime/tensor/box.h"

struct hspmd_region {
	struct hspmd_box box;
	int x_count,
	        y_count; /* indices of the boxes x and y that contain it, ascending; regions with the same lists may share the arrays */
	const int *x, *y;
};

/* Cuts by the faces of all boxes in x and y. Regions that no y contains are omitted; the others are in row-major order of their lowest
 * corner and cover the union of y once. All boxes have `rank` dimensions and are not empty. cell_limit: return 1 instead of visiting more
 * cells of the grid that the faces form; 0: no limit but memory. Returns 0; -1 and err: memory, or more cells than can be stored. */
int hspmd_regions_find(struct hspmd_arena *arena, int rank, const struct hspmd_box *x, int x_count, const struct hspmd_box *y, int y_count,
                       int64_t cell_limit, struct hspmd_region **regions, size_t *count, struct hspmd_error *err);

#endif
