/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that are sums over elements: a fixed number of items sum their own elements, and the sums are added in order. */
#include "runtime/device/cpu/kernel.h"

#define ITEMS 32

struct element {
	const real *x, *y, *weights;
	int64_t each; /* elements per weight */
};

static struct element element_of(const struct hspmd_kernel_args *args)
{
	bool weighted = args->input_count > 2 && args->in[2].rank >= 0;
	struct element e = { .x = args->in[0].data, .each = 1 };
	e.y = args->attr->kind != HSPMD_LOSS_SUM ? args->in[1].data : NULL;
	e.weights = weighted ? args->in[2].data : NULL;
	for (int d = weighted ? args->in[2].rank : 0; d < args->in[0].rank; d++)
		e.each *= args->in[0].shape[d];
	return e;
}

static double loss_at(int kind, double x, double y)
{
	if (kind == HSPMD_LOSS_SUM)
		return x;
	return kind == HSPMD_LOSS_SQUARED ? (x - y) * (x - y) : (x > 0 ? x : 0) - x * y + log1p(exp(-fabs(x)));
}

static double slope_at(int kind, double x, double y)
{
	if (kind == HSPMD_LOSS_SUM)
		return 1;
	return kind == HSPMD_LOSS_SQUARED ? 2 * (x - y) : 1 / (1 + exp(-x)) - y;
}

static void sum_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	struct element e = element_of(args);
	(void)thread;
	int64_t first, end;
	double sum = 0;
	split_range(element_count(&args->in[0]), ITEMS, item, &first, &end);
	for (int64_t i = first; i < end; i++)
		sum += (e.weights ? (double)e.weights[i / e.each] : 1) *
		       loss_at(args->attr->kind, (double)e.x[i], e.y ? (double)e.y[i] : 0);
	((double *)args->workspace)[item] = sum;
}

static void slope_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	struct element e = element_of(args);
	real *dx = args->out[0].data;
	(void)thread;
	int64_t first, end;
	split_range(element_count(&args->in[0]), ITEMS, item, &first, &end);
	for (int64_t i = first; i < end; i++)
		dx[i] = (real)(args->attr->scale * (e.weights ? (double)e.weights[i / e.each] : 1) *
		               slope_at(args->attr->kind, (double)e.x[i], e.y ? (double)e.y[i] : 0));
}

static double item_ns(const struct hspmd_kernel_args *args)
{
	return (double)element_count(&args->in[0]) / ITEMS * (args->attr->kind == HSPMD_LOSS_LOGISTIC ? 2 * LIBM_NS : MOVE_NS);
}

static void element_loss(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	double *out = args->out[0].data, sum = 0;
	hspmd_thread_pool_for(cpu->pool, ITEMS, item_ns(args), sum_item, (void *)args);
	for (int i = 0; i < ITEMS; i++)
		sum += ((const double *)args->workspace)[i];
	*out = (args->out[0].accumulate ? *out : 0) + args->attr->scale * sum;
}

static size_t element_loss_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	(void)args;
	return ITEMS * sizeof(double);
}

static void element_loss_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, ITEMS, item_ns(args), slope_item, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(element_loss) = { element_loss, element_loss_workspace };
const struct hspmd_cpu_kernel LOCAL(element_loss_grad) = { element_loss_grad, NULL };
