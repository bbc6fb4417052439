/* SPDX-License-Identifier: Apache-2.0 */
/* A clock that stands still while the process is stopped: `scontrol suspend` stops all processes of a job, and no deadline may pass
 * meanwhile. */
#ifndef HSPMD_COMMON_CLOCK_STOPS_H
#define HSPMD_COMMON_CLOCK_STOPS_H

/* From now on hspmd_now() leaves out the time in which this process was stopped for more than two seconds. A thread of its own looks at the
 * clock twice a second; a process that it does not run in, for example a child after fork(), has the plain clock. Does nothing if there
 * is no thread to be had. */
void hspmd_clock_leave_out_stops(void);
/* Seconds that have been left out so far. */
double hspmd_clock_left_out(void);

#endif
