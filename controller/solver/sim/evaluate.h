/* SPDX-License-Identifier: Apache-2.0 */
/* Details of a plan's step, for hspmd_evaluate, the trace and the explanation. Private to the solver. */
#ifndef HSPMD_SIM_EVALUATE_H
#define HSPMD_SIM_EVALUATE_H

#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/pipeline_memo.h"
#include "controller/solver/sim/simulate.h"
#include "controller/solver/sim/solve_report.h"

struct hspmd_stage_timing {
	struct hspmd_stage_cost cost;
	double send_forward, send_backward; /* per micro-batch, including contention */
	double end;                         /* end of the last backward pass */
	double sync_start, sync_end;        /* synchronisation of its gradients */
};

struct hspmd_timing {
	double step_s;
	double compute_end; /* end of the last backward pass of all stages */
	double sync_end;    /* when all gradients are synchronised */
	double optimizer_s;
	int worst_pipeline, worst_stage; /* the pipeline that ends last, and its busiest stage (in the first chunk) */
	int stage_total;
	int *first_stage; /* per pipeline: index of its first stage in stages */
	struct hspmd_stage_timing *stages;
};

/* A stage's timing as input of the simulator. */
struct hspmd_sim_stage hspmd_sim_stage_of(const struct hspmd_stage_timing *t);

/* Compute the timing of a plan. Returns 0, and the caller clears *t; or -1 with err. */
int hspmd_timing_compute(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err);
void hspmd_timing_clear(struct hspmd_timing *t);
/* The same of one of many plans. known: pipelines that were simulated before; only what decides whether the step is shorter than limit_s is
 * computed. Returns 1, and *t is empty, if it is not. */
int hspmd_timing_compute_below(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_pipeline_memo *known, double limit_s,
                               struct hspmd_timing *t, struct hspmd_error *err);
/* The same in two parts: the passes, up to compute_end and optimizer_s; and the rest, from the former. Return 0, or -1 with err and *t
 * empty. */
int hspmd_timing_passes(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_pipeline_memo *known, struct hspmd_timing *t,
                        struct hspmd_error *err);
int hspmd_timing_end(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err);

/* The sum, per micro-batch, of the timing of stage s of the first chunk and of the stages on the same devices in the other chunks. */
struct hspmd_stage_timing hspmd_timing_all_chunks(const struct hspmd_plan *p, const struct hspmd_timing *t, int pipeline, int s);

/* Simulate one pipeline under the plan's schedule. Returns 0, or -1 if memory runs out. */
int hspmd_simulate_pipeline(const struct hspmd_plan *p, int pipeline, const struct hspmd_sim_stage *stages,
                            struct hspmd_pipeline_sim *result);

/* part_exchange.c: add to the stages' passes what they exchange in them. Under ZeRO-2 and 3 the pipelines exchange parts in every pass of a
 * layer, so each pass takes as long as the slowest of them. Returns 0, or -1 with err. */
int hspmd_time_parts(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err);

/* gradient_sync.c: fill sync_start and sync_end of every stage from `end`. Returns 0, or -1 with err. */
int hspmd_time_gradient_sync(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err);

/* plan_memory.c: bytes that device `which` of a stage (interleaved: of the first chunk) needs under this plan. Returns INFINITY if memory
 * runs out. */
double hspmd_plan_memory(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which);
/* Bytes that it has in the host's memory. INFINITY if memory runs out. */
struct hspmd_host_bytes {
	double optimizer, activations;
};
struct hspmd_host_bytes hspmd_plan_host_bytes(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which);
/* Their sum, with what checkpoints and changes need besides of the optimizer's state (HSPMD_HOST_COPIES). */
double hspmd_plan_host_memory(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which);
/* Fill p->predicted; shortages go into report (may be NULL). Returns 0, or -1 with err. */
int hspmd_predict(struct hspmd_costs *c, struct hspmd_plan *p, struct hspmd_solve_report *report, struct hspmd_error *err);

/* Gives the prediction room for this many devices, all zero. Returns 0, or -1 with err if memory runs out. */
int hspmd_predicted_resize(struct hspmd_predicted *p, int devices, struct hspmd_error *err);

#endif
