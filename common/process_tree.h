/* SPDX-License-Identifier: Apache-2.0 */
/* The processes below this one, however deep. A process that has made itself a subreaper (prctl(2)) is the ancestor of all that it has
 * started, also of those that began a session of their own and whose parents have ended. Linux. */
#ifndef HSPMD_COMMON_PROCESS_TREE_H
#define HSPMD_COMMON_PROCESS_TREE_H

#include <stdbool.h>
#include <sys/types.h>

/* Called for each process; `context` as given. */
typedef bool hspmd_process_matches(void *context, pid_t pid);

/* Sends SIGKILL to all processes below this one, except to the children for which `spared` (NULL: none) returns true, and to what is below
 * them. Collects the ended ones among the children that are not spared. Returns the number of processes that are still there, zombies
 * included, so the caller tries again until it is 0: a process may have started another one meanwhile. -1: /proc cannot be read. Does not
 * block. */
int hspmd_process_tree_kill(hspmd_process_matches *spared, void *context);

/* Sends a signal to a process and, if it is a shell, which hands no signal on, to what it has started. */
void hspmd_process_signal_command(pid_t pid, int signal);

/* True: it has been stopped by a signal, or by a debugger. False, too, if there is no such process. */
bool hspmd_process_is_stopped(pid_t pid);

#endif
