/* SPDX-License-Identifier: Apache-2.0 */
/* Growing a running job in place: a helper allocation of the same shape that depends on it ("expand:ID") and has no step, whose nodes are
 * then moved over: the helper is updated to no nodes, the job to all it can have. Works only where SchedulerParameters has
 * permit_job_expansion and neither job holds GRES. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/slurm/job.h"
#include "controller/slurm/command.h"
#include "controller/slurm/libslurm_internal.h"

/* That helpers wait for their nodes: the first, and how much longer each one after it. */
#define IMMEDIATE_S 2
#define LONGER 1.5

/* The helper's number from salloc's "Granted job allocation N". 0: none. */
static uint32_t granted(const char *text)
{
	const char *at = strstr(text, "Granted job allocation ");
	return at ? (uint32_t)strtoul(at + 23, NULL, 10) : 0;
}

/* 0: not within patience_s. */
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
	hspmd_slurm_same_resources(&w, job, count);
	/* salloc keeps the time itself; what is added is for a slurmctld that does not answer. */
	int status = hspmd_slurm_run_command(&w, patience_s + 10, said, sizeof said, err);
	if (status >= 0 && !(helper = granted(said)))
		hspmd_fail(err, "no %d more nodes like those of job %u at once: salloc: %s", count, job->id, hspmd_slurm_error_line(said));
	hspmd_slurm_argv_clear(&w);
	return helper;
}

/* Move all nodes of the helper into the job. */
static int hand_over(uint32_t helper, uint32_t job, struct hspmd_error *err)
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
	/* Slurm lets one that did not get its nodes at once wait for long even when they are idle: it is asked anew. But where slurmctld
	 * starts jobs in rounds, every so many seconds, a helper must live to see one, and if all lived equally long they could miss all
	 * rounds. */
	double deadline = hspmd_now() + wait_s, patience_s = IMMEDIATE_S, left_s;
	uint32_t helper;
	while (!(helper = allocate_helper(job, count, (int)patience_s, err))) {
		if ((left_s = deadline - hspmd_now()) <= 0)
			return -1;
		patience_s = fmax(fmin(ceil(patience_s * LONGER), left_s), IMMEDIATE_S);
	}
	if (!hand_over(helper, job->id, err))
		return 0;
	if (slurm_kill_job(helper, SIGKILL, 0))
		hspmd_debug("helper job %u ended by itself", helper);
	return -1;
}
