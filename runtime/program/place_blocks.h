/* SPDX-License-Identifier: Apache-2.0 */
/* Places blocks of memory whose lifetimes are known: two blocks that live at the same time must not overlap. */
#ifndef HSPMD_PROGRAM_PLACE_BLOCKS_H
#define HSPMD_PROGRAM_PLACE_BLOCKS_H

#include "common/error.h"

struct hspmd_memory_block {
	size_t first, last; /* lifetime, in instructions */
	size_t bytes, offset;
};

/* Returns the bytes of the blocks that live at one time, at most. No placement takes less. The blocks are in the order of `first`.
 * SIZE_MAX: out of memory. */
size_t hspmd_live_bytes(const struct hspmd_memory_block *blocks, size_t count);

/* Sets the blocks' offsets, and *bytes to the end of the last one. The blocks are in the order of `first`.
 *
 * One placement fills the lowest gap of the skyline first, with the block of the largest weight that fits into it (Sekiyama et al.,
 * "Profile-guided memory optimization for deep neural networks", arXiv 1804.10001, where the longest life has the most weight). As long as
 * some blocks end above hspmd_live_bytes(), these are given more weight, and all are placed again ("squeaky wheel" optimization: Joslin and
 * Clements, JAIR 10, 1999). Several kinds of first weights are tried, bytes first; the best placement counts. The number of rounds is
 * limited, for large programs more strictly, so that the time grows hardly faster than the number of blocks. The first placement that takes
 * at most `goal` bytes counts, if there is one; 0: the best one does. 0, or -1 with err (memory). */
int hspmd_place_blocks(struct hspmd_memory_block *blocks, size_t count, size_t goal, size_t *bytes, struct hspmd_error *err);

#endif
