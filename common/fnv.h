/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a, 64 bits (Fowler, Noll and Vo): a short hash of short bytes. It finds changes, and proves nothing. */
#ifndef HSPMD_COMMON_FNV_H
#define HSPMD_COMMON_FNV_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t hspmd_fnv1a(const void *bytes, size_t size)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < size; i++)
		hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
