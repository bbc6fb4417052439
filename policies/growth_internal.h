/* SPDX-License-Identifier: Apache-2.0 */
/* The problem of step 3 of the engine (decide.h): pools of idle nodes, jobs that may grow, and how many nodes each job takes from each
 * pool. */
#ifndef HSPMD_POLICIES_GROWTH_INTERNAL_H
#define HSPMD_POLICIES_GROWTH_INTERNAL_H

#include "policies/decision_state_internal.h"
#include "policies/job_heap.h"

/* Idle nodes that no job can tell apart: same class, same time idle (in steps of the rules' after_idle_s), reserved for the same job. */
struct idle_pool {
	int class;
	double idle_s;
	uint32_t reserved_for;
	int left, count;
	int *nodes; /* in growth.nodes */
};

struct growth {
	struct decision_state *k;
	int pool_count;
	struct idle_pool *pools;
	int *nodes;
	int step_count;
	double *steps; /* the different after_idle_s of the jobs */
	int job_count;
	int *jobs;    /* jobs that may grow: indexes into decision_state.jobs */
	int *take;    /* [job * pool_count + pool] */
	double *best; /* per job: greatest gain by one node now, or an earlier one, which is no less; NAN: to be computed again */
	int *best_pool;
	struct job_heap heap;      /* jobs that may still gain, the greatest gain first (NAN: greater than any); of equals the first job */
	bool *closed;              /* [job * pool_count + pool]: no path leads to a node of it */
	int *from_pool, *from_job; /* per pool: the step by which a path reached it */
};

int growth_open(struct growth *f, struct decision_state *k);
void growth_close(struct growth *f);
void growth_reset(struct growth *f); /* no job takes any node */

struct decision_job *growth_job(const struct growth *f, int job);
int *growth_take(const struct growth *f, int job, int pool);
/* The job's greatest gain is not known any more, and may be any. */
void growth_look_again(struct growth *f, int job);
/* Moves n nodes from a pool to a job, or back if n < 0. */
void growth_move(struct growth *f, int job, int pool, int n);
/* Returns true if the job may take a node of the pool, as far as age, reservation, limits and reserve go; the pool may be empty. `instead`:
 * a pool to which the job returns a node in exchange, or -1. */
bool growth_fits(const struct growth *f, int job, int pool, int instead);
/* Returns the change of the job's value by n more nodes of the pool. */
double growth_change(const struct growth *f, int job, int pool, int n);

/* Assigns nodes: greedily by gain with augmenting paths, then by moves and swaps. */
void growth_assign(struct growth *f);

#endif
