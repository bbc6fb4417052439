/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/stable_sort.h"

#include "runtime/device/cuda/kernel.h"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
        rank_kernel(const int32_t *key, int64_t n, int32_t lowest, int64_t keys, int32_t *rank, int32_t *count)
{
	__shared__ int32_t tile[THREADS];
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	int32_t own = i < n ? key[i] : -1, before = 0;
	int64_t k = (int64_t)own - lowest;
	for (int64_t base = 0; base < (int64_t)(blockIdx.x + 1) * THREADS; base += THREADS) {
		__syncthreads();
		tile[threadIdx.x] = base + threadIdx.x < n ? key[base + threadIdx.x] : -1;
		__syncthreads();
		int end = i - base < THREADS ? (int)(i - base) : THREADS;
		for (int j = 0; j < end; j++)
			before += tile[j] == own;
	}
	if (i >= n)
		return;
	bool in = k >= 0 && k < keys;
	rank[i] = in ? before : -1;
	if (in)
		atomicMax(&count[k], before + 1);
}

/* first[k] = the sum of count[0 .. k). One block, which goes over the keys in steps. */
static __global__ void __launch_bounds__(THREADS) scan_kernel(const int32_t *count, int64_t keys, int32_t *first)
{
	__shared__ int32_t sums[THREADS];
	int32_t base = 0;
	for (int64_t start = 0; start < keys; start += THREADS) {
		int64_t k = start + threadIdx.x;
		int32_t own = k < keys ? count[k] : 0;
		sums[threadIdx.x] = own;
		__syncthreads();
		for (int step = 1; step < THREADS; step *= 2) {
			int32_t left = (int)threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
			__syncthreads();
			sums[threadIdx.x] += left;
			__syncthreads();
		}
		if (k < keys)
			first[k] = base + sums[threadIdx.x] - own;
		base += sums[THREADS - 1];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		first[keys] = base;
}

static __global__ void list_kernel(const int32_t *key, const int32_t *rank, const int32_t *first, int64_t n, int32_t lowest, int32_t *list)
{
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n && rank[i] >= 0)
		list[first[key[i] - lowest] + rank[i]] = (int32_t)i;
}

static int64_t padded(int64_t n)
{
	return ceil_div(n, 16) * 16;
}

size_t hspmd_cuda_stable_sort_workspace(int64_t n, int64_t keys)
{
	return (size_t)(2 * padded(n) + padded(keys) + padded(keys + 1)) * sizeof(int32_t);
}

void hspmd_cuda_stable_sort_run(struct hspmd_cuda *cuda, const int32_t *key, int64_t n, int32_t lowest, int64_t keys, void *workspace,
                                struct hspmd_cuda_stable_sort *order)
{
	int32_t *count = (int32_t *)workspace;
	order->first = count + padded(keys);
	order->rank = order->first + padded(keys + 1);
	order->list = order->rank + padded(n);
	cudaMemsetAsync(count, 0, (size_t)keys * sizeof *count, cuda->stream);
	if (n)
		LAUNCH(rank_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, cuda->stream, key, n, lowest, keys, order->rank, count);
	LAUNCH(scan_kernel, 1, THREADS, 0, cuda->stream, count, keys, order->first);
	if (n)
		LAUNCH(list_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, cuda->stream, key, order->rank, order->first, n, lowest,
		       order->list);
}
