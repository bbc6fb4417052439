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

/* What a lane passes for a product, and gets: its parts of the operands (mma.h says which), and of the sums. */
struct emulate_fragments {
	uint32_t a[4], b[2];
	float c[4];
};

/* The product of a warp, whose lanes have passed their parts. Sums are in double, in the order of the depth. */
static inline void emulate_multiply(char *slots)
{
	typedef double two_doubles __attribute__((vector_size(16)));
	auto of_lane = [=](unsigned row, unsigned pair) { return (emulate_fragments *)(slots + (row * 4 + pair) * 64); };
	double left[16][16];
	two_doubles right[16][4];
	for (unsigned g = 0; g < 8; g++)
		for (unsigned t = 0; t < 4; t++) {
			const emulate_fragments *f = of_lane(g, t);
			for (unsigned i = 0; i < 4; i++)
				for (unsigned k = 0; k < 2; k++)
					left[g + i % 2 * 8][2 * t + i / 2 * 8 + k] =
					        (double)hspmd_bf16_to_float((uint16_t)(f->a[i] >> 16 * k));
			for (unsigned i = 0; i < 2; i++)
				for (unsigned k = 0; k < 2; k++)
					right[2 * t + i * 8 + k][g / 2][g % 2] = (double)hspmd_bf16_to_float((uint16_t)(f->b[i] >> 16 * k));
		}
	for (unsigned row = 0; row < 16; row++) {
		float *c[4];
		two_doubles sum[4];
		for (unsigned t = 0; t < 4; t++) {
			c[t] = of_lane(row % 8, t)->c + row / 8 * 2;
			sum[t] = two_doubles{ c[t][0], c[t][1] };
		}
		for (unsigned k = 0; k < 16; k++)
#pragma GCC unroll 4
			for (unsigned t = 0; t < 4; t++)
				sum[t] += left[row][k] * right[k][t];
		for (unsigned t = 0; t < 4; t++) {
			c[t][0] = (float)sum[t][0];
			c[t][1] = (float)sum[t][1];
		}
	}
}

static inline void multiply_add(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	emulate_fragments own = { { a[0], a[1], a[2], a[3] }, { b0, b1 }, { c[0], c[1], c[2], c[3] } };
	char *all = emulate_exchange(&own, sizeof own, emulate_multiply);
	memcpy(c, ((const emulate_fragments *)(all + threadIdx.x % 32 * 64))->c, sizeof own.c);
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
