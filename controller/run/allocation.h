/* SPDX-License-Identifier: Apache-2.0 */
/* Where a job's nodes come from: Slurm (allocation_slurm.c), or this machine playing them (allocation_local.c). */
#ifndef HSPMD_CONTROLLER_RUN_ALLOCATION_H
#define HSPMD_CONTROLLER_RUN_ALLOCATION_H

#include <jansson.h>
#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

struct run_allocation;

struct run_allocation_ops {
	/* What the job holds now, as EVENT_ALLOCATION takes it. May block: called from a worker thread. */
	json_t *(*poll_allocation)(struct run_allocation *a, struct hspmd_error *err);
	/* The command that starts the agents of these nodes, each of which ends with `command`: malloc'd block of arguments (free it).
	 * Called for all nodes that are to be started at once, or for one after the other where one_by_one. */
	char **(*start)(struct run_allocation *a, char *const *nodes, int count, const char *const *command, struct hspmd_error *err);
	/* Add `count` nodes, or ask for them: they may come later, or never; `command` starts an agent. Give these back. Ask no more for
	 * what has not come. May block: called from worker threads, several at a time. */
	int (*grow)(struct run_allocation *a, int count, const char *const *command, struct hspmd_error *err);
	int (*shrink)(struct run_allocation *a, char *const *nodes, int count, struct hspmd_error *err);
	int (*cancel_grow)(struct run_allocation *a, struct hspmd_error *err);
	double (*poll_interval)(struct run_allocation *a); /* between two looks; 0: only when asked */
	/* The run is over: what is held beside the job itself goes; with steps left to do, a job that is being preempted comes back. May
	 * block for some calls. */
	void (*end)(struct run_allocation *a, bool done);
	void (*destroy)(struct run_allocation *a);
};

struct run_allocation {
	const struct run_allocation_ops *ops;
	bool one_by_one; /* agents are started by a command each */
	bool resizable;
};

/* The job's own allocation, as SLURM_JOB_ID says, and the nodes of its members: jobs of one node each by which it grows where Slurm does
 * not let it grow in place (see controller/slurm/job.h). `member_log`: where members write, as sbatch names files, borrowed; NULL: it has
 * no members. */
struct run_allocation *run_allocation_slurm(uint32_t job, bool pmix, const char *member_log, struct hspmd_error *err);
/* The nodes of a cluster file, `held` of them at first (0: all); agents are processes of this machine. The cluster is borrowed. */
struct run_allocation *run_allocation_local(const struct hspmd_cluster *c, int held, struct hspmd_error *err);
/* What an earlier incarnation of the controller held of them: names. */
void run_allocation_local_hold(struct run_allocation *a, const json_t *names);

#endif
