/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_TESTS_BENCH_PROCESSOR_TIME_H
#define HSPMD_TESTS_BENCH_PROCESSOR_TIME_H

#include <time.h>

/* Seconds of all threads of this process: what else runs on the machine does not count. */
static inline double processor_time(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
