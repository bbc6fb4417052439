/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller runs in a process of its own; the one that was started watches it, and starts it anew when a signal or a fault has
 * ended it. Workers train on meanwhile. */
#ifndef HSPMD_CONTROLLER_CLI_SUPERVISE_H
#define HSPMD_CONTROLLER_CLI_SUPERVISE_H

#include <stdbool.h>

/* Runs `life` in a child, again as long as it does not end by itself; `again` says that there was one before. Signals that ask for an end
 * are passed on. Returns life's exit status, or 1 when it was ended too often. */
int hspmd_supervise(int (*life)(void *context, bool again), void *context);

#endif
