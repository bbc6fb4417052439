/* SPDX-License-Identifier: Apache-2.0 */
/* Group norm. Samples and groups are independent; the gradients of gain and bias sum over samples, each channel in one item. */
#include "runtime/device/cpu/kernel.h"

struct work {
	const struct hspmd_kernel_args *args;
	int64_t samples, channels, groups, each, positions; /* local; channels of a group */
};

static struct work work_of(const struct hspmd_kernel_args *args, const struct hspmd_view *x)
{
	struct work w = { .args = args, .samples = x->shape[0], .channels = x->shape[1], .positions = 1 };
	w.each = x->full[1] / args->attr->groups;
	w.groups = w.channels / w.each;
	for (int d = 2; d < x->rank; d++)
		w.positions *= x->shape[d];
	return w;
}

static void norm_group(void *context, int64_t item, int thread)
{
	const struct work *w = context;
	(void)thread;
	int64_t size = w->each * w->positions, first = item % w->groups * w->each;
	const real *x = (const real *)w->args->in[0].data + item * size, *gain = w->args->in[1].data, *bias = w->args->in[2].data;
	real *y = (real *)w->args->out[0].data + item * size, *stats = (real *)w->args->out[1].data + 2 * item;
	double sum = 0, squares = 0;
	for (int64_t i = 0; i < size; i++)
		sum += (double)x[i];
	double mean = sum / (double)size;
	for (int64_t i = 0; i < size; i++)
		squares += ((double)x[i] - mean) * ((double)x[i] - mean);
	stats[0] = (real)mean;
	stats[1] = (real)(1 / sqrt(squares / (double)size + w->args->attr->eps));
	for (int64_t c = 0; c < w->each; c++)
		for (int64_t i = c * w->positions; i < (c + 1) * w->positions; i++)
			y[i] = (x[i] - stats[0]) * stats[1] * gain[first + c] + bias[first + c];
}

static void group_norm(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = work_of(args, &args->in[0]);
	hspmd_thread_pool_for(cpu->pool, w.samples * w.groups, (double)(w.each * w.positions) * 8 * MOVE_NS, norm_group, &w);
}

static void group_gradient(void *context, int64_t item, int thread)
{
	const struct work *w = context;
	(void)thread;
	int64_t size = w->each * w->positions, first = item % w->groups * w->each;
	const real *dy = (const real *)w->args->in[0].data + item * size, *x = (const real *)w->args->in[1].data + item * size,
	           *gain = w->args->in[2].data, *stats = (const real *)w->args->in[3].data + 2 * item;
	real *dx = (real *)w->args->out[0].data + item * size;
	double sum = 0, dot = 0;
	for (int64_t c = 0; c < w->each; c++)
		for (int64_t i = c * w->positions; i < (c + 1) * w->positions; i++) {
			double g = (double)dy[i] * (double)gain[first + c];
			sum += g;
			dot += g * (double)((x[i] - stats[0]) * stats[1]);
		}
	real mean = (real)(sum / (double)size), slope = (real)(dot / (double)size);
	for (int64_t c = 0; c < w->each; c++)
		for (int64_t i = c * w->positions; i < (c + 1) * w->positions; i++)
			dx[i] = (dy[i] * gain[first + c] - mean - (x[i] - stats[0]) * stats[1] * slope) * stats[1];
}

static void channel_gradient(void *context, int64_t c, int thread)
{
	const struct work *w = context;
	(void)thread;
	const struct hspmd_view *gain = &w->args->out[1], *bias = &w->args->out[2];
	double product = 0, sum = 0;
	for (int64_t b = 0; b < w->samples; b++) {
		int64_t at = (b * w->channels + c) * w->positions;
		const real *dy = (const real *)w->args->in[0].data + at, *x = (const real *)w->args->in[1].data + at,
		           *stats = (const real *)w->args->in[3].data + 2 * (b * w->groups + c / w->each);
		for (int64_t i = 0; i < w->positions; i++) {
			sum += (double)dy[i];
			product += (double)dy[i] * (double)((x[i] - stats[0]) * stats[1]);
		}
	}
	if (gain->data)
		((real *)gain->data)[c] = (real)product + (gain->accumulate ? ((real *)gain->data)[c] : 0);
	if (bias->data)
		((real *)bias->data)[c] = (real)sum + (bias->accumulate ? ((real *)bias->data)[c] : 0);
}

static void group_norm_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = work_of(args, &args->in[1]);
	if (args->out[0].data)
		hspmd_thread_pool_for(cpu->pool, w.samples * w.groups, (double)(w.each * w.positions) * 10 * MOVE_NS, group_gradient, &w);
	hspmd_thread_pool_for(cpu->pool, w.channels, (double)(w.samples * w.positions) * 4 * MOVE_NS, channel_gradient, &w);
}

const struct hspmd_cpu_kernel LOCAL(group_norm) = { group_norm, NULL };
const struct hspmd_cpu_kernel LOCAL(group_norm_grad) = { group_norm_grad, NULL };
