/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one search, shared by its parts. Private to the solver.
 *
 * candidates.c   sequences of submeshes with their best split: the candidates that plans are made of
 * assemble.c  candidates that fill the cluster: drafts
 * best_plans.c      drafts placed and timed by the simulator; the best plans so far
 * local_search.c    single changes to the best plans, timed by the simulator, until none helps
 * interleaved_plans.c    the best plans interleaved
 * reshape.c   larger changes, for few devices: spare devices joined, pipelines left out, mixed stages, micro-batches of a pipeline's own
 * holders.c   on which nodes of a device class it lies, so that those that go at once do not hold all of anything
 * migration.c      which of two plans lies nearer to the one that runs now
 */
#ifndef HSPMD_SEARCH_SEARCH_INTERNAL_H
#define HSPMD_SEARCH_SEARCH_INTERNAL_H

#include <stdint.h>

#include "controller/solver/search/draft.h"
#include "controller/solver/sim/evaluate.h"
#include "controller/solver/search/migration.h"

/* A sequence of submeshes that can hold the model, split as well as can be. */
struct hspmd_pipeline_candidate {
	struct hspmd_pipeline_partition partition;
	int use[HSPMD_DEVICE_CLASSES_MAX]; /* devices of each device class */
	double rates;                      /* sum of its submeshes' bounds */
	struct hspmd_layer_copies copies;  /* that it was made for */
};

struct hspmd_candidates {
	int count, capacity;
	struct hspmd_pipeline_candidate *candidates;
	bool exhaustive;   /* every sequence was tried, none of them for a certain number of pipelines */
	bool memory_bound; /* memory stood in the way somewhere */
};

#define HSPMD_WARM_STARTS 512

#define HSPMD_BEST_PLANS 24     /* plans that are kept and refined */
#define HSPMD_BEST_PLANS_MAX 96 /* that are kept where one that is near the present plan is wanted */

struct hspmd_best_plans {
	int count, max_count;
	struct {
		struct hspmd_plan *plan;
		double objective;
	} list[HSPMD_BEST_PLANS_MAX]; /* ascending */
};

struct hspmd_search {
	struct hspmd_costs *costs;
	const struct hspmd_solve_request *request;
	struct hspmd_runtime_caps caps;
	struct hspmd_device_classes *device_classes;
	int available[HSPMD_DEVICE_CLASSES_MAX]; /* devices of each device class that may be used */
	struct hspmd_best_plans best_plans;
	struct hspmd_migration *migration; /* NULL: no present plan */
	struct hspmd_plan *start;          /* the present plan as far as it can go on; NULL: there is none */
	double best_s;                     /* the fastest step of a plan that fits; INFINITY before the first */
	int warm_start_count;              /* sequences that did well with another micro-batch, and which that was */
	int warm_start_micro_batch;
	bool warm_start_zero;
	struct {
		struct hspmd_stage_sequence sequence;
		int pipelines;
	} * warm_starts;
	double deadline; /* 0: none */
	bool timed_out;
	int64_t evaluated;
};

/* True, once, from the moment when time is up and there is a plan. */
bool hspmd_search_is_over(struct hspmd_search *s);

/* candidates.c: all candidates worth trying for one micro-batch, on the assumption of `pipelines` copies. 0 or -1 (memory). */
int hspmd_candidates_fill(struct hspmd_search *s, struct hspmd_submesh_tables *t, int pipelines, bool zero, struct hspmd_candidates *out);
/* Will all sequences be tried, as there are few? */
bool hspmd_candidates_are_exhaustive(struct hspmd_search *s, struct hspmd_submesh_tables *t);
void hspmd_candidates_clear(struct hspmd_candidates *l);

/* assemble.c: make drafts of at most `pipelines` candidates, time the most promising. 0 or -1 (memory). */
int hspmd_assemble(struct hspmd_search *s, struct hspmd_submesh_tables *t, const struct hspmd_candidates *l, int pipelines, bool zero);

/* best_plans.c: place a draft in every way, time it and keep it if it is good and fits. 0 or -1 (memory). */
int hspmd_best_plans_try(struct hspmd_search *s, const struct hspmd_submesh_tables *t, struct hspmd_draft *d, bool zero);
/* Time a plan (which the best plans then owns) and keep it if it is good and fits. *seconds (may be NULL): its step, INFINITY when it does
 * not fit. */
int hspmd_best_plans_offer(struct hspmd_search *s, struct hspmd_plan *plan, double *seconds);
/* Time a plan that stays the caller's. Its objective; INFINITY when it does not fit or cannot be timed. *seconds (may be NULL): its
 * step. */
double hspmd_best_plans_time(struct hspmd_search *s, const struct hspmd_plan *plan, double *seconds);
/* Does every device hold what the plan puts on it? Of one stage; of all. */
bool hspmd_stage_fits(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage);
bool hspmd_plan_fits(const struct hspmd_costs *c, const struct hspmd_plan *p);
/* What is minimised: the step's seconds, weighed with its price. */
double hspmd_objective(const struct hspmd_search *s, const struct hspmd_plan *p, double step_s);
double hspmd_plan_price(const struct hspmd_cluster *c, const struct hspmd_plan *p); /* of the nodes it uses, an hour; 0: not known */
void hspmd_best_plans_clear(struct hspmd_best_plans *p);

/* improve.c: refine the best plans's best plans and the one the search started from, then reshape and interleave. 0 or -1 (memory). */
int hspmd_improve_plans(struct hspmd_search *s);
/* local_search.c: refine a plan, which the best plans then owns, while *budget (stages timed) lasts. 0 or -1 (memory). */
int hspmd_local_search(struct hspmd_search *s, struct hspmd_plan *p, long *budget);
/* The same layers, on devices of the same device classes, in the same micro-batches? */
bool hspmd_pipelines_alike(const struct hspmd_search *s, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b);
/* interleaved_plans.c: interleave the best plans and refine what comes near the best. 0 or -1 (memory). */
int hspmd_interleave(struct hspmd_search *s);
/* reshape.c: make larger changes to the best plans and refine what comes of it. 0 or -1 (memory). */
int hspmd_reshape(struct hspmd_search *s);

#endif
