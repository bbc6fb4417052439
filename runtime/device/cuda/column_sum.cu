/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of the columns of a matrix (gradients of biases): first within bands of rows, then over the bands in order. Sums that other kernels
 * leave in parts are added up here as well. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 128
#define MOST_WARPS 32
#define BAND 256 /* rows per block: enough blocks to fill a device, few enough bands to add up */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        band_kernel(const T *x, int64_t rows, int64_t n, int64_t stride, float *bands, bool aligned)
{
	const int c = pack<T>::count;
	int64_t j = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * c, begin = (int64_t)blockIdx.y * BAND;
	int64_t end = begin + BAND < rows ? begin + BAND : rows;
	if (j >= n)
		return;
	float sum[c] = {};
	for (int64_t r = begin; r < end; r++) {
		float v[c];
		load_pack(v, x + r * stride, j, n, aligned);
#pragma unroll
		for (int i = 0; i < c; i++)
			sum[i] += v[i];
	}
	for (int i = 0; i < c; i++)
		if (j + i < n)
			bands[(int64_t)blockIdx.y * n + j + i] = sum[i];
}

struct vectors {
	struct hspmd_cuda_parts of[HSPMD_CUDA_PARTS_MOST];
};

/* A block adds up WARP columns of one vector: its warps take every so many-th part each, then their sums are added in order. */
static __global__ void __launch_bounds__(WARP *MOST_WARPS) parts_kernel(struct vectors v, int64_t count, int64_t n)
{
	__shared__ float room[MOST_WARPS][WARP];
	/* An index that is no constant would put the argument into the thread's memory. */
	bool second = blockIdx.y, accumulate = second ? v.of[1].accumulate : v.of[0].accumulate;
	const float *parts = second ? v.of[1].parts : v.of[0].parts;
	float *sums = second ? v.of[1].sums : v.of[0].sums;
	int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
	int64_t j = (int64_t)blockIdx.x * WARP + lane;
	float total = 0;
#pragma unroll 8
	for (int64_t p = warp; p < count; p += warps)
		total += j < n ? parts[p * n + j] : 0.0f;
	room[warp][lane] = total;
	__syncthreads();
	if (warp || j >= n)
		return;
	for (int w = 1; w < warps; w++)
		total += room[w][lane];
	sums[j] = accumulate ? sums[j] + total : total;
}

void hspmd_cuda_add_parts(struct hspmd_cuda *cuda, const struct hspmd_cuda_parts *of, int vectors, int64_t count, int64_t n)
{
	struct vectors v = {};
	int64_t warps = ceil_div(count, 4);
	for (int i = 0; i < vectors; i++)
		v.of[i] = of[i];
	if (n && vectors)
		LAUNCH(parts_kernel, dim3((unsigned)ceil_div(n, WARP), (unsigned)vectors),
		       WARP * (unsigned)(warps < 1 ? 1 : warps > MOST_WARPS ? MOST_WARPS : warps), 0, cuda->stream, v, count, n);
}

template <typename T> static void sum_of(struct hspmd_cuda *cuda, const struct hspmd_view *x, int64_t rows, int64_t n, float *bands)
{
	auto *kernel = band_kernel<T>;
	int64_t stride = x->row_stride ? x->row_stride : n;
	dim3 grid((unsigned)ceil_div(n, THREADS * pack<T>::count), (unsigned)ceil_div(rows, BAND));
	LAUNCH(kernel, grid, THREADS, 0, cuda->stream, (const T *)x->data, rows, n, stride, bands, is_aligned16<T>(stride));
}

void hspmd_cuda_column_sum(struct hspmd_cuda *cuda, const struct hspmd_view *x, int64_t rows, int64_t n, float *sums, bool accumulate,
                           void *workspace)
{
	if (rows && n)
		BY_TYPE(x->dtype, sum_of, cuda, x, rows, n, (float *)workspace);
	struct hspmd_cuda_parts bands = { (const float *)workspace, sums, accumulate };
	hspmd_cuda_add_parts(cuda, &bands, 1, ceil_div(rows, BAND), n);
}

size_t hspmd_cuda_column_sum_workspace(const struct hspmd_cuda *, int64_t rows, int64_t n)
{
	return (size_t)(ceil_div(rows, BAND) * n) * sizeof(float);
}
