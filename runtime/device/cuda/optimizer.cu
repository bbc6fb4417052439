/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of parameters: the norm of the gradients, and the optimizers. One launch handles many parameters, because most are so small that
 * starting a kernel takes longer than running it. */
#include <math.h>

#include "runtime/device/cuda/kernel.h"
#include "runtime/device/rounding.h"
#include "runtime/device/step_values.h"
#include "runtime/tensor/fp8.h"

#define HSPMD_UPDATE_FUNCTION static __device__ __forceinline__
#define HSPMD_UPDATE_REAL float
#define HSPMD_UPDATE_SQRT(x) sqrtf(x)
#include "common/optimizer/rules.h"

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
	float scale, keep, of[HSPMD_OPTIMIZER_RATES]; /* keep: of parameters that decay, from a step's values */
};

/* The update of one parameter. */
struct update {
	const float *gradient;
	float *parameter, *moments[HSPMD_OPTIMIZER_MOMENTS];
	bf16 *copy; /* NULL, or the copy of the parameter that the operators read */
	int64_t count;
	unsigned first;
	float keep;
	bool decays;  /* then a step's values have what it keeps */
	bool history; /* an amax history, whose moments stay */
};

/* Updates whose copies are rounded to the nearest. */
struct nearest_updates {
	static const int most = 60;
	struct rates rates;
	const struct hspmd_step_values *values; /* instead of rates; NULL: rates */
	int vectors;
	struct update of[most];
};

/* Updates whose copies are rounded stochastically; each parameter has its own random stream, indexed by the element's index in the full
 * tensor. */
struct stochastic_updates {
	static const int most = 21;
	struct rates rates;
	const struct hspmd_step_values *values; /* instead of rates and streams; NULL: those */
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
	uint64_t stream = a.values ? a.values->streams[a.by[k].stream] : a.by[k].stream;
	hspmd_round_elements(a.seed, stream, &a.by[k].map, j, 4, p, halves);
}

#define RULE(NAME, name)                                                                                                                   \
	struct name##_rule {                                                                                                               \
		static const int moments = name##_MOMENTS;                                                                                 \
		static __device__ __forceinline__ float update(const float *rates, float keep, float g, float p, float *m)                 \
		{                                                                                                                          \
			return name##_update(rates, keep, g, p, m);                                                                        \
		}                                                                                                                          \
	};
HSPMD_OPTIMIZERS(RULE)

/* The rates of a step whose gradients have this norm: those that the host would compute, with the same bits. */
static __device__ __forceinline__ struct rates rates_of(const struct hspmd_step_values &v)
{
	double norm = sqrt(v.square_sum);
	struct rates r;
	r.scale = (float)(v.clip > 0 && norm > v.clip ? v.clip / norm : 1.0);
	r.keep = (float)v.keep;
#pragma unroll
	for (int i = 0; i < HSPMD_OPTIMIZER_RATES; i++)
		r.of[i] = (float)v.rates[i];
	return r;
}

template <typename Updates, typename Rule> static __global__ void __launch_bounds__(THREADS) update_kernel(Updates a)
{
	__shared__ struct rates shared;
	if (threadIdx.x == 0) /* one thread: roots and quotients in double precision are dear */
		shared = a.values ? rates_of(*a.values) : a.rates;
	__syncthreads();
	const struct rates rates = shared;
	int k = vector_of(a);
	float keep = a.values && a.of[k].decays ? rates.keep : a.of[k].keep;
	int64_t count = a.of[k].count, begin = (int64_t)(blockIdx.x - a.of[k].first) * UPDATE_ELEMENTS;
	int64_t end = begin + UPDATE_ELEMENTS < count ? begin + UPDATE_ELEMENTS : count;
	for (int64_t j = begin + threadIdx.x * 4; j < end; j += THREADS * 4) {
		float g[4], p[4], m[Rule::moments][4];
		load_pack(g, a.of[k].gradient, j, count, true);
		load_pack(p, (const float *)a.of[k].parameter, j, count, true);
#pragma unroll
		for (int s = 0; s < Rule::moments; s++)
			load_pack(m[s], (const float *)a.of[k].moments[s], j, count, true);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float own[Rule::moments];
#pragma unroll
			for (int s = 0; s < Rule::moments; s++)
				own[s] = m[s][i];
			p[i] = a.of[k].history ? hspmd_amax_next(p[i], g[i])
			                       : Rule::update(rates.of, keep, g[i] * rates.scale, p[i], own);
#pragma unroll
			for (int s = 0; s < Rule::moments; s++)
				m[s][i] = own[s];
		}
		store_pack(a.of[k].parameter, p, j, count, true);
#pragma unroll
		for (int s = 0; s < Rule::moments; s++)
			store_pack(a.of[k].moments[s], m[s], j, count, true);
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

template <typename Updates, typename Rule>
static int update_as(struct hspmd_cuda *cuda, const struct rates *rates, const struct hspmd_kernel_args *args, int count)
{
	auto *kernel = update_kernel<Updates, Rule>;
	Updates a = {};
	a.rates = *rates;
	a.values = args->values;
	for (int at = 0; at < count;) {
		int64_t blocks = 0;
		for (a.vectors = 0; at < count && a.vectors < Updates::most; at++) {
			struct update *u = &a.of[a.vectors];
			u->gradient = (const float *)args[at].in[0].data;
			u->parameter = (float *)args[at].out[0].data;
			for (int s = 0; s < Rule::moments; s++)
				u->moments[s] = (float *)args[at].out[1 + s].data;
			u->copy = args[at].output_count > 1 + Rule::moments ? (bf16 *)args[at].out[1 + Rule::moments].data : NULL;
			u->count = hspmd_cuda_elements(&args[at].in[0]);
			u->first = (unsigned)blocks;
			u->keep = (float)args[at].attr->update.keep;
			u->decays = args[at].attr->update.decays;
			u->history = args[at].attr->history;
			describe_rounding(&a, &args[at]);
			blocks += ceil_div(u->count, UPDATE_ELEMENTS);
			a.vectors += u->count > 0;
		}
		if (blocks)
			LAUNCH(kernel, (unsigned)blocks, THREADS, 0, cuda->stream, a);
	}
	return 0;
}

template <typename Rule>
static int update_by(struct hspmd_cuda *cuda, const struct rates *rates, const struct hspmd_kernel_args *args, int count)
{
	return args->attr->stochastic ? update_as<stochastic_updates, Rule>(cuda, rates, args, count)
	                              : update_as<nearest_updates, Rule>(cuda, rates, args, count);
}

/* One step of one optimizer: parameters differ only in weight decay and in how their copies are rounded. */
static int update_all(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int count, struct hspmd_error *)
{
	const struct hspmd_op_attr *attr = args->attr;
	struct rates r;
	r.scale = (float)attr->scale;
	r.keep = 1;
	for (int k = 0; k < HSPMD_OPTIMIZER_RATES; k++)
		r.of[k] = (float)attr->update.rates[k];
	switch (attr->update.optimizer) {
#define CASE(NAME, name)                                                                                                                   \
	case HSPMD_OPTIMIZER_##NAME:                                                                                                       \
		return update_by<name##_rule>(cuda, &r, args, count);
		HSPMD_OPTIMIZERS(CASE)
	default:
		return -1;
	}
}

static int update(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return update_all(cuda, args, 1, err);
}

const struct hspmd_cuda_kernel hspmd_cuda_sum_squares = { sum_squares, sum_squares_workspace, sum_all_squares };
const struct hspmd_cuda_kernel hspmd_cuda_update = { update, NULL, update_all };
