/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the items of a call: those of a CPU device, or of a search. The caller's thread is number 0 and works too; the others,
 * its helpers, sleep until a call is worth waking them. One call at a time.
 *
 * The caller alone runs a call that takes less time than sharing it would cost. Sharing is cheap while a helper still spins, as it does for
 * some microseconds after a call, because kernels follow one another closely; waking a sleeping helper costs a system call and a wake-up. A
 * spin is limited by the clock, not by a count (a pause on one processor takes ten times that on another). It ends at once if another
 * process had the core meanwhile, and a thread that has spun in vain skips the spin in its next waits. The caller does not wait for a
 * helper that has not joined when no work is left: on a machine with other load, that helper may get no core for milliseconds. */
#ifndef HSPMD_COMMON_THREAD_POOL_H
#define HSPMD_COMMON_THREAD_POOL_H

#include <stdint.h>

#include "common/error.h"

struct hspmd_thread_pool;

/* threads >= 1. NULL and err if a thread cannot be started. */
struct hspmd_thread_pool *hspmd_thread_pool_create(int threads, struct hspmd_error *err);
void hspmd_thread_pool_destroy(struct hspmd_thread_pool *pool);
int hspmd_thread_pool_threads(const struct hspmd_thread_pool *pool);

/* Runs work(context, item, thread) once for every item of [0, count), in any order on any thread; returns when all are done. So that
 * results do not depend on the number of threads, the division into items must not depend on it, and an item must not write what another
 * reads or writes. item_ns: approximate nanoseconds per item on one thread; a value wrong by a factor of two or three costs some time,
 * nothing else.
 */
void hspmd_thread_pool_for(struct hspmd_thread_pool *pool, int64_t count, double item_ns,
                           void (*work)(void *context, int64_t item, int thread), void *context);

/* Shares every call of more than one item, however small: for tests that results do not depend on threads. */
void hspmd_thread_pool_share_all(struct hspmd_thread_pool *pool);

/* Counts since the pool was created. */
struct hspmd_thread_pool_counts {
	int64_t alone, shared; /* calls that the caller ran alone, and calls shared with helpers */
	int64_t helped;        /* helpers that joined, over all calls */
	int64_t slept;         /* waits of helpers that ended in a sleep */
	int64_t vain;          /* such waits that had spun before */
};
void hspmd_thread_pool_count(const struct hspmd_thread_pool *pool, struct hspmd_thread_pool_counts *counts);

#endif
