/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CONTROLLER_CLI_CONTROL_H
#define HSPMD_CONTROLLER_CLI_CONTROL_H

#include <stdbool.h>

/* Is the last word a running job (a number, or "local"), and no other word before it but options? */
bool hspmd_control_names_job(int argc, char **argv);
/* `hspmd checkpoint JOB`: make a running job keep its state now. (`hspmd checkpoint list` and its like look at folders.) */
int hspmd_control_checkpoint(int argc, char **argv);

#endif
