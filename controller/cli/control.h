/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CONTROLLER_CLI_CONTROL_H
#define HSPMD_CONTROLLER_CLI_CONTROL_H

#include <stdbool.h>

/* Is there but one word beside options, and is it none of `verbs` (NULL-terminated)? Then it names a running job: a number, "local", or an
 * output folder. In a Slurm job there need be none: it is that job. */
bool hspmd_control_names_job(int argc, char **argv, const char *const *verbs);
/* `hspmd checkpoint JOB`: make a running job keep its state now. (`hspmd checkpoint list` and its like look at folders.) */
int hspmd_control_checkpoint(int argc, char **argv);

#endif
