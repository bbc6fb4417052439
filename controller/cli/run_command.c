/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_command.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/format/job_command.h"
#include "common/format/torchrun.h"
#include "common/log.h"

#define KILL_S 20.0  /* for all processes of a rank to be gone after SIGKILL */
#define STEP_S 600.0 /* least time for a told step: as long as PyTorch waits for a collective of NCCL */

static int set_working_folder(struct hspmd_job *job, struct hspmd_error *err)
{
	if (job->command.folder)
		return 0;
	char *here = realpath(".", NULL);
	if (!here)
		return hspmd_fail_errno(err, "finding this folder");
	job->command.folder = here;
	return 0;
}

struct hspmd_job *run_command_job(const struct run_command_options *o, struct hspmd_error *err)
{
	struct hspmd_job *job = hspmd_job_from_command(o->argv, o->argc, "command line", err);
	if (!job)
		return NULL;
	job->command.per_node = o->per_node;
	job->command.warm = o->warm;
	if (o->notice_signal) {
		job->command.notice_signal = o->notice_signal;
		job->command.notice_s = o->notice_s;
	}
	return job;
}

int run_command_prepare(struct hspmd_job *job, const struct run_command_options *o, struct hspmd_error *err)
{
	char ignored[400];
	if (!job->command.argc)
		return 0;
	if (o->min_nodes) {
		if (o->min_nodes < job->elastic.min_nodes || o->max_nodes > job->elastic.max_nodes)
			return hspmd_fail(err, "--nodes %d-%d goes beyond the %d to %d nodes that the job may have", o->min_nodes,
			                  o->max_nodes, job->elastic.min_nodes, job->elastic.max_nodes);
		job->elastic.min_nodes = o->min_nodes;
		job->elastic.max_nodes = o->max_nodes;
	}
	int read = hspmd_torchrun_read(&job->command.argv, &job->command.argc, ignored, sizeof ignored, err);
	if (read < 0)
		return -1;
	if (*ignored)
		hspmd_info("not used of torchrun's options, because hspmd chooses ranks and rendezvous: %s", ignored);
	return set_working_folder(job, err);
}

char *run_command_save_folder(const struct hspmd_job *job, const char *job_id, const char *output, struct hspmd_error *err)
{
	const char *given = job->checkpoint.shared ? job->checkpoint.shared : job->checkpoint.local;
	char *folder = given ? hspmd_job_expand_path(given, job_id, err) : hspmd_asprintf("%s/checkpoint", output);
	if (!folder) {
		if (!given)
			hspmd_fail_memory(err, "naming a folder");
		return NULL;
	}
	if ((job->checkpoint.shared || !given) && hspmd_durable_mkdir(folder, 0700, err)) {
		hspmd_error_prefix(err, "%s: checkpoint.shared", job->file);
		free(folder);
		return NULL;
	}
	return folder;
}

void run_command_timeouts(const struct hspmd_job *job, double step_timeout_s, struct run_timeouts *t)
{
	t->stop = job->command.notice_s + KILL_S;
	if (step_timeout_s <= 0)
		t->step_min = STEP_S;
}
