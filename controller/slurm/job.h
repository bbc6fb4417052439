/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd's interface to Slurm: libslurm, and the commands srun, salloc and sbatch, behind plain data. No other component includes Slurm's
 * headers (except the plugin) or starts its commands.
 *
 * Calls are blocking RPCs to slurmctld: call them from a worker thread, seldom, from one thread at a time. On a machine without Slurm, or
 * without hspmd's module for its version (module.h), every call fails with an error that says so. */
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
	HSPMD_SLURM_ENDING, /* completing or ended */
};

struct hspmd_slurm_job {
	uint32_t id;
	enum hspmd_slurm_state state;
	char *user, *partition, *account, *qos, *batch_host, *comment, *cluster, *name; /* "" if Slurm has no value */
	char *constraints, *reservation, *gres;                                         /* as requested (GRES: per node); "" if none */
	uint32_t uid;
	int node_count;
	char **nodes;                           /* in Slurm's order */
	int cpus;                               /* of the whole allocation */
	char **node_gpus;                       /* per node, Slurm's numbers of its GPUs that the job holds, "0-1,4"; "": none or unknown */
	char **node_gres;                       /* per node, the GRES that steps get only if they ask for them, "gpu:2"; "": none */
	uint64_t node_memory_mb, cpu_memory_mb; /* requested per node, or per CPU; 0: not requested */
	bool holds_gres;                        /* therefore it cannot grow in place */
	bool exclusive;
	uint32_t priority;
	int restarts;
	time_t start, end, resized; /* 0: not known or never */
	time_t preempted;           /* when its preemption was decided; 0: it is not being preempted */
	bool completing;            /* it has ended or is being ended, and processes of it may still run */
	const char *over;           /* "was preempted", "has timed out", ...; "" while it has not ended */
	uint32_t array;             /* the job array of which it is a task; 0: none */
	char *array_tasks;          /* its task, or of those that still wait, which are one job to Slurm, all: "3-7" */
	int array_task_count;       /* of array_tasks */
};

/* Returns the job as slurmctld reports it now; the caller destroys it. NULL and err. */
struct hspmd_slurm_job *hspmd_slurm_job_load(uint32_t id, struct hspmd_error *err);
void hspmd_slurm_job_destroy(struct hspmd_slurm_job *j);

/* Returns the number of a user's jobs with this name, and the jobs in *jobs, oldest first (freed by hspmd_slurm_jobs_free()). One RPC.
 * Includes jobs that have ended, as long as slurmctld remembers them. -1 and err. */
int hspmd_slurm_jobs_named(uint32_t uid, const char *name, struct hspmd_slurm_job ***jobs, struct hspmd_error *err);
void hspmd_slurm_jobs_free(struct hspmd_slurm_job **jobs, int count);

/* Returns nodes to Slurm: the job keeps the nodes `keep`, which must include the batch host. Slurm kills the job's steps on the others at
 * once, so the caller drains them first. Returns 0, or -1 and err. */
int hspmd_slurm_job_shrink(uint32_t id, char *const *keep, int count, struct hspmd_error *err);

/* Grows a job in place by `count` nodes like those it has, through a helper allocation that depends on the job ("expand:ID") and whose
 * nodes the job takes over. Blocks for at most about `wait_s`. Returns 0, or -1 and err, with nothing left behind, if the site does not
 * allow it (SchedulerParameters=permit_job_expansion), the job holds GRES, or no nodes are idle. */
int hspmd_slurm_job_grow(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err);

/* How the site wants member jobs to differ from their job; strings are borrowed. */
struct hspmd_slurm_member_terms {
	const char *qos, *partition; /* NULL or "": the job's */
	double time_min_s;           /* Slurm may shorten the time limit to this, to fit a member between other jobs; 0: no */
	char *const *srun_args;      /* further options of srun (srun_args.h), NULL-terminated; NULL: none */
};

#define HSPMD_SLURM_MEMBERS_MAX 1000 /* in one array: less than Slurm's default MaxArraySize */
/* Submits `count` member jobs of `job`, several as one job array: each has one node like those that the job has, for as long as the job
 * has left, with `command` (NULL-terminated) as its only step. It is named hspmd_slurm_member_name(), is not requeued, writes to the file
 * `log` (sbatch's patterns), and excludes the nodes `without`. In another partition nodes may have other devices: there a member requests
 * as many, of any type, and neither the job's features nor its reservation. `terms` may be NULL. Returns its id (the array's), or 0 and
 * err. */
uint32_t hspmd_slurm_member_submit(const struct hspmd_slurm_job *job, const struct hspmd_slurm_member_terms *terms,
                                   const char *const *command, const char *log, int count, char *const *without, int without_count,
                                   struct hspmd_error *err);
void hspmd_slurm_member_name(uint32_t job, char name[static 32]);
/* Requeues a running batch job, which ends at once. Returns 0, or -1 and err. */
int hspmd_slurm_job_requeue(uint32_t id, struct hspmd_error *err);
/* Cancels a job. It is no error if the job has ended already. Returns 0, or -1 and err. */
int hspmd_slurm_job_cancel(uint32_t id, struct hspmd_error *err);
/* The same for a job that may be a task of an array, or those of its tasks that wait: the number of an array stands for all its tasks,
 * and the last one to start has this number too. */
int hspmd_slurm_member_cancel(const struct hspmd_slurm_job *member, struct hspmd_error *err);

/* A step of a job with one task per node, which continues when some of its nodes or tasks die. */
struct hspmd_slurm_step {
	uint32_t job;
	char *const *nodes;
	int node_count;
	const char *gres;           /* to ask for on each node; NULL or "": what Slurm gives without being asked */
	bool pmix;                  /* with a PMIx server */
	char *const *srun_args;     /* further options of srun (srun_args.h), NULL-terminated; NULL: none */
	const char *const *command; /* NULL-terminated */
};
/* Returns the command that starts the step: one malloc'd block, NULL-terminated, freed by free(). It borrows the strings of the step's
 * command and nodes. NULL and err. */
char **hspmd_slurm_step_command(const struct hspmd_slurm_step *step, struct hspmd_error *err);

/* Sets *munge to whether the site uses MUNGE, and *socket to munged's socket of slurm.conf (AuthInfo=socket=...), malloc'd; NULL: the
 * default one. Returns 0, or -1 and err. */
int hspmd_slurm_munge_socket(char **socket, bool *munge, struct hspmd_error *err);

/* Returns the seconds between two polls of the queue by one job: HSPMD_SLURM_POLL_S, or three times as many if slurmctld limits the rate of
 * RPCs (rl_enable). */
#define HSPMD_SLURM_POLL_S 5
double hspmd_slurm_poll_interval(void);

#endif
