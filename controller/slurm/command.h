/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's own commands, run in an environment without the variables of the job in which this process runs. */
#ifndef HSPMD_SLURM_COMMAND_H
#define HSPMD_SLURM_COMMAND_H

#include <stddef.h>
#include <sys/types.h>

#include "common/error.h"
#include "controller/slurm/job.h"

#define HSPMD_SLURM_ARGV_MAX 32 /* most arguments of a command */

/* Arguments of a command; the first is its name. All strings are malloc'd and owned. */
struct hspmd_slurm_argv {
	char *argv[HSPMD_SLURM_ARGV_MAX + 1]; /* NULL-terminated */
	int count;
	bool failed; /* out of memory, or too many arguments; the command cannot be run */
};
void hspmd_slurm_argv_add(struct hspmd_slurm_argv *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hspmd_slurm_argv_clear(struct hspmd_slurm_argv *w);

/* Appends options of sbatch or salloc that request `count` nodes like those of a job: same account, partition, QOS and resources, for as
 * long as the job has left; except for what `terms` (may be NULL) say. */
void hspmd_slurm_same_resources(struct hspmd_slurm_argv *w, const struct hspmd_slurm_job *job, int count,
                                const struct hspmd_slurm_member_terms *terms);

/* Runs the command and puts its output into text. Blocks for at most about wait_s. Returns its exit status, or -1 and err if it could not
 * be run, or was killed because it did not end in time. */
int hspmd_slurm_run_command(const struct hspmd_slurm_argv *w, double wait_s, char *text, size_t size, struct hspmd_error *err);
/* Puts what a child writes to the pipe `fd`, which is closed, into text, and waits for its end. Blocks for at most about wait_s; then the
 * child gets the signal `end`. Returns its exit status, or -1 if it did not exit in time. */
int hspmd_slurm_await_output(pid_t child, int fd, int end, double wait_s, char *text, size_t size);
/* Returns the last error message in the output of a command, or the first line if no line is one. Cuts text into lines. */
const char *hspmd_slurm_error_line(char *text);

/* The beginning of the command of a step of agents, in whose place the agent's program then is: on a node that lacks the program it says so
 * at once. srun would only report its own failure, and the agents of the other nodes wait for this one. */
#define HSPMD_SLURM_STEP_WORDS 3
extern const char *const hspmd_slurm_step_words[HSPMD_SLURM_STEP_WORDS];

#endif
