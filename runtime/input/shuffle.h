/* SPDX-License-Identifier: Apache-2.0 */
/* Permutations that are computed, not stored: every caller gets the same. */
#ifndef HSPMD_INPUT_SHUFFLE_H
#define HSPMD_INPUT_SHUFFLE_H

#include <stdint.h>

/* splitmix64's mixing (Steele, Lea, Flood 2014). */
uint64_t hspmd_mix(uint64_t x);
/* Image of i (0..n-1) in a permutation of 0..n-1 chosen by `key`. */
uint64_t hspmd_shuffle(uint64_t i, uint64_t n, uint64_t key);

#endif
