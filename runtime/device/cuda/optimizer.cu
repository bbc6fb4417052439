/* SPDX-License-Identifier: Apache-2.0 */
/* What updates parameters: norm of the gradients and AdamW, of many parameters in one launch: most are so small that starting a kernel takes longer than running it. */
#include <math.h>

#include "runtime/device/cuda/kernel.h"

#define THREADS 256
#define FINAL_THREADS 256
#define UPDATE_ELEMENTS 4096 /* of a block */
#define BLOCK_ELEMENTS 16384 /* whatever the device, so that sums have one order */

/* Vectors that one launch goes over; as an argument of the kernel it may have 4 KB. A vector begins a block. */
#define MOST_SQUARES 128
struct squares {
	int vectors;
	struct {
		const float *x;
		int64_t count;
		unsigned first; /* block */
	} of[MOST_SQUARES];
};

#define MOST_UPDATES 60
struct updates {
	float scale, beta1, beta2, rest1, rest2, eps, rate, correction;
	int vectors;
	struct {
		const float *gradient;
		float *parameter, *m, *v;
		bf16 *copy; /* NULL, or the parameter for the operators */
		int64_t count;
		unsigned first;
		float keep;
	} of[MOST_UPDATES];
};
static_assert(sizeof(struct squares) <= 4096 && sizeof(struct updates) <= 4096, "arguments of a kernel have 4 KB");

/* The vector that this block is of: the last that does not begin behind it. */
template <typename B> static __device__ __forceinline__ int vector_of(const B &b)
{
	int low = 0, high = b.vectors - 1;
	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (b.of[middle].first <= blockIdx.x)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

static __global__ void __launch_bounds__(THREADS) squares_kernel(struct squares b, double *parts)
{
	__shared__ double room[WARP];
	int k = vector_of(b);
	const float *x = b.of[k].x;
	int64_t begin = (int64_t)(blockIdx.x - b.of[k].first) * BLOCK_ELEMENTS;
	int64_t end = begin + BLOCK_ELEMENTS < b.of[k].count ? begin + BLOCK_ELEMENTS : b.of[k].count;
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

struct __align__(8) four_halves {
	bf16 v[4];
};

static __device__ __forceinline__ void store_halves(bf16 *copy, const float *p, int64_t j, int64_t count)
{
	if (j + 4 <= count) {
		struct four_halves all;
		for (int i = 0; i < 4; i++)
			all.v[i] = from_float<bf16>(p[i]);
		*(struct four_halves *)(copy + j) = all;
		return;
	}
	for (int i = 0; i < 4 && j + i < count; i++)
		copy[j + i] = from_float<bf16>(p[i]);
}

/* Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2. */
static __global__ void __launch_bounds__(THREADS) adamw_kernel(struct updates a)
{
	int k = vector_of(a);
	int64_t count = a.of[k].count, begin = (int64_t)(blockIdx.x - a.of[k].first) * UPDATE_ELEMENTS;
	int64_t end = begin + UPDATE_ELEMENTS < count ? begin + UPDATE_ELEMENTS : count;
	for (int64_t j = begin + threadIdx.x * 4; j < end; j += THREADS * 4) {
		float g[4], p[4], first[4], second[4];
		load_pack(g, a.of[k].gradient, j, count, true);
		load_pack(p, (const float *)a.of[k].parameter, j, count, true);
		load_pack(first, (const float *)a.of[k].m, j, count, true);
		load_pack(second, (const float *)a.of[k].v, j, count, true);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float x = g[i] * a.scale;
			first[i] = a.beta1 * first[i] + a.rest1 * x;
			second[i] = a.beta2 * second[i] + a.rest2 * x * x;
			p[i] = a.of[k].keep * p[i] - a.rate * first[i] / (sqrtf(second[i]) * a.correction + a.eps);
		}
		store_pack(a.of[k].parameter, p, j, count, true);
		store_pack(a.of[k].m, first, j, count, true);
		store_pack(a.of[k].v, second, j, count, true);
		if (a.of[k].copy)
			store_halves(a.of[k].copy, p, j, count);
	}
}

static int64_t parts_of(const struct hspmd_kernel_args *args)
{
	return ceil_div(hspmd_cuda_elements(&args->in[0]), BLOCK_ELEMENTS);
}

/* All into one sum; as many at a time as the workspace has room for the parts of. */
static int sum_all_squares(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int count, struct hspmd_error *)
{
	double *sums = (double *)args->workspace, *out = (double *)args->out[0].data;
	int64_t room = (int64_t)(args->workspace_bytes / sizeof(double));
	for (int at = 0; at < count;) {
		struct squares b = {};
		int64_t blocks = 0;
		bool accumulate = args[at].out[0].accumulate;
		while (at < count && b.vectors < MOST_SQUARES && (!b.vectors || blocks + parts_of(&args[at]) <= room)) {
			b.of[b.vectors].x = (const float *)args[at].in[0].data;
			b.of[b.vectors].count = hspmd_cuda_elements(&args[at].in[0]);
			b.of[b.vectors].first = (unsigned)blocks;
			blocks += parts_of(&args[at++]);
			b.vectors += b.of[b.vectors].count > 0;
		}
		if (blocks)
			LAUNCH(squares_kernel, (unsigned)blocks, THREADS, 0, cuda->stream, b, sums);
		LAUNCH(total_kernel, 1, FINAL_THREADS, 0, cuda->stream, sums, blocks, out, accumulate);
	}
	return 0;
}

static int sum_squares(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return sum_all_squares(cuda, args, 1, err);
}

static size_t sum_squares_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	return (size_t)parts_of(args) * sizeof(double);
}

/* One step of one optimizer: they differ in weight decay only. */
static int update_all(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int count, struct hspmd_error *)
{
	const struct hspmd_op_attr *attr = args->attr;
	struct updates a = {};
	a.scale = (float)attr->scale;
	a.beta1 = (float)attr->adam.beta1;
	a.beta2 = (float)attr->adam.beta2;
	a.rest1 = (float)(1 - attr->adam.beta1);
	a.rest2 = (float)(1 - attr->adam.beta2);
	a.eps = (float)attr->adam.eps;
	a.rate = (float)(attr->adam.lr / (1 - pow(attr->adam.beta1, (double)attr->adam.step)));
	a.correction = (float)(1 / sqrt(1 - pow(attr->adam.beta2, (double)attr->adam.step)));
	for (int at = 0; at < count;) {
		int64_t blocks = 0;
		for (a.vectors = 0; at < count && a.vectors < MOST_UPDATES; at++) {
			auto *u = &a.of[a.vectors];
			u->gradient = (const float *)args[at].in[0].data;
			u->parameter = (float *)args[at].out[0].data;
			u->m = (float *)args[at].out[1].data;
			u->v = (float *)args[at].out[2].data;
			u->copy = args[at].output_count > 3 ? (bf16 *)args[at].out[3].data : NULL;
			u->count = hspmd_cuda_elements(&args[at].in[0]);
			u->first = (unsigned)blocks;
			u->keep = (float)(1 - attr->adam.lr * args[at].attr->adam.weight_decay);
			blocks += ceil_div(u->count, UPDATE_ELEMENTS);
			a.vectors += u->count > 0;
		}
		if (blocks)
			LAUNCH(adamw_kernel, (unsigned)blocks, THREADS, 0, cuda->stream, a);
	}
	return 0;
}

static int adamw(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return update_all(cuda, args, 1, err);
}

const struct hspmd_cuda_kernel hspmd_cuda_sum_squares = { sum_squares, sum_squares_workspace, sum_all_squares };
const struct hspmd_cuda_kernel hspmd_cuda_adamw = { adamw, NULL, update_all };
