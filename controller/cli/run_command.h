/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd run -- COMMAND: a job without a job file, and what a job with a command needs before it runs. */
#ifndef HSPMD_CLI_RUN_COMMAND_H
#define HSPMD_CLI_RUN_COMMAND_H

#include <stdbool.h>

#include "common/format/job.h"
#include "controller/core/controller.h"

struct run_command_options {
	char *const *argv; /* not NULL-terminated */
	int argc;          /* 0: none was given */
	bool per_node, warm;
	int notice_signal; /* --notice; 0: not given */
	double notice_s;
	int min_nodes, max_nodes; /* --nodes; 0: not given */
};

/* The job that runs this command. NULL and err. */
struct hspmd_job *run_command_job(const struct run_command_options *o, struct hspmd_error *err);
/* Applies --nodes to a job that may have limits already (--hspmd-nodes); reads torchrun's command line, and logs what it does not use.
 * No effect on a job without a command. 0; -1 and err. */
int run_command_prepare(struct hspmd_job *job, const struct run_command_options *o, struct hspmd_error *err);
/* The folder of the command's checkpoints: the job's, else one in the output folder. It is made unless it is local to the nodes.
 * malloc'd; NULL and err. */
char *run_command_save_folder(const struct hspmd_job *job, const char *job_id, const char *output, struct hspmd_error *err);
/* Deadlines of a job with a command. step_timeout_s: 0: not given. */
void run_command_timeouts(const struct hspmd_job *job, double step_timeout_s, struct run_timeouts *t);

#endif
