/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/blend.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"

struct slot {
	double when; /* in the block, 0 to 1 */
	int set;
	int rank; /* among the set's slots of the block */
};

struct hspmd_blend {
	int *quota; /* samples per block, by set */
	struct slot slots[HSPMD_BLEND_BLOCK];
};

/* For sorting sets by what rounding has taken from them. */
struct rest {
	double rest;
	int set;
};

static int by_rest(const void *a, const void *b)
{
	const struct rest *x = a, *y = b;
	return x->rest != y->rest ? (x->rest < y->rest) - (x->rest > y->rest) : x->set - y->set;
}

static int by_time(const void *a, const void *b)
{
	const struct slot *x = a, *y = b;
	return x->when != y->when ? (x->when > y->when) - (x->when < y->when) : x->set - y->set;
}

/* Largest remainders; every set gets one sample first. */
static int share_out(struct hspmd_blend *b, const double *weights, int count)
{
	struct rest *rests = hspmd_calloc((size_t)count, sizeof *rests);
	double sum = 0, free_slots = HSPMD_BLEND_BLOCK - count;
	int left = HSPMD_BLEND_BLOCK;
	if (!rests)
		return -1;
	for (int k = 0; k < count; k++)
		sum += weights[k];
	for (int k = 0; k < count; k++) {
		double wanted = fmax(weights[k] / sum * HSPMD_BLEND_BLOCK - 1, 0), given = fmin(floor(wanted), free_slots);
		b->quota[k] = 1 + (int)given;
		free_slots -= given;
		left -= b->quota[k];
		rests[k] = (struct rest){ wanted - given, k };
	}
	qsort(rests, (size_t)count, sizeof *rests, by_rest);
	for (int i = 0; left > 0; i = (i + 1) % count, left--)
		b->quota[rests[i].set]++;
	free(rests);
	return 0;
}

struct hspmd_blend *hspmd_blend_create(const double *weights, int count)
{
	struct hspmd_blend *b = hspmd_calloc(1, sizeof *b);
	int at = 0;
	if (!b || !(b->quota = hspmd_calloc((size_t)count, sizeof *b->quota)) || share_out(b, weights, count)) {
		hspmd_blend_destroy(b);
		return NULL;
	}
	for (int k = 0; k < count; k++)
		for (int r = 0; r < b->quota[k]; r++)
			b->slots[at++] = (struct slot){ (r + 0.5) / b->quota[k], k, r };
	qsort(b->slots, HSPMD_BLEND_BLOCK, sizeof *b->slots, by_time);
	return b;
}

void hspmd_blend_destroy(struct hspmd_blend *b)
{
	if (b)
		free(b->quota);
	free(b);
}

int hspmd_blend_find(const struct hspmd_blend *b, int64_t number, int64_t *index)
{
	const struct slot *s = &b->slots[number % HSPMD_BLEND_BLOCK];
	*index = number / HSPMD_BLEND_BLOCK * b->quota[s->set] + s->rank;
	return s->set;
}
