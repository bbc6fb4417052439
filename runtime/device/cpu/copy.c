/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between buffers: of boxes, and with conversion to another floating type. */
#include <string.h>

#include "common/half.h"
#include "runtime/device/cpu/cpu.h"
#include "runtime/device/rounding.h"

#define ELEMENTS_PER_ITEM 16384

static double read_element(const void *data, enum hspmd_dtype dtype, int64_t i)
{
	switch (dtype) {
	case HSPMD_F64:
		return ((const double *)data)[i];
	case HSPMD_BF16:
		return hspmd_bf16_to_float(((const uint16_t *)data)[i]);
	default:
		return ((const float *)data)[i];
	}
}

static void write_element(void *data, enum hspmd_dtype dtype, int64_t i, double value)
{
	switch (dtype) {
	case HSPMD_F64:
		((double *)data)[i] = value;
		break;
	case HSPMD_BF16:
		((uint16_t *)data)[i] = hspmd_bf16_from_float((float)value);
		break;
	default:
		((float *)data)[i] = (float)value;
	}
}

static int64_t elements_of(const struct hspmd_view *v)
{
	int64_t n = 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->shape[d];
	return n;
}

static void cast_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	const struct hspmd_view *x = &args->in[0], *y = &args->out[0];
	int64_t count = elements_of(x), first = item * ELEMENTS_PER_ITEM, end = first + ELEMENTS_PER_ITEM;
	end = end < count ? end : count;
	if (hspmd_rounds_stochastically(args)) {
		struct hspmd_index_map map = hspmd_index_map_of(y);
		hspmd_round_elements(args->attr->random.seed, args->attr->random.stream, &map, first, (int)(end - first),
		                     (const float *)x->data + first, (uint16_t *)y->data + first);
		return;
	}
	for (int64_t i = first; i < end; i++)
		write_element(y->data, y->dtype, i, read_element(x->data, x->dtype, i));
}

static void cast(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	hspmd_thread_pool_for(cpu->pool, (elements_of(&args->in[0]) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM,
	                      ELEMENTS_PER_ITEM * (hspmd_rounds_stochastically(args) ? 5.0 : 1.0), cast_item, (void *)args);
}

extern const struct hspmd_cpu_kernel hspmd_cpu_cast;
const struct hspmd_cpu_kernel hspmd_cpu_cast = { cast, NULL };

static void add_elements(void *dst, const void *src, int64_t count, enum hspmd_dtype dtype)
{
	if (dtype == HSPMD_F32) {
		float *to = dst;
		const float *from = src;
		for (int64_t i = 0; i < count; i++)
			to[i] += from[i];
	} else {
		for (int64_t i = 0; i < count; i++)
			write_element(dst, dtype, i, read_element(dst, dtype, i) + read_element(src, dtype, i));
	}
}

struct box_addition {
	void *dst;
	const void *src;
	const struct hspmd_box *dst_box, *src_box;
	enum hspmd_dtype dtype;
};

static int64_t offset_of(const struct hspmd_box *box, const int64_t *at)
{
	int64_t o = 0;
	for (int d = 0; d < box->rank; d++)
		o = o * (box->hi[d] - box->lo[d]) + (at[d] - box->lo[d]);
	return o;
}

/* By rows of the last dimension, which is usually long in boxes that are added. */
static void add_box(const struct box_addition *add, const struct hspmd_box *part)
{
	int64_t at[HSPMD_MAX_RANK], row = part->rank ? part->hi[part->rank - 1] - part->lo[part->rank - 1] : 1;
	int64_t rows = row ? hspmd_box_elements(part) / row : 0;
	size_t bytes = hspmd_dtype_bytes(add->dtype);
	memcpy(at, part->lo, sizeof at);
	for (int64_t r = 0; r < rows; r++) {
		add_elements((char *)add->dst + (size_t)offset_of(add->dst_box, at) * bytes,
		             (const char *)add->src + (size_t)offset_of(add->src_box, at) * bytes, row, add->dtype);
		for (int d = part->rank - 2; d >= 0; d--) {
			if (++at[d] < part->hi[d])
				break;
			at[d] = part->lo[d];
		}
	}
}

int hspmd_cpu_copy_box(struct hspmd_device *dev, void *dst, const struct hspmd_box *dst_box, const void *src,
                       const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                       struct hspmd_error *err)
{
	(void)dev;
	if (!add) {
		hspmd_box_copy(dst, dst_box, src, src_box, part, hspmd_dtype_bytes(dtype));
		return 0;
	}
	if (dtype == HSPMD_I32)
		return hspmd_fail(err, "integers cannot be added into a buffer");
	struct box_addition addition = { dst, src, dst_box, src_box, dtype };
	add_box(&addition, part);
	return 0;
}
