/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of controller/slurm share. */
#ifndef HSPMD_SLURM_LIBSLURM_INTERNAL_H
#define HSPMD_SLURM_LIBSLURM_INTERNAL_H

#include <slurm/slurm.h>

#include "common/error.h"

/* libslurm is ready for use (once a process). */
int hspmd_slurm_init(struct hspmd_error *err);
/* Is `word` among the site's SchedulerParameters? 1, 0, or -1 with err. */
int hspmd_slurm_scheduler_has(const char *word, struct hspmd_error *err);
/* Send a change of a job; `what` for the message. */
int hspmd_slurm_update(job_desc_msg_t *change, uint32_t id, const char *what, struct hspmd_error *err);

#endif
