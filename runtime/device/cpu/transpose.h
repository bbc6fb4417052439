/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix transpose in registers, a square of LANES x LANES at a time. */
#ifndef HSPMD_CPU_TRANSPOSE_H
#define HSPMD_CPU_TRANSPOSE_H

#include "runtime/device/cpu/kernel.h"

/* Interleaves the lanes of two vectors: those of their first halves, and those of their second. */
#if LANES == 16
#define FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#elif LANES == 4
#define FIRST_HALVES 0, 4, 1, 5
#define SECOND_HALVES 2, 6, 3, 7
#else
#define FIRST_HALVES 0, 2
#define SECOND_HALVES 1, 3
#endif

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){ __VA_ARGS__ })
#endif

/* Lane j of v[i] becomes lane i of v[j]: each round interleaves the first half of the vectors with the second, like a card shuffle. */
static inline __attribute__((always_inline)) void transpose(vec v[LANES])
{
	vec w[LANES];
#pragma GCC unroll 8
	for (int round = 1; round < LANES; round *= 2) {
#pragma GCC unroll 8
		for (int i = 0; i < LANES / 2; i++) {
			w[2 * i] = SHUFFLE(v[i], v[i + LANES / 2], FIRST_HALVES);
			w[2 * i + 1] = SHUFFLE(v[i], v[i + LANES / 2], SECOND_HALVES);
		}
#pragma GCC unroll 16
		for (int i = 0; i < LANES; i++)
			v[i] = w[i];
	}
}

/* to[c * to_step + r] = from[r * from_step + c] for `rows` <= LANES rows (a constant in the fast path) and all columns. Rows from `given`
 * on are zeros. */
static inline __attribute__((always_inline)) void transpose_strip(real *restrict to, int64_t to_step, const real *restrict from,
                                                                  int64_t from_step, int rows, int given, int64_t columns)
{
	int64_t c = 0;
	for (; c + LANES <= columns; c += LANES) {
		vec v[LANES];
#pragma GCC unroll 16
		for (int r = 0; r < LANES; r++)
			v[r] = r < given ? load(from + r * from_step + c) : splat(0);
		transpose(v);
#pragma GCC unroll 16
		for (int i = 0; i < LANES; i++)
			store_part(to + (c + i) * to_step, v[i], rows);
	}
	for (int i = 0; i < (int)(columns % LANES); i++)
		for (int r = 0; r < rows; r++)
			to[(c + i) * to_step + r] = r < given ? from[r * from_step + c + i] : 0;
}

/* The same for any number of rows. */
static inline void transpose_copy(real *restrict to, int64_t to_step, const real *restrict from, int64_t from_step, int64_t rows,
                                  int64_t columns)
{
	int64_t r = 0;
	for (; r + LANES <= rows; r += LANES)
		transpose_strip(to + r, to_step, from + r * from_step, from_step, LANES, LANES, columns);
	for (int64_t c = 0; r < rows && c < columns; c++)
		for (int i = 0; i < (int)(rows - r); i++)
			to[c * to_step + r + i] = from[(r + i) * from_step + c];
}

#endif
