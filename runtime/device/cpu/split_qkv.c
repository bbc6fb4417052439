/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/kernel.h"

#define ROWS_PER_ITEM 32

/* Rows of the packed tensor are query, key and value of a position. */
static void unpack_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	int64_t width = row_length(&args->in[0]), rows = row_count(&args->out[0]), end = (item + 1) * ROWS_PER_ITEM;
	const real *from = args->in[0].data;
	(void)thread;
	for (int64_t r = item * ROWS_PER_ITEM; r < (end < rows ? end : rows); r++)
		for (int p = 0; p < 3; p++)
			memcpy((real *)args->out[p].data + r * width, from + (3 * r + p) * width, (size_t)width * sizeof *from);
}

static void pack_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	int64_t width = row_length(&args->out[0]), rows = row_count(&args->in[0]), end = (item + 1) * ROWS_PER_ITEM;
	real *to = args->out[0].data;
	(void)thread;
	for (int64_t r = item * ROWS_PER_ITEM; r < (end < rows ? end : rows); r++)
		for (int p = 0; p < 3; p++)
			memcpy(to + (3 * r + p) * width, (const real *)args->in[p].data + r * width, (size_t)width * sizeof *to);
}

static void split_qkv(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, (row_count(&args->out[0]) + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM,
	                      (double)(3 * ROWS_PER_ITEM * row_length(&args->in[0])) * MOVE_NS, unpack_rows, (void *)args);
}

static void split_qkv_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, (row_count(&args->in[0]) + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM,
	                      (double)(3 * ROWS_PER_ITEM * row_length(&args->out[0])) * MOVE_NS, pack_rows, (void *)args);
}

extern const struct hspmd_cpu_kernel LOCAL(split_qkv), LOCAL(split_qkv_grad);
const struct hspmd_cpu_kernel LOCAL(split_qkv) = { split_qkv, NULL };
const struct hspmd_cpu_kernel LOCAL(split_qkv_grad) = { split_qkv_grad, NULL };
