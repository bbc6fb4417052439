/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/dropout.h"

#define THREADS 256

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        dropout_kernel(const T *x, const int32_t *noise, T *y, int64_t count, int64_t width, int64_t first, double rate, uint64_t stream)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at < count)
		y[at] = from_float<T>(to_float(x[at]) *
		                      (float)hspmd_dropout_factor(rate, stream, noise[at / width], (uint64_t)(first + at % width)));
}

template <typename T> static int dropout_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0];
	int64_t count = hspmd_cuda_elements(x);
	auto *kernel = dropout_kernel<T>;
	if (count)
		LAUNCH(kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, (const T *)x->data,
		       (const int32_t *)args->in[1].data, (T *)args->out[0].data, count, hspmd_cuda_row_length(x), x->start[x->rank - 1],
		       args->attr->rate, args->attr->random.stream);
	return 0;
}

static int dropout(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, dropout_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_dropout = { dropout, NULL };
