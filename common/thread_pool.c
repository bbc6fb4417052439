/* SPDX-License-Identifier: Apache-2.0 */
#include "common/thread_pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"

/* The least work that is worth a helper. Measured on virtual machines (EPYC): waking a sleeping helper costs the caller 7 to 11
 * microseconds, and the helper begins 6 to 12 after the call; a spinning one begins within 1. */
#define WORTH_WAKING_NS 30e3
#define WORTH_SHARING_NS 5e3
/* Limit of a spin: about the cost of a sleep and its wake-up, so that spinning at most doubles the cost of a wait. */
#define SPIN_S 20e-6
/* If two consecutive readings of the clock are this far apart, another process had the core. */
#define GAP_S 50e-6
#define PAUSES_PER_CLOCK 4 /* pauses between two readings of the clock */
#define MOST_VAIN 6        /* after this many spins in vain in a row, a thread spins once in 2^6 waits */

/* One thread's experience of whether spinning pays. */
struct spin_history {
	int vain; /* consecutive spins in vain */
	int skip; /* number of next waits without a spin */
};

struct worker {
	struct hspmd_thread_pool *pool;
	pthread_t thread;
	int number;
	struct spin_history spin_history;
};

/* `state` holds the number of the call that runs or ran last, whether helpers may still join it (OPEN), and how many have joined and not
 * left. */
#define OPEN (UINT64_C(1) << 31)
#define HELPERS (OPEN - 1)

struct hspmd_thread_pool {
	int threads;
	struct worker *workers; /* threads - 1 of them */
	bool share_all;
	/* The current call; written before `state`. */
	void (*work)(void *context, int64_t item, int thread);
	void *context;
	int64_t count;
	struct spin_history spin_history; /* the caller's */
	int64_t alone, shared;
	_Alignas(64) atomic_int_fast64_t next; /* first item that no thread has taken */
	_Alignas(64) _Atomic uint64_t state;
	_Alignas(64) atomic_uint call; /* the number in `state`; helpers sleep on it */
	atomic_int asleep;             /* number of sleeping helpers */
	_Alignas(64) atomic_uint left; /* number of calls that the last helper left after they were closed; the caller sleeps on it */
	atomic_bool waiting;           /* the caller sleeps */
	atomic_bool stop;
	atomic_int_fast64_t helped, slept, vain;
};

static void sleep_on(atomic_uint *word, unsigned while_it_is)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is, NULL, NULL, 0);
}

static void wake(atomic_uint *word, int sleepers)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, sleepers, NULL, NULL, 0);
}

static void pause_briefly(void)
{
#if defined __x86_64__ || defined __i386__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("yield");
#endif
}

static bool is_called(struct hspmd_thread_pool *pool, unsigned last)
{
	return atomic_load(&pool->call) != last;
}

static bool is_left(struct hspmd_thread_pool *pool, unsigned unused)
{
	(void)unused;
	return !(atomic_load(&pool->state) & HELPERS);
}

/* Spins until over(pool, last), if spinning has paid; false: the thread must sleep. */
static bool spin(struct spin_history *p, struct hspmd_thread_pool *pool, bool (*over)(struct hspmd_thread_pool *pool, unsigned last),
                 unsigned last)
{
	if (p->skip > 0) {
		p->skip--;
		return over(pool, last);
	}
	double since = hspmd_now(), before = since, now = since;
	bool lost = false;
	while (now - since < SPIN_S && !lost) {
		for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
			if (over(pool, last)) {
				p->vain = 0;
				return true;
			}
			pause_briefly();
		}
		now = hspmd_now();
		lost = now - before > GAP_S;
		before = now;
	}
	p->vain = lost || p->vain == MOST_VAIN ? MOST_VAIN : p->vain + 1;
	p->skip = (1 << p->vain) - 1;
	return false;
}

static void take_items(struct hspmd_thread_pool *pool, int thread)
{
	for (;;) {
		int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
		if (item >= pool->count)
			return;
		pool->work(pool->context, item, thread);
	}
}

/* ---- helpers */

static unsigned wait_for_call(struct worker *worker, unsigned last)
{
	struct hspmd_thread_pool *pool = worker->pool;
	bool spins = !worker->spin_history.skip;
	if (!spin(&worker->spin_history, pool, is_called, last)) {
		if (spins)
			atomic_fetch_add_explicit(&pool->vain, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&pool->slept, 1, memory_order_relaxed);
		atomic_fetch_add(&pool->asleep, 1);
		while (!is_called(pool, last))
			sleep_on(&pool->call, last);
		atomic_fetch_sub(&pool->asleep, 1);
	}
	return atomic_load(&pool->call);
}

/* Joins the call, unless it is over. */
static bool join_call(struct hspmd_thread_pool *pool, unsigned number)
{
	uint64_t state = atomic_load(&pool->state);
	while (state >> 32 == number && state & OPEN)
		if (atomic_compare_exchange_weak(&pool->state, &state, state + 1))
			return true;
	return false;
}

static void go(struct hspmd_thread_pool *pool)
{
	uint64_t state = atomic_fetch_sub(&pool->state, 1) - 1;
	if (state & (OPEN | HELPERS))
		return;
	atomic_fetch_add(&pool->left, 1);
	if (atomic_load(&pool->waiting))
		wake(&pool->left, 1);
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	struct hspmd_thread_pool *pool = worker->pool;
	for (unsigned last = 0;;) {
		last = wait_for_call(worker, last);
		if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
			return NULL;
		if (!join_call(pool, last))
			continue;
		atomic_fetch_add_explicit(&pool->helped, 1, memory_order_relaxed);
		take_items(pool, worker->number);
		go(pool);
	}
}

/* ---- the caller */

static void begin_call(struct hspmd_thread_pool *pool, int helpers)
{
	unsigned number = atomic_load_explicit(&pool->call, memory_order_relaxed) + 1;
	atomic_store(&pool->state, (uint64_t)number << 32 | OPEN);
	atomic_store(&pool->call, number);
	if (atomic_load(&pool->asleep) > 0)
		wake(&pool->call, helpers);
}

static void wait_for_helpers(struct hspmd_thread_pool *pool)
{
	if (!(atomic_fetch_and(&pool->state, ~OPEN) & HELPERS) || spin(&pool->spin_history, pool, is_left, 0))
		return;
	atomic_store(&pool->waiting, true);
	for (;;) {
		unsigned left = atomic_load(&pool->left);
		if (is_left(pool, 0))
			break;
		sleep_on(&pool->left, left);
	}
	atomic_store(&pool->waiting, false);
}

/* The number of helpers that a call of this much work is worth. */
static int helpers_for(struct hspmd_thread_pool *pool, int64_t count, double ns)
{
	int most = count - 1 < pool->threads - 1 ? (int)(count - 1) : pool->threads - 1;
	if (most <= 0 || pool->share_all)
		return most;
	bool awake = atomic_load_explicit(&pool->asleep, memory_order_relaxed) < pool->threads - 1;
	double worth = ns / (awake ? WORTH_SHARING_NS : WORTH_WAKING_NS);
	return worth < most ? (int)worth : most;
}

void hspmd_thread_pool_for(struct hspmd_thread_pool *pool, int64_t count, double item_ns,
                           void (*work)(void *context, int64_t item, int thread), void *context)
{
	int helpers = helpers_for(pool, count, item_ns * (double)count);
	if (helpers <= 0) {
		pool->alone++;
		for (int64_t i = 0; i < count; i++)
			work(context, i, 0);
		return;
	}
	pool->shared++;
	pool->work = work;
	pool->context = context;
	pool->count = count;
	atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
	begin_call(pool, helpers);
	take_items(pool, 0);
	wait_for_helpers(pool);
}

void hspmd_thread_pool_share_all(struct hspmd_thread_pool *pool)
{
	pool->share_all = true;
}

void hspmd_thread_pool_count(const struct hspmd_thread_pool *pool, struct hspmd_thread_pool_counts *counts)
{
	*counts = (struct hspmd_thread_pool_counts){ .alone = pool->alone,
		                                     .shared = pool->shared,
		                                     .helped = atomic_load(&pool->helped),
		                                     .slept = atomic_load(&pool->slept),
		                                     .vain = atomic_load(&pool->vain) };
}

int hspmd_thread_pool_threads(const struct hspmd_thread_pool *pool)
{
	return pool->threads;
}

/* Workers block all signals, which the process's own threads handle. */
static int start_worker(struct worker *worker)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

struct hspmd_thread_pool *hspmd_thread_pool_create(int threads, struct hspmd_error *err)
{
	struct hspmd_thread_pool *pool = NULL;
	if (posix_memalign((void **)&pool, 64, sizeof *pool)) {
		hspmd_fail_memory(err, "starting threads");
		return NULL;
	}
	*pool = (struct hspmd_thread_pool){ .threads = 1 };
	pool->workers = hspmd_calloc((size_t)threads, sizeof *pool->workers);
	if (!pool->workers) {
		hspmd_fail_memory(err, "starting threads");
		hspmd_thread_pool_destroy(pool);
		return NULL;
	}
	for (int i = 1; i < threads; i++) {
		struct worker *worker = &pool->workers[i - 1];
		*worker = (struct worker){ .pool = pool, .number = i };
		int rc = start_worker(worker);
		if (rc) {
			errno = rc;
			hspmd_fail_errno(err, "starting thread %d of %d", i + 1, threads);
			hspmd_thread_pool_destroy(pool);
			return NULL;
		}
		pool->threads = i + 1;
	}
	return pool;
}

void hspmd_thread_pool_destroy(struct hspmd_thread_pool *pool)
{
	if (!pool)
		return;
	if (pool->threads > 1) {
		atomic_store_explicit(&pool->stop, true, memory_order_relaxed);
		begin_call(pool, INT_MAX);
		for (int i = 1; i < pool->threads; i++)
			pthread_join(pool->workers[i - 1].thread, NULL);
	}
	free(pool->workers);
	free(pool);
}
