/* SPDX-License-Identifier: Apache-2.0 */
/* Router of a mixture of experts: the experts that a token goes to, their weights, and how evenly the tokens of a sample are spread
 * (opcode_list.h). */
#include "runtime/device/cpu/kernel.h"

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static bool is_sigmoid(const struct hspmd_op_attr *attr)
{
	return attr->router == HSPMD_ROUTER_SIGMOID || attr->router == HSPMD_ROUTER_SIGMOID_ALL;
}

static double weight_scale(const struct hspmd_op_attr *attr)
{
	return attr->weight_scale > 0 ? attr->weight_scale : 1;
}

/* The number of the largest of n scores, of equal ones the first. */
static int64_t largest(const double *score, int64_t n)
{
	int64_t best = 0;
	for (int64_t i = 1; i < n; i++)
		if (score[i] > score[best])
			best = i;
	return best;
}

/* The sum of a group's largest scores, one or two. */
static double group_score(double *score, int64_t n, int count)
{
	int64_t best = largest(score, n);
	double most = score[best], sum = most;
	if (count > 1 && n > 1) {
		score[best] = -INFINITY;
		sum += score[largest(score, n)];
		score[best] = most;
	}
	return sum;
}

/* Leaves only the scores of the best groups. */
static void limit_groups(const struct hspmd_op_attr *attr, double *score, int64_t experts)
{
	int64_t each = attr->groups ? experts / attr->groups : 0;
	double of_group[64];
	for (int g = 0; g < attr->groups; g++)
		of_group[g] = group_score(score + g * each, each, attr->group_best);
	for (int i = 0; i < attr->groups - attr->top_groups; i++) {
		int64_t worst = 0;
		for (int g = 1; g < attr->groups; g++)
			if (of_group[g] <= of_group[worst] || of_group[worst] == INFINITY)
				worst = g;
		of_group[worst] = INFINITY;
		for (int64_t e = worst * each; e < (worst + 1) * each; e++)
			score[e] = -INFINITY;
	}
}

/* The experts that a token goes to, best first. score: room for all. */
static void choose(const struct hspmd_op_attr *attr, const real *x, const real *bias, int64_t experts, double *score, int32_t *choice)
{
	for (int64_t e = 0; e < experts; e++)
		score[e] = is_sigmoid(attr) ? sigmoid((double)x[e]) + (bias ? (double)bias[e] : 0) : (double)x[e];
	limit_groups(attr, score, experts);
	for (int64_t j = 0; j < attr->experts_per_token; j++) {
		choice[j] = (int32_t)largest(score, experts);
		score[choice[j]] = -INFINITY;
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

/* What a chosen expert's weight is proportional to. */
static double part_of(const struct hspmd_op_attr *attr, real logit, double most)
{
	return is_sigmoid(attr) ? sigmoid((double)logit) : exp(logit - most);
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
	double *balance = (double *)args->workspace + sample * (2 * experts + 1), *probability = balance + 1,
	       *score = probability + experts;
	const real *bias = args->input_count > 1 && args->in[1].rank >= 0 ? args->in[1].data : NULL;
	memset(load, 0, (size_t)experts * sizeof *load);
	memset(balance, 0, (size_t)(experts + 1) * sizeof *balance);
	for (int64_t t = 0; t < length; t++, logits += experts, weights += k, choice += k) {
		double most, all = exponential_sum(logits, experts, &most), chosen = 0;
		choose(args->attr, logits, bias, experts, score, choice);
		for (int64_t e = 0; e < experts; e++)
			probability[e] += exp(logits[e] - most) / all;
		for (int64_t j = 0; j < k; j++) {
			chosen += part_of(args->attr, logits[choice[j]], most);
			load[choice[j]] += 1;
		}
		if (args->attr->router == HSPMD_ROUTER_ALL)
			chosen = all;
		if (args->attr->router == HSPMD_ROUTER_SIGMOID_ALL)
			chosen = 1;
		for (int64_t j = 0; j < k; j++)
			weights[j] = (real)(part_of(args->attr, logits[choice[j]], most) / chosen * weight_scale(args->attr));
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
		total += ((const double *)args->workspace)[b * (2 * r->shape[2] + 1)];
	*aux = (args->out[2].accumulate ? *aux : 0) + args->attr->scale * total;
}

static size_t route_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	return (size_t)(args->in[0].shape[0] * (2 * args->in[0].shape[2] + 1)) * sizeof(double);
}

/* Gradient of a chosen expert's logit through its weight. slope: the sum of dweight * weight, over the sum of weights if they have one. */
static double weight_slope(const struct hspmd_op_attr *attr, real logit, real weight, real dweight, double slope)
{
	double w = (double)weight, d = (double)dweight;
	switch (attr->router) {
	case HSPMD_ROUTER_ALL:
		return w * d;
	case HSPMD_ROUTER_SIGMOID:
		return w * (d - slope) * (1 - sigmoid((double)logit));
	case HSPMD_ROUTER_SIGMOID_ALL:
		return w * d * (1 - sigmoid((double)logit));
	default:
		return w * (d - slope);
	}
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
	double scale = args->attr->scale * (double)experts / (double)length, scaled = weight_scale(args->attr);
	for (int64_t t = 0; t < length; t++, logits += experts, dr += experts, dweights += k, weights += k, choice += k) {
		double most, all = exponential_sum(logits, experts, &most), mean = 0, slope = 0;
		for (int64_t e = 0; e < experts; e++)
			mean += (double)load[e] * exp(logits[e] - most) / all;
		for (int64_t e = 0; e < experts; e++)
			dr[e] = (real)(scale * exp(logits[e] - most) / all * ((double)load[e] - mean));
		for (int64_t j = 0; j < k; j++)
			slope += (double)dweights[j] * (double)weights[j];
		if (args->attr->router == HSPMD_ROUTER_SIGMOID || args->attr->router == HSPMD_ROUTER_CHOSEN)
			slope /= scaled; /* weights that are divided by their sum; of softmax all share it */
		for (int64_t j = 0; j < k; j++)
			dr[choice[j]] += (real)weight_slope(args->attr, logits[choice[j]], weights[j], dweights[j], slope);
		for (int64_t e = 0; e < experts && args->attr->router == HSPMD_ROUTER_ALL; e++)
			dr[e] -= (real)(exp(logits[e] - most) / all * slope);
	}
	real *dbias = args->output_count > 1 ? args->out[1].data : NULL;
	if (dbias && !args->out[1].accumulate && sample == 0)
		memset(dbias, 0, (size_t)experts * sizeof *dbias);
}

static void topk_router_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *r = &args->in[1];
	hspmd_thread_pool_for(cpu->pool, r->shape[0], (double)(r->shape[1] * r->shape[2]) * 3 * LIBM_NS, route_grad_sample, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(topk_router) = { topk_router, route_workspace };
const struct hspmd_cpu_kernel LOCAL(topk_router_grad) = { topk_router_grad, NULL };
