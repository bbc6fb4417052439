/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller runs in a child process. The parent watches it, and restarts it after a signal or fault has ended it. Workers train on
 * meanwhile. */
#ifndef HSPMD_CONTROLLER_CLI_SUPERVISE_H
#define HSPMD_CONTROLLER_CLI_SUPERVISE_H

#include <stdbool.h>

/* Runs `life` in a child, again and again until it returns; `again`: this is not the first time. Signals that ask for an end are forwarded
 * to the child. Returns life's exit status, or 1 if the child was ended too often. */
int hspmd_supervise(int (*life)(void *context, bool again), void *context);

/* From now on SIGUSR1 does nothing here, but is not ignored by programs that this process starts. */
void hspmd_survive_usr1(void);

#endif
