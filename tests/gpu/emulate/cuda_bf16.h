/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-in: see cuda_runtime.h. */
#ifndef EMULATE_CUDA_BF16_H
#define EMULATE_CUDA_BF16_H

#include "common/half.h"
#include "cuda_runtime.h"

struct __nv_bfloat16 {
	uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
	return hspmd_bf16_to_float(x.bits);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
	__nv_bfloat16 half = { hspmd_bf16_from_float(x) };
	return half;
}

/* ---- the functions of runtime/device/cuda/mma.h */

static inline uint32_t pack_pair(float low, float high)
{
	return (uint32_t)hspmd_bf16_from_float(low) | (uint32_t)hspmd_bf16_from_float(high) << 16;
}

/* Sums are in double, in the order of k. */
static inline void multiply_add(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	typedef double two_doubles __attribute__((vector_size(16)));
	uint32_t own[6] = { a[0], a[1], a[2], a[3], b0, b1 };
	const char *all = emulate_exchange(own, sizeof own);
	auto word = [&](unsigned lane, int i) {
		uint32_t w;
		memcpy(&w, all + lane * 64 + i * 4, sizeof w);
		return w;
	};
	unsigned lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
	two_doubles sum[2] = { { c[0], c[1] }, { c[2], c[3] } };
	for (int half = 0; half < 2; half++)
		for (unsigned q = 0; q < 4; q++) {
			uint32_t left[2] = { word(row * 4 + q, 2 * half), word(row * 4 + q, 2 * half + 1) };
			uint32_t right[2] = { word(column * 4 + q, 4 + half), word((column + 1) * 4 + q, 4 + half) };
			for (int k = 0; k < 2; k++) {
				auto part = [&](uint32_t pair) { return (double)hspmd_bf16_to_float((uint16_t)(pair >> 16 * k)); };
				two_doubles columns = { part(right[0]), part(right[1]) };
				for (int i = 0; i < 2; i++) {
					double x = part(left[i]);
					sum[i] += two_doubles{ x, x } * columns;
				}
			}
		}
	for (int i = 0; i < 4; i++)
		c[i] = (float)sum[i / 2][i % 2];
}

static inline void emulate_load_matrices(uint32_t *to, const __nv_bfloat16 *row, bool transposed)
{
	if ((uintptr_t)row % 16)
		emulate_end("a matrix's row is not aligned to 16 bytes");
	const char *all = emulate_exchange(row, 16);
	unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	auto element = [&](unsigned matrix, unsigned r, unsigned column) {
		uint16_t bits;
		memcpy(&bits, all + (matrix * 8 + r) * 64 + column * 2, sizeof bits);
		return (uint32_t)bits;
	};
	for (unsigned i = 0; i < 4; i++)
		to[i] = transposed ? element(i, 2 * t, g) | element(i, 2 * t + 1, g) << 16
		                   : element(i, g, 2 * t) | element(i, g, 2 * t + 1) << 16;
}

static inline void load_matrices(uint32_t *to, const __nv_bfloat16 *row)
{
	emulate_load_matrices(to, row, false);
}

static inline void load_matrices_trans(uint32_t *to, const __nv_bfloat16 *row)
{
	emulate_load_matrices(to, row, true);
}

/* The wait does the copy: as late as is allowed. */
static inline void copy_async(__nv_bfloat16 *to, const __nv_bfloat16 *from, bool valid)
{
	if ((uintptr_t)to % 16 || (valid && (uintptr_t)from % 16))
		emulate_end("an asynchronous copy is not aligned to 16 bytes");
	emulate_copy_later(to, valid ? from : NULL);
}

static inline void copies_commit()
{
	emulate_copies_commit();
}

template <int left> static inline void copies_wait()
{
	emulate_copies_wait(left);
}

#endif
