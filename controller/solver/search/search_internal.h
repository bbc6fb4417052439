/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one search, shared by the search's files. Private to the search.
 *
 * - search_plan.c: the request; which micro-batches and parts of the cluster are searched
 * - candidates.c: which sequences of submeshes a pipeline may be made of; candidate_sequences.c: those with their best partition are the
 *   candidates that plans are made of
 * - partition_memo.c: partitions that need not be searched again; partition_range.c: for which numbers of pipelines they hold
 * - assemble.c: drafts: candidates that together fill the cluster
 * - estimate.c: what a draft's pipelines take
 * - workers.c: threads that share the work
 * - best_plans.c: drafts placed on devices and timed by the simulator; the best plans so far
 * - saving_ways.c: how a stage keeps what its forward passes save
 * - improve.c: the second half of the search: local_search.c and beam_search.c, then reshape.c and interleaved_plans.c, applied to the best
 *   plans
 * - local_search.c: single changes to the best plans, timed by the simulator, until none helps; with local_changes.c and local_plan.c
 * - interleaved_plans.c: the best plans interleaved
 * - reshape.c: larger changes, for few devices: spare devices added, pipelines removed, stages of unequal devices, micro-batch sizes that
 *   differ between pipelines
 * - beam_search.c: drafts changed step by step, for many devices: stages of two widths in one class, pipelines that differ; with
 *   beam_drafts.c, beam_judge.c, beam_origins.c and beam_successors.c
 * - repair.c: instead of all this, the current plan repaired after a loss
 * - holders.c: placement among the nodes of a device class, so that nodes lost together do not hold all copies of anything
 * - migration.c: which of two plans moves less state from the current plan */
#ifndef HSPMD_SEARCH_SEARCH_INTERNAL_H
#define HSPMD_SEARCH_SEARCH_INTERNAL_H

#include <stdint.h>

#include "controller/solver/search/draft.h"
#include "controller/solver/search/migration.h"
#include "controller/solver/search/partition_memo.h"
#include "controller/solver/search/workers.h"
#include "controller/solver/sim/evaluate.h"

/* A sequence of submeshes that can hold the model, with the best partition found. */
struct hspmd_pipeline_candidate {
	struct hspmd_pipeline_partition partition;
	int use[HSPMD_DEVICE_CLASSES_MAX]; /* number of devices of each device class */
	double rates;                      /* sum of its submeshes' rates: an upper bound on its micro-batches per second */
	struct hspmd_layer_copies copies;  /* the copies that memory was computed for */
	bool remembered;                   /* the sequence is a warm start */
};

struct hspmd_candidates {
	int count, capacity;
	struct hspmd_pipeline_candidate *candidates;
	bool exhaustive;   /* every sequence was tried, and none of them was made for a certain number of pipelines */
	bool memory_bound; /* memory excluded or limited some partition */
};

#define HSPMD_WARM_STARTS 512 /* for one schedule */

/* A sequence that did well, and the number of pipelines that it was found for. */
struct hspmd_warm_start {
	struct hspmd_stage_sequence sequence;
	int pipelines;
};

#define HSPMD_BEGINNINGS 3

/* Sequences that beam searches begin with, under some schedules. */
struct hspmd_beginning {
	struct hspmd_warm_start *starts; /* owned by the search */
	int count;
	unsigned schedules; /* a bit for each */
};

#define HSPMD_MICRO_BATCH_MAX 128 /* most samples of a micro-batch */
#define HSPMD_PARTS_MAX (1 << 15) /* most micro-batches per step: each is simulated */

#define HSPMD_BEST_PLANS 24     /* number of plans that are kept and refined */
#define HSPMD_BEST_PLANS_MAX 96 /* number that is kept if there is a current plan, so that one near it is among them */

struct hspmd_best_plans {
	int count, max_count;
	struct {
		struct hspmd_plan *plan;
		double objective;
		bool refined;         /* by local search */
	} list[HSPMD_BEST_PLANS_MAX]; /* ascending by objective */
};

#define HSPMD_BEAM_GROUNDS 4
struct hspmd_beam_ground;

struct hspmd_search {
	struct hspmd_costs *costs;
	const struct hspmd_solve_request *request;
	struct hspmd_runtime_caps caps;
	struct hspmd_device_classes *device_classes;
	int available[HSPMD_DEVICE_CLASSES_MAX]; /* number of devices of each device class that may be used */
	struct hspmd_best_plans best_plans;
	struct hspmd_migration *migration; /* NULL: no current plan */
	struct hspmd_plan *start;          /* the current plan on the devices that are left; NULL: none */
	struct hspmd_pipeline_memo *known; /* pipelines that were simulated; of all threads */
	struct hspmd_search_workers *workers; /* NULL: they have not been needed yet */
	int thread;                           /* the number of the thread whose view of the search this is; 0 otherwise */
	double best_s;                     /* step time of the fastest plan that fits; INFINITY: none yet */
	int widest;                        /* most devices of a stage in even distributions (candidates.c) */
	int warm_start_count;              /* sequences that did well with another micro-batch; */
	int warm_start_any;                /* ... those for any schedule, the others for ZB-H1; and that micro-batch */
	int warm_start_micro_batch;
	bool warm_start_zero;
	struct hspmd_warm_start *warm_starts;
	bool few_sequences; /* even distributions look at a part of the sequences (candidates.c) */
	int beginning_count;
	struct hspmd_beginning beginnings[HSPMD_BEGINNINGS]; /* the first one is the first search's */
	int64_t judged; /* drafts that beam searches judged by the estimate: a measure of their work that does not depend on threads */
	int beam_ground_count;
	struct hspmd_beam_ground *beam_grounds[HSPMD_BEAM_GROUNDS]; /* those of the last beam searches, which later ones begin with */
	double deadline; /* monotonic seconds; 0: none */
	bool timed_out;
	bool memory_bound; /* memory excluded something that was tried */
	int64_t evaluated;
};

/* Returns true, and from then on always, after the time limit if there is a plan, or once the search is cancelled. */
bool hspmd_search_is_over(struct hspmd_search *s);
/* best_plans.c: some device that may be used has memory of its own and some of its host's, and the runtime can use that. */
bool hspmd_search_can_offload(const struct hspmd_search *s);
/* All devices of the stage can. */
bool hspmd_stage_can_offload(const struct hspmd_search *s, const struct hspmd_stage *stage);
/* Sets what a stage of the first chunk offloads, and the stages on the same devices in all other chunks. */
void hspmd_stage_set_offload(struct hspmd_plan *p, int pipeline, int stage, enum hspmd_offload offload);
/* Stages that fit without offload no longer do so. */
void hspmd_plan_offload_least(const struct hspmd_search *s, struct hspmd_plan *p);
/* saving_ways.c: chooses the fastest way to keep what forward passes save with which a stage, or all stages on its devices, fits. Returns
 * false if there is none. */
bool hspmd_stage_choose_way(struct hspmd_search *s, struct hspmd_plan *p, int pipeline, int stage, bool all_chunks);
/* A stage keeps what its forward passes save as another one does. */
void hspmd_stage_copy_way(const struct hspmd_stage *from, struct hspmd_stage *to);
/* sharded_plans.c: offers plans under ZeRO-2 and 3. Returns 0, or -1 if memory runs out. */
int hspmd_offer_sharded_plans(struct hspmd_search *s);

/* candidates.c: find all candidates worth trying for one micro-batch, assuming `pipelines` copies of each layer. memo (may be NULL): what
 * earlier calls found with the same tables and schedule, when no device had more memory; brought up to date. Returns 0, or -1 if memory
 * runs out. The caller clears *out. */
int hspmd_candidates_fill(struct hspmd_search *s, struct hspmd_submesh_tables *t, int pipelines, bool zero,
                          struct hspmd_partition_memo *memo, struct hspmd_candidates *out);
/* Returns true if all sequences will be tried, because there are few. */
bool hspmd_candidates_are_exhaustive(struct hspmd_search *s, struct hspmd_submesh_tables *t);
/* Their indexes, the most efficient first; the caller frees them. Returns NULL if memory runs out. */
int *hspmd_candidates_rank(const struct hspmd_candidates *l);
void hspmd_candidates_clear(struct hspmd_candidates *l);

/* assemble.c: make drafts of at most `pipelines` candidates and time the most promising ones. Returns 0, or -1 if memory runs out. */
int hspmd_assemble(struct hspmd_search *s, struct hspmd_submesh_tables *t, const struct hspmd_candidates *l, int pipelines, bool zero);

/* best_plans.c: place a draft in every way, time it, and keep it if it fits and is good enough. Returns 0, or -1 if memory runs out. */
int hspmd_best_plans_try(struct hspmd_search *s, const struct hspmd_submesh_tables *t, struct hspmd_draft *d, bool zero);
/* Time a plan, and keep it if it fits and is good enough; takes ownership of the plan. *seconds (may be NULL): its step time, INFINITY if
 * it does not fit. Returns 0, or -1 if memory runs out. */
int hspmd_best_plans_offer(struct hspmd_search *s, struct hspmd_plan *plan, double *seconds);
/* The same of a plan that local search cannot make better. */
int hspmd_best_plans_offer_refined(struct hspmd_search *s, struct hspmd_plan *plan);
/* Time a plan without taking ownership. Returns its objective; INFINITY if it does not fit or cannot be timed. *seconds (may be NULL):
 * its step time. */
double hspmd_best_plans_time(struct hspmd_search *s, const struct hspmd_plan *plan, double *seconds);
/* Divide the plan's micro-batches anew if its pipelines do not end together and a plan better than the best may come of it. *objective: as
 * of hspmd_best_plans_time; INFINITY also if the step surely is not shorter than `below`. Returns 0, or -1 if memory runs out. */
int hspmd_best_plans_level(struct hspmd_search *s, struct hspmd_plan *plan, double below, double *objective);
/* Returns true if the plan fits in the memory of every device of one stage, or of all stages. */
bool hspmd_stage_fits(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage);
bool hspmd_plan_fits(const struct hspmd_costs *c, const struct hspmd_plan *p);
/* The objective, which the search minimises: the step's seconds, weighted with its price. */
double hspmd_objective(const struct hspmd_search *s, const struct hspmd_plan *p, double step_s);
double hspmd_plan_price(const struct hspmd_cluster *c,
                        const struct hspmd_plan *p); /* price per hour of the nodes that the plan uses; 0: unknown */
void hspmd_best_plans_clear(struct hspmd_best_plans *p);

/* How much worse than the best a plan may be that is chosen because it moves less. */
#define HSPMD_NEAR_ENOUGH 1.02

/* search_plan.c: search on the whole cluster, or part by part if there are limits, in the request's precision and with one set of facts.
 * Otherwise as hspmd_search_plan. */
struct hspmd_plan *hspmd_search_whole(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                      const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                      struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err);
/* A plan's objective by its prediction, to compare it with plans of other searches. */
double hspmd_objective_of(const struct hspmd_solve_request *r, const struct hspmd_cluster *c, const struct hspmd_plan *p);

/* repair.c: offer what can be made of the current plan. Returns 0, or -1 if memory runs out. */
int hspmd_repair(struct hspmd_search *s);
/* improve.c: refine the best plans and the plan that the search started from, and search from them by larger steps if there are many
 * stages. Returns 0, or -1 if memory runs out. */
int hspmd_refine_plans(struct hspmd_search *s);
/* For many devices, if that has not been much work, search by larger steps from each further beginning again. As above. */
int hspmd_begin_again(struct hspmd_search *s);
/* Reshape and interleave the best plans. As above. */
int hspmd_reshape_plans(struct hspmd_search *s);
/* local_search.c: refine a plan until *budget (number of stages timed) is used up, then offer it to the best plans; takes ownership of
 * the plan. Returns 0, or -1 if memory runs out. */
int hspmd_local_search(struct hspmd_search *s, struct hspmd_plan *p, long *budget);
int hspmd_stage_count(const struct hspmd_plan *p); /* of all pipelines */
/* Returns true if both pipelines have the same layers on devices of the same device classes, and the same micro-batches. */
bool hspmd_pipelines_alike(const struct hspmd_search *s, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b);
/* interleaved_plans.c: interleave the best plans, and refine those that come near the best plan. Returns 0, or -1 if memory runs out. */
int hspmd_interleave(struct hspmd_search *s);
#define HSPMD_RESHAPED_STAGES 24 /* most stages of a plan that is reshaped */
/* beam_search.c: change pipelines and stages of drafts from these beginnings and of the best plans, for many stages, and refine the
 * results. Returns 0, or -1 if memory runs out. */
int hspmd_beam_search(struct hspmd_search *s, const struct hspmd_beginning *from, int count);
void hspmd_beam_grounds_clear(struct hspmd_search *s);
/* reshape.c: make larger changes to the best plans, and refine the results. Returns 0, or -1 if memory runs out. */
int hspmd_reshape(struct hspmd_search *s);

#endif
