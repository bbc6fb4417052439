/* SPDX-License-Identifier: Apache-2.0 */
/* Group norm: a block per sample and group; for the gradients of gain and bias, a block per channel. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

struct groups {
	int64_t samples, channels, groups, each, positions; /* local; channels of a group */
	float eps;
};

static struct groups groups_of(const struct hspmd_kernel_args *args, const struct hspmd_view *x)
{
	struct groups g = {};
	g.samples = x->shape[0];
	g.channels = x->shape[1];
	g.each = x->full[1] / args->attr->groups;
	g.groups = g.channels / g.each;
	g.positions = 1;
	for (int d = 2; d < x->rank; d++)
		g.positions *= x->shape[d];
	g.eps = (float)args->attr->eps;
	return g;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) norm_kernel(struct groups g, const T *x, const T *gain, const T *bias, T *y, float *stats)
{
	__shared__ float room[WARP];
	int64_t size = g.each * g.positions, base = blockIdx.x * size, first = blockIdx.x % g.groups * g.each;
	float sum = 0.0f, squares = 0.0f;
	for (int64_t i = threadIdx.x; i < size; i += THREADS)
		sum += to_float(x[base + i]);
	float mean = block_reduce<Sum>(sum, 0.0f, room) / (float)size;
	for (int64_t i = threadIdx.x; i < size; i += THREADS) {
		float d = to_float(x[base + i]) - mean;
		squares += d * d;
	}
	float scale = 1.0f / sqrtf(block_reduce<Sum>(squares, 0.0f, room) / (float)size + g.eps);
	for (int64_t i = threadIdx.x; i < size; i += THREADS) {
		int64_t c = first + i / g.positions;
		y[base + i] = from_float<T>((to_float(x[base + i]) - mean) * scale * to_float(gain[c]) + to_float(bias[c]));
	}
	if (threadIdx.x == 0) {
		stats[2 * blockIdx.x] = mean;
		stats[2 * blockIdx.x + 1] = scale;
	}
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        group_grad_kernel(struct groups g, const T *dy, const T *x, const T *gain, const float *stats, T *dx)
{
	__shared__ float room[WARP];
	int64_t size = g.each * g.positions, base = blockIdx.x * size, first = blockIdx.x % g.groups * g.each;
	float mean = stats[2 * blockIdx.x], scale = stats[2 * blockIdx.x + 1], sum = 0.0f, dot = 0.0f;
	for (int64_t i = threadIdx.x; i < size; i += THREADS) {
		float d = to_float(dy[base + i]) * to_float(gain[first + i / g.positions]);
		sum += d;
		dot += d * (to_float(x[base + i]) - mean) * scale;
	}
	float average = block_reduce<Sum>(sum, 0.0f, room) / (float)size, slope = block_reduce<Sum>(dot, 0.0f, room) / (float)size;
	for (int64_t i = threadIdx.x; i < size; i += THREADS) {
		float d = to_float(dy[base + i]) * to_float(gain[first + i / g.positions]);
		dx[base + i] = from_float<T>((d - average - (to_float(x[base + i]) - mean) * scale * slope) * scale);
	}
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) channel_grad_kernel(struct groups g, const T *dy, const T *x, const float *stats,
                                                                      float *dgain, float *dbias, bool add_gain, bool add_bias)
{
	__shared__ float room[WARP];
	int64_t c = blockIdx.x;
	float sum = 0.0f, dot = 0.0f;
	for (int64_t b = 0; b < g.samples; b++) {
		const float *s = stats + 2 * (b * g.groups + c / g.each);
		int64_t base = (b * g.channels + c) * g.positions;
		for (int64_t i = threadIdx.x; i < g.positions; i += THREADS) {
			float d = to_float(dy[base + i]);
			sum += d;
			dot += d * (to_float(x[base + i]) - s[0]) * s[1];
		}
	}
	sum = block_reduce<Sum>(sum, 0.0f, room);
	dot = block_reduce<Sum>(dot, 0.0f, room);
	if (threadIdx.x)
		return;
	if (dgain)
		dgain[c] = (add_gain ? dgain[c] : 0.0f) + dot;
	if (dbias)
		dbias[c] = (add_bias ? dbias[c] : 0.0f) + sum;
}

template <typename T> static int norm_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct groups g = groups_of(args, &args->in[0]);
	auto *kernel = norm_kernel<T>;
	if (g.samples && g.groups)
		LAUNCH(kernel, (unsigned)(g.samples * g.groups), THREADS, 0, cuda->stream, g, (const T *)args->in[0].data,
		       (const T *)args->in[1].data, (const T *)args->in[2].data, (T *)args->out[0].data, (float *)args->out[1].data);
	return 0;
}

template <typename T> static int grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct groups g = groups_of(args, &args->in[1]);
	const T *dy = (const T *)args->in[0].data, *x = (const T *)args->in[1].data;
	const float *stats = (const float *)args->in[3].data;
	auto *group = group_grad_kernel<T>;
	auto *channel = channel_grad_kernel<T>;
	if (args->out[0].data && g.samples && g.groups)
		LAUNCH(group, (unsigned)(g.samples * g.groups), THREADS, 0, cuda->stream, g, dy, x, (const T *)args->in[2].data, stats,
		       (T *)args->out[0].data);
	if (g.channels && (args->out[1].data || args->out[2].data))
		LAUNCH(channel, (unsigned)g.channels, THREADS, 0, cuda->stream, g, dy, x, stats, (float *)args->out[1].data,
		       (float *)args->out[2].data, args->out[1].accumulate, args->out[2].accumulate);
	return 0;
}

static int group_norm(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, norm_of, cuda, args);
}

static int group_norm_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	for (int o = 1; o < 3; o++)
		if (args->out[o].data && args->out[o].dtype != HSPMD_F32)
			return hspmd_fail(err, "gradients of gain and bias are computed in F32");
	return BY_TYPE(args->in[0].dtype, grad_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_group_norm = { group_norm, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_group_norm_grad = { group_norm_grad, NULL };
