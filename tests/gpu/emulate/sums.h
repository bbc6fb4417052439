/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of products of a warp-group, for wgmma.cc: vectors of the machine that it is compiled for. */
#ifndef EMULATE_SUMS_H
#define EMULATE_SUMS_H

#include <string.h>

#define MOST_DEPTH 32 /* that a product sums over, of FP8 numbers */

typedef double eight_doubles __attribute__((vector_size(64)));
typedef double two_doubles __attribute__((vector_size(16)));

/* Adds to the sums of two rows and of as many columns as `count` vectors have: side by side, because each sum waits for its last addend.
 * Addends are in the order of multiply_add. A thread has two columns of every eight, which sums[] has as the thread does: row by row. */
template <typename some_doubles, unsigned count>
static inline __attribute__((always_inline)) void add_products(const double (&left)[2][MOST_DEPTH], unsigned depth, const double *right,
                                                               unsigned columns, bool add, float *sums)
{
	const unsigned each = sizeof(some_doubles) / sizeof(double);
	some_doubles sum[count][2] = {};
#pragma GCC unroll 32
	for (unsigned i = 0; add && i < 2 * count * each; i++)
		sum[i / each / 2][i / 2 % 2][i / 4 * 2 % each + i % 2] = sums[i];
	for (unsigned k = 0; k < depth; k++)
#pragma GCC unroll 2
		for (unsigned n = 0; n < count; n++) {
			some_doubles all;
			memcpy(&all, right + k * columns + n * each, sizeof all);
			sum[n][0] += left[0][k] * all;
			sum[n][1] += left[1][k] * all;
		}
#pragma GCC unroll 32
	for (unsigned i = 0; i < 2 * count * each; i++)
		sums[i] = (float)sum[i / each / 2][i / 2 % 2][i / 4 * 2 % each + i % 2];
}

#endif
