/* SPDX-License-Identifier: Apache-2.0 */
/* Operators without inputs: random numbers and constants. */
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/random.h"

#define ELEMENTS_PER_ITEM 4096

static int64_t items_of(const struct hspmd_view *x)
{
	return (element_count(x) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM;
}

static void normal_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_op_attr *attr = args->attr;
	const struct hspmd_view *x = &args->out[0];
	struct hspmd_index_map map = hspmd_index_map_of(x);
	int64_t count = element_count(x), end = (item + 1) * ELEMENTS_PER_ITEM;
	double four[4];
	int64_t index = 0, run = 0, block = -1; /* the block whose numbers `four` holds */
	for (int64_t i = item * ELEMENTS_PER_ITEM; i < (end < count ? end : count); i++, index++, run--) {
		if (!run)
			index = hspmd_index_at(&map, i, &run);
		if (index / 4 != block) {
			block = index / 4;
			hspmd_random_normals(attr->random.seed, attr->random.stream, (uint64_t)block, four);
		}
		((real *)x->data)[i] = (real)(attr->random.mean + attr->random.deviation * four[index % 4]);
	}
}

static void normal(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(&args->out[0]), ELEMENTS_PER_ITEM * 2 * LIBM_NS, normal_item, (void *)args);
}

static void fill_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t count = element_count(&args->out[0]), end = (item + 1) * ELEMENTS_PER_ITEM;
	for (int64_t i = item * ELEMENTS_PER_ITEM; i < (end < count ? end : count); i++)
		((real *)args->out[0].data)[i] = (real)args->attr->scale;
}

static void fill(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, items_of(&args->out[0]), ELEMENTS_PER_ITEM * MOVE_NS, fill_item, (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(normal) = { normal, NULL };
const struct hspmd_cpu_kernel LOCAL(fill) = { fill, NULL };
