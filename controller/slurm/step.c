/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"
#include "controller/slurm/job.h"

#define FIXED_ARGUMENTS 19

/* Allocates one block for the array and the strings that are made here. */
static char **lay_out(size_t arguments, size_t text, char **end)
{
	char **list = calloc(1, arguments * sizeof *list + text);
	if (list)
		*end = (char *)(list + arguments);
	return list;
}

static char *put(char **end, const char *prefix, const char *text)
{
	char *at = *end;
	*end += sprintf(at, "%s%s", prefix, text) + 1;
	return at;
}

char **hspmd_slurm_step_command(const struct hspmd_slurm_step *step, struct hspmd_error *err)
{
	size_t arguments = 0, n = 0;
	while (step->command[arguments])
		arguments++;
	char *nodes = hspmd_hostlist_fold(step->nodes, step->node_count), count[16], job[16], *end;
	char **list = nodes ? lay_out(FIXED_ARGUMENTS + arguments + 1, strlen(nodes) + 128, &end) : NULL;
	if (!list) {
		free(nodes);
		hspmd_fail_memory(err, "starting a step");
		return NULL;
	}
	snprintf(count, sizeof count, "%d", step->node_count);
	snprintf(job, sizeof job, "%u", step->job);
	/* srun takes SLURM_JOB_NODELIST, the list at the start of the job, for the job's size even if --nodelist names nodes added
	 * since. */
	list[n++] = "env";
	list[n++] = "--unset=SLURM_JOB_NODELIST";
	list[n++] = "srun";
	list[n++] = put(&end, "--jobid=", job);
	list[n++] = put(&end, "--nodelist=", nodes);
	list[n++] = put(&end, "--nodes=", count);
	list[n++] = put(&end, "--ntasks=", count);
	list[n++] = "--ntasks-per-node=1";
	list[n++] = "--overlap"; /* the batch script's own steps, and earlier steps of hspmd, use the same nodes */
	list[n++] = "--no-kill"; /* the step outlives its nodes (the batch job's own --no-kill does not carry over) */
	list[n++] = "--kill-on-bad-exit=0";
	list[n++] = "--wait=0";
	list[n++] = "--cpu-bind=none"; /* the agent binds its workers itself */
	list[n++] = step->pmix ? "--mpi=pmix" : "--mpi=none";
	list[n++] = "--input=none";
	for (size_t i = 0; i < arguments; i++)
		list[n++] = (char *)step->command[i];
	free(nodes);
	return list;
}
