/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors rounded to FP8 (runtime/tensor/fp8.h), also transposed: as codes, or as elements that are the FP8 numbers. */
#ifndef HSPMD_CUDA_FP8_ROUND_H
#define HSPMD_CUDA_FP8_ROUND_H

#include "runtime/device/cuda/kernel.h"
#include "runtime/tensor/fp8.h"

#define ROUND_THREADS 256
#define ROUND_TILE 64    /* rows and columns of a tile that is turned: a block has a thread for each 16 codes of one */
#define ROUND_EACH 16    /* elements of a thread at a time */
#define MOST_BLOCKS 1024 /* of one rounding: the number of partial amax */

struct fp8_code {
	uint8_t bits;
};

/* How an operand is rounded; the scales are on the device. */
struct rounding {
	int64_t rows, columns, stride; /* of what is read: elements from one row to the next */
	const float *scale;            /* two: the scale, and the inverse scale */
	const float *done;             /* not 0: the result is there already; NULL: it is not */
	float *parts;                  /* per block: amax; NULL: not wanted */
	int *amax;                     /* the largest so far, as bits of a float, which are in the same order; NULL: not wanted */
	bool gradient;
};

static __device__ __forceinline__ void round_to(fp8_code *to, float x, const struct rounding &r, float scale, float)
{
	to->bits = r.gradient ? hspmd_e5m2_bits(x * scale) : hspmd_e4m3_bits(x * scale);
}

static __device__ __forceinline__ void round_to(float *to, float x, const struct rounding &r, float scale, float back)
{
	*to = (r.gradient ? hspmd_e5m2_round(x * scale) : hspmd_e4m3_round(x * scale)) * back;
}

static __device__ __forceinline__ void round_to(bf16 *to, float x, const struct rounding &r, float scale, float back)
{
	float rounded;
	round_to(&rounded, x, r, scale, back);
	*to = from_float<bf16>(rounded);
}

/* A NaN does not count. */
static __device__ __forceinline__ float larger(float most, float x)
{
	return fabsf(x) > most ? fabsf(x) : most;
}

static __device__ __forceinline__ void note_amax(const struct rounding &r, float most, float *room)
{
	if (!r.parts && !r.amax)
		return;
	most = block_reduce<Max>(most, 0.0f, room);
	if (threadIdx.x == 0 && r.parts)
		r.parts[blockIdx.x] = most;
	else if (threadIdx.x == 0)
		atomicMax(r.amax, (int)hspmd_fp8_bits(most));
}

template <typename T, typename Out>
static __global__ void __launch_bounds__(ROUND_THREADS) round_kernel(const T *x, Out *to, struct rounding r)
{
	__shared__ float room[WARP];
	const int n = pack<T>::count;
	if (r.done && *r.done != 0)
		return;
	float most = 0, scale = r.scale[0], back = r.scale[1];
	int64_t packs = (r.columns + n - 1) / n, all = r.rows * packs;
	bool aligned = is_aligned16<T>(r.stride), packed = r.columns % n == 0;
	for (int64_t i = (int64_t)blockIdx.x * ROUND_THREADS + threadIdx.x; i < all; i += (int64_t)gridDim.x * ROUND_THREADS) {
		int64_t row = i / packs, j = i % packs * n;
		float v[pack<T>::count];
		struct __align__(sizeof(Out) * pack<T>::count) results
		{
			Out v[pack<T>::count];
		}
		result;
		load_pack(v, x + row * r.stride, j, r.columns, aligned);
#pragma unroll
		for (int k = 0; k < n; k++) {
			most = larger(most, v[k]);
			round_to(&result.v[k], v[k], r, scale, back);
		}
		if (packed) {
			store_whole((struct results *)(to + row * r.columns + j), result);
			continue;
		}
		for (int k = 0; k < n && j + k < r.columns; k++)
			to[row * r.columns + j + k] = result.v[k];
	}
	note_amax(r, most, room);
}

/* to[columns, rows] in FP8, of each of gridDim.y matrices; both are multiples of 16. A tile of codes is turned in shared memory, so that
 * reads and writes are of 16 bytes; its lines are a word longer than they need be, so that they begin in different banks. */
static __global__ void __launch_bounds__(ROUND_THREADS) turn_kernel(const bf16 *x, fp8_code *to, struct rounding r)
{
	struct __align__(16) codes
	{
		uint32_t word[4];
	};
	const int n = pack<bf16>::count, across = ROUND_TILE / n, down = ROUND_TILE / ROUND_EACH;
	__shared__ float room[WARP];
	__shared__ uint32_t tile[ROUND_TILE][ROUND_TILE / 4 + 1]; /* [column][row / 4] */
	if (r.done && *r.done != 0)
		return;
	float most = 0, scale = r.scale[0];
	x += blockIdx.y * r.rows * r.stride;
	to += blockIdx.y * r.rows * r.columns;
	int64_t tiles_across = (r.columns + ROUND_TILE - 1) / ROUND_TILE, tiles = (r.rows + ROUND_TILE - 1) / ROUND_TILE * tiles_across;
	for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
		int64_t row = t / tiles_across * ROUND_TILE, column = t % tiles_across * ROUND_TILE;
		__syncthreads();
		for (int i = threadIdx.x / across; i < ROUND_TILE && row + i < r.rows; i += ROUND_THREADS / across) {
			int j = threadIdx.x % across * n;
			float v[pack<bf16>::count];
			if (column + j >= r.columns)
				continue;
			load_pack(v, x + (row + i) * r.stride, column + j, r.columns, true);
#pragma unroll
			for (int k = 0; k < n; k++) {
				most = larger(most, v[k]);
				round_to((fp8_code *)tile[j + k] + i, v[k], r, scale, 0);
			}
		}
		__syncthreads();
		int line = threadIdx.x / down, at = threadIdx.x % down * ROUND_EACH;
		if (column + line < r.columns && row + at < r.rows) {
			struct codes all;
#pragma unroll
			for (int k = 0; k < 4; k++)
				all.word[k] = tile[line][at / 4 + k];
			store_whole((struct codes *)(to + (column + line) * r.rows + row + at), all);
		}
	}
	__syncthreads();
	note_amax(r, most, room);
}

static unsigned blocks_of(const struct rounding *r, bool transposed)
{
	int64_t n = transposed ? ceil_div(r->rows, ROUND_TILE) * ceil_div(r->columns, ROUND_TILE)
	                       : ceil_div(r->rows * r->columns, ROUND_THREADS * ROUND_EACH);
	return (unsigned)(n < 1 ? 1 : n > MOST_BLOCKS ? MOST_BLOCKS : n);
}

template <typename T, typename Out>
static void round_as(struct hspmd_cuda *cuda, const void *x, void *to, const struct rounding *r, unsigned blocks)
{
	auto *kernel = round_kernel<T, Out>;
	LAUNCH(kernel, blocks, ROUND_THREADS, 0, cuda->stream, (const T *)x, (Out *)to, *r);
}

#endif
