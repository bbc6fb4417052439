/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements dropout keeps: a pure function of the position's noise, the operator's stream, and the element's number in its row. */
#ifndef HSPMD_DEVICE_DROPOUT_H
#define HSPMD_DEVICE_DROPOUT_H

#include "runtime/device/random.h"

/* Returns the factor of an element: 0, or 1 / (1 - rate). noise < 0: 1. */
HSPMD_RANDOM double hspmd_dropout_factor(double rate, uint64_t stream, int32_t noise, uint64_t number)
{
	uint32_t word[4];
	if (noise < 0)
		return 1;
	hspmd_random_words(stream, (uint64_t)(uint32_t)noise, number / 4, word);
	/* On a GPU, an index that is no constant would put the words into memory. */
	uint32_t own = number & 2 ? (number & 1 ? word[3] : word[2]) : (number & 1 ? word[1] : word[0]);
	return (double)own * 0x1p-32 < rate ? 0 : 1 / (1 - rate);
}

/* The number of an attention's probability in its row of queries. */
HSPMD_RANDOM uint64_t hspmd_dropout_probability(int64_t head, int64_t key)
{
	return (uint64_t)head << 32 | (uint64_t)key;
}

#endif
