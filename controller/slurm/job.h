/* SPDX-License-Identifier: Apache-2.0 */
/* All that hspmd says to Slurm: libslurm, and the commands srun and salloc, behind plain data. Nothing else in the project includes a
 * header of Slurm's (but for the plugin) or starts one of its commands.
 *
 * Calls are blocking RPCs to slurmctld: call them from a worker thread, seldom. All are safe to call from one thread at a time.
 * Without Slurm at build time every call fails and says so. */
#ifndef HSPMD_CONTROLLER_SLURM_JOB_H
#define HSPMD_CONTROLLER_SLURM_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "common/error.h"

enum hspmd_slurm_state {
	HSPMD_SLURM_PENDING,
	HSPMD_SLURM_RUNNING,
	HSPMD_SLURM_SUSPENDED,
	HSPMD_SLURM_ENDING, /* completing or over */
};

struct hspmd_slurm_job {
	uint32_t id;
	enum hspmd_slurm_state state;
	char *user, *partition, *account, *qos, *batch_host, *comment, *cluster, *name; /* "" where Slurm says nothing */
	char *constraints, *reservation, *gres; /* what was asked for (GRES: on a node), "" for none */
	uint32_t uid;
	int node_count;
	char **nodes;                           /* in Slurm's order */
	int cpus;                               /* of the whole allocation */
	uint64_t node_memory_mb, cpu_memory_mb; /* asked for, on each node or with each CPU; 0: not said */
	bool holds_gres;                        /* so it cannot be grown in place */
	bool exclusive;
	uint32_t priority;
	int restarts;
	time_t start, end, resized; /* 0: not known or never */
	time_t preempted;           /* when its preemption was decided; 0: it is not being preempted */
	const char *over;           /* "was preempted", "has timed out", ... ; "" while it is not over */
};

/* The job as slurmctld sees it now. NULL and err. */
struct hspmd_slurm_job *hspmd_slurm_job_load(uint32_t id, struct hspmd_error *err);
void hspmd_slurm_job_destroy(struct hspmd_slurm_job *j);

/* A user's jobs that bear this name, the oldest first, by one call: those that are over, too, as long as slurmctld remembers them. How
 * many, or -1. */
int hspmd_slurm_jobs_named(uint32_t uid, const char *name, struct hspmd_slurm_job ***jobs, struct hspmd_error *err);
void hspmd_slurm_jobs_free(struct hspmd_slurm_job **jobs, int count);

/* Give nodes back: keep these (which must hold the batch host). Their steps on the others are killed at once by Slurm, so drain them
 * first. */
int hspmd_slurm_job_shrink(uint32_t id, char *const *keep, int count, struct hspmd_error *err);

/* Grow in place by `count` nodes like those it has, by a helper allocation that depends on it ("expand:ID") and hands its nodes over. Tries
 * for `wait_s`. Fails, with nothing left behind, where the site does not allow it (SchedulerParameters=permit_job_expansion), where the job
 * holds GRES, or where no nodes are idle. */
int hspmd_slurm_job_grow(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err);

/* Submit a member of `job`: a job of one node like those that it has, for as long as it has left, that runs `command` (NULL-terminated) as
 * its only step. It is named hspmd_slurm_member_name(), is not requeued, writes to the file `log` (sbatch's patterns), and takes none of
 * the nodes `without`. Returns its id, or 0. */
uint32_t hspmd_slurm_member_submit(const struct hspmd_slurm_job *job, const char *const *command, const char *log, char *const *without,
                                   int without_count, struct hspmd_error *err);
void hspmd_slurm_member_name(uint32_t job, char name[static 32]);
/* Put a running batch job back into the queue; it is ended at once. */
int hspmd_slurm_job_requeue(uint32_t id, struct hspmd_error *err);
/* End a job. One that is over already is no error. */
int hspmd_slurm_job_cancel(uint32_t id, struct hspmd_error *err);

/* The command that starts one task on each of these nodes as a step of the job that goes on when some of its nodes or tasks die. `command`
 * is NULL-terminated. The result is one malloc'd block (free it), NULL-terminated; strings of command and nodes are borrowed. `pmix`: the
 * step is to have a PMIx server. */
struct hspmd_slurm_step {
	uint32_t job;
	char *const *nodes;
	int node_count;
	bool pmix;
	const char *const *command;
};
char **hspmd_slurm_step_command(const struct hspmd_slurm_step *step, struct hspmd_error *err);

/* The socket of munged that the site's slurm.conf names (AuthInfo=socket=...), malloc'd; NULL: the default one. *munge: does the site use
 * MUNGE at all? */
int hspmd_slurm_munge_socket(char **socket, bool *munge, struct hspmd_error *err);

/* Seconds between two looks at the queue that this site's slurmctld should not mind (its rate limits, its size). */
double hspmd_slurm_poll_interval(void);

#endif
