/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm and root-mean-square norm. Forward, rows are independent. Backward, the gradients of gain and bias sum over rows: a fixed
 * number of items sum their own rows and the sums are added in order, so that the result does not depend on the threads. */
#include "runtime/device/cpu/kernel.h"

#define ITEMS 32

static vec part(const real *p, int64_t j, int64_t width)
{
	return width - j >= LANES ? load(p + j) : load_part(p + j, width - j);
}

static void put(real *p, int64_t j, int64_t width, vec v)
{
	if (width - j >= LANES)
		store(p + j, v);
	else
		store_part(p + j, v, width - j);
}

static void layernorm_row(const real *x, const real *gain, const real *bias, real *y, real *stats, int64_t width, double eps)
{
	vec sum = { 0 };
	for (int64_t j = 0; j < width; j += LANES) {
		sum += part(x, j, width);
		fetch_ahead(x + j);
		fetch_ahead(y + j);
	}
	real mean = reduce_add(sum) / (real)width;
	vec squares = { 0 };
	int64_t j = 0;
	for (; j + LANES <= width; j += LANES) {
		vec d = load(x + j) - splat(mean);
		squares += d * d;
	}
	real rest = 0;
	for (; j < width; j++)
		rest += (x[j] - mean) * (x[j] - mean);
	real scale = (real)(1 / sqrt((double)(reduce_add(squares) + rest) / (double)width + eps));
	for (j = 0; j < width; j += LANES) {
		vec v = (part(x, j, width) - splat(mean)) * splat(scale) * part(gain, j, width);
		put(y, j, width, bias ? v + part(bias, j, width) : v);
	}
	stats[0] = mean;
	stats[1] = scale;
}

static void rmsnorm_row(const real *x, const real *gain, real *y, real *stats, int64_t width, const struct hspmd_op_attr *attr)
{
	vec squares = { 0 };
	for (int64_t j = 0; j < width; j += LANES) {
		vec v = part(x, j, width);
		squares += v * v;
		fetch_ahead(x + j);
		fetch_ahead(y + j);
	}
	real scale = (real)(1 / sqrt((double)reduce_add(squares) / (double)width + attr->eps)), one = attr->plus_one;
	for (int64_t j = 0; j < width; j += LANES)
		put(y, j, width, part(x, j, width) * splat(scale) * (part(gain, j, width) + splat(one)));
	stats[0] = scale;
}

static void layernorm_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t width = row_length(&args->in[0]), first, end;
	const real *x = args->in[0].data, *gain = args->in[1].data, *bias = args->input_count > 2 ? args->in[2].data : NULL;
	real *y = args->out[0].data, *stats = args->out[1].data;
	split_range(row_count(&args->in[0]), ITEMS, item, &first, &end);
	for (int64_t r = first; r < end; r++)
		layernorm_row(x + r * width, gain, bias, y + r * width, stats + 2 * r, width, args->attr->eps);
}

static void layernorm(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, ITEMS, (double)element_count(&args->in[0]) / ITEMS * 6 * MOVE_NS, layernorm_rows, (void *)args);
}

static void rmsnorm_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t width = row_length(&args->in[1]), first, end;
	const real *x = args->in[0].data, *gain = args->in[1].data;
	real *y = args->out[0].data, *stats = args->out[1].data;
	split_range(width ? element_count(&args->in[0]) / width : 0, ITEMS, item, &first, &end);
	for (int64_t r = first; r < end; r++)
		rmsnorm_row(x + r * width, gain, y + r * width, stats + r, width, args->attr);
}

static void rmsnorm(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, ITEMS, (double)element_count(&args->in[0]) / ITEMS * 4 * MOVE_NS, rmsnorm_rows, (void *)args);
}

/* One row backward, with a gain of gain + `one`: dx, to which `addend` is added if there is one, and the row's contributions to dgain and
 * dbias, added to the item's sums. Layer norm subtracts the mean, RMS norm does not. */
static void grad_row(const real *dy, const real *x, const real *gain, real one, real mean, real scale, const real *addend, real *dx,
                     real *dgain, real *dbias, int64_t width)
{
	vec sum = { 0 }, dot = { 0 };
	bool centred = dbias != NULL;
	for (int64_t j = 0; j < width; j += LANES) {
		vec g = part(dy, j, width), normal = (part(x, j, width) - splat(mean)) * splat(scale);
		put(dgain, j, width, part(dgain, j, width) + g * normal);
		if (centred)
			put(dbias, j, width, part(dbias, j, width) + g);
		g *= part(gain, j, width) + splat(one);
		sum += g;
		dot += g * normal;
		fetch_ahead(dy + j);
		fetch_ahead(x + j);
		fetch_ahead(dx ? dx + j : x + j);
		fetch_ahead(addend ? addend + j : x + j);
	}
	if (!dx)
		return;
	vec average = splat(centred ? reduce_add(sum) / (real)width : 0), slope = splat(reduce_add(dot) / (real)width);
	for (int64_t j = 0; j < width; j += LANES) {
		vec g = part(dy, j, width) * (part(gain, j, width) + splat(one)), normal = (part(x, j, width) - splat(mean)) * splat(scale);
		vec d = (g - average - normal * slope) * splat(scale);
		put(dx, j, width, addend ? part(addend, j, width) + d : d);
	}
}

/* The workspace holds ITEMS rows of sums for dgain, then (layer norm) ITEMS for dbias. */
static void norm_grad_rows(const struct hspmd_kernel_args *args, int64_t item, bool centred)
{
	const struct hspmd_view *view = &args->in[1];
	int64_t width = row_length(&args->in[2]), first, end;
	const real *dy = args->in[0].data, *x = view->data, *gain = args->in[2].data, *stats = args->in[3].data;
	const real *addend = args->input_count > 4 ? args->in[4].data : NULL;
	real *dx = args->out[0].data, *dgain = (real *)args->workspace + item * width;
	real *dbias = centred ? (real *)args->workspace + (ITEMS + item) * width : NULL;
	memset(dgain, 0, (size_t)width * sizeof *dgain);
	if (dbias)
		memset(dbias, 0, (size_t)width * sizeof *dbias);
	split_range(width ? element_count(view) / width : 0, ITEMS, item, &first, &end);
	for (int64_t r = first; r < end; r++)
		grad_row(dy + r * width, x + r * width, gain, args->attr->plus_one, centred ? stats[2 * r] : 0,
		         centred ? stats[2 * r + 1] : stats[r], addend ? addend + r * width : NULL, dx ? dx + r * width : NULL, dgain,
		         dbias, width);
}

static void layernorm_grad_rows(void *context, int64_t item, int thread)
{
	(void)thread;
	norm_grad_rows(context, item, true);
}

static void rmsnorm_grad_rows(void *context, int64_t item, int thread)
{
	(void)thread;
	norm_grad_rows(context, item, false);
}

static void add_sums(const struct hspmd_view *out, const real *sums, int64_t width)
{
	real *to = out->data;
	if (!to)
		return;
	for (int64_t j = 0; j < width; j++) {
		real total = 0;
		for (int64_t i = 0; i < ITEMS; i++)
			total += sums[i * width + j];
		to[j] = out->accumulate ? to[j] + total : total;
	}
}

static void layernorm_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t width = row_length(&args->in[1]);
	hspmd_thread_pool_for(cpu->pool, ITEMS, (double)element_count(&args->in[1]) / ITEMS * 6 * MOVE_NS, layernorm_grad_rows,
	                      (void *)args);
	add_sums(&args->out[1], args->workspace, width);
	if (args->output_count > 2)
		add_sums(&args->out[2], (const real *)args->workspace + ITEMS * width, width);
}

static void rmsnorm_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, ITEMS, (double)element_count(&args->in[1]) / ITEMS * 6 * MOVE_NS, rmsnorm_grad_rows, (void *)args);
	add_sums(&args->out[1], args->workspace, row_length(&args->in[2]));
}

static size_t norm_grad_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	return (size_t)(2 * ITEMS * row_length(&args->in[2])) * sizeof(real);
}

const struct hspmd_cpu_kernel LOCAL(layernorm) = { layernorm, NULL };
const struct hspmd_cpu_kernel LOCAL(layernorm_grad) = { layernorm_grad, norm_grad_workspace };
const struct hspmd_cpu_kernel LOCAL(rmsnorm) = { rmsnorm, NULL };
const struct hspmd_cpu_kernel LOCAL(rmsnorm_grad) = { rmsnorm_grad, norm_grad_workspace };
/* the same with an addend, input 4 */
const struct hspmd_cpu_kernel LOCAL(layernorm_grad_add) = { layernorm_grad, norm_grad_workspace };
const struct hspmd_cpu_kernel LOCAL(rmsnorm_grad_add) = { rmsnorm_grad, norm_grad_workspace };
