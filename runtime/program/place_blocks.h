/* SPDX-License-Identifier: Apache-2.0 */
/* Places blocks of memory whose lifetimes are known: two blocks that live at the same time must not overlap. */
#ifndef HSPMD_PROGRAM_PLACE_BLOCKS_H
#define HSPMD_PROGRAM_PLACE_BLOCKS_H

#include "common/error.h"

/* More blocks take too long: the time grows with the square of their number. */
#define HSPMD_PLACE_BLOCKS_MAX 8192

#define HSPMD_PLACE_ORDERS 2

struct hspmd_memory_block {
	int id;
	size_t first, last; /* lifetime, in instructions */
	size_t bytes, offset;
};

/* Set the blocks' offsets, and *bytes to the end of the last one. The blocks are placed one after another, each in the smallest gap that is
 * free for all of its life (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288, greedy by
 * size); `order` 0 .. HSPMD_PLACE_ORDERS - 1 chooses which come first. Reorders the blocks. 0, or -1 with err (memory). */
int hspmd_place_blocks(struct hspmd_memory_block *blocks, size_t count, int order, size_t *bytes, struct hspmd_error *err);

#endif
