/* SPDX-License-Identifier: Apache-2.0 */
/* The problem of step 3 in the engine: pools of idle nodes, jobs that may grow, who takes how many from where. Private to policies/. */
#ifndef HSPMD_POLICIES_GROWTH_INTERNAL_H
#define HSPMD_POLICIES_GROWTH_INTERNAL_H

#include "policies/decision_state_internal.h"

/* Idle nodes that are alike to every job: class, how long idle (in steps of the rules' after_idle_s), kept for whom. */
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
	int job_count;
	int *jobs;    /* those that may grow: indexes into decision_state.jobs */
	int *take;    /* [job * pool_count + pool] */
	double *best; /* per job: its greatest gain now, NAN: to be found again */
	int *best_pool;
	bool *closed;              /* [job * pool_count + pool]: no path leads to a node of it */
	int *from_pool, *from_job; /* per pool: the step by which a path reached it */
};

int growth_open(struct growth *f, struct decision_state *k);
void growth_close(struct growth *f);
void growth_reset(struct growth *f); /* nobody takes anything */

struct decision_job *growth_job(const struct growth *f, int job);
int *growth_take(const struct growth *f, int job, int pool);
/* Move n nodes of a pool to (n > 0) or from a job. */
void growth_move(struct growth *f, int job, int pool, int n);
/* May this job have a node of this pool (as to age, keeping, limits, reserve), room in the pool apart? `instead` is a pool of which it
 * gives one up for it, or -1. */
bool growth_fits(const struct growth *f, int job, int pool, int instead);
/* What one more (n = 1) or one fewer (n = -1) node of the pool changes for the job. */
double growth_change(const struct growth *f, int job, int pool, int n);

/* Greedy by gain with augmenting paths, then moves and swaps. */
void growth_assign(struct growth *f);

#endif
