/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's own commands, run as if from outside of the job we are in. */
#ifndef HSPMD_CONTROLLER_SLURM_OUTSIDE_H
#define HSPMD_CONTROLLER_SLURM_OUTSIDE_H

#include <stddef.h>

#include "common/error.h"
#include "controller/slurm/job.h"

#define HSPMD_SLURM_WORDS 32 /* room for a command's arguments */

/* Arguments of a command; the first is its name. All are malloc'd. */
struct hspmd_slurm_words {
	char *word[HSPMD_SLURM_WORDS + 1]; /* NULL-terminated */
	int count;
	bool failed; /* out of memory */
};
void hspmd_slurm_word(struct hspmd_slurm_words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hspmd_slurm_words_clear(struct hspmd_slurm_words *w);

/* What asks for `count` more nodes of the kind that a job has, in the name it runs under, for as long as it has left. */
void hspmd_slurm_alike(struct hspmd_slurm_words *w, const struct hspmd_slurm_job *job, int count);

/* Run it; all that it says goes into text. Its exit status, or -1 with err when it could not be run or did not end within wait_s. */
int hspmd_slurm_run(const struct hspmd_slurm_words *w, double wait_s, char *text, size_t size, struct hspmd_error *err);
/* The last line that says what went wrong; text is cut into lines. */
const char *hspmd_slurm_complaint(char *text);

#endif
