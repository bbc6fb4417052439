/* SPDX-License-Identifier: Apache-2.0 */
/* All that calls libslurm is in a module, hspmd-slurm-MAJOR.MINOR.so, one per Slurm that it was built against. hspmd and hspmdctld load the
 * one that fits the libslurm of this machine when they first need it. So they start without Slurm, and one installation works with several
 * Slurms: jobs that were submitted before an upgrade of Slurm start after it. */
#ifndef HSPMD_SLURM_MODULE_H
#define HSPMD_SLURM_MODULE_H

#include "controller/slurm/job.h"
#include "controller/slurm/slurm_view.h"

/* A module exports this as "hspmd_slurm_module". The functions are those of job.h and slurm_view.h. */
struct hspmd_slurm_module {
	const char *release;   /* hspmd's version; comes first, so that a module of another release is refused */
	const char *interface; /* HSPMD_SLURM_INTERFACE: of the headers that lay out what the functions take and return */
	const char *slurm;     /* "24.11" */
	struct hspmd_slurm_job *(*job_load)(uint32_t id, struct hspmd_error *err);
	int (*jobs_named)(uint32_t uid, const char *name, struct hspmd_slurm_job ***jobs, struct hspmd_error *err);
	int (*job_shrink)(uint32_t id, char *const *keep, int count, struct hspmd_error *err);
	int (*job_grow)(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err);
	int (*job_requeue)(uint32_t id, struct hspmd_error *err);
	int (*job_cancel)(uint32_t id, struct hspmd_error *err);
	int (*member_cancel)(const struct hspmd_slurm_job *member, struct hspmd_error *err);
	int (*munge_socket)(char **socket, bool *munge, struct hspmd_error *err);
	double (*poll_interval)(void);
	int (*view_settings)(struct hspmd_slurm_view_settings *s, struct hspmd_error *err);
	int (*view_refresh)(const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err);
};

/* Returns the module in use, loaded at the first call and kept: the file that environment HSPMD_SLURM_MODULE names, else the one for the
 * newest Slurm whose libslurm is on this machine, of those in the build folder that contains the program, or of the installed ones.
 * NULL and err: there is none, or none can be loaded; err says why for each. Thread-safe. */
const struct hspmd_slurm_module *hspmd_slurm_module_load(struct hspmd_error *err);

#endif
