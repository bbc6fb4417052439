/* SPDX-License-Identifier: Apache-2.0 */
/* What the module for one Slurm exports. */
#include "controller/slurm/module.h"

#include "controller/slurm/interface.h"
#include "controller/slurm/libslurm_internal.h"

extern const struct hspmd_slurm_module hspmd_slurm_module;
const struct hspmd_slurm_module hspmd_slurm_module = {
	.release = PACKAGE_VERSION,
	.interface = HSPMD_SLURM_INTERFACE,
	.slurm = HSPMD_SLURM_API,
	.job_load = hspmd_slurm_job_load,
	.jobs_named = hspmd_slurm_jobs_named,
	.job_shrink = hspmd_slurm_job_shrink,
	.job_grow = hspmd_slurm_job_grow,
	.job_requeue = hspmd_slurm_job_requeue,
	.job_cancel = hspmd_slurm_job_cancel,
	.member_cancel = hspmd_slurm_member_cancel,
	.munge_socket = hspmd_slurm_munge_socket,
	.poll_interval = hspmd_slurm_poll_interval,
	.view_settings = hspmd_slurm_view_settings,
	.view_refresh = hspmd_slurm_view_refresh,
};
