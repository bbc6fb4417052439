/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/dropout.h"

#include "runtime/device/cpu/kernel.h"

#define ROWS_PER_ITEM 8

static void drop_rows(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *x = &args->in[0];
	const int32_t *noise = args->in[1].data;
	int64_t width = row_length(x), rows = row_count(x), end = (item + 1) * ROWS_PER_ITEM, first = x->start[x->rank - 1];
	for (int64_t r = item * ROWS_PER_ITEM; r < (end < rows ? end : rows); r++) {
		const real *from = (const real *)x->data + r * width;
		real *to = (real *)args->out[0].data + r * width;
		for (int64_t j = 0; j < width; j++)
			to[j] = from[j] *
			        (real)hspmd_dropout_factor(args->attr->rate, args->attr->random.stream, noise[r], (uint64_t)(first + j));
	}
}

static void dropout(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0];
	hspmd_thread_pool_for(cpu->pool, (row_count(x) + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM,
	                      (double)(ROWS_PER_ITEM * row_length(x)) * LIBM_NS, drop_rows, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(dropout) = { dropout, NULL };
