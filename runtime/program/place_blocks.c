/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/place_blocks.h"

#include <stdint.h>
#include <stdlib.h>

#include "common/alloc.h"

/* Orders of placing: the blocks first that are difficult to place later, by bytes times lifetime, bytes, or lifetime. Which is best depends
 * on the program. */
static double weight(const struct hspmd_memory_block *b)
{
	return (double)b->bytes * (double)(b->last - b->first + 1);
}

static int in_order(double wx, double wy, const struct hspmd_memory_block *x, const struct hspmd_memory_block *y)
{
	return wx != wy ? wx < wy ? 1 : -1 : x->id < y->id ? -1 : x->id > y->id;
}

static int by_weight(const void *a, const void *b)
{
	return in_order(weight(a), weight(b), a, b);
}

static int by_bytes(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = a, *y = b;
	return x->bytes != y->bytes ? x->bytes < y->bytes ? 1 : -1 : by_weight(a, b);
}

static int by_lifetime(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = a, *y = b;
	size_t lx = x->last - x->first, ly = y->last - y->first;
	return lx != ly ? lx < ly ? 1 : -1 : by_weight(a, b);
}

static int by_bytes_and_start(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = a, *y = b;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->first != y->first ? x->first < y->first ? -1 : 1 : x->id < y->id ? -1 : x->id > y->id;
}

static int (*const orders[HSPMD_PLACE_ORDERS])(const void *, const void *) = { by_weight, by_bytes, by_lifetime, by_bytes_and_start };

static int by_offset(const void *a, const void *b)
{
	const struct hspmd_memory_block *x = *(struct hspmd_memory_block *const *)a, *y = *(struct hspmd_memory_block *const *)b;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The smallest gap of at least `bytes` between the blocks, which are in the order of their offsets; if there is none, the end. */
static size_t find_place(struct hspmd_memory_block *const *present, size_t count, size_t bytes)
{
	size_t end = 0, smallest = SIZE_MAX, place = 0;
	for (size_t i = 0; i < count; i++) {
		if (present[i]->offset > end && present[i]->offset - end >= bytes && present[i]->offset - end < smallest) {
			smallest = present[i]->offset - end;
			place = end;
		}
		if (present[i]->offset + present[i]->bytes > end)
			end = present[i]->offset + present[i]->bytes;
	}
	return smallest < SIZE_MAX ? place : end;
}

int hspmd_place_blocks(struct hspmd_memory_block *blocks, size_t count, int order, size_t *bytes, struct hspmd_error *err)
{
	struct hspmd_memory_block **present = hspmd_calloc(count + 1, sizeof *present);
	if (!present)
		return hspmd_fail_memory(err, "planning memory");
	qsort(blocks, count, sizeof *blocks, orders[order]);
	*bytes = 0;
	for (size_t i = 0; i < count; i++) {
		size_t n = 0;
		for (size_t k = 0; k < i; k++)
			if (blocks[k].first <= blocks[i].last && blocks[i].first <= blocks[k].last)
				present[n++] = &blocks[k];
		qsort(present, n, sizeof(struct hspmd_memory_block *), by_offset);
		blocks[i].offset = find_place(present, n, blocks[i].bytes);
		if (blocks[i].offset + blocks[i].bytes > *bytes)
			*bytes = blocks[i].offset + blocks[i].bytes;
	}
	free(present);
	return 0;
}
