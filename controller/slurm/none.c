/* SPDX-License-Identifier: Apache-2.0 */
/* Built without Slurm: every call fails and says so. */
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

int hspmd_slurm_job_comment(uint32_t id, const char *comment, struct hspmd_error *err)
{
	(void)id, (void)comment;
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
