/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `hspmd run`. */
#ifndef HSPMD_CONTROLLER_CLI_RUN_OPTIONS_H
#define HSPMD_CONTROLLER_CLI_RUN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "controller/cli/run_command.h"

/* Texts point into argv or the environment; NULL and 0: not given. */
struct run_options {
	const char *job, *plan, *output, *cluster, *transport, *policies, *ports;
	char **srun_args; /* NULL-terminated, freed by the caller; NULL: none */
	struct run_command_options command;
	int64_t local, nodes /* without a command */, devices, port, repair_from;
	double step_timeout, reconnect_timeout;
	bool resume, no_pmix, help;
};

/* Reads and checks them; prints the help if it is requested (then o->help). Returns 0, or the exit status after a message. `o` must be
 * zeroed. */
int run_options_parse(struct run_options *o, int argc, char **argv);

#endif
