/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that act on each element separately: activations and sums. An output may be the same buffer as an input. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

static __device__ __forceinline__ float sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/* x Phi(x). The normal distribution function Phi(x) is approximated by sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel,
 * "Gaussian Error Linear Units"), or computed by erf. */
#define SLOPE 1.5957691216057308f
#define CUBE 0.044715f

struct tanh_gelu {
	enum { inputs = 1, outputs = 1 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		float x = in[0];
		out[0] = x * sigmoid(SLOPE * (x + CUBE * x * x * x));
	}
};

struct tanh_gelu_grad {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		float x = in[1], square = CUBE * x * x, s = sigmoid(SLOPE * x * (1.0f + square));
		out[0] = in[0] * (s + x * s * (1.0f - s) * SLOPE * (1.0f + 3.0f * square));
	}
};

struct erf_gelu {
	enum { inputs = 1, outputs = 1 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		out[0] = in[0] * 0.5f * (1.0f + erff(in[0] * 0.70710678f));
	}
};

struct erf_gelu_grad {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		float x = in[1];
		out[0] = in[0] * (0.5f * (1.0f + erff(x * 0.70710678f)) + x * expf(-0.5f * x * x) * 0.39894228f);
	}
};

struct silu_gate {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		out[0] = in[0] * sigmoid(in[0]) * in[1];
	}
};

struct silu_gate_grad {
	enum { inputs = 3, outputs = 2 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		float dy = in[0], gate = in[1], up = in[2], s = sigmoid(gate);
		out[0] = dy * up * s * (1.0f + gate * (1.0f - s));
		out[1] = dy * gate * s;
	}
};

struct sum_of_two {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const float *in, float *out)
	{
		out[0] = in[0] + in[1];
	}
};

struct buffers {
	const void *in[3];
	void *out[2]; /* NULL: not wanted */
};

template <typename T, typename F> static __global__ void __launch_bounds__(THREADS) apply_kernel(struct buffers b, int64_t count)
{
	const int n = pack<T>::count;
	int64_t j = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * n;
	if (j >= count)
		return;
	float in[F::inputs][n], out[F::outputs][n];
#pragma unroll
	for (int k = 0; k < F::inputs; k++)
		load_pack(in[k], (const T *)b.in[k], j, count, true);
#pragma unroll
	for (int i = 0; i < n; i++) {
		float x[F::inputs], y[F::outputs];
#pragma unroll
		for (int k = 0; k < F::inputs; k++)
			x[k] = in[k][i];
		F::map(x, y);
#pragma unroll
		for (int k = 0; k < F::outputs; k++)
			out[k][i] = y[k];
	}
#pragma unroll
	for (int k = 0; k < F::outputs; k++)
		if (b.out[k])
			store_pack((T *)b.out[k], out[k], j, count, true);
}

template <typename T, typename F> static void launch(struct hspmd_cuda *cuda, const struct buffers *b, int64_t count)
{
	auto *kernel = apply_kernel<T, F>;
	LAUNCH(kernel, (unsigned)ceil_div(count, THREADS * pack<T>::count), THREADS, 0, cuda->stream, *b, count);
}

template <typename F> static int apply(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct buffers b = {};
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	if (!count)
		return 0;
	for (int k = 0; k < F::inputs; k++)
		b.in[k] = args->in[k].data;
	for (int k = 0; k < F::outputs && k < args->output_count; k++)
		b.out[k] = args->out[k].data;
	if (args->in[0].dtype == HSPMD_F32)
		launch<float, F>(cuda, &b, count);
	else
		launch<bf16, F>(cuda, &b, count);
	return 0;
}

static int gelu(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return args->attr->exact ? apply<erf_gelu>(cuda, args) : apply<tanh_gelu>(cuda, args);
}

static int gelu_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return args->attr->exact ? apply<erf_gelu_grad>(cuda, args) : apply<tanh_gelu_grad>(cuda, args);
}

static int swiglu(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<silu_gate>(cuda, args);
}

static int swiglu_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<silu_gate_grad>(cuda, args);
}

static int add(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<sum_of_two>(cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_gelu = { gelu, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_gelu_grad = { gelu_grad, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_swiglu = { swiglu, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_swiglu_grad = { swiglu_grad, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_add = { add, NULL };
