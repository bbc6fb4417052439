/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of one CPU device. The caller's thread is number 0 and works too; the others sleep between calls (after a short spin, since kernels
 * follow one another closely). One call at a time. */
#ifndef HSPMD_CPU_POOL_H
#define HSPMD_CPU_POOL_H

#include <stdint.h>

#include "common/error.h"

struct hspmd_pool;

/* threads >= 1. NULL and err when a thread cannot be started. */
struct hspmd_pool *hspmd_pool_create(int threads, struct hspmd_error *err);
void hspmd_pool_destroy(struct hspmd_pool *pool);
int hspmd_pool_threads(const struct hspmd_pool *pool);

/* work(context, item, thread) once for every item of [0, count), in any order on any thread; returns when all are done. So that results do
 * not depend on the number of threads, items must not be cut by it and must not write what another reads or writes. */
void hspmd_pool_for(struct hspmd_pool *pool, int64_t count, void (*work)(void *context, int64_t item, int thread), void *context);

#endif
