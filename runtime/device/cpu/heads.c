/* SPDX-License-Identifier: Apache-2.0 */
/* Joins and cuts the elements of heads, row by row. */
#include "runtime/device/cpu/kernel.h"

#define ROWS_PER_ITEM 16

static void row_range(const struct hspmd_view *v, int64_t item, int64_t *first, int64_t *end)
{
	*first = item * ROWS_PER_ITEM;
	*end = *first + ROWS_PER_ITEM < row_count(v) ? *first + ROWS_PER_ITEM : row_count(v);
}

static void run(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, void (*rows)(void *, int64_t, int))
{
	const struct hspmd_view *v = &args->in[0];
	hspmd_thread_pool_for(cpu->pool, (row_count(v) + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM,
	                      (double)(2 * ROWS_PER_ITEM * row_length(v)) * MOVE_NS, rows, (void *)args);
}

static void join_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t p = args->attr->part, size = args->attr->head_dim, q = size - p, heads = row_length(&args->in[0]) / p, first, end;
	bool has_b = args->input_count > 1 && args->in[1].rank >= 0, shared = args->attr->whole_kv;
	row_range(&args->in[0], item, &first, &end);
	for (int64_t r = first; r < end; r++)
		for (int64_t h = 0; h < heads; h++) {
			real *to = (real *)args->out[0].data + (r * heads + h) * size;
			memcpy(to, (const real *)args->in[0].data + (r * heads + h) * p, (size_t)p * sizeof *to);
			if (has_b)
				memcpy(to + p, (const real *)args->in[1].data + (shared ? r : r * heads + h) * q, (size_t)q * sizeof *to);
			else
				memset(to + p, 0, (size_t)q * sizeof *to);
		}
}

static void cut_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t p = args->attr->part, size = args->attr->head_dim, q = size - p, heads = row_length(&args->in[0]) / size, first, end;
	real *a = args->out[0].data, *b = args->output_count > 1 ? args->out[1].data : NULL;
	bool shared = args->attr->whole_kv;
	row_range(&args->in[0], item, &first, &end);
	for (int64_t r = first; r < end; r++) {
		if (b && shared)
			memset(b + r * q, 0, (size_t)q * sizeof *b);
		for (int64_t h = 0; h < heads; h++) {
			const real *from = (const real *)args->in[0].data + (r * heads + h) * size;
			if (a)
				memcpy(a + (r * heads + h) * p, from, (size_t)p * sizeof *a);
			if (b && !shared)
				memcpy(b + (r * heads + h) * q, from + p, (size_t)q * sizeof *b);
			for (int64_t i = 0; b && shared && i < q; i++)
				b[r * q + i] += from[p + i];
		}
	}
}

static void join_heads(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	run(cpu, args, join_rows);
}

static void cut_heads(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	run(cpu, args, cut_rows);
}

const struct hspmd_cpu_kernel LOCAL(join_heads) = { join_heads, NULL };
const struct hspmd_cpu_kernel LOCAL(join_heads_grad) = { cut_heads, NULL };
const struct hspmd_cpu_kernel LOCAL(take_heads) = { cut_heads, NULL };
