/* SPDX-License-Identifier: Apache-2.0 */
/* For builds without Slurm: every call fails with an error that says so. */
#include "controller/slurm/job.h"

#include <stddef.h>

static const char *const why = "this hspmd was built without Slurm";

struct hspmd_slurm_job *hspmd_slurm_job_load(uint32_t id, struct hspmd_error *err)
{
	(void)id;
	hspmd_fail(err, "%s", why);
	return NULL;
}

void hspmd_slurm_job_destroy(struct hspmd_slurm_job *j)
{
	(void)j;
}

int hspmd_slurm_jobs_named(uint32_t uid, const char *name, struct hspmd_slurm_job ***jobs, struct hspmd_error *err)
{
	(void)uid, (void)name;
	*jobs = NULL;
	return hspmd_fail(err, "%s", why);
}

void hspmd_slurm_jobs_free(struct hspmd_slurm_job **jobs, int count)
{
	(void)jobs, (void)count;
}

uint32_t hspmd_slurm_member_submit(const struct hspmd_slurm_job *job, const char *const *command, const char *log, char *const *without,
                                   int without_count, struct hspmd_error *err)
{
	(void)job, (void)command, (void)log, (void)without, (void)without_count;
	hspmd_fail(err, "%s", why);
	return 0;
}

void hspmd_slurm_member_name(uint32_t job, char name[static 32])
{
	(void)job;
	name[0] = '\0';
}

int hspmd_slurm_job_requeue(uint32_t id, struct hspmd_error *err)
{
	(void)id;
	return hspmd_fail(err, "%s", why);
}

int hspmd_slurm_job_cancel(uint32_t id, struct hspmd_error *err)
{
	(void)id;
	return hspmd_fail(err, "%s", why);
}

int hspmd_slurm_job_shrink(uint32_t id, char *const *keep, int count, struct hspmd_error *err)
{
	(void)id, (void)keep, (void)count;
	return hspmd_fail(err, "%s", why);
}

int hspmd_slurm_job_grow(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err)
{
	(void)job, (void)count, (void)wait_s;
	return hspmd_fail(err, "%s", why);
}

double hspmd_slurm_poll_interval(void)
{
	return 5;
}

int hspmd_slurm_munge_socket(char **socket, bool *munge, struct hspmd_error *err)
{
	(void)socket, (void)munge;
	return hspmd_fail(err, "%s", why);
}
