/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the blocks of attention for compute capability 9.0 begin, which is that of their numbers. tests/bench/gpu/roofline
 * models it. Whoever includes this says what its functions are, HSPMD_ORDER_FUNCTION. */
#ifndef HSPMD_CUDA_ATTENTION_ORDER_H
#define HSPMD_CUDA_ATTENTION_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* What a block computes: tile number `rank`, by how much there is to do in causal attention, of a head of a sample. */
struct place {
	int rank, head, batch;
};

/* Heads begin in sets of `together` (counting those of all samples), and of a set the tiles with most to do first, so that multiprocessors
 * end at about the same time, and what blocks that run at the same time read is in the L2 cache. */
HSPMD_ORDER_FUNCTION struct place place_of(int block, int tiles, int heads, int batches, int together)
{
	int set = block / (tiles * together), first = set * together, within = block - first * tiles,
	    count = heads * batches - first < together ? heads * batches - first : together, head = first + within % count;
	struct place p = { within / count, head % heads, head / heads };
	return p;
}

/* How a launch alternates between blocks of two kinds: `lead` of the first kind, then both evenly, so that their last ones begin
 * together. The blocks that lead have most to do. */
struct alternation {
	int lead, ones, others; /* ones: all of the first kind, with those that lead */
};

/* What a block of such a launch is: number so many of its kind. */
struct turn {
	bool other;
	int number;
};

HSPMD_ORDER_FUNCTION struct turn turn_of(struct alternation order, int block)
{
	int64_t rest = order.ones + order.others - order.lead, at = block - order.lead;
	int before = at > 0 ? (int)(at * order.others / rest) : 0;
	bool other = at >= 0 && (at + 1) * order.others / rest > before;
	struct turn t = { other, other ? before : block - before };
	return t;
}

#endif
