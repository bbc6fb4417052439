/* SPDX-License-Identifier: Apache-2.0 */
/* The innermost kernel of matrix products, and the packing it reads: a panel of A is [k][MR], one of B is [k][NR], both padded with
 * zeros. */
#ifndef HSPMD_CPU_MICROKERNEL_H
#define HSPMD_CPU_MICROKERNEL_H

#include "runtime/device/cpu/transpose.h"

/* The accumulators, two vectors of B and one element of A must fit in the registers: 32 of them with AVX-512 and on arm64, else 16. */
#define NV 2
#if defined __AVX512F__ || defined __aarch64__
#define MR 12
#else
#define MR 6
#endif
#define NR (NV * LANES)

/* Rows of a large matrix lie on different pages, which no processor prefetches across by itself. */
#define CACHE_LINE 64
#define ROWS_AHEAD 8

#if defined __AVX2__ && !defined __AVX512F__
#include "runtime/device/cpu/microkernel_avx2.h"
#else
/* Adds the products of one k: row i of A is at a[i * row_step]. */
static inline __attribute__((always_inline)) void add_products(vec sum[MR][NV], const real *restrict a, int64_t row_step,
                                                               const real *restrict b)
{
	vec right[NV];
#pragma GCC unroll 4
	for (int j = 0; j < NV; j++)
		right[j] = load(b + j * LANES);
#pragma GCC unroll 16
	for (int i = 0; i < MR; i++) {
		vec left = splat(a[i * row_step]);
#pragma GCC unroll 4
		for (int j = 0; j < NV; j++)
			sum[i][j] += left * right[j];
	}
}

/* sum = the products of `depth` k. The loop has two k and no counter: what is not a multiplication there takes the processor's time. */
static inline __attribute__((always_inline)) void sum_products(vec sum[MR][NV], int64_t depth, const real *restrict a, int64_t row_step,
                                                               int64_t column_step, const real *restrict b)
{
	memset(sum, 0, MR * sizeof *sum);
	for (const real *end = b + depth / 2 * 2 * NR; b < end; a += 2 * column_step, b += 2 * NR) {
		add_products(sum, a, row_step, b);
		add_products(sum, a + column_step, row_step, b + NR);
	}
	if (depth % 2)
		add_products(sum, a, row_step, b);
}
#endif

/* C tile (rows ldc apart) = (add ? C : 0) + bias + sum over k of a[k][.] b[k][.]. Row i of A at k is a[i * row_step + k * column_step],
 * and one of these steps is 1. */
static inline __attribute__((always_inline)) void micro_kernel_at(int64_t depth, const real *restrict a, int64_t row_step,
                                                                  int64_t column_step, const real *restrict b, real *restrict c,
                                                                  int64_t ldc, bool add, const real *restrict bias)
{
	vec sum[MR][NV];
	for (int i = 0; add && i < MR; i++)
		for (int j = 0; j < NR; j += CACHE_LINE / (int)sizeof *c)
			__builtin_prefetch(c + i * ldc + j);
	sum_products(sum, depth, a, row_step, column_step, b);
#pragma GCC unroll 16
	for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
		for (int j = 0; j < NV; j++) {
			real *to = c + i * ldc + j * LANES;
			vec v = sum[i][j];
			if (bias)
				v += load(bias + j * LANES);
			store(to, add ? load(to) + v : v);
		}
}

/* The same of a packed panel of A. */
static inline __attribute__((always_inline)) void micro_kernel(int64_t depth, const real *restrict a, const real *restrict b,
                                                               real *restrict c, int64_t ldc, bool add, const real *restrict bias)
{
	micro_kernel_at(depth, a, 1, MR, b, c, ldc, add, bias);
}

/* `panels` panels of B that lie side by side, from rows whose elements are one after another: row by row, as memory is read fastest. */
static inline void pack_panels_b(real *restrict to, const real *restrict from, int64_t row_step, int64_t depth, int64_t panels)
{
	for (int64_t k = 0; k < depth; k++) {
		for (int64_t j = 0; j < panels * NR; j += CACHE_LINE / (int)sizeof *to)
			__builtin_prefetch(from + (k + ROWS_AHEAD) * row_step + j);
		for (int64_t i = 0; i < panels; i++)
			memcpy(to + (i * depth + k) * NR, from + k * row_step + i * NR, NR * sizeof *to);
	}
}

/* Panel of B from `width` <= NR columns; rows are row_step apart, columns column_step. */
static inline void pack_panel_b(real *restrict to, const real *restrict from, int64_t row_step, int64_t column_step, int64_t depth,
                                int64_t width)
{
	if (column_step == 1 && width == NR) {
		pack_panels_b(to, from, row_step, depth, 1);
		return;
	}
	if (row_step == 1)
		transpose_copy(to, NR, from, column_step, width, depth);
	else
		for (int64_t j = 0; j < width; j++)
			for (int64_t k = 0; k < depth; k++)
				to[k * NR + j] = from[k * row_step + j * column_step];
	for (int64_t k = 0; width < NR && k < depth; k++)
		memset(to + k * NR + width, 0, (size_t)(NR - width) * sizeof *to);
}

/* Panel of A from `height` <= MR rows. */
static inline void pack_panel_a(real *restrict to, const real *restrict from, int64_t row_step, int64_t column_step, int64_t depth,
                                int64_t height)
{
	if (row_step == 1 && height == MR) {
		for (int64_t k = 0; k < depth; k++)
			memcpy(to + k * MR, from + k * column_step, MR * sizeof *to);
		return;
	}
#if MR <= LANES
	if (column_step == 1) {
		if (height == MR)
			transpose_strip(to, MR, from, row_step, MR, MR, depth);
		else
			transpose_strip(to, MR, from, row_step, MR, (int)height, depth);
		return;
	}
#endif
	for (int64_t i = 0; i < height; i++)
		for (int64_t k = 0; k < depth; k++)
			to[k * MR + i] = from[i * row_step + k * column_step];
	for (int64_t k = 0; height < MR && k < depth; k++)
		memset(to + k * MR + height, 0, (size_t)(MR - height) * sizeof *to);
}

#endif
