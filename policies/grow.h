/* SPDX-License-Identifier: Apache-2.0 */
/* The problem of step 3 in the engine: pools of idle nodes, jobs that may grow, who takes how many from where. Private to policies/. */
#ifndef HSPMD_POLICIES_GROW_H
#define HSPMD_POLICIES_GROW_H

#include "policies/desk.h"

/* Idle nodes that are alike to every job: class, how long idle (in steps of the rules' after_idle_s), kept for whom. */
struct pool {
	int class;
	double idle_s;
	uint32_t kept_for;
	int left, count;
	int *nodes; /* in field.nodes */
};

struct field {
	struct desk *k;
	int pool_count;
	struct pool *pools;
	int *nodes;
	int job_count;
	int *jobs;      /* those that may grow: indexes into desk.jobs */
	int *take;      /* [job * pool_count + pool] */
	double *best;   /* per job: its greatest gain now, NAN: to be found again */
	int *best_pool;
	bool *closed;   /* [job * pool_count + pool]: no path leads to a node of it */
	int *from_pool, *from_job; /* per pool: the step by which a path reached it */
};

int field_open(struct field *f, struct desk *k);
void field_close(struct field *f);
void field_reset(struct field *f); /* nobody takes anything */

struct desk_job *field_job(const struct field *f, int job);
int *field_take(const struct field *f, int job, int pool);
/* Move n nodes of a pool to (n > 0) or from a job. */
void field_move(struct field *f, int job, int pool, int n);
/* May this job have a node of this pool (as to age, keeping, limits, reserve), room in the pool apart? `instead` is a pool of which it
 * gives one up for it, or -1. */
bool field_fits(const struct field *f, int job, int pool, int instead);
/* What one more (n = 1) or one fewer (n = -1) node of the pool changes for the job. */
double field_change(const struct field *f, int job, int pool, int n);

/* Greedy by gain with augmenting paths, then moves and swaps. */
void field_assign(struct field *f);

#endif
