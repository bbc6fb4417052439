/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "controller/run/allocation.h"
#include "controller/slurm/job.h"

#define GROW_WAIT_S 60.0 /* for idle nodes */

struct slurm {
	struct run_allocation base;
	uint32_t job;
	bool pmix, first;
	double interval;
};

static json_t *look(struct run_allocation *a, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(s->job, err);
	if (!j)
		return NULL;
	json_t *nodes = json_array(), *end = j->end ? json_real(difftime(j->end, time(NULL))) : json_null(), *v = NULL;
	bool whole = nodes && end;
	/* The batch host first: it is the one that stays. */
	for (int round = 0; whole && round < 2; round++)
		for (int i = 0; i < j->node_count; i++)
			if (!strcmp(j->nodes[i], j->batch_host) == !round && json_array_append_new(nodes, json_string(j->nodes[i])))
				whole = false;
	const char *state = j->preempted ? "preempted" : j->state == HSPMD_SLURM_ENDING ? "ending" : "running";
	if (whole)
		v = json_pack("{s:O, s:s, s:O}", "nodes", nodes, "state", state, "end_in_s", end);
	if (!v)
		hspmd_fail_memory(err, "looking at the job");
	json_decref(nodes);
	json_decref(end);
	hspmd_slurm_job_destroy(j);
	return v;
}

static char **start(struct run_allocation *a, char *const *nodes, int count, const char *const *command, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	/* Only the first step is started as a whole; nodes that come later tell the controller alone what they have. */
	struct hspmd_slurm_step step = { .job = s->job, .nodes = nodes, .node_count = count, .pmix = s->pmix && s->first, .command = command };
	s->first = false;
	return hspmd_slurm_step_command(&step, err);
}

static int grow(struct run_allocation *a, int count, struct hspmd_error *err)
{
	struct slurm *s = (struct slurm *)a;
	struct hspmd_slurm_job *j = hspmd_slurm_job_load(s->job, err);
	int rc = j ? hspmd_slurm_job_grow(j, count, GROW_WAIT_S, err) : -1;
	hspmd_slurm_job_destroy(j);
	return rc;
}

static int shrink(struct run_allocation *a, char *const *keep, int count, struct hspmd_error *err)
{
	return hspmd_slurm_job_shrink(((struct slurm *)a)->job, keep, count, err);
}

static double interval(struct run_allocation *a)
{
	return ((struct slurm *)a)->interval;
}

static void destroy(struct run_allocation *a)
{
	free(a);
}

struct run_allocation *run_allocation_slurm(uint32_t job, bool pmix, struct hspmd_error *err)
{
	static const struct run_allocation_ops ops = { look, start, grow, shrink, interval, destroy };
	struct slurm *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "looking at the job");
		return NULL;
	}
	*s = (struct slurm){ .base = { .ops = &ops, .resizable = true }, .job = job, .pmix = pmix, .first = true, .interval = hspmd_slurm_poll_interval() };
	return &s->base;
}
