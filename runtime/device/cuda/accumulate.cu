/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

template <typename T> static __global__ void __launch_bounds__(THREADS) accumulate_kernel(const T *x, float *y, int64_t count, bool add)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (i < count)
		y[i] = (add ? y[i] : 0.0f) + to_float(x[i]);
}

template <typename T> static int accumulate_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	auto *kernel = accumulate_kernel<T>;
	if (count)
		LAUNCH(kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, (const T *)args->in[0].data,
		       (float *)args->out[0].data, count, args->out[0].accumulate);
	return 0;
}

static int accumulate(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, accumulate_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_accumulate = { accumulate, NULL };
