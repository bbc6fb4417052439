/* SPDX-License-Identifier: Apache-2.0 */
/* Router of a mixture of experts: the experts that a token goes to, their weights, and how evenly the tokens of a sample are spread
 * (opcode.h). */
#include "runtime/device/cpu/kernel.h"

/* The k largest of n, largest first; among equals the first. */
static void choose_largest(const real *x, int64_t n, int64_t k, int32_t *choice)
{
	for (int64_t j = 0; j < k; j++) {
		int32_t best = -1;
		for (int32_t e = 0; e < n; e++) {
			bool taken = false;
			for (int64_t i = 0; i < j; i++)
				taken |= choice[i] == e;
			if (!taken && (best < 0 || x[e] > x[best]))
				best = e;
		}
		choice[j] = best;
	}
}

/* The largest of n, and the sum of exponentials relative to it. */
static double exponential_sum(const real *x, int64_t n, double *most)
{
	double sum = 0;
	*most = x[0];
	for (int64_t e = 1; e < n; e++)
		*most = x[e] > *most ? x[e] : *most;
	for (int64_t e = 0; e < n; e++)
		sum += exp(x[e] - *most);
	return sum;
}

static void route_sample(void *context, int64_t sample, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *r = &args->in[0];
	int64_t length = r->shape[1], experts = r->shape[2], k = args->attr->experts_per_token;
	const real *logits = (const real *)r->data + sample * length * experts;
	real *weights = (real *)args->out[0].data + sample * length * k, *load = (real *)args->out[3].data + sample * experts;
	int32_t *choice = (int32_t *)args->out[1].data + sample * length * k;
	double *balance = (double *)args->workspace + sample * (experts + 1), *probability = balance + 1;
	memset(load, 0, (size_t)experts * sizeof *load);
	memset(balance, 0, (size_t)(experts + 1) * sizeof *balance);
	for (int64_t t = 0; t < length; t++, logits += experts, weights += k, choice += k) {
		double most, all = exponential_sum(logits, experts, &most), chosen = 0;
		choose_largest(logits, experts, k, choice);
		for (int64_t e = 0; e < experts; e++)
			probability[e] += exp(logits[e] - most) / all;
		for (int64_t j = 0; j < k; j++) {
			chosen += exp(logits[choice[j]] - most);
			load[choice[j]] += 1;
		}
		if (args->attr->router == HSPMD_ROUTER_ALL)
			chosen = all;
		for (int64_t j = 0; j < k; j++)
			weights[j] = (real)(exp(logits[choice[j]] - most) / chosen);
	}
	for (int64_t e = 0; e < experts; e++)
		*balance += (double)load[e] * probability[e] / (double)length * (double)experts;
}

static void topk_router(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[0];
	hspmd_thread_pool_for(cpu->pool, r->shape[0], (double)(r->shape[1] * r->shape[2]) * 2 * LIBM_NS, route_sample, (void *)args);
	double *aux = args->out[2].data, total = 0;
	if (!aux)
		return;
	for (int64_t b = 0; b < r->shape[0]; b++)
		total += ((const double *)args->workspace)[b * (r->shape[2] + 1)];
	*aux = (args->out[2].accumulate ? *aux : 0) + args->attr->scale * total;
}

static size_t route_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	return (size_t)(args->in[0].shape[0] * (args->in[0].shape[2] + 1)) * sizeof(double);
}

static bool is_chosen(const int32_t *choice, int64_t k, int64_t expert)
{
	for (int64_t j = 0; j < k; j++)
		if (choice[j] == expert)
			return true;
	return false;
}

static void route_grad_sample(void *context, int64_t sample, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *r = &args->in[1];
	int64_t length = r->shape[1], experts = r->shape[2], k = args->attr->experts_per_token;
	const real *dweights = (const real *)args->in[0].data + sample * length * k,
	           *weights = (const real *)args->in[2].data + sample * length * k;
	const real *logits = (const real *)r->data + sample * length * experts, *load = (const real *)args->in[4].data + sample * experts;
	const int32_t *choice = (const int32_t *)args->in[3].data + sample * length * k;
	real *dr = (real *)args->out[0].data + sample * length * experts;
	double scale = args->attr->scale * (double)experts / (double)length;
	for (int64_t t = 0; t < length; t++, logits += experts, dr += experts, dweights += k, weights += k, choice += k) {
		double most, all = exponential_sum(logits, experts, &most), mean = 0, slope = 0;
		for (int64_t e = 0; e < experts; e++)
			mean += (double)load[e] * exp(logits[e] - most) / all;
		for (int64_t e = 0; e < experts; e++)
			dr[e] = (real)(scale * exp(logits[e] - most) / all * ((double)load[e] - mean));
		for (int64_t j = 0; j < k; j++)
			slope += (double)dweights[j] * (double)weights[j];
		for (int64_t j = 0; j < k; j++)
			dr[choice[j]] += (real)((double)weights[j] * ((double)dweights[j] - slope));
		for (int64_t e = 0; e < experts && args->attr->router == HSPMD_ROUTER_ALL; e++)
			if (!is_chosen(choice, k, e))
				dr[e] -= (real)(exp(logits[e] - most) / all * slope);
	}
}

static void topk_router_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[1];
	hspmd_thread_pool_for(cpu->pool, r->shape[0], (double)(r->shape[1] * r->shape[2]) * 3 * LIBM_NS, route_grad_sample, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(topk_router) = { topk_router, route_workspace };
const struct hspmd_cpu_kernel LOCAL(topk_router_grad) = { topk_router_grad, NULL };
