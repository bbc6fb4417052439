/* SPDX-License-Identifier: Apache-2.0 */
/* Router of a mixture of experts (opcode.h): which experts a token goes to, with what weights, and how evenly the tokens of a sample are
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

/* One thread per token: finds the k largest scores, largest first, and of equal ones the first; and the probability of every expert. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
        choose_kernel(const T *logits, T *weights, int32_t *choice, float *probability, int64_t tokens, int experts, int k, bool over_all)
{
	int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (t >= tokens)
		return;
	const T *x = logits + t * experts;
	float most, all = exponential_sum(x, experts, &most), chosen = 0;
	for (int j = 0; j < k; j++) {
		int best = -1;
		for (int e = 0; e < experts; e++) {
			bool taken = false;
			for (int i = 0; i < j; i++)
				taken |= choice[t * k + i] == e;
			if (!taken && (best < 0 || to_float(x[e]) > to_float(x[best])))
				best = e;
		}
		choice[t * k + j] = best;
		chosen += expf(to_float(x[best]) - most);
	}
	for (int j = 0; j < k; j++)
		weights[t * k + j] = from_float<T>(expf(to_float(x[choice[t * k + j]]) - most) / (over_all ? all : chosen));
	for (int e = 0; e < experts; e++)
		probability[t * experts + e] = expf(to_float(x[e]) - most) / all;
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

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        grad_kernel(const T *dweights, const T *logits, const T *weights, const int32_t *choice, const float *load, T *dlogits,
                    int64_t tokens, int64_t length, int experts, int k, float scale, bool over_all)
{
	int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (t >= tokens)
		return;
	const T *x = logits + t * experts;
	const float *counts = load + t / length * experts;
	float most, all = exponential_sum(x, experts, &most), mean = 0, slope = 0;
	for (int e = 0; e < experts; e++)
		mean += counts[e] * expf(to_float(x[e]) - most) / all;
	for (int j = 0; j < k; j++)
		slope += to_float(dweights[t * k + j]) * to_float(weights[t * k + j]);
	for (int e = 0; e < experts; e++) {
		float probability = expf(to_float(x[e]) - most) / all, d = scale * probability * (counts[e] - mean);
		if (over_all)
			d -= probability * slope;
		for (int j = 0; j < k; j++)
			if (choice[t * k + j] == e)
				d += to_float(weights[t * k + j]) * (to_float(dweights[t * k + j]) - (over_all ? 0.0f : slope));
		dlogits[t * experts + e] = from_float<T>(d);
	}
}

template <typename T> static int route_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[0];
	int64_t tokens = hspmd_cuda_row_count(r), pairs = r->shape[0] * r->shape[2];
	int experts = (int)r->shape[2], k = args->attr->experts_per_token;
	double *balance = (double *)args->workspace;
	float *probability = (float *)(balance + pairs);
	auto *kernel = choose_kernel<T>;
	if (tokens) {
		LAUNCH(kernel, (unsigned)ceil_div(tokens, THREADS), THREADS, 0, cuda->stream, (const T *)r->data, (T *)args->out[0].data,
		       (int32_t *)args->out[1].data, probability, tokens, experts, k, args->attr->router == HSPMD_ROUTER_ALL);
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
		LAUNCH(kernel, (unsigned)ceil_div(tokens, THREADS), THREADS, 0, cuda->stream, (const T *)args->in[0].data,
		       (const T *)r->data, (const T *)args->in[2].data, (const int32_t *)args->in[3].data, (const float *)args->in[4].data,
		       (T *)args->out[0].data, tokens, r->shape[1], experts, args->attr->experts_per_token,
		       (float)(args->attr->scale * experts / (double)r->shape[1]), args->attr->router == HSPMD_ROUTER_ALL);
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
