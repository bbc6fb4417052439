/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions with deadlines by the clock that is never set back. */
#ifndef HSPMD_COMMON_CONDITION_H
#define HSPMD_COMMON_CONDITION_H

#include <pthread.h>
#include <time.h>

void hspmd_condition_init(pthread_cond_t *c);
/* The time for pthread_cond_timedwait() that is so many seconds from now; at most some years. */
struct timespec hspmd_condition_deadline(double seconds);

#endif
