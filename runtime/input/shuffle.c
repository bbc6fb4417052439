/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/shuffle.h"

uint64_t hspmd_mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* A balanced Feistel network on the next even number of bits, applied again until the result is below n (Black and Rogaway 2002). */
uint64_t hspmd_shuffle(uint64_t i, uint64_t n, uint64_t key)
{
	int half = 1;
	while (half < 32 && (UINT64_C(1) << (2 * half)) < n)
		half++;
	uint64_t mask = (UINT64_C(1) << half) - 1;
	do {
		uint64_t left = i >> half, right = i & mask;
		for (int round = 0; round < 4; round++) {
			uint64_t next = left ^ (hspmd_mix(right ^ key ^ ((uint64_t)round << 56)) & mask);
			left = right;
			right = next;
		}
		i = left << half | right;
	} while (i >= n);
	return i;
}
