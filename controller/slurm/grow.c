/* SPDX-License-Identifier: Apache-2.0 */
/* Grows a running job in place: a helper allocation of the same shape, which depends on the job ("expand:ID") and has no step, gets the
 * nodes; then the helper is updated to no nodes and the job to all it can have. Works only if SchedulerParameters has permit_job_expansion
 * and neither job holds GRES. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/slurm/job.h"
#include "controller/slurm/command.h"
#include "controller/slurm/libslurm_internal.h"

/* How long the first helper waits for its nodes in seconds, and the factor from each to the next. */
#define IMMEDIATE_S 2
#define LONGER 1.5

/* Returns the helper's id from salloc's "Granted job allocation N"; 0: none. */
static uint32_t granted(const char *text)
{
	const char *at = strstr(text, "Granted job allocation ");
	return at ? (uint32_t)strtoul(at + 23, NULL, 10) : 0;
}

/* Returns the helper's id, or 0 and err if it got no nodes within patience_s. */
static uint32_t allocate_helper(const struct hspmd_slurm_job *job, int count, int patience_s, struct hspmd_error *err)
{
	char said[4096] = "";
	struct hspmd_slurm_argv w = { 0 };
	uint32_t helper = 0;
	hspmd_slurm_argv_add(&w, "salloc");
	hspmd_slurm_argv_add(&w, "--no-shell");
	hspmd_slurm_argv_add(&w, "--dependency=expand:%u", job->id);
	hspmd_slurm_argv_add(&w, "--immediate=%d", patience_s);
	hspmd_slurm_argv_add(&w, "--job-name=grow-%u", job->id);
	hspmd_slurm_same_resources(&w, job, count, NULL);
	/* salloc itself ends in time; the rest is for a slurmctld that does not answer. */
	int status = hspmd_slurm_run_command(&w, patience_s + 10, said, sizeof said, err);
	if (status >= 0 && !(helper = granted(said)))
		hspmd_fail(err, "no %d more nodes like those of job %u at once: salloc: %s", count, job->id, hspmd_slurm_error_line(said));
	hspmd_slurm_argv_clear(&w);
	return helper;
}

/* Moves all nodes of the helper into the job. */
static int move_nodes(uint32_t helper, uint32_t job, struct hspmd_error *err)
{
	job_desc_msg_t change;
	slurm_init_job_desc_msg(&change);
	change.min_nodes = 0;
	if (hspmd_slurm_update(&change, helper, "giving its nodes up", err))
		return -1;
	slurm_init_job_desc_msg(&change);
	change.min_nodes = INFINITE;
	return hspmd_slurm_update(&change, job, "taking the nodes", err);
}

int hspmd_slurm_job_grow(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err)
{
	int allowed = hspmd_slurm_scheduler_has("permit_job_expansion", err);
	if (allowed < 0)
		return -1;
	if (!allowed)
		return hspmd_fail(err, "job %u cannot grow in place: SchedulerParameters of this site has no permit_job_expansion",
		                  job->id);
	if (job->holds_gres)
		return hspmd_fail(err, "job %u cannot grow in place: Slurm refuses that for jobs that hold GRES", job->id);
	/* A helper that does not get its nodes at once may wait long even when they are idle, so a new one is submitted. But slurmctld may
	 * start jobs only in rounds, some seconds apart: a helper must live long enough to meet one, and helpers of equal lifetime could
	 * miss all. */
	double deadline = hspmd_now() + wait_s, patience_s = IMMEDIATE_S, left_s;
	uint32_t helper;
	while (!(helper = allocate_helper(job, count, (int)patience_s, err))) {
		if ((left_s = deadline - hspmd_now()) <= 0)
			return -1;
		patience_s = fmax(fmin(ceil(patience_s * LONGER), left_s), IMMEDIATE_S);
	}
	if (!move_nodes(helper, job->id, err))
		return 0;
	if (slurm_kill_job(helper, SIGKILL, 0))
		hspmd_debug("helper job %u ended by itself", helper);
	return -1;
}
