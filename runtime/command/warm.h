/* SPDX-License-Identifier: Apache-2.0 */
/* A warm interpreter: an idle Python process that has imported what the last command had imported. A command that Python runs is started
 * as a fork of it, which takes milliseconds where imports take seconds. The new process is this process's child, as if it had been
 * started anew, and finds what a new interpreter would find. The interpreter imports libraries only, and starts nothing if the script, a
 * file of an imported module, or a variable of the environment that an import has read has changed: then another one begins. It is a
 * child of this process, dies with it, and is the first that the kernel ends if memory is short. */
#ifndef HSPMD_COMMAND_WARM_H
#define HSPMD_COMMAND_WARM_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/command/rank_process.h"

struct hspmd_warm {
	struct hspmd_rank_process process; /* pid 0: none; `steps` is the socket to it, to be polled */
	bool refused;                      /* there is to be none: this is no command for Python, or it cannot be forked */
	bool ready;                        /* it has imported what it knows of */
	int modules;                       /* that it has */
	int64_t bytes;                     /* of memory that it shares with nobody */
};

/* Starts an interpreter, unless there is one. `list`: file in which the interpreter of rank 0 leaves the names of what it has imported, for
 * those of nodes that join later. Returns true if there is one. */
bool hspmd_warm_open(struct hspmd_warm *w, char *const *argv, char *const *environment, const char *folder, const char *list);
/* Starts the command in p, which is open, and opens p->output. Opens an interpreter before if needed. Blocks for at most 5 s. Returns false
 * if it cannot: the command is to be started with hspmd_rank_process_start(). */
bool hspmd_warm_start(struct hspmd_warm *w, struct hspmd_rank_process *p, char *const *argv, char *const *environment, const char *folder,
                      const char *list);
/* Reads what the interpreter says; to be called when its socket can be read. Does not block. */
void hspmd_warm_read(struct hspmd_warm *w);
/* Ends it. It may be opened again. */
void hspmd_warm_close(struct hspmd_warm *w);
/* To be called for a child that has ended; returns true if it was the interpreter. */
bool hspmd_warm_ended(struct hspmd_warm *w, pid_t pid);

#endif
