/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one search, shared by its parts. Private to the solver.
 *
 * library.c   rows of units with their best split: the columns that plans are made of
 * assemble.c  columns that fill the cluster: drafts
 * pool.c      drafts placed and timed by the simulator; the best plans so far
 * refine.c    single changes to the best plans, timed by the simulator, until none helps
 * rounds.c    the best plans interleaved
 * reshape.c   larger changes, for few devices: spare devices joined, pipelines left out, mixed stages, micro-batches of a pipeline's own
 * holders.c   on which nodes of a kind it lies, so that those that go at once do not hold all of anything
 * near.c      which of two plans lies nearer to the one that runs now
 */
#ifndef HSPMD_CONTROLLER_SOLVER_SEARCH_H
#define HSPMD_CONTROLLER_SOLVER_SEARCH_H

#include <stdint.h>

#include "controller/solver/draft.h"
#include "controller/solver/evaluate.h"
#include "controller/solver/near.h"

/* A row of units that can hold the model, split as well as can be. */
struct hspmd_column {
	struct hspmd_shape shape;
	int use[HSPMD_KINDS_MAX]; /* devices of each kind */
	double rates;             /* sum of its units' bounds */
	struct hspmd_copies copies; /* that it was made for */
};

struct hspmd_library {
	int count, capacity;
	struct hspmd_column *columns;
	bool complete; /* every row was tried, none of them for a certain number of pipelines */
	bool tight;    /* memory stood in the way somewhere */
};

#define HSPMD_FAVOURITES 512

#define HSPMD_POOL_BEST 24 /* plans that are kept and refined */
#define HSPMD_POOL_MAX 96  /* that are kept where one that is near the present plan is wanted */

struct hspmd_pool {
	int count, most;
	struct {
		struct hspmd_plan *plan;
		double objective;
	} best[HSPMD_POOL_MAX]; /* ascending */
};

struct hspmd_search {
	struct hspmd_costs *costs;
	const struct hspmd_solve_request *request;
	struct hspmd_execution exec;
	struct hspmd_kinds *kinds;
	int available[HSPMD_KINDS_MAX]; /* devices of each kind that may be used */
	struct hspmd_pool pool;
	struct hspmd_near *near;  /* NULL: no present plan */
	struct hspmd_plan *start; /* the present plan as far as it can go on; NULL: there is none */
	double best_s; /* the fastest step of a plan that fits; INFINITY before the first */
	int favourite_count; /* rows that did well with another micro-batch, and which that was */
	int favourite_micro_batch;
	bool favourite_zero;
	struct {
		struct hspmd_row row;
		int pipelines;
	} *favourites;
	double deadline; /* 0: none */
	bool timed_out;
	int64_t evaluated;
};

/* True, once, from the moment when time is up and there is a plan. */
bool hspmd_search_is_over(struct hspmd_search *s);

/* library.c: all columns worth trying for one micro-batch, on the assumption of `pipelines` copies. 0 or -1 (memory). */
int hspmd_library_fill(struct hspmd_search *s, struct hspmd_tables *t, int pipelines, bool zero, struct hspmd_library *out);
/* Will all rows be tried, as there are few? */
bool hspmd_library_is_complete(struct hspmd_search *s, struct hspmd_tables *t);
void hspmd_library_clear(struct hspmd_library *l);

/* assemble.c: make drafts of at most `pipelines` columns, time the most promising. 0 or -1 (memory). */
int hspmd_assemble(struct hspmd_search *s, struct hspmd_tables *t, const struct hspmd_library *l, int pipelines, bool zero);

/* pool.c: place a draft in every way, time it and keep it if it is good and fits. 0 or -1 (memory). */
int hspmd_pool_try(struct hspmd_search *s, const struct hspmd_tables *t, struct hspmd_draft *d, bool zero);
/* Time a plan (which the pool then owns) and keep it if it is good and fits. *seconds (may be NULL): its step, INFINITY when it does not fit. */
int hspmd_pool_offer(struct hspmd_search *s, struct hspmd_plan *plan, double *seconds);
/* Time a plan that stays the caller's. Its objective; INFINITY when it does not fit or cannot be timed. *seconds (may be NULL): its step. */
double hspmd_pool_time(struct hspmd_search *s, const struct hspmd_plan *plan, double *seconds);
/* Does every device hold what the plan puts on it? Of one stage; of all. */
bool hspmd_stage_fits(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage);
bool hspmd_plan_fits(const struct hspmd_costs *c, const struct hspmd_plan *p);
/* What is minimised: the step's seconds, weighed with its price. */
double hspmd_objective(const struct hspmd_search *s, const struct hspmd_plan *p, double step_s);
double hspmd_plan_price(const struct hspmd_cluster *c, const struct hspmd_plan *p); /* of the nodes it uses, an hour; 0: not known */
void hspmd_pool_clear(struct hspmd_pool *p);

/* improve.c: refine the pool's best plans and the one the search started from, then reshape and interleave. 0 or -1 (memory). */
int hspmd_refine(struct hspmd_search *s);
/* refine.c: refine a plan, which the pool then owns, while *budget (stages timed) lasts. 0 or -1 (memory). */
int hspmd_refine_plan(struct hspmd_search *s, struct hspmd_plan *p, long *budget);
/* The same layers, on devices of the same kinds, in the same micro-batches? */
bool hspmd_pipelines_alike(const struct hspmd_search *s, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b);
/* rounds.c: interleave the best plans and refine what comes near the best. 0 or -1 (memory). */
int hspmd_interleave(struct hspmd_search *s);
/* reshape.c: make larger changes to the best plans and refine what comes of it. 0 or -1 (memory). */
int hspmd_reshape(struct hspmd_search *s);

#endif
