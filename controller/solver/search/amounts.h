/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of devices of each device class, in pairs, so that two of them are compared or subtracted at once. Private to the search. */
#ifndef HSPMD_SEARCH_AMOUNTS_H
#define HSPMD_SEARCH_AMOUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "controller/solver/search/device_classes.h"

#define HSPMD_AMOUNT_PAIRS ((HSPMD_DEVICE_CLASSES_MAX + 1) / 2)

struct hspmd_amounts {
	uint64_t pairs[HSPMD_AMOUNT_PAIRS]; /* each amount has 32 bits, of which the highest is 0 */
};

/* devices: HSPMD_DEVICE_CLASSES_MAX numbers. */
static inline struct hspmd_amounts hspmd_amounts_of(const int *devices)
{
	struct hspmd_amounts x = { { 0 } };
	for (int k = 0; k < HSPMD_DEVICE_CLASSES_MAX; k++)
		x.pairs[k / 2] |= (uint64_t)devices[k] << k % 2 * 32;
	return x;
}

/* Returns true if no amount of `part` is more than that of `whole`: then none takes the bit that is set above the latter. pairs: number of
 * them that are not 0. */
static inline bool hspmd_amounts_within(const struct hspmd_amounts *part, const struct hspmd_amounts *whole, int pairs)
{
	const uint64_t above = UINT64_C(0x8000000080000000);
	for (int i = 0; i < pairs; i++)
		if ((((whole->pairs[i] | above) - part->pairs[i]) & above) != above)
			return false;
	return true;
}

/* What is left of `whole`, which has as much as `part`. */
static inline struct hspmd_amounts hspmd_amounts_without(const struct hspmd_amounts *whole, const struct hspmd_amounts *part)
{
	struct hspmd_amounts left;
	for (int i = 0; i < HSPMD_AMOUNT_PAIRS; i++)
		left.pairs[i] = whole->pairs[i] - part->pairs[i];
	return left;
}

#endif
