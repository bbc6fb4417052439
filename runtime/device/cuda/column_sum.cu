/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of the columns of a matrix (gradients of biases): first within bands of rows, then over the bands in order. Sums that other kernels
 * leave in parts are added up here as well. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 128
#define BAND 256 /* rows per block: enough blocks to fill a device, few enough bands to add up */

template <typename T>
static __global__ void __launch_bounds__(THREADS) band_kernel(const T *x, int64_t rows, int64_t n, float *bands, bool aligned)
{
	const int c = pack<T>::count;
	int64_t j = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * c, begin = (int64_t)blockIdx.y * BAND;
	int64_t end = begin + BAND < rows ? begin + BAND : rows;
	if (j >= n)
		return;
	float sum[c] = {};
	for (int64_t r = begin; r < end; r++) {
		float v[c];
		load_pack(v, x + r * n, j, n, aligned);
#pragma unroll
		for (int i = 0; i < c; i++)
			sum[i] += v[i];
	}
	for (int i = 0; i < c; i++)
		if (j + i < n)
			bands[(int64_t)blockIdx.y * n + j + i] = sum[i];
}

static __global__ void __launch_bounds__(THREADS) parts_kernel(const float *parts, int64_t count, int64_t n, float *sums, bool accumulate)
{
	int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (j >= n)
		return;
	float total = 0;
	for (int64_t p = 0; p < count; p++)
		total += parts[p * n + j];
	sums[j] = accumulate ? sums[j] + total : total;
}

void hspmd_cuda_add_parts(struct hspmd_cuda *cuda, const float *parts, int64_t count, int64_t n, float *sums, bool accumulate)
{
	if (n)
		LAUNCH(parts_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, cuda->stream, parts, count, n, sums, accumulate);
}

template <typename T> static void sum_of(struct hspmd_cuda *cuda, const struct hspmd_view *x, int64_t rows, int64_t n, float *bands)
{
	auto *kernel = band_kernel<T>;
	dim3 grid((unsigned)ceil_div(n, THREADS * pack<T>::count), (unsigned)ceil_div(rows, BAND));
	LAUNCH(kernel, grid, THREADS, 0, cuda->stream, (const T *)x->data, rows, n, bands, is_aligned16<T>(n));
}

void hspmd_cuda_column_sum(struct hspmd_cuda *cuda, const struct hspmd_view *x, int64_t rows, int64_t n, float *sums, bool accumulate,
                           void *workspace)
{
	if (rows && n)
		BY_TYPE(x->dtype, sum_of, cuda, x, rows, n, (float *)workspace);
	hspmd_cuda_add_parts(cuda, (const float *)workspace, ceil_div(rows, BAND), n, sums, accumulate);
}

size_t hspmd_cuda_column_sum_workspace(const struct hspmd_cuda *, int64_t rows, int64_t n)
{
	return (size_t)(ceil_div(rows, BAND) * n) * sizeof(float);
}
