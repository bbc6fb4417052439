/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of rows that are sorted by group: each tile has rows of one group. */
#ifndef HSPMD_CUDA_ROW_TILES_H
#define HSPMD_CUDA_ROW_TILES_H

#include "runtime/device/cuda/kernel.h"

/* Returns the group whose rows tile number `tile` contains, and sets *row to the tile's first row; -1: there are fewer tiles. first: where
 * each group begins, and where the last ends. */
template <int size> static __device__ __forceinline__ int find_tile(const int32_t *first, int groups, int tile, int *row)
{
	for (int g = 0; g < groups; g++) {
		int tiles = (first[g + 1] - first[g] + size - 1) / size;
		if (tile < tiles) {
			*row = first[g] + tile * size;
			return g;
		}
		tile -= tiles;
	}
	return -1;
}

/* Returns the most tiles that so many rows of so many groups can have. */
static inline unsigned most_tiles(int64_t rows, int64_t groups, int size)
{
	return (unsigned)(rows / size + groups);
}

#endif
