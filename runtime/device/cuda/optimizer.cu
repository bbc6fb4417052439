/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of parameters: the norm of the gradients, and AdamW. One launch handles many parameters, because most are so small that starting
 * a kernel takes longer than running it. */
#include <math.h>

#include "runtime/device/cuda/kernel.h"
#include "runtime/device/rounding.h"

#define THREADS 256
#define FINAL_THREADS 256
#define UPDATE_ELEMENTS 4096 /* per block */
#define BLOCK_ELEMENTS 16384 /* the same on every device, so that sums have one order */

/* The vectors of one launch. As an argument of the kernel this may have 4 KB. Each vector begins at a block of its own. */
#define MOST_SQUARES 128
struct squares {
	int vectors;
	struct {
		const float *x;
		int64_t count;
		unsigned first; /* first block */
	} of[MOST_SQUARES];
};

struct rates {
	float scale, beta1, beta2, rest1, rest2, eps, rate, correction;
};

/* The update of one parameter. */
struct update {
	const float *gradient;
	float *parameter, *m, *v;
	bf16 *copy; /* NULL, or the copy of the parameter that the operators read */
	int64_t count;
	unsigned first;
	float keep;
};

/* Updates whose copies are rounded to the nearest. */
struct nearest_updates {
	static const int most = 60;
	struct rates rates;
	int vectors;
	struct update of[most];
};

/* Updates whose copies are rounded stochastically; each parameter has its own random stream, indexed by the element's index in the full
 * tensor. */
struct stochastic_updates {
	static const int most = 22;
	struct rates rates;
	int vectors;
	struct update of[most];
	uint64_t seed;
	struct {
		uint64_t stream;
		struct hspmd_index_map map;
	} by[most];
};
static_assert(sizeof(struct squares) <= 4096 && sizeof(struct nearest_updates) <= 4096 && sizeof(struct stochastic_updates) <= 4096,
              "arguments of a kernel have 4 KB");

/* Returns the vector that this block works on: the last one whose first block is not after this block. */
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
	sum = block_reduce<Sum>(sum, 0.0, room);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(FINAL_THREADS) total_kernel(const double *parts, int64_t count, double *out, bool accumulate)
{
	__shared__ double room[WARP];
	double sum = 0;
	for (int64_t i = threadIdx.x; i < count; i += FINAL_THREADS)
		sum += parts[i];
	sum = block_reduce<Sum>(sum, 0.0, room);
	if (threadIdx.x == 0)
		*out = accumulate ? *out + sum : sum;
}

static __device__ __forceinline__ void round_four(const struct nearest_updates &, int, int64_t, const float *p, uint16_t *halves)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		bf16 half = from_float<bf16>(p[i]);
		memcpy(halves + i, &half, sizeof half);
	}
}

static __device__ __forceinline__ void round_four(const struct stochastic_updates &a, int k, int64_t j, const float *p, uint16_t *halves)
{
	hspmd_round_elements(a.seed, a.by[k].stream, &a.by[k].map, j, 4, p, halves);
}

/* Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2. */
template <typename Updates> static __global__ void __launch_bounds__(THREADS) adamw_kernel(Updates a)
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
			float x = g[i] * a.rates.scale;
			first[i] = a.rates.beta1 * first[i] + a.rates.rest1 * x;
			second[i] = a.rates.beta2 * second[i] + a.rates.rest2 * x * x;
			p[i] = a.of[k].keep * p[i] - a.rates.rate * first[i] / (sqrtf(second[i]) * a.rates.correction + a.rates.eps);
		}
		store_pack(a.of[k].parameter, p, j, count, true);
		store_pack(a.of[k].m, first, j, count, true);
		store_pack(a.of[k].v, second, j, count, true);
		if (a.of[k].copy) {
			uint16_t halves[4];
			round_four(a, k, j, p, halves);
			store_halves<4>(a.of[k].copy, halves, j, count);
		}
	}
}

static int64_t parts_of(const struct hspmd_kernel_args *args)
{
	return ceil_div(hspmd_cuda_elements(&args->in[0]), BLOCK_ELEMENTS);
}

/* Sums the squares of all vectors; each launch takes as many vectors as fit into its argument and whose partial sums fit into the
 * workspace. */
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

static void describe_rounding(struct nearest_updates *, const struct hspmd_kernel_args *)
{
}

static void describe_rounding(struct stochastic_updates *a, const struct hspmd_kernel_args *args)
{
	a->seed = args->attr->random.seed;
	a->by[a->vectors].stream = args->attr->random.stream;
	a->by[a->vectors].map = hspmd_index_map_of(&args->out[0]);
}

template <typename Updates>
static int update_as(struct hspmd_cuda *cuda, const struct rates *rates, const struct hspmd_kernel_args *args, int count)
{
	auto *kernel = adamw_kernel<Updates>;
	Updates a = {};
	a.rates = *rates;
	for (int at = 0; at < count;) {
		int64_t blocks = 0;
		for (a.vectors = 0; at < count && a.vectors < Updates::most; at++) {
			struct update *u = &a.of[a.vectors];
			u->gradient = (const float *)args[at].in[0].data;
			u->parameter = (float *)args[at].out[0].data;
			u->m = (float *)args[at].out[1].data;
			u->v = (float *)args[at].out[2].data;
			u->copy = args[at].output_count > 3 ? (bf16 *)args[at].out[3].data : NULL;
			u->count = hspmd_cuda_elements(&args[at].in[0]);
			u->first = (unsigned)blocks;
			u->keep = (float)(1 - args->attr->adam.lr * args[at].attr->adam.weight_decay);
			describe_rounding(&a, &args[at]);
			blocks += ceil_div(u->count, UPDATE_ELEMENTS);
			a.vectors += u->count > 0;
		}
		if (blocks)
			LAUNCH(kernel, (unsigned)blocks, THREADS, 0, cuda->stream, a);
	}
	return 0;
}

/* One step of one optimizer: parameters differ only in weight decay and in how their copies are rounded. */
static int update_all(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int count, struct hspmd_error *)
{
	const struct hspmd_op_attr *attr = args->attr;
	struct rates r;
	r.scale = (float)attr->scale;
	r.beta1 = (float)attr->adam.beta1;
	r.beta2 = (float)attr->adam.beta2;
	r.rest1 = (float)(1 - attr->adam.beta1);
	r.rest2 = (float)(1 - attr->adam.beta2);
	r.eps = (float)attr->adam.eps;
	r.rate = (float)(attr->adam.lr / (1 - pow(attr->adam.beta1, (double)attr->adam.step)));
	r.correction = (float)(1 / sqrt(1 - pow(attr->adam.beta2, (double)attr->adam.step)));
	return attr->stochastic ? update_as<stochastic_updates>(cuda, &r, args, count) : update_as<nearest_updates>(cuda, &r, args, count);
}

static int adamw(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return update_all(cuda, args, 1, err);
}

const struct hspmd_cuda_kernel hspmd_cuda_sum_squares = { sum_squares, sum_squares_workspace, sum_all_squares };
const struct hspmd_cuda_kernel hspmd_cuda_adamw = { adamw, NULL, update_all };
