/* SPDX-License-Identifier: Apache-2.0 */
/* Router of a mixture of experts: which experts a token goes to, with what weights, and how evenly the tokens of a sample are
 * distributed. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 128

/* Computes the largest of n scores and the sum of exponentials relative to it. */
template <typename T> static __device__ __forceinline__ float exponential_sum(const T *x, int n, float *most)
{
	float sum = 0;
	*most = to_float(x[0]);
	for (int e = 1; e < n; e++)
		*most = fmaxf(*most, to_float(x[e]));
	for (int e = 0; e < n; e++)
		sum += expf(to_float(x[e]) - *most);
	return sum;
}

/* How logits become choices and weights (attributes of the operator). */
struct routing {
	int router, experts, k, groups, top_groups, group_best;
	float scale;
};

static __device__ __forceinline__ bool is_sigmoid(const struct routing &r)
{
	return r.router == HSPMD_ROUTER_SIGMOID || r.router == HSPMD_ROUTER_SIGMOID_ALL;
}

static __device__ __forceinline__ float sigmoid_of(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

template <typename T> static __device__ __forceinline__ float score_of(const struct routing &r, const T *x, const T *bias, int e)
{
	return is_sigmoid(r) ? sigmoid_of(to_float(x[e])) + (bias ? to_float(bias[e]) : 0.0f) : to_float(x[e]);
}

/* The sum of a group's largest scores, one or two. */
template <typename T>
static __device__ __forceinline__ float group_score(const struct routing &r, const T *x, const T *bias, int first, int end)
{
	float best = -INFINITY, second = -INFINITY;
	for (int e = first; e < end; e++) {
		float s = score_of(r, x, bias, e);
		if (s > best) {
			second = best;
			best = s;
		} else if (s > second)
			second = s;
	}
	return r.group_best > 1 && end - first > 1 ? best + second : best;
}

/* A bit for each of the best groups; of equal ones the first. */
template <typename T> static __device__ __forceinline__ uint64_t best_groups(const struct routing &r, const T *x, const T *bias)
{
	uint64_t chosen = 0;
	int each = r.groups ? r.experts / r.groups : 0;
	for (int i = 0; i < r.top_groups && r.groups; i++) {
		int best = -1;
		float most = 0;
		for (int g = 0; g < r.groups; g++) {
			float s = group_score(r, x, bias, g * each, (g + 1) * each);
			if (!(chosen >> g & 1) && (best < 0 || s > most)) {
				best = g;
				most = s;
			}
		}
		chosen |= (uint64_t)1 << best;
	}
	return chosen;
}

/* One thread per token: finds the k largest scores, largest first, and of equal ones the first; and the probability of every expert. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
        choose_kernel(struct routing r, const T *logits, const T *bias, T *weights, int32_t *choice, float *probability, int64_t tokens)
{
	int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (t >= tokens)
		return;
	const T *x = logits + t * r.experts;
	float most, all = exponential_sum(x, r.experts, &most), chosen = 0;
	uint64_t groups = best_groups(r, x, bias);
	for (int j = 0; j < r.k; j++) {
		int best = -1;
		for (int e = 0; e < r.experts; e++) {
			bool taken = r.groups && !(groups >> e / (r.experts / r.groups) & 1);
			for (int i = 0; i < j; i++)
				taken |= choice[t * r.k + i] == e;
			if (!taken && (best < 0 || score_of(r, x, bias, e) > score_of(r, x, bias, best)))
				best = e;
		}
		choice[t * r.k + j] = best;
		chosen += is_sigmoid(r) ? sigmoid_of(to_float(x[best])) : expf(to_float(x[best]) - most);
	}
	chosen = r.router == HSPMD_ROUTER_ALL ? all : r.router == HSPMD_ROUTER_SIGMOID_ALL ? 1.0f : chosen;
	for (int j = 0; j < r.k; j++) {
		float logit = to_float(x[choice[t * r.k + j]]);
		weights[t * r.k + j] = from_float<T>((is_sigmoid(r) ? sigmoid_of(logit) : expf(logit - most)) / chosen * r.scale);
	}
	for (int e = 0; e < r.experts; e++)
		probability[t * r.experts + e] = expf(to_float(x[e]) - most) / all;
}

/* One block per sample and expert: computes the expert's load and its part of the balance loss. */
static __global__ void __launch_bounds__(THREADS)
        balance_kernel(const int32_t *choice, const float *probability, float *load, double *balance, int64_t length, int experts, int k)
{
	__shared__ double room[WARP];
	int64_t b = blockIdx.x / experts;
	int e = blockIdx.x % experts;
	double count = 0, sum = 0;
	for (int64_t t = b * length + threadIdx.x; t < (b + 1) * length; t += THREADS) {
		sum += probability[t * experts + e];
		for (int j = 0; j < k; j++)
			count += choice[t * k + j] == e;
	}
	count = block_reduce<Sum>(count, 0.0, room);
	sum = block_reduce<Sum>(sum, 0.0, room);
	if (threadIdx.x == 0) {
		load[blockIdx.x] = (float)count;
		balance[blockIdx.x] = count * sum / (double)length * experts;
	}
}

static __global__ void __launch_bounds__(THREADS)
        auxiliary_kernel(const double *balance, int64_t count, double *aux, double scale, bool accumulate)
{
	__shared__ double room[WARP];
	double sum = 0;
	for (int64_t i = threadIdx.x; i < count; i += THREADS)
		sum += balance[i];
	sum = block_reduce<Sum>(sum, 0.0, room);
	if (threadIdx.x == 0)
		*aux = (accumulate ? *aux : 0) + scale * sum;
}

/* Gradient of a chosen expert's logit through its weight. slope: the sum of dweight * weight, over the sum of weights if they have one. */
static __device__ __forceinline__ float weight_slope(const struct routing &r, float logit, float weight, float dweight, float slope)
{
	float d = r.router == HSPMD_ROUTER_ALL || r.router == HSPMD_ROUTER_SIGMOID_ALL ? dweight : dweight - slope;
	return weight * d * (is_sigmoid(r) ? 1.0f - sigmoid_of(logit) : 1.0f);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        grad_kernel(struct routing r, const T *dweights, const T *logits, const T *weights, const int32_t *choice, const float *load,
                    T *dlogits, int64_t tokens, int64_t length, float scale)
{
	int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (t >= tokens)
		return;
	const T *x = logits + t * r.experts;
	const float *counts = load + t / length * r.experts;
	float most, all = exponential_sum(x, r.experts, &most), mean = 0, slope = 0;
	for (int e = 0; e < r.experts; e++)
		mean += counts[e] * expf(to_float(x[e]) - most) / all;
	for (int j = 0; j < r.k; j++)
		slope += to_float(dweights[t * r.k + j]) * to_float(weights[t * r.k + j]);
	float share = slope / r.scale;
	for (int e = 0; e < r.experts; e++) {
		float probability = expf(to_float(x[e]) - most) / all, d = scale * probability * (counts[e] - mean);
		if (r.router == HSPMD_ROUTER_ALL)
			d -= probability * slope;
		for (int j = 0; j < r.k; j++)
			if (choice[t * r.k + j] == e)
				d += weight_slope(r, to_float(x[e]), to_float(weights[t * r.k + j]), to_float(dweights[t * r.k + j]),
				                  share);
		dlogits[t * r.experts + e] = from_float<T>(d);
	}
}

static struct routing routing_of(const struct hspmd_op_attr *attr)
{
	struct routing r = {};
	r.router = attr->router;
	r.experts = attr->experts;
	r.k = attr->experts_per_token;
	r.groups = attr->groups;
	r.top_groups = attr->top_groups;
	r.group_best = attr->group_best;
	r.scale = attr->weight_scale > 0 ? (float)attr->weight_scale : 1.0f;
	return r;
}

template <typename T> static int route_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[0];
	int64_t tokens = hspmd_cuda_row_count(r), pairs = r->shape[0] * r->shape[2];
	int experts = (int)r->shape[2], k = args->attr->experts_per_token;
	const void *bias = args->input_count > 1 && args->in[1].rank >= 0 ? args->in[1].data : NULL;
	double *balance = (double *)args->workspace;
	float *probability = (float *)(balance + pairs);
	auto *kernel = choose_kernel<T>;
	if (tokens) {
		LAUNCH(kernel, (unsigned)ceil_div(tokens, THREADS), THREADS, 0, cuda->stream, routing_of(args->attr), (const T *)r->data,
		       (const T *)bias, (T *)args->out[0].data, (int32_t *)args->out[1].data, probability, tokens);
		LAUNCH(balance_kernel, (unsigned)pairs, THREADS, 0, cuda->stream, (const int32_t *)args->out[1].data, probability,
		       (float *)args->out[3].data, balance, r->shape[1], experts, k);
	}
	if (args->out[2].data)
		LAUNCH(auxiliary_kernel, 1, THREADS, 0, cuda->stream, balance, tokens ? pairs : 0, (double *)args->out[2].data,
		       args->attr->scale, args->out[2].accumulate);
	return 0;
}

template <typename T> static int route_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[1];
	int64_t tokens = hspmd_cuda_row_count(r);
	int experts = (int)r->shape[2];
	auto *kernel = grad_kernel<T>;
	if (tokens)
		LAUNCH(kernel, (unsigned)ceil_div(tokens, THREADS), THREADS, 0, cuda->stream, routing_of(args->attr),
		       (const T *)args->in[0].data, (const T *)r->data, (const T *)args->in[2].data, (const int32_t *)args->in[3].data,
		       (const float *)args->in[4].data, (T *)args->out[0].data, tokens, r->shape[1],
		       (float)(args->attr->scale * experts / (double)r->shape[1]));
	if (args->output_count > 1 && args->out[1].data && !args->out[1].accumulate)
		cudaMemsetAsync(args->out[1].data, 0, (size_t)experts * sizeof(float), cuda->stream);
	return 0;
}

static int route(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, route_of, cuda, args);
}

static size_t route_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[0];
	return (size_t)(r->shape[0] * r->shape[2]) * sizeof(double) + (size_t)hspmd_cuda_elements(r) * sizeof(float);
}

static int topk_router_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[1].dtype, route_grad_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_topk_router = { route, route_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_topk_router_grad = { topk_router_grad, NULL };
