/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/alloc.h"

/* How often a waiting thread looks before it sleeps: some 20 microseconds, about what waking it costs. */
#define SPINS 2000

struct worker {
	struct hspmd_pool *pool;
	pthread_t thread;
	int number;
};

struct hspmd_pool {
	int threads;
	struct worker *workers; /* threads - 1 of them */
	/* The call in progress; written before `call` is advanced. */
	void (*work)(void *context, int64_t item, int thread);
	void *context;
	int64_t count;
	_Alignas(64) atomic_int_fast64_t next; /* first item nobody has taken */
	_Alignas(64) atomic_uint call;         /* number of the call in progress or done last */
	_Alignas(64) atomic_int busy;          /* workers that have not finished it */
	atomic_bool stop;
	pthread_mutex_t mutex; /* for the two conditions */
	pthread_cond_t started, finished;
};

static void pause_briefly(void)
{
#if defined __x86_64__ || defined __i386__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("yield");
#endif
}

static void take_items(struct hspmd_pool *pool, int thread)
{
	for (;;) {
		int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
		if (item >= pool->count)
			return;
		pool->work(pool->context, item, thread);
	}
}

static void wait_for_call(struct hspmd_pool *pool, unsigned last)
{
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load_explicit(&pool->call, memory_order_acquire) != last)
			return;
		pause_briefly();
	}
	pthread_mutex_lock(&pool->mutex);
	while (atomic_load_explicit(&pool->call, memory_order_acquire) == last)
		pthread_cond_wait(&pool->started, &pool->mutex);
	pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	struct hspmd_pool *pool = worker->pool;
	for (unsigned last = 0;; last++) {
		wait_for_call(pool, last);
		if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
			return NULL;
		take_items(pool, worker->number);
		if (atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_acq_rel) == 1) {
			pthread_mutex_lock(&pool->mutex);
			pthread_cond_signal(&pool->finished);
			pthread_mutex_unlock(&pool->mutex);
		}
	}
}

static void begin_call(struct hspmd_pool *pool)
{
	pthread_mutex_lock(&pool->mutex);
	atomic_fetch_add_explicit(&pool->call, 1, memory_order_release);
	pthread_cond_broadcast(&pool->started);
	pthread_mutex_unlock(&pool->mutex);
}

static void wait_for_workers(struct hspmd_pool *pool)
{
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load_explicit(&pool->busy, memory_order_acquire) == 0)
			return;
		pause_briefly();
	}
	pthread_mutex_lock(&pool->mutex);
	while (atomic_load_explicit(&pool->busy, memory_order_acquire) != 0)
		pthread_cond_wait(&pool->finished, &pool->mutex);
	pthread_mutex_unlock(&pool->mutex);
}

void hspmd_pool_for(struct hspmd_pool *pool, int64_t count, void (*work)(void *context, int64_t item, int thread), void *context)
{
	if (pool->threads == 1 || count <= 1) {
		for (int64_t i = 0; i < count; i++)
			work(context, i, 0);
		return;
	}
	pool->work = work;
	pool->context = context;
	pool->count = count;
	atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->busy, pool->threads - 1, memory_order_relaxed);
	begin_call(pool);
	take_items(pool, 0);
	wait_for_workers(pool);
}

int hspmd_pool_threads(const struct hspmd_pool *pool)
{
	return pool->threads;
}

/* Signals are the business of the process's own threads. */
static int start_worker(struct worker *worker)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

struct hspmd_pool *hspmd_pool_create(int threads, struct hspmd_error *err)
{
	struct hspmd_pool *pool = NULL;
	if (posix_memalign((void **)&pool, 64, sizeof *pool)) {
		hspmd_fail_memory(err, "starting the threads of a CPU device");
		return NULL;
	}
	*pool = (struct hspmd_pool){ .threads = 1 };
	pthread_mutex_init(&pool->mutex, NULL);
	pthread_cond_init(&pool->started, NULL);
	pthread_cond_init(&pool->finished, NULL);
	pool->workers = hspmd_calloc((size_t)threads, sizeof *pool->workers);
	if (!pool->workers) {
		hspmd_fail_memory(err, "starting the threads of a CPU device");
		hspmd_pool_destroy(pool);
		return NULL;
	}
	for (int i = 1; i < threads; i++) {
		struct worker *worker = &pool->workers[i - 1];
		*worker = (struct worker){ .pool = pool, .number = i };
		int rc = start_worker(worker);
		if (rc) {
			errno = rc;
			hspmd_fail_errno(err, "starting thread %d of %d of a CPU device", i + 1, threads);
			hspmd_pool_destroy(pool);
			return NULL;
		}
		pool->threads = i + 1;
	}
	return pool;
}

void hspmd_pool_destroy(struct hspmd_pool *pool)
{
	if (!pool)
		return;
	if (pool->threads > 1) {
		atomic_store_explicit(&pool->stop, true, memory_order_relaxed);
		begin_call(pool);
		for (int i = 1; i < pool->threads; i++)
			pthread_join(pool->workers[i - 1].thread, NULL);
	}
	pthread_mutex_destroy(&pool->mutex);
	pthread_cond_destroy(&pool->started);
	pthread_cond_destroy(&pool->finished);
	free(pool->workers);
	free(pool);
}
