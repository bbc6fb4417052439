/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that need libslurm, through the module. */
#include "controller/slurm/module.h"

struct hspmd_slurm_job *hspmd_slurm_job_load(uint32_t id, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->job_load(id, err) : NULL;
}

int hspmd_slurm_jobs_named(uint32_t uid, const char *name, struct hspmd_slurm_job ***jobs, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	*jobs = NULL;
	return m ? m->jobs_named(uid, name, jobs, err) : -1;
}

int hspmd_slurm_job_shrink(uint32_t id, char *const *keep, int count, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->job_shrink(id, keep, count, err) : -1;
}

int hspmd_slurm_job_grow(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->job_grow(job, count, wait_s, err) : -1;
}

int hspmd_slurm_job_requeue(uint32_t id, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->job_requeue(id, err) : -1;
}

int hspmd_slurm_job_cancel(uint32_t id, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->job_cancel(id, err) : -1;
}

int hspmd_slurm_member_cancel(const struct hspmd_slurm_job *member, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->member_cancel(member, err) : -1;
}

int hspmd_slurm_munge_socket(char **socket, bool *munge, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->munge_socket(socket, munge, err) : -1;
}

double hspmd_slurm_poll_interval(void)
{
	struct hspmd_error ignored;
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(&ignored);
	return m ? m->poll_interval() : HSPMD_SLURM_POLL_S;
}

int hspmd_slurm_view_settings(struct hspmd_slurm_view_settings *s, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	*s = (struct hspmd_slurm_view_settings){ 0 };
	return m ? m->view_settings(s, err) : -1;
}

int hspmd_slurm_view_refresh(const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	const struct hspmd_slurm_module *m = hspmd_slurm_module_load(err);
	return m ? m->view_refresh(old, new, rpcs, err) : -1;
}
