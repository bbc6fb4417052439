/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: the coarsest boxes within which the same pieces hold and the same pieces need every element. What one move or one collective can
 * carry never crosses a region, so this is the "least common multiple" granularity of two ways to cut a tensor. Internal to
 * runtime/graph. */
#ifndef HSPMD_RESHARDING_REGIONS_H
#define HSPMD_RESHARDING_REGIONS_H

#include "common/arena.h"
#include "common/error.h"
#include "runtime/tensor/box.h"

struct hspmd_region {
	struct hspmd_box box;
	int x_count, y_count; /* which of the boxes x and y contain it, ascending; regions with the same lists may share the arrays */
	const int *x, *y;
};

/* Cut by the faces of all boxes in x and y. Regions that no y contains are left out; the others come in row-major order of their lowest
 * corner and cover the union of y once. All boxes have `rank` dimensions and are not empty. cell_limit: return 1 rather than look at more
 * cells of the grid that the faces make; 0: only what memory holds. 0; -1 and err: memory, or more cells than can be held. */
int hspmd_regions_find(struct hspmd_arena *arena, int rank, const struct hspmd_box *x, int x_count, const struct hspmd_box *y, int y_count,
                       int64_t cell_limit, struct hspmd_region **regions, size_t *count, struct hspmd_error *err);

#endif
