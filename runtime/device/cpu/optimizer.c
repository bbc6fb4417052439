/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that update parameters: norm of the gradients and AdamW. */
#include "runtime/device/cpu/kernel.h"

#define ELEMENTS_PER_ITEM 16384

static int64_t items_of(const struct hspmd_view *x)
{
	return (element_count(x) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM;
}

/* Sums in double, per lane: eight sums cover the latency of the addition. */
static void squares_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t count = element_count(&args->in[0]), i = item * ELEMENTS_PER_ITEM, end = i + ELEMENTS_PER_ITEM;
	end = end < count ? end : count;
	const real *x = args->in[0].data;
	double sum[16] = { 0 };
	for (; i + 16 <= end; i += 16)
		for (int j = 0; j < 16; j++)
			sum[j] += (double)x[i + j] * (double)x[i + j];
	for (; i < end; i++)
		sum[0] += (double)x[i] * (double)x[i];
	for (int n = 8; n; n /= 2)
		for (int j = 0; j < n; j++)
			sum[j] += sum[j + n];
	((double *)args->workspace)[item] = sum[0];
}

static void sum_squares(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t items = items_of(&args->in[0]);
	hspmd_thread_pool_for(cpu->pool, items, ELEMENTS_PER_ITEM * MOVE_NS, squares_item, (void *)args);
	double *out = args->out[0].data, total = 0;
	for (int64_t i = 0; i < items; i++)
		total += ((const double *)args->workspace)[i];
	*out = args->out[0].accumulate ? *out + total : total;
}

static size_t sum_squares_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	return (size_t)items_of(&args->in[0]) * sizeof(double);
}

/* Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2. */
static void adamw_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_op_attr *attr = args->attr;
	int64_t count = element_count(&args->in[0]), i = item * ELEMENTS_PER_ITEM, end = i + ELEMENTS_PER_ITEM;
	end = end < count ? end : count;
	const real *restrict gradient = args->in[0].data;
	real *restrict parameter = args->out[0].data, *restrict m = args->out[1].data, *restrict v = args->out[2].data;
	real scale = (real)attr->scale, beta1 = (real)attr->adam.beta1, beta2 = (real)attr->adam.beta2;
	real rest1 = (real)(1 - attr->adam.beta1), rest2 = (real)(1 - attr->adam.beta2), eps = (real)attr->adam.eps;
	real keep = (real)(1 - attr->adam.lr * attr->adam.weight_decay);
	real rate = (real)(attr->adam.lr / (1 - pow(attr->adam.beta1, (double)attr->adam.step)));
	real correction = (real)(1 / sqrt(1 - pow(attr->adam.beta2, (double)attr->adam.step)));
	for (; i < end; i++) {
		real g = gradient[i] * scale;
		m[i] = beta1 * m[i] + rest1 * g;
		v[i] = beta2 * v[i] + rest2 * g * g;
		real size = (real)(REAL_BITS == 32 ? sqrtf((float)v[i]) : sqrt(v[i]));
		parameter[i] = keep * parameter[i] - rate * m[i] / (size * correction + eps);
	}
}

static void adamw(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(&args->in[0]), ELEMENTS_PER_ITEM * 10 * MOVE_NS, adamw_item, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(sum_squares) = { sum_squares, sum_squares_workspace };
const struct hspmd_cpu_kernel LOCAL(adamw) = { adamw, NULL };
