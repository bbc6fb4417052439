/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one element and their slopes, and arithmetic of two tensors. */
#include "runtime/device/cuda/loop.h"

static __device__ __forceinline__ float value(int kind, float exponent, float x)
{
	switch (kind) {
	case HSPMD_UNARY_RELU:
		return x > 0.0f ? x : x != x ? x : 0.0f;
	case HSPMD_UNARY_SIGMOID:
		return 1.0f / (1.0f + expf(-x));
	case HSPMD_UNARY_SILU:
		return x / (1.0f + expf(-x));
	case HSPMD_UNARY_TANH:
		return tanhf(x);
	case HSPMD_UNARY_EXP:
		return expf(x);
	case HSPMD_UNARY_LOG:
		return logf(x);
	case HSPMD_UNARY_SQRT:
		return sqrtf(x);
	default:
		return powf(x, exponent);
	}
}

/* `at`: the input or the result, as the list of operators says. */
static __device__ __forceinline__ float slope(int kind, float exponent, float at)
{
	switch (kind) {
	case HSPMD_UNARY_RELU:
		return at > 0.0f ? 1.0f : 0.0f;
	case HSPMD_UNARY_SIGMOID:
		return at * (1.0f - at);
	case HSPMD_UNARY_SILU: {
		float s = 1.0f / (1.0f + expf(-at));
		return s * (1.0f + at * (1.0f - s));
	}
	case HSPMD_UNARY_TANH:
		return 1.0f - at * at;
	case HSPMD_UNARY_EXP:
		return at;
	case HSPMD_UNARY_LOG:
		return 1.0f / at;
	case HSPMD_UNARY_SQRT:
		return 0.5f / at;
	default:
		return exponent * powf(at, exponent - 1.0f);
	}
}

/* dy NULL: forward. */
template <typename T>
static __global__ void __launch_bounds__(LOOP_THREADS) unary_kernel(const T *x, const T *dy, T *y, int64_t count, int kind, float exponent)
{
	int64_t i = (int64_t)blockIdx.x * LOOP_THREADS + threadIdx.x;
	if (i < count)
		y[i] = from_float<T>(dy ? to_float(dy[i]) * slope(kind, exponent, to_float(x[i])) : value(kind, exponent, to_float(x[i])));
}

template <typename T> static int unary_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	bool backward = args->input_count > 1;
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	auto *kernel = unary_kernel<T>;
	if (count)
		LAUNCH(kernel, loop_grid(count), LOOP_THREADS, 0, cuda->stream, (const T *)args->in[backward].data,
		       (const T *)(backward ? args->in[0].data : NULL), (T *)args->out[0].data, count, args->attr->kind,
		       (float)args->attr->exponent);
	return 0;
}

static int unary(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, unary_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_unary = { unary, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_unary_grad = { unary, NULL };

/* ---- two tensors */

template <typename T>
static __global__ void __launch_bounds__(LOOP_THREADS) binary_kernel(struct loop l, T *y, const T *a, const T *b, int kind)
{
	int64_t i = (int64_t)blockIdx.x * LOOP_THREADS + threadIdx.x, at[LOOP_BUFFERS];
	if (i >= l.count)
		return;
	loop_at(l, i, 3, at);
	float p = to_float(a[at[1]]), q = to_float(b[at[2]]);
	y[at[0]] = from_float<T>(kind == HSPMD_BINARY_ADD   ? p + q
	                         : kind == HSPMD_BINARY_SUB ? p - q
	                         : kind == HSPMD_BINARY_MUL ? p * q
	                                                    : p / q);
}

template <typename T> static int binary_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct loop l = loop_over(&args->out[0], 0);
	auto *kernel = binary_kernel<T>;
	loop_repeat(&l, 1, &args->in[0]);
	loop_repeat(&l, 2, &args->in[1]);
	if (l.count)
		LAUNCH(kernel, loop_grid(l.count), LOOP_THREADS, 0, cuda->stream, l, (T *)args->out[0].data, (const T *)args->in[0].data,
		       (const T *)args->in[1].data, args->attr->kind);
	return 0;
}

static int binary(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, binary_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_binary = { binary, NULL };
