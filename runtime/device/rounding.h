/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic rounding of F32 to BF16: to one of the two neighbours, to the upper one with a probability proportional to the distance from
 * the lower one, so that the mean is the value itself and updates smaller than half a unit are not lost (Gupta et al., "Deep Learning with
 * Limited Numerical Precision", arXiv 1502.02551, section 3). The random bits are a function of (seed, stream, index of the element in the
 * full tensor) alone: the same on every device and for every split of the tensor. */
#ifndef HSPMD_DEVICE_ROUNDING_H
#define HSPMD_DEVICE_ROUNDING_H

#include <string.h>

#include "runtime/device/random.h"

/* The bits in BF16. random: 16 uniformly distributed bits, which choose between the neighbours of a value that BF16 cannot represent.
 * Values that it can represent stay, as do infinities and NaN. Beyond the largest finite number the upper neighbour is infinity, whose
 * distance cannot be weighed: the result is the largest finite number. */
HSPMD_RANDOM uint16_t hspmd_round_bf16(float x, uint32_t random)
{
	uint32_t word, size;
	memcpy(&word, &x, sizeof word);
	size = word & 0x7fffffffu;
	if (size > 0x7f800000u)
		return (uint16_t)(word >> 16 | 0x40u);
	if (size >= 0x7f7f0000u)
		return (uint16_t)(word >> 16);
	return (uint16_t)((word + random) >>
	                  16); /* carries into the kept bits, away from 0, if the sum of the 16 dropped bits and the random ones does */
}

/* Elements [i, i + count) of a local part: from[0] and to[0] are those of element i. */
HSPMD_RANDOM void hspmd_round_elements(uint64_t seed, uint64_t stream, const struct hspmd_index_map *map, int64_t i, int count,
                                       const float *from, uint16_t *to)
{
	uint32_t word[4] = { 0 };
	int64_t index = 0, run = 0, block = -1; /* the block whose words are in `word` */
	for (int k = 0; k < count; k++, index++, run--) {
		if (!run)
			index = hspmd_index_at(map, i + k, &run);
		if (index / 4 != block) {
			block = index / 4;
			hspmd_random_words(seed, stream, (uint64_t)block, word);
		}
		uint32_t own = index & 2 ? (index & 1 ? word[3] : word[2]) : (index & 1 ? word[1] : word[0]);
		to[k] = hspmd_round_bf16(from[k], own >> 16);
	}
}

/* Returns true if this CAST uses stochastic rounding. */
static inline bool hspmd_rounds_stochastically(const struct hspmd_kernel_args *args)
{
	return args->attr && args->attr->stochastic && args->in[0].dtype == HSPMD_F32 && args->out[0].dtype == HSPMD_BF16;
}

#endif
