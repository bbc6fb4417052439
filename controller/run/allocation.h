/* SPDX-License-Identifier: Apache-2.0 */
/* The source of a job's nodes: Slurm (allocation_slurm.c), or a cluster file whose nodes this machine emulates (allocation_local.c). */
#ifndef HSPMD_CONTROLLER_RUN_ALLOCATION_H
#define HSPMD_CONTROLLER_RUN_ALLOCATION_H

#include <jansson.h>
#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "controller/slurm/job.h"

struct run_allocation;

struct run_allocation_ops {
	/* Returns what the job holds now, as the value of EVENT_ALLOCATION. New reference; NULL and err: unknown. May block: called from
	 * a worker thread. */
	json_t *(*poll_allocation)(struct run_allocation *a, struct hspmd_error *err);
	/* Returns a command that starts agents, and ends with `command`: one malloc'd block of arguments (free it). It may not be able to
	 * start all: those of which it starts the agents are moved to the front of `nodes`, and *count is set to their number. Call it
	 * again for the others; if it fails, *count is the number of those that it failed for. */
	char **(*start)(struct run_allocation *a, char **nodes, int *count, const char *const *command, struct hspmd_error *err);
	/* grow: adds `count` nodes, or requests them: they may come later, or never; `command` starts an agent. shrink: gives nodes back.
	 * cancel_grow: cancels requests for nodes that have not come. Return 0 or -1. May block: called from worker threads, several at a
	 * time. */
	int (*grow)(struct run_allocation *a, int count, const char *const *command, struct hspmd_error *err);
	int (*shrink)(struct run_allocation *a, char *const *nodes, int count, struct hspmd_error *err);
	int (*cancel_grow)(struct run_allocation *a, struct hspmd_error *err);
	double (*poll_interval)(struct run_allocation *a); /* seconds between polls; 0: only on ACTION_POLL_SLURM */
	/* The run is over: member jobs are ended. If steps are left (!done), a job that is being preempted is requeued. May block for some
	 * calls. */
	void (*end)(struct run_allocation *a, bool done);
	void (*destroy)(struct run_allocation *a);
};

struct run_allocation {
	const struct run_allocation_ops *ops;
	bool resizable;
};

/* The allocation of Slurm job `job`, and the nodes of its members: jobs of one node each, by which it grows if Slurm does not let it grow
 * in place (see controller/slurm/job.h). `member_log`: output file of members, with sbatch's patterns, borrowed; NULL: no members.
 * `member_terms`: how members differ from the job, borrowed; a job with a QOS or partition for members grows by members alone. */
struct run_allocation *run_allocation_slurm(uint32_t job, bool pmix, const char *member_log,
                                            const struct hspmd_slurm_member_terms *member_terms, struct hspmd_error *err);
/* The nodes of a cluster file, at first `held` of them (0: all); agents are processes of this machine. The cluster is borrowed. */
struct run_allocation *run_allocation_local(const struct hspmd_cluster *c, int held, struct hspmd_error *err);
/* Sets the held nodes by name, as an earlier incarnation of the controller held them. */
void run_allocation_local_hold(struct run_allocation *a, const json_t *names);

#endif
