/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of controller/slurm that call libslurm share. */
#ifndef HSPMD_SLURM_LIBSLURM_INTERNAL_H
#define HSPMD_SLURM_LIBSLURM_INTERNAL_H

#define SLURM_BACKWARD_COMPAT /* from 26.05: calls take a job's number as they did before */
#include <slurm/slurm.h>

#include "common/error.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
#define slurm_free_ctl_conf slurm_free_conf
#endif

/* Initialises libslurm, unless that has been done. To be called before any other function of libslurm. Forks; blocks for up to 90 s.
 * -1 and err: there is no configuration, or libslurm cannot use it; a later call tries again. Thread-safe. */
int hspmd_slurm_init(struct hspmd_error *err);
/* Returns slurmctld's configuration, which the caller frees with slurm_free_ctl_conf(). An RPC. NULL and err. */
slurm_conf_t *hspmd_slurm_load_conf(struct hspmd_error *err);
/* Returns the path after "socket=" in a value of AuthInfo ("socket=PATH,ttl=60"), malloc'd; NULL: none, or out of memory. */
char *hspmd_slurm_socket_of(const char *info);
/* Returns 1 if `word` is among the site's SchedulerParameters, 0 if not, -1 and err. An RPC. */
int hspmd_slurm_scheduler_has(const char *word, struct hspmd_error *err);
/* Sends a change of a job to slurmctld. `what` names the change in the error message. */
int hspmd_slurm_update(job_desc_msg_t *change, uint32_t id, const char *what, struct hspmd_error *err);

#endif
