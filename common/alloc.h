/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays, and allocation that reports failure. */
#ifndef HSPMD_COMMON_ALLOC_H
#define HSPMD_COMMON_ALLOC_H

#include <stddef.h>
#include <stdlib.h>

/* Make room for one more element in a growing array. *base has *capacity elements of `size` bytes, `count` in use.
 * Returns 0, or -1 (errno ENOMEM, array unchanged). New memory is zeroed. */
int hspmd_array_grow(void *base, size_t *capacity, size_t count, size_t size);

/* calloc that checks n * size for overflow and never returns NULL for n == 0. */
void *hspmd_calloc(size_t n, size_t size);

/* printf into malloc'd memory; the caller frees. NULL: out of memory. */
char *hspmd_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
