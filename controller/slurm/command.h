/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's own commands, run as if from outside of the job we are in. */
#ifndef HSPMD_SLURM_COMMAND_H
#define HSPMD_SLURM_COMMAND_H

#include <stddef.h>

#include "common/error.h"
#include "controller/slurm/job.h"

#define HSPMD_SLURM_ARGV_MAX 32 /* room for a command's arguments */

/* Arguments of a command; the first is its name. All are malloc'd. */
struct hspmd_slurm_argv {
	char *argv[HSPMD_SLURM_ARGV_MAX + 1]; /* NULL-terminated */
	int count;
	bool failed; /* out of memory */
};
void hspmd_slurm_argv_add(struct hspmd_slurm_argv *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hspmd_slurm_argv_clear(struct hspmd_slurm_argv *w);

/* What asks for `count` more nodes of the kind that a job has, in the name it runs under, for as long as it has left. */
void hspmd_slurm_same_resources(struct hspmd_slurm_argv *w, const struct hspmd_slurm_job *job, int count);

/* Run it; all that it says goes into text. Its exit status, or -1 with err when it could not be run or did not end within wait_s. */
int hspmd_slurm_run_command(const struct hspmd_slurm_argv *w, double wait_s, char *text, size_t size, struct hspmd_error *err);
/* The last line that says what went wrong; text is cut into lines. */
const char *hspmd_slurm_error_line(char *text);

#endif
