/* SPDX-License-Identifier: Apache-2.0 */
/* What updates parameters: norm of the gradients and AdamW. */
#include <math.h>

#include "runtime/device/cuda/kernel.h"

#define THREADS 256
#define FINAL_THREADS 256
#define BLOCK_ELEMENTS 16384 /* whatever the device, so that sums have one order */

static __global__ void __launch_bounds__(THREADS) squares_kernel(const float *x, int64_t count, double *parts)
{
	__shared__ double room[WARP];
	int64_t begin = (int64_t)blockIdx.x * BLOCK_ELEMENTS, end = begin + BLOCK_ELEMENTS < count ? begin + BLOCK_ELEMENTS : count;
	double sum = 0;
	for (int64_t j = begin + threadIdx.x * 4; j < end; j += THREADS * 4) {
		float v[4];
		load_pack(v, x, j, end, true);
		sum += (double)v[0] * v[0] + (double)v[1] * v[1] + (double)v[2] * v[2] + (double)v[3] * v[3];
	}
	sum = over_block<add_up>(sum, 0.0, room);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(FINAL_THREADS) total_kernel(const double *parts, int64_t count, double *out, bool accumulate)
{
	__shared__ double room[WARP];
	double sum = 0;
	for (int64_t i = threadIdx.x; i < count; i += FINAL_THREADS)
		sum += parts[i];
	sum = over_block<add_up>(sum, 0.0, room);
	if (threadIdx.x == 0)
		*out = accumulate ? *out + sum : sum;
}

struct adamw {
	float scale, beta1, beta2, rest1, rest2, eps, keep, rate, correction;
};

/* Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2. copy: NULL, or the parameter for the operators in BF16. */
static __global__ void __launch_bounds__(THREADS) adamw_kernel(const float *gradient, float *parameter, float *m, float *v, bf16 *copy, int64_t count, struct adamw a)
{
	int64_t j = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
	if (j >= count)
		return;
	float g[4], p[4], first[4], second[4];
	load_pack(g, gradient, j, count, true);
	load_pack(p, (const float *)parameter, j, count, true);
	load_pack(first, (const float *)m, j, count, true);
	load_pack(second, (const float *)v, j, count, true);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float x = g[i] * a.scale;
		first[i] = a.beta1 * first[i] + a.rest1 * x;
		second[i] = a.beta2 * second[i] + a.rest2 * x * x;
		p[i] = a.keep * p[i] - a.rate * first[i] / (sqrtf(second[i]) * a.correction + a.eps);
	}
	store_pack(parameter, p, j, count, true);
	store_pack(m, first, j, count, true);
	store_pack(v, second, j, count, true);
	for (int i = 0; copy && i < 4; i++)
		if (j + i < count)
			copy[j + i] = from_float<bf16>(p[i]);
}

static int64_t parts_of(const struct hspmd_kernel_args *args)
{
	return ceil_div(hspmd_cuda_elements(&args->in[0]), BLOCK_ELEMENTS);
}

static int sum_squares(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	int64_t parts = parts_of(args);
	double *sums = (double *)args->workspace;
	if (parts)
		LAUNCH(squares_kernel, (unsigned)parts, THREADS, 0, cuda->stream, (const float *)args->in[0].data, hspmd_cuda_elements(&args->in[0]), sums);
	LAUNCH(total_kernel, 1, FINAL_THREADS, 0, cuda->stream, sums, parts, (double *)args->out[0].data, args->out[0].accumulate);
	return 0;
}

static size_t sum_squares_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	return (size_t)parts_of(args) * sizeof(double);
}

static int adamw(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	const struct hspmd_op_attr *attr = args->attr;
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	struct adamw a;
	a.scale = (float)attr->scale;
	a.beta1 = (float)attr->adam.beta1;
	a.beta2 = (float)attr->adam.beta2;
	a.rest1 = (float)(1 - attr->adam.beta1);
	a.rest2 = (float)(1 - attr->adam.beta2);
	a.eps = (float)attr->adam.eps;
	a.keep = (float)(1 - attr->adam.lr * attr->adam.weight_decay);
	a.rate = (float)(attr->adam.lr / (1 - pow(attr->adam.beta1, (double)attr->adam.step)));
	a.correction = (float)(1 / sqrt(1 - pow(attr->adam.beta2, (double)attr->adam.step)));
	bf16 *copy = args->output_count > 3 ? (bf16 *)args->out[3].data : NULL;
	if (count)
		LAUNCH(adamw_kernel, (unsigned)ceil_div(count, THREADS * 4), THREADS, 0, cuda->stream, (const float *)args->in[0].data,
		       (float *)args->out[0].data, (float *)args->out[1].data, (float *)args->out[2].data, copy, count, a);
	return 0;
}

const struct hspmd_cuda_kernel hspmd_cuda_sum_squares = { sum_squares, sum_squares_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_adamw = { adamw, NULL };
