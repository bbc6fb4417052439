/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/place_blocks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* Orders of placing: the blocks first that are difficult to place later, by bytes times lifetime, or large ones
 * first and equal ones as they begin. Which is better depends on the program. */
static double weight(const struct hspmd_memory_block *b)
{
	return (double)b->bytes * (double)(b->last - b->first + 1);
}

static int by_weight(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = a, *y = b;
	double wx = weight(x), wy = weight(y);
	return wx != wy ? wx < wy ? 1 : -1 : x->id < y->id ? -1 : x->id > y->id;
}

static int by_bytes_and_start(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = a, *y = b;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->first != y->first ? x->first < y->first ? -1 : 1 : x->id < y->id ? -1 : x->id > y->id;
}

static int (*const orders[HSPMD_PLACE_ORDERS])(const void *, const void *) = { by_weight, by_bytes_and_start };

/* The smallest gap for the block between those that live at the same time as it does; if there is none, behind them. `placed`: in the order
 * of their offsets. */
static size_t find_place(const struct hspmd_memory_block *b, struct hspmd_memory_block *const *placed, size_t count)
{
	size_t end = 0, smallest = SIZE_MAX, place = 0;
	for (size_t i = 0; i < count; i++) {
		const struct hspmd_memory_block *other = placed[i];
		if (other->first > b->last || b->first > other->last)
			continue;
		if (other->offset > end && other->offset - end >= b->bytes && other->offset - end < smallest) {
			smallest = other->offset - end;
			place = end;
		}
		if (other->offset + other->bytes > end)
			end = other->offset + other->bytes;
	}
	return smallest < SIZE_MAX ? place : end;
}

/* The first of the blocks whose offset is larger. */
static size_t position(struct hspmd_memory_block *const *placed, size_t count, size_t offset)
{
	size_t low = 0;
	while (low < count) {
		size_t middle = (low + count) / 2;
		if (placed[middle]->offset <= offset)
			low = middle + 1;
		else
			count = middle;
	}
	return low;
}

int hspmd_place_blocks(struct hspmd_memory_block *blocks, size_t count, int order, size_t *bytes, struct hspmd_error *err)
{
	struct hspmd_memory_block **placed = hspmd_calloc(count + 1, sizeof *placed);
	if (!placed)
		return hspmd_fail_memory(err, "planning memory");
	qsort(blocks, count, sizeof *blocks, orders[order]);
	*bytes = 0;
	for (size_t i = 0; i < count; i++) {
		struct hspmd_memory_block *b = &blocks[i];
		b->offset = find_place(b, placed, i);
		size_t at = position(placed, i, b->offset);
		memmove(placed + at + 1, placed + at, (i - at) * sizeof(struct hspmd_memory_block *));
		placed[at] = b;
		*bytes = b->offset + b->bytes > *bytes ? b->offset + b->bytes : *bytes;
	}
	free(placed);
	return 0;
}
