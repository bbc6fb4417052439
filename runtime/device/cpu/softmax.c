/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of rows; the result may be the same buffer as the input. */
#include "runtime/device/cpu/kernel.h"

#define ROWS_PER_ITEM 16

static void softmax_row(const real *x, real *y, int64_t n)
{
	real most = x[0];
	for (int64_t j = 1; j < n; j++)
		most = x[j] > most ? x[j] : most;
	vec sum = { 0 };
	real rest = 0;
	int64_t j = 0;
	for (; j + LANES <= n; j += LANES) {
		vec e = vexp(load(x + j) - splat(most));
		sum += e;
		store(y + j, e);
	}
	if (j < n) {
		store_part(y + j, vexp(load_part(x + j, n - j) - splat(most)), n - j);
		for (int64_t i = j; i < n; i++)
			rest += y[i];
	}
	real scale = 1 / (reduce_add(sum) + rest);
	for (j = 0; j < n; j++)
		y[j] *= scale;
}

static void grad_row(const real *dy, const real *y, real *dx, int64_t n)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += (double)dy[j] * (double)y[j];
	for (int64_t j = 0; j < n; j++)
		dx[j] = y[j] * (dy[j] - (real)sum);
}

static void rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t n = row_length(&args->in[0]), count = row_count(&args->in[0]), end = (item + 1) * ROWS_PER_ITEM;
	real *to = args->out[0].data;
	for (int64_t r = item * ROWS_PER_ITEM; r < (end < count ? end : count); r++)
		if (args->input_count > 1)
			grad_row((const real *)args->in[0].data + r * n, (const real *)args->in[1].data + r * n, to + r * n, n);
		else
			softmax_row((const real *)args->in[0].data + r * n, to + r * n, n);
}

static void softmax(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, (row_count(&args->in[0]) + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM,
	                      (double)(ROWS_PER_ITEM * row_length(&args->in[0])) * 2 * VEXP_NS, rows, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(softmax) = { softmax, NULL };
const struct hspmd_cpu_kernel LOCAL(softmax_grad) = { softmax, NULL };
