/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of one CPU device. The caller's thread is number 0 and works too; the others, its helpers, sleep until there is a call that
 * is worth waking them for. One call at a time.
 *
 * A call that takes less than handing it over costs is done by the caller alone. Handing over costs little while a helper still spins, as
 * it does for some microseconds after a call, because kernels follow one another closely; it costs a system call and a wake-up where it
 * sleeps. A spin ends by the clock, not by a count (a pause of one processor takes ten times that of another), at once where another
 * process had the core meanwhile, and whoever has spun in vain sleeps at once the next times. The caller does not wait for a helper that
 * has not come when nothing is left to do: on a machine where others compute too, that helper may have no core for milliseconds. */
#ifndef HSPMD_CPU_THREAD_POOL_H
#define HSPMD_CPU_THREAD_POOL_H

#include <stdint.h>

#include "common/error.h"

struct hspmd_thread_pool;

/* threads >= 1. NULL and err when a thread cannot be started. */
struct hspmd_thread_pool *hspmd_thread_pool_create(int threads, struct hspmd_error *err);
void hspmd_thread_pool_destroy(struct hspmd_thread_pool *pool);
int hspmd_thread_pool_threads(const struct hspmd_thread_pool *pool);

/* work(context, item, thread) once for every item of [0, count), in any order on any thread; returns when all are done. So that results do
 * not depend on the number of threads, items must not be cut by it and must not write what another reads or writes.
 * item_ns: about how many nanoseconds an item takes on one thread; wrong by a factor of two or three, it costs some time and nothing
 * else. */
void hspmd_thread_pool_for(struct hspmd_thread_pool *pool, int64_t count, double item_ns,
                           void (*work)(void *context, int64_t item, int thread), void *context);

/* Share every call of more than one item, however small: for tests of what threads may do to results. */
void hspmd_thread_pool_share_all(struct hspmd_thread_pool *pool);

/* What happened since the pool was created. */
struct hspmd_thread_pool_counts {
	int64_t alone, shared; /* calls that the caller did alone, and those that helpers were asked to */
	int64_t helped;        /* helpers that came, over all calls */
	int64_t slept;         /* waits of helpers that ended in a sleep */
	int64_t vain;          /* those that had spun before */
};
void hspmd_thread_pool_count(const struct hspmd_thread_pool *pool, struct hspmd_thread_pool_counts *counts);

#endif
