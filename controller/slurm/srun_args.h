/* SPDX-License-Identifier: Apache-2.0 */
/* Options of srun that a user adds to the steps of agents (`hspmd run --srun-args`). */
#ifndef HSPMD_CONTROLLER_SLURM_SRUN_ARGS_H
#define HSPMD_CONTROLLER_SLURM_SRUN_ARGS_H

#include "common/error.h"

/* Appends the words of `text`, which blanks separate, to the NULL-terminated *list (NULL: empty). Refuses what is not of the form --name or
 * --name=value, and options that hspmd sets itself, or that would take a part of the node from the agents. Returns 0, or -1 and err; the
 * list is then as before. */
int hspmd_srun_args_add(char ***list, const char *text, struct hspmd_error *err);
void hspmd_srun_args_free(char **list);

#endif
