/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in: the worker process of a job with a command. It speaks the worker's side of common/wire.h, one per rank, and has the
 * command as its child. The state is the command's own, so the stand-in answers for it: it is prepared when it has a port for the rank's
 * rendezvous, has started when the command runs, and says that it holds the state, so that nobody looks for it elsewhere.
 *
 *   stop    the notice's signal to the command (notice_s: seconds until SIGKILL, unless absent: those of the job). `stopped` when all of it
 *           has ended
 *   abort   SIGKILL to all of it; then `aborted`
 *   quit    the same, then this process ends; and so if the agent dies
 *
 * "All of it" is every process below this one, also in other sessions. What it adds to wire.h: `finished` and `stopped` have status: the
 * command's exit status, 0 or 85, unless another or a signal ended it; finished: true if it ended without being told;
 * by_notice: true if the notice's signal ended it. `prepared.address` is
 * HOST:PORT. `fault` has tail: its last lines. All answers have newest: when its newest checkpoint file was written, in nanoseconds.
 *
 * The command reports steps by lines of JSON on descriptor $HSPMD_FD: { "step": n, "loss": x, "tokens": t }, of which only `step` is
 * needed; those of rank 0 count.
 *
 * A command that takes changes of the generation in its own process says so on the same descriptor, a socket, with { "type": "elastic" }
 * (contrib/python/hspmd). From then on it is not ended by a change, but told of it by lines of JSON, and answers as a worker does:
 *
 *   connect while the previous generation trains: all that `start` will say of a generation, unless it is given up. The ranks connect as
 *           far as they can. Answer: `connected` (generation)
 *   start   generation, rank (-1: it only hands over what it holds), world, local_rank, local_world, node_rank; member, members: its number
 *           among all that take part, ranks first; host, port: free on rank 0's node. Answer: `started` (step, bytes, seconds)
 *   stop    end after the current step, agreed in its vote. Answer: `stopped` (step, losses), and it waits for the next start. end: true:
 *           save, and exit with 85
 * abort   stop waiting. Answer: `aborted` (step, holds: generation of whose state it has a whole copy, or null, ready, applied, sums,
 * losses)
 *   settle  apply: step whose gradients are complete, or null. Answer: `settled` (step, losses)
 *   ping    while another order is not answered. Answer: `pong`, at once, by a thread that waits for nothing else: a command that neither
 *           answers nor uses the processor is ended, as the others wait for it
 *
 * It may say `fault` (text) if it cannot go on. If one rank of the job has declared itself, `prepare` has elastic: true; a stand-in without
 * a command then starts it at once, and answers when it has declared itself, while the others still train. */
#ifndef HSPMD_COMMAND_STANDIN_H
#define HSPMD_COMMAND_STANDIN_H

/* Returns the process's exit status. Blocks until `quit`, or until the connection `fd` to the agent is closed. */
int hspmd_standin_main(int fd);

#endif
