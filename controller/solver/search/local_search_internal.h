/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a local search (local_search.c). Private to the search. */
#ifndef HSPMD_SEARCH_LOCAL_SEARCH_INTERNAL_H
#define HSPMD_SEARCH_LOCAL_SEARCH_INTERNAL_H

#include "controller/solver/search/search_internal.h"

/* Where a thread tries changes: a copy of the plan that is refined, but devices and ratios are those of that plan. */
struct trial {
	struct hspmd_plan plan;
	struct hspmd_pipeline *pipelines;
	struct hspmd_stage *stages;
	double *ends;
	long version; /* of the plan that this is a copy of; 0: none */
};

enum change_kind { MOVE_BORDER, MOVE_MICRO_BATCH, SWAP_STAGES };

struct change {
	enum change_kind what;
	int pipeline, stage;
	int by;   /* a boundary: so many layers, */
	bool all; /* ... in all equal pipelines */
	int to;   /* a micro-batch: the other pipeline */
};

struct local_search {
	struct hspmd_search *s;
	struct hspmd_plan *p;
	double seconds;
	int *group;               /* per pipeline: the first pipeline equal to it */
	double *ends;             /* per pipeline: end of its last backward pass */
	struct hspmd_stage *ways; /* per stage of all pipelines: how it keeps what passes save, before the change */
	int threads;
	struct trial *trials; /* one per thread */
	long version;         /* another one if the plan may have changed */
	struct change begun;  /* the last one tried */
	long budget;
	bool offload; /* some device could */
};

/* local_plan.c: find the pipelines that are equal. */
void hspmd_local_find_groups(struct local_search *r);
/* Seconds of a step of the plan as it is now, which fits; INFINITY if the step is not shorter than `below`. */
double hspmd_local_time_fitting(struct local_search *r, double below);
/* The same; INFINITY also if it does not fit. */
double hspmd_local_time_below(struct local_search *r, double below);
bool hspmd_local_better(const struct local_search *r, double seconds);
bool hspmd_local_go_on(struct local_search *r);
/* Pipeline i is equal to k and runs as many micro-batches, so its stages fit in the same ways. */
bool hspmd_local_fits_as(const struct local_search *r, int i, int k);

/* local_changes.c: try all changes of a kind and make those that help. Return true if one did. */
bool hspmd_local_try_borders(struct local_search *r);
bool hspmd_local_try_micro_batches(struct local_search *r);
bool hspmd_local_try_swaps(struct local_search *r);

#endif
