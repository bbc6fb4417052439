/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that are sums over elements: one block, whose threads sum their elements in order. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 512

template <typename T> struct element {
	const T *x, *y, *weights;
	int64_t count, each; /* each: elements per weight */
	int kind;
	double scale;
};

template <typename T> static __device__ __forceinline__ double weight_of(const struct element<T> &e, int64_t i)
{
	return e.scale * (e.weights ? (double)to_float(e.weights[i / e.each]) : 1.0);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) sum_kernel(struct element<T> e, double *out, bool add)
{
	__shared__ double room[WARP];
	double sum = 0;
	for (int64_t i = threadIdx.x; i < e.count; i += THREADS) {
		double x = to_float(e.x[i]), y = e.y ? to_float(e.y[i]) : 0.0f;
		sum += weight_of(e, i) * (e.kind == HSPMD_LOSS_SUM       ? x
		                          : e.kind == HSPMD_LOSS_SQUARED ? (x - y) * (x - y)
		                                                         : (x > 0 ? x : 0) - x * y + log1p(exp(-fabs(x))));
	}
	sum = block_reduce<Sum>(sum, 0.0, room);
	if (threadIdx.x == 0)
		*out = (add ? *out : 0) + sum;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) slope_kernel(struct element<T> e, T *dx)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (i >= e.count)
		return;
	float x = to_float(e.x[i]), y = e.y ? to_float(e.y[i]) : 0.0f;
	dx[i] = from_float<T>((float)weight_of(e, i) * (e.kind == HSPMD_LOSS_SUM       ? 1.0f
	                                                : e.kind == HSPMD_LOSS_SQUARED ? 2.0f * (x - y)
	                                                                               : 1.0f / (1.0f + expf(-x)) - y));
}

template <typename T> static int run_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	bool weighted = args->input_count > 2 && args->in[2].rank >= 0;
	struct element<T> e = {
	};
	e.x = (const T *)args->in[0].data;
	e.y = (const T *)(args->attr->kind != HSPMD_LOSS_SUM ? args->in[1].data : NULL);
	e.weights = (const T *)(weighted ? args->in[2].data : NULL);
	e.count = hspmd_cuda_elements(&args->in[0]);
	e.each = 1;
	for (int d = weighted ? args->in[2].rank : 0; d < args->in[0].rank; d++)
		e.each *= args->in[0].shape[d];
	e.kind = args->attr->kind;
	e.scale = args->attr->scale;
	auto *sum = sum_kernel<T>;
	auto *slope = slope_kernel<T>;
	if (args->out[0].dtype == HSPMD_F64)
		LAUNCH(sum, 1, THREADS, 0, cuda->stream, e, (double *)args->out[0].data, args->out[0].accumulate);
	else if (e.count)
		LAUNCH(slope, (unsigned)ceil_div(e.count, THREADS), THREADS, 0, cuda->stream, e, (T *)args->out[0].data);
	return 0;
}

static int element_loss(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, run_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_element_loss = { element_loss, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_element_loss_grad = { element_loss, NULL };
