/* SPDX-License-Identifier: Apache-2.0 */
#include "common/condition.h"

#define LONGEST_S 1e8

void hspmd_condition_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(c, &attr);
	pthread_condattr_destroy(&attr);
}

struct timespec hspmd_condition_deadline(double seconds)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	double whole = seconds > LONGEST_S ? LONGEST_S : seconds;
	t.tv_sec += (time_t)whole;
	t.tv_nsec += (long)((whole - (double)(time_t)whole) * 1e9);
	if (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	return t;
}
