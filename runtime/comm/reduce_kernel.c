/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "common/half.h"
#include "runtime/comm/comm_internal.h"

/* Number of elements summed at a time: the running sum stays in the first-level cache. */
#define BLOCK 1024

#define ADD_SOURCES(name, type)                                                                                                            \
	static void name(type *dst, const void *const *src, int sources, size_t elements)                                                  \
	{                                                                                                                                  \
		for (size_t at = 0; at < elements; at += BLOCK) {                                                                          \
			size_t n = elements - at < BLOCK ? elements - at : BLOCK;                                                          \
			type sum[BLOCK];                                                                                                   \
			memcpy(sum, (const type *)src[0] + at, n * sizeof *sum);                                                           \
			for (int s = 1; s < sources; s++) {                                                                                \
				const type *from = (const type *)src[s] + at;                                                              \
				for (size_t i = 0; i < n; i++)                                                                             \
					sum[i] += from[i];                                                                                 \
			}                                                                                                                  \
			memcpy(dst + at, sum, n * sizeof *sum);                                                                            \
		}                                                                                                                          \
	}
ADD_SOURCES(add_f32, float)
ADD_SOURCES(add_f64, double)
ADD_SOURCES(add_u32, uint32_t) /* I32; unsigned, to avoid undefined overflow */

static void add_bf16(uint16_t *dst, const void *const *src, int sources, size_t elements)
{
	for (size_t at = 0; at < elements; at += BLOCK) {
		size_t n = elements - at < BLOCK ? elements - at : BLOCK;
		float sum[BLOCK];
		for (size_t i = 0; i < n; i++)
			sum[i] = hspmd_bf16_to_float(((const uint16_t *)src[0])[at + i]);
		for (int s = 1; s < sources; s++) {
			const uint16_t *from = (const uint16_t *)src[s] + at;
			for (size_t i = 0; i < n; i++)
				sum[i] += hspmd_bf16_to_float(from[i]);
		}
		for (size_t i = 0; i < n; i++)
			dst[at + i] = hspmd_bf16_from_float(sum[i]);
	}
}

size_t hspmd_comm_sum_bytes(size_t element_bytes)
{
	return element_bytes == 2 ? sizeof(float) : element_bytes; /* BF16 */
}

void hspmd_comm_sum_begin(enum hspmd_dtype dtype, void *sum, const void *values, size_t elements, size_t element_bytes)
{
	if (dtype != HSPMD_BF16) {
		memcpy(sum, values, elements * element_bytes);
		return;
	}
	for (size_t i = 0; i < elements; i++)
		((float *)sum)[i] = hspmd_bf16_to_float(((const uint16_t *)values)[i]);
}

void hspmd_comm_sum_add(enum hspmd_dtype dtype, void *sum, const void *values, size_t elements)
{
	const void *const both[] = { sum, values };
	if (dtype != HSPMD_BF16) {
		hspmd_comm_add(dtype, sum, both, 2, elements);
		return;
	}
	for (size_t i = 0; i < elements; i++)
		((float *)sum)[i] += hspmd_bf16_to_float(((const uint16_t *)values)[i]);
}

void hspmd_comm_sum_end(enum hspmd_dtype dtype, void *values, const void *sum, size_t elements, size_t element_bytes)
{
	if (dtype != HSPMD_BF16) {
		memcpy(values, sum, elements * element_bytes);
		return;
	}
	for (size_t i = 0; i < elements; i++)
		((uint16_t *)values)[i] = hspmd_bf16_from_float(((const float *)sum)[i]);
}

void hspmd_comm_add(enum hspmd_dtype dtype, void *dst, const void *const *src, int sources, size_t elements)
{
	switch (dtype) {
	case HSPMD_F32:
		add_f32(dst, src, sources, elements);
		return;
	case HSPMD_F64:
		add_f64(dst, src, sources, elements);
		return;
	case HSPMD_I32:
		add_u32(dst, src, sources, elements);
		return;
	case HSPMD_BF16:
		add_bf16(dst, src, sources, elements);
		return;
	case HSPMD_DTYPE_COUNT:
		return;
	}
}
