/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"

#include <time.h>

static double seconds(clockid_t clock)
{
	struct timespec ts;
	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double hspmd_now(void)
{
	return seconds(CLOCK_MONOTONIC);
}

double hspmd_unix_time(void)
{
	return seconds(CLOCK_REALTIME);
}
