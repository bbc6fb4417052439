/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/kernel.h"

#define ELEMENTS_PER_ITEM 16384

static void add_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t count = element_count(&args->in[0]), first = item * ELEMENTS_PER_ITEM,
	        end = first + ELEMENTS_PER_ITEM < count ? first + ELEMENTS_PER_ITEM : count;
	const real *x = args->in[0].data;
	real *y = args->out[0].data;
	if (!args->out[0].accumulate)
		memcpy(y + first, x + first, (size_t)(end - first) * sizeof *y);
	for (int64_t i = first; args->out[0].accumulate && i < end; i++)
		y[i] += x[i];
}

static void accumulate(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, (element_count(&args->in[0]) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM,
	                      ELEMENTS_PER_ITEM * MOVE_NS, add_item, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(accumulate) = { accumulate, NULL };
