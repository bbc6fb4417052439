/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"
#include "controller/slurm/command.h"
#include "controller/slurm/job.h"

#define FIXED_ARGUMENTS 18

const char *const hspmd_slurm_step_words[] = {
	"sh", "-c",
	("[ -x \"$0\" ] || { echo \"hspmd run: error: node $SLURMD_NODENAME cannot be used: $0 is not installed there\" >&2; exit 2; }; "
	 "exec \"$0\" \"$@\"")
};

/* Options of the batch job, and defaults of a user's or a site's, that srun reads from its environment and that would give the agents less
 * of a node than the job holds, or another layout of tasks: for tasks of the user's own, not for one agent per node. */
static const char *const unset[] = {
	/* The list at the start of the job: srun takes it for the job's size even if --nodelist names nodes added since. */
	"SLURM_JOB_NODELIST",
	"SLURM_CPUS_PER_TASK",
	"SRUN_CPUS_PER_TASK",
	"SLURM_CPUS_PER_GPU",
	"SLURM_GPUS",
	"SLURM_GPUS_PER_TASK",
	"SLURM_GPUS_PER_SOCKET",
	"SLURM_GPU_BIND",
	"SLURM_TRES_PER_TASK",
	"SLURM_TRES_BIND",
	"SLURM_NTASKS_PER_CORE",
	"SLURM_NTASKS_PER_GPU",
	"SLURM_NTASKS_PER_NODE",
	"SLURM_NTASKS_PER_SOCKET",
	"SLURM_NTASKS_PER_TRES",
	"SLURM_CPU_BIND",
	"SLURM_MEM_BIND",
	"SLURM_HINT",
	"SLURM_THREADS_PER_CORE",
	"SLURM_CORE_SPEC",
	"SLURM_THREAD_SPEC",
	"SLURM_DISTRIBUTION",
	"SLURM_HOSTFILE",
	"SLURM_EXACT",
	"SLURM_EXCLUSIVE",
	"SLURM_OVERCOMMIT",
	"SLURM_RESV_PORTS",
	"SLURM_SPREAD_JOB",
	"SLURM_TIMELIMIT",
	"SLURM_MULTI_PROG",
};
#define UNSET_COUNT (sizeof unset / sizeof *unset)
#define UNSET_TEXT (UNSET_COUNT * 40)

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
	size_t arguments = 0, added = 0, n = 0;
	while (step->command[arguments])
		arguments++;
	while (step->srun_args && step->srun_args[added])
		added++;
	char *nodes = hspmd_hostlist_fold(step->nodes, step->node_count), count[16], job[16], *end;
	char **list = nodes ? lay_out(FIXED_ARGUMENTS + UNSET_COUNT + added + HSPMD_SLURM_STEP_WORDS + arguments + 1,
	                              strlen(nodes) + (step->gres ? strlen(step->gres) : 0) + 128 + UNSET_TEXT, &end)
	                    : NULL;
	if (!list) {
		free(nodes);
		hspmd_fail_memory(err, "starting a step");
		return NULL;
	}
	snprintf(count, sizeof count, "%d", step->node_count);
	snprintf(job, sizeof job, "%u", step->job);
	list[n++] = "env";
	for (size_t i = 0; i < UNSET_COUNT; i++)
		list[n++] = put(&end, "--unset=", unset[i]);
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
	if (step->gres && *step->gres)
		list[n++] = put(&end, "--gres=", step->gres);
	list[n++] = step->pmix ? "--mpi=pmix" : "--mpi=none";
	list[n++] = "--input=none";
	for (size_t i = 0; i < added; i++)
		list[n++] = step->srun_args[i];
	for (size_t i = 0; i < HSPMD_SLURM_STEP_WORDS; i++)
		list[n++] = (char *)hspmd_slurm_step_words[i];
	for (size_t i = 0; i < arguments; i++)
		list[n++] = (char *)step->command[i];
	free(nodes);
	return list;
}
