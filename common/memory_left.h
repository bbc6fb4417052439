/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_COMMON_MEMORY_LEFT_H
#define HSPMD_COMMON_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes that this process may still take, by the machine and by its cgroups; caches of files, which the kernel would free, count as free.
 * UINT64_MAX: unknown. */
uint64_t hspmd_memory_left(void);

#endif
