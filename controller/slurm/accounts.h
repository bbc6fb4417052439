/* SPDX-License-Identifier: Apache-2.0 */
/* What Slurm's accounting lets users take: fairshare factors, and the limits of associations and QOS that bound how far jobs can grow. */
#ifndef HSPMD_SLURM_ACCOUNTS_H
#define HSPMD_SLURM_ACCOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"

/* Limits that one record sets. TRES lists as Slurm writes them ("cpu=100,gres/gpu=8,node=4"; "": none); numbers of jobs, -1: none. */
enum hspmd_slurm_tres_limit { HSPMD_SLURM_GRP_TRES, HSPMD_SLURM_USER_TRES, HSPMD_SLURM_ACCOUNT_TRES, HSPMD_SLURM_TRES_LIMITS };
enum hspmd_slurm_job_limit { HSPMD_SLURM_GRP_JOBS, HSPMD_SLURM_USER_JOBS, HSPMD_SLURM_ACCOUNT_JOBS, HSPMD_SLURM_JOB_LIMITS };
extern const char *const hspmd_slurm_tres_limit_names[]; /* "GrpTRES", "MaxTRESPerUser", "MaxTRESPerAccount" */
extern const char *const hspmd_slurm_job_limit_names[];  /* "GrpJobs", "MaxJobsPerUser", "MaxJobsPerAccount" */

/* A QOS, or an association: of a user with an account, or ("" as user) of an account with all that is below it. */
struct hspmd_slurm_limits {
	char *qos;                                 /* NULL: an association */
	char *account, *user, *partition, *parent; /* "" if there is none */
	char *tres[HSPMD_SLURM_TRES_LIMITS];
	int jobs[HSPMD_SLURM_JOB_LIMITS]; /* of an association, the number per user is its MaxJobs */
};

struct hspmd_slurm_share {
	char *account, *user;
	double factor; /* fairshare factor, 0..1 */
};

struct hspmd_slurm_accounts {
	int limit_count, share_count;
	size_t limit_capacity, share_capacity;
	struct hspmd_slurm_limits *limits;
	struct hspmd_slurm_share *shares;
};

/* Which parts are read. */
struct hspmd_slurm_accounts_wanted {
	const char *cluster; /* whose limits, by sacctmgr (it asks slurmdbd, twice); NULL: no limits */
	bool shares;         /* by sshare (it asks slurmctld, once) */
};

/* Reads the parts that are wanted. Blocks for at most 15 s per command. Adds the number of RPCs to slurmctld to *rpcs. Returns 0, or -1
 * and err; what was read before the error is in *a. The caller clears *a in both cases. */
int hspmd_slurm_accounts_read(struct hspmd_slurm_accounts *a, const struct hspmd_slurm_accounts_wanted *wanted, int *rpcs,
                              struct hspmd_error *err);
void hspmd_slurm_accounts_clear(struct hspmd_slurm_accounts *a);

/* Read what the commands print; they cut text into lines. Lines with another number of columns are left out: warnings. Return 0, or -1: out
 * of memory.
 *   sacctmgr --noheader --parsable2 show assoc format=Cluster,Account,User,Partition,ParentName,GrpTRES,GrpJobs,MaxJobs
 *   sacctmgr --noheader --parsable2 show qos format=Name,GrpTRES,MaxTRESPU,MaxTRESPA,GrpJobs,MaxJobsPU,MaxJobsPA
 *   sshare --noheader --parsable2 --all --format=Account,User,FairShare */
int hspmd_slurm_assoc_parse(struct hspmd_slurm_accounts *a, const char *cluster, char *text, struct hspmd_error *err);
int hspmd_slurm_qos_limits_parse(struct hspmd_slurm_accounts *a, char *text, struct hspmd_error *err);
int hspmd_slurm_shares_parse(struct hspmd_slurm_accounts *a, char *text, struct hspmd_error *err);

/* Returns the fairshare factor; -1: not known. `a` may be NULL. */
double hspmd_slurm_share_of(const struct hspmd_slurm_accounts *a, const char *account, const char *user);
/* Steps through a TRES list: copies the next name, sets its number (memory in MiB) and returns what follows; NULL: no further one. */
const char *hspmd_slurm_tres_next(const char *list, char name[static 64], double *number);
/* Returns the number that a TRES list gives for a name; -1: none. */
double hspmd_slurm_tres_of(const char *list, const char *name);

#endif
