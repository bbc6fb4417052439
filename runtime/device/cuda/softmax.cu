/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of rows, one block per row; the result may be the same buffer as the input. */
#include "runtime/device/cuda/kernel.h"

#define MOST_THREADS 512

template <typename T> static __global__ void __launch_bounds__(MOST_THREADS) softmax_kernel(const T *x, T *y, int64_t n)
{
	__shared__ float room[WARP];
	int64_t row = blockIdx.x * n;
	float most = -INFINITY, sum = 0.0f;
	for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
		most = fmaxf(most, to_float(x[row + j]));
	most = block_reduce<Max>(most, -INFINITY, room);
	for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
		sum += expf(to_float(x[row + j]) - most);
	sum = block_reduce<Sum>(sum, 0.0f, room);
	for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
		y[row + j] = from_float<T>(expf(to_float(x[row + j]) - most) / sum);
}

template <typename T> static __global__ void __launch_bounds__(MOST_THREADS) grad_kernel(const T *dy, const T *y, T *dx, int64_t n)
{
	__shared__ float room[WARP];
	int64_t row = blockIdx.x * n;
	float sum = 0.0f;
	for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
		sum += to_float(dy[row + j]) * to_float(y[row + j]);
	sum = block_reduce<Sum>(sum, 0.0f, room);
	for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
		dx[row + j] = from_float<T>(to_float(y[row + j]) * (to_float(dy[row + j]) - sum));
}

template <typename T> static int rows_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t rows = hspmd_cuda_row_count(&args->in[0]), n = hspmd_cuda_row_length(&args->in[0]);
	auto *forward = softmax_kernel<T>;
	auto *backward = grad_kernel<T>;
	if (rows && args->input_count > 1)
		LAUNCH(backward, (unsigned)rows, row_threads(n, 1, MOST_THREADS), 0, cuda->stream, (const T *)args->in[0].data,
		       (const T *)args->in[1].data, (T *)args->out[0].data, n);
	else if (rows)
		LAUNCH(forward, (unsigned)rows, row_threads(n, 1, MOST_THREADS), 0, cuda->stream, (const T *)args->in[0].data,
		       (T *)args->out[0].data, n);
	return 0;
}

static int softmax(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, rows_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_softmax = { softmax, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_softmax_grad = { softmax, NULL };
