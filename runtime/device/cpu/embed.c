/* SPDX-License-Identifier: Apache-2.0 */
/* Token and position embeddings and their gradients. */
#include "runtime/device/cpu/kernel.h"

#define ROWS_PER_ITEM 32

static int64_t items_of(int64_t count, int64_t each)
{
	return (count + each - 1) / each;
}

static double rows_ns(const struct hspmd_view *x)
{
	return (double)(ROWS_PER_ITEM * row_length(x)) * MOVE_NS;
}

static void embed_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *table = &args->in[1], *x = &args->out[0];
	const int32_t *tokens = args->in[0].data;
	int64_t width = row_length(x), rows = row_count(x), end = (item + 1) * ROWS_PER_ITEM;
	for (int64_t r = item * ROWS_PER_ITEM; r < (end < rows ? end : rows); r++) {
		real *to = (real *)x->data + r * width;
		int64_t row = tokens[r] - table->start[0];
		if (row >= 0 && row < table->shape[0])
			memcpy(to, (const real *)table->data + row * width, (size_t)width * sizeof *to);
		else
			memset(to, 0, (size_t)width * sizeof *to);
	}
}

static void embed(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(row_count(&args->out[0]), ROWS_PER_ITEM), rows_ns(&args->out[0]), embed_rows,
	                      (void *)args);
}

/* Columns [first, end) of the table's gradient: divided by columns, so that the contributions to a row are summed in the order of the
 * tokens. */
#define COLUMNS_PER_ITEM 64

static void embed_grad_columns(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *dx = &args->in[1], *dtable = &args->out[0];
	const int32_t *tokens = args->in[0].data;
	int64_t width = row_length(dx), rows = row_count(dx), first = item * COLUMNS_PER_ITEM;
	int64_t columns = width - first < COLUMNS_PER_ITEM ? width - first : COLUMNS_PER_ITEM;
	real *to = (real *)dtable->data + first;
	if (!dtable->accumulate)
		for (int64_t r = 0; r < dtable->shape[0]; r++)
			memset(to + r * width, 0, (size_t)columns * sizeof *to);
	for (int64_t r = 0; r < rows; r++) {
		int64_t row = tokens[r] - dtable->start[0];
		if (row < 0 || row >= dtable->shape[0])
			continue;
		const real *from = (const real *)dx->data + r * width + first;
		for (int64_t j = 0; j < columns; j++)
			to[row * width + j] += from[j];
	}
}

static void embed_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t rows = row_count(&args->in[1]) + (args->out[0].accumulate ? 0 : args->out[0].shape[0]);
	hspmd_thread_pool_for(cpu->pool, items_of(row_length(&args->in[1]), COLUMNS_PER_ITEM), (double)(rows * COLUMNS_PER_ITEM) * MOVE_NS,
	                      embed_grad_columns, (void *)args);
}

static void position_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *x = &args->in[0], *table = &args->in[1], *y = &args->out[0];
	int64_t width = row_length(x), rows = row_count(x), length = x->shape[1], end = (item + 1) * ROWS_PER_ITEM;
	for (int64_t r = item * ROWS_PER_ITEM; r < (end < rows ? end : rows); r++) {
		const real *from = (const real *)x->data + r * width;
		const real *add = (const real *)table->data + (x->start[1] + r % length - table->start[0]) * width;
		real *to = (real *)y->data + r * width;
		for (int64_t j = 0; j < width; j++)
			to[j] = from[j] + add[j];
	}
}

static void position_embed(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(row_count(&args->in[0]), ROWS_PER_ITEM), rows_ns(&args->in[0]), position_rows,
	                      (void *)args);
}

static void position_grad_row(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *dy = &args->in[0], *dtable = &args->out[0];
	int64_t width = row_length(dy), length = dy->shape[1], t = item + dtable->start[0] - dy->start[1];
	real *restrict to = (real *)dtable->data + item * width;
	if (!dtable->accumulate)
		memset(to, 0, (size_t)width * sizeof *to);
	if (t < 0 || t >= length)
		return;
	for (int64_t b = 0; b < dy->shape[0]; b++) {
		const real *from = (const real *)dy->data + (b * length + t) * width;
		for (int64_t j = 0; j < width; j++)
			to[j] += from[j];
	}
}

static void position_embed_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0];
	hspmd_thread_pool_for(cpu->pool, args->out[0].shape[0], (double)((dy->shape[0] + 1) * row_length(dy)) * MOVE_NS, position_grad_row,
	                      (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(embed) = { embed, NULL };
const struct hspmd_cpu_kernel LOCAL(embed_grad) = { embed_grad, NULL };
const struct hspmd_cpu_kernel LOCAL(position_embed) = { position_embed, NULL };
const struct hspmd_cpu_kernel LOCAL(position_embed_grad) = { position_embed_grad, NULL };
