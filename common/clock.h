/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds. */
#ifndef HSPMD_COMMON_CLOCK_H
#define HSPMD_COMMON_CLOCK_H

double hspmd_now(void);       /* since a fixed moment, never set back: for deadlines and durations */
double hspmd_unix_time(void); /* since 1970: for people and files */

#endif
