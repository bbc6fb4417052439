/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that act on each element separately: activations and sums. An output may be the same buffer as an input. */
#include "runtime/device/cuda/gate.h"

#define THREADS 256

/* What the operators' attributes say. */
struct how {
	int activation;
	float limit, scale, softcap;
};

struct tanh_gelu {
	enum { inputs = 1, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &, const float *in, float *out)
	{
		out[0] = tanh_gelu_value(in[0]);
	}
};

struct tanh_gelu_grad {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &, const float *in, float *out)
	{
		out[0] = in[0] * tanh_gelu_slope(in[1]);
	}
};

struct erf_gelu {
	enum { inputs = 1, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &, const float *in, float *out)
	{
		out[0] = erf_gelu_value(in[0]);
	}
};

struct erf_gelu_grad {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &, const float *in, float *out)
	{
		out[0] = in[0] * erf_gelu_slope(in[1]);
	}
};

struct gated {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &how, const float *in, float *out)
	{
		out[0] = gate_value(how.activation, how.limit, in[0], in[1]);
	}
};

struct gated_grad {
	enum { inputs = 3, outputs = 2 };
	static __device__ __forceinline__ void map(const struct how &how, const float *in, float *out)
	{
		gate_gradients(how.activation, how.limit, in[0], in[1], in[2], &out[0], &out[1]);
	}
};

struct multiple {
	enum { inputs = 1, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &how, const float *in, float *out)
	{
		out[0] = how.scale * in[0];
	}
};

struct cap {
	enum { inputs = 1, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &how, const float *in, float *out)
	{
		out[0] = how.softcap * tanhf(in[0] / how.softcap);
	}
};

struct cap_grad {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &how, const float *in, float *out)
	{
		float t = in[1] / how.softcap;
		out[0] = in[0] * (1.0f - t * t);
	}
};

struct sum_of_two {
	enum { inputs = 2, outputs = 1 };
	static __device__ __forceinline__ void map(const struct how &, const float *in, float *out)
	{
		out[0] = in[0] + in[1];
	}
};

struct buffers {
	const void *in[3];
	void *out[2]; /* NULL: not wanted */
};

template <typename T, typename F>
static __global__ void __launch_bounds__(THREADS) apply_kernel(struct buffers b, struct how how, int64_t count)
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
		F::map(how, x, y);
#pragma unroll
		for (int k = 0; k < F::outputs; k++)
			out[k][i] = y[k];
	}
#pragma unroll
	for (int k = 0; k < F::outputs; k++)
		if (b.out[k])
			store_pack((T *)b.out[k], out[k], j, count, true);
}

template <typename T, typename F> static void launch(struct hspmd_cuda *cuda, const struct buffers *b, struct how how, int64_t count)
{
	auto *kernel = apply_kernel<T, F>;
	LAUNCH(kernel, (unsigned)ceil_div(count, THREADS * pack<T>::count), THREADS, 0, cuda->stream, *b, how, count);
}

template <typename F> static int apply(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct buffers b = {};
	struct how how = { args->attr->activation, (float)args->attr->limit, (float)args->attr->scale, (float)args->attr->softcap };
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	if (!count)
		return 0;
	for (int k = 0; k < F::inputs; k++)
		b.in[k] = args->in[k].data;
	for (int k = 0; k < F::outputs && k < args->output_count; k++)
		b.out[k] = args->out[k].data;
	if (args->in[0].dtype == HSPMD_F32)
		launch<float, F>(cuda, &b, how, count);
	else
		launch<bf16, F>(cuda, &b, how, count);
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
	return apply<gated>(cuda, args);
}

static int swiglu_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<gated_grad>(cuda, args);
}

static int add(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<sum_of_two>(cuda, args);
}

static int scale(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<multiple>(cuda, args);
}

static int softcap(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<cap>(cuda, args);
}

static int softcap_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return apply<cap_grad>(cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_gelu = { gelu, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_gelu_grad = { gelu_grad, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_swiglu = { swiglu, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_swiglu_grad = { swiglu_grad, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_add = { add, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_scale = { scale, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_softcap = { softcap, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_softcap_grad = { softcap_grad, NULL };
