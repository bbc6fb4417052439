/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: y = x w + bias, and gradients. Rows are all dimensions of x but the last; columns all of w's output dimensions
 * together. */
#include "runtime/device/cpu/kernel.h"

#define ITEMS 16

static void linear(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0], *w = &args->in[1];
	int64_t k = row_length(x), n = k ? element_count(w) / k : 0;
	const real *bias = args->input_count > 2 && x->start[x->rank - 1] == 0 ? args->in[2].data : NULL;
	struct gemm p = { .m = row_count(x), .n = n, .k = k, .a = { x->data, k, 1 }, .c = args->out[0].data, .ldc = n, .bias = bias };
	p.b = args->attr->transposed ? (struct matrix){ w->data, n, 1 } : (struct matrix){ w->data, 1, k };
	LOCAL(gemm)(cpu->pool, &p, args->workspace);
}

static size_t linear_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t k = row_length(&args->in[0]);
	return LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), k ? element_count(&args->in[1]) / k : 0, k);
}

static void grad_x(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, bool add)
{
	const struct hspmd_view *dy = &args->in[0], *w = &args->in[1], *dx = &args->out[0];
	int64_t k = row_length(dx), n = k ? element_count(w) / k : 0;
	struct gemm p = { .m = row_count(dx), .n = k, .k = n, .a = { dy->data, n, 1 }, .c = dx->data, .ldc = k, .accumulate = add };
	p.b = args->attr->transposed ? (struct matrix){ w->data, 1, n } : (struct matrix){ w->data, k, 1 };
	LOCAL(gemm)(cpu->pool, &p, args->workspace);
}

static void linear_grad_x(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	grad_x(cpu, args, args->out[0].accumulate);
}

static void copy_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	int64_t first, end;
	(void)thread;
	split_range(element_count(&args->out[0]), ITEMS, item, &first, &end);
	memcpy((real *)args->out[0].data + first, (const real *)args->in[2].data + first, (size_t)(end - first) * sizeof(real));
}

/* Mostly the sum comes in place of the addend. */
static void linear_grad_x_add(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	if (args->out[0].data != args->in[2].data)
		hspmd_thread_pool_for(cpu->pool, ITEMS, (double)element_count(&args->out[0]) / ITEMS * MOVE_NS, copy_item, (void *)args);
	grad_x(cpu, args, true);
}

static size_t linear_grad_x_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t k = row_length(&args->out[0]);
	return LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), k, k ? element_count(&args->in[1]) / k : 0);
}

static void sum_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t rows = row_count(&args->in[1]), n = rows ? element_count(&args->in[0]) / rows : 0, first, end;
	real *restrict sums = (real *)args->workspace + item * n;
	memset(sums, 0, (size_t)n * sizeof *sums);
	split_range(rows, ITEMS, item, &first, &end);
	for (int64_t r = first; r < end; r++) {
		const real *restrict row = (const real *)args->in[0].data + r * n;
		for (int64_t j = 0; j < n; j++)
			sums[j] += row[j];
	}
}

/* Rows are summed in a fixed number of items, then the items in order: the same bits for any number of threads. */
static void bias_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, int64_t n)
{
	real *restrict to = args->out[1].data;
	const real *restrict sums = args->workspace;
	hspmd_thread_pool_for(cpu->pool, ITEMS, (double)element_count(&args->in[0]) / ITEMS * MOVE_NS, sum_rows, (void *)args);
	if (!args->out[1].accumulate)
		memset(to, 0, (size_t)n * sizeof *to);
	for (int64_t i = 0; i < ITEMS; i++)
		for (int64_t j = 0; j < n; j++)
			to[j] += sums[i * n + j];
}

static void linear_grad_w(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0], *x = &args->in[1], *dw = &args->out[0];
	int64_t k = row_length(x), rows = row_count(x), n = rows ? element_count(dy) / rows : 0;
	real *dbias = args->output_count > 1 ? args->out[1].data : NULL;
	bool with_product = args->attr->transposed && dw->data; /* which reads dy by rows then */
	if (dbias && !with_product)
		bias_grad(cpu, args, n);
	if (!dw->data)
		return;
	struct matrix x_columns = { x->data, 1, k }, dy_rows = { dy->data, n, 1 }, dy_columns = { dy->data, 1, n },
	              x_rows = { x->data, k, 1 };
	struct gemm p = { .k = rows, .c = dw->data, .accumulate = dw->accumulate };
	if (args->attr->transposed) {
		if (dbias && !args->out[1].accumulate)
			memset(dbias, 0, (size_t)n * sizeof *dbias);
		p.m = k, p.n = n, p.a = x_columns, p.b = dy_rows, p.column_sums = dbias;
	} else {
		p.m = n, p.n = k, p.a = dy_columns, p.b = x_rows;
	}
	p.ldc = p.n;
	LOCAL(gemm)(cpu->pool, &p, args->workspace);
}

static size_t linear_grad_w_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t k = row_length(&args->in[1]), rows = row_count(&args->in[1]), n = rows ? element_count(&args->in[0]) / rows : 0;
	size_t gemm = LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), args->attr->transposed ? n : k, rows);
	size_t sums = (size_t)(ITEMS * n) * sizeof(real);
	return gemm > sums ? gemm : sums;
}

const struct hspmd_cpu_kernel LOCAL(linear) = { linear, linear_workspace };
const struct hspmd_cpu_kernel LOCAL(linear_grad_x) = { linear_grad_x, linear_grad_x_workspace };
const struct hspmd_cpu_kernel LOCAL(linear_grad_x_add) = { linear_grad_x_add, linear_grad_x_workspace };
const struct hspmd_cpu_kernel LOCAL(linear_grad_w) = { linear_grad_w, linear_grad_w_workspace };
