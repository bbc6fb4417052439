/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's step in detail: what hspmd_evaluate, the trace and the explanation read. Private to the solver. */
#ifndef HSPMD_SIM_EVALUATE_H
#define HSPMD_SIM_EVALUATE_H

#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/simulate.h"
#include "controller/solver/solver.h"

struct hspmd_stage_timing {
	struct hspmd_stage_cost cost;
	double send_forward, send_backward; /* one micro-batch, contention included */
	double end;                         /* of the last backward pass */
	double sync_start, sync_end;        /* of its gradients */
};

struct hspmd_timing {
	double step_s;
	double compute_end; /* the last backward pass anywhere */
	double sync_end;    /* the last gradient everywhere */
	double optimizer_s;
	int worst_pipeline, worst_stage; /* the pipeline that ends last, its busiest stage (of the first chunk) */
	int stage_total;
	int *first_stage; /* per pipeline: index of its first stage in stages */
	struct hspmd_stage_timing *stages;
};

/* What the simulation wants to know of a stage. */
struct hspmd_sim_stage hspmd_sim_stage_of(const struct hspmd_stage_timing *t);

/* 0 or -1. The caller clears it. */
int hspmd_timing_compute(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err);
void hspmd_timing_clear(struct hspmd_timing *t);

/* The timing of stage s of the first chunk and of those on the same devices in the others: sums, of a micro-batch. */
struct hspmd_stage_timing hspmd_timing_all_chunks(const struct hspmd_plan *p, const struct hspmd_timing *t, int pipeline, int s);

/* One pipeline under the plan's schedule. 0, or -1 when memory is short. */
int hspmd_simulate_pipeline(const struct hspmd_plan *p, int pipeline, const struct hspmd_sim_stage *stages,
                            struct hspmd_pipeline_sim *result);

/* gradient_sync.c: fill sync_start and sync_end of every stage from `end`. 0 or -1. */
int hspmd_time_gradient_sync(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err);

/* Bytes device `which` of a stage (interleaved: of the first chunk) needs under this plan. INFINITY when memory is short here. */
double hspmd_plan_memory(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage, int which);
/* Fill p->predicted; shortages go into report (may be NULL). 0 or -1. */
int hspmd_predict(struct hspmd_costs *c, struct hspmd_plan *p, struct hspmd_solve_report *report, struct hspmd_error *err);
/* report.c */
int hspmd_report_shortage(struct hspmd_solve_report *r, int device, int pipeline, int stage, double need, double have,
                          struct hspmd_error *err);
void hspmd_report_take_warnings(struct hspmd_solve_report *r, struct hspmd_costs *c); /* moves them */

/* What goes into a report, as far as there is memory for it. */
void hspmd_report_warn(struct hspmd_solve_report *r, const char *text);
/* The plan computes in another precision than the one asked for. */
void hspmd_report_precision(struct hspmd_solve_report *r, const struct hspmd_cluster *c, const struct hspmd_plan *p,
                            enum hspmd_precision asked);

#endif
