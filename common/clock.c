/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "common/clock_stops.h"

#define LOOK_NS 500000000
#define STOP_NS 2000000000 /* more between two looks: the process was stopped, or so busy that it makes no difference */

/* The watcher changes both, and `version` is odd meanwhile. seen: the clock at its last look. */
static _Atomic unsigned version;
static _Atomic int64_t seen, left_out;
static atomic_bool watched;

static int64_t nanoseconds(clockid_t clock)
{
	struct timespec ts;
	clock_gettime(clock, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* After a stop the watcher may be the last thread to run again: until then the clock stands where it would have found it. The clock is read
 * between the two looks at `version`: a thread that was stopped here must not take a stop from a time that was before it. */
static int64_t without_stops(void)
{
	int64_t now, last, out;
	unsigned before;
	do {
		while ((before = atomic_load(&version)) & 1)
			;
		now = nanoseconds(CLOCK_MONOTONIC);
		last = atomic_load(&seen);
		out = atomic_load(&left_out);
	} while (atomic_load(&version) != before);
	return (now - last > STOP_NS ? last + STOP_NS : now) - out;
}

double hspmd_now(void)
{
	bool leaves_out = atomic_load_explicit(&watched, memory_order_acquire);
	return (double)(leaves_out ? without_stops() : nanoseconds(CLOCK_MONOTONIC)) * 1e-9;
}

double hspmd_unix_time(void)
{
	return (double)nanoseconds(CLOCK_REALTIME) * 1e-9;
}

static void look(void)
{
	int64_t now = nanoseconds(CLOCK_MONOTONIC), gap = now - atomic_load(&seen);
	atomic_fetch_add(&version, 1);
	if (gap > STOP_NS)
		atomic_fetch_add(&left_out, gap - STOP_NS); /* so that the clock goes on from where it stood */
	atomic_store(&seen, now);
	atomic_fetch_add(&version, 1);
}

static void *watch(void *unused)
{
	(void)unused;
	for (;;) {
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
		look();
	}
	return NULL;
}

/* The child has no watcher. */
static void in_child(void)
{
	atomic_store(&watched, false);
}

static void start(void)
{
	pthread_t thread;
	sigset_t all, before;
	atomic_store(&seen, nanoseconds(CLOCK_MONOTONIC));
	if (pthread_atfork(NULL, NULL, in_child))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, NULL, watch, NULL) == 0) {
		pthread_detach(thread);
		atomic_store(&watched, true);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void hspmd_clock_leave_out_stops(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, start);
}

double hspmd_clock_left_out(void)
{
	return (double)atomic_load(&left_out) * 1e-9;
}
