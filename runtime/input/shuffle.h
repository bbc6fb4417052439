/* SPDX-License-Identifier: Apache-2.0 */
/* Orders that are computed, not stored: everybody who asks gets the same. */
#ifndef HSPMD_INPUT_SHUFFLE_H
#define HSPMD_INPUT_SHUFFLE_H

#include <stdint.h>

/* splitmix64's mixing (Steele, Lea, Flood 2014). */
uint64_t hspmd_mix(uint64_t x);
/* Where number i of 0..n-1 goes in a permutation chosen by `key`. */
uint64_t hspmd_shuffle(uint64_t i, uint64_t n, uint64_t key);

#endif
