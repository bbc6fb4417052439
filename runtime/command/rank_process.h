/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the command of a rank: in a session of its own, with nothing on standard input, a pipe for its output, and a socket for the
 * steps that it tells and for what is said to it. If this process dies, the command is killed. */
#ifndef HSPMD_COMMAND_RANK_PROCESS_H
#define HSPMD_COMMAND_RANK_PROCESS_H

#include <sys/types.h>

#include "common/error.h"

struct hspmd_rank_process {
	pid_t pid;      /* 0: none */
	int output;     /* descriptor of its standard output and standard error, not blocking; -1: closed */
	int steps;      /* the same of what it tells; a socket */
	int steps_peer; /* its own end of that socket, which has the same number there, and is open here until it is started; else -1 */
};

/* Makes the socket, of type SOCK_STREAM or SOCK_SEQPACKET; the environment must name steps_peer. 0; -1 and err. */
int hspmd_rank_process_open(struct hspmd_rank_process *p, int type, struct hspmd_error *err);
/* Starts it. folder NULL: the present one. input: descriptor of its standard input; -1: nothing. Blocks until the program is loaded. 0; -1
 * and err: all is closed. */
int hspmd_rank_process_start(struct hspmd_rank_process *p, char *const *argv, char *const *environment, const char *folder, int input,
                             struct hspmd_error *err);
/* Another has started it as a child of this process, with steps_peer, and with output[1] of this pipe. Closes both here. */
void hspmd_rank_process_started(struct hspmd_rank_process *p, pid_t pid, const int output[2]);
/* Closes both. The process is the caller's to end. */
void hspmd_rank_process_close(struct hspmd_rank_process *p);

#endif
