/* SPDX-License-Identifier: Apache-2.0 */
/* Simulation of one pipeline's step, event by event: 1F1B (PipeDream-flush, arXiv 2006.09503; Megatron-LM, 2104.04473), GPipe
 * (1811.06965) or ZB-H1 (2401.10241). Times are in seconds. */
#ifndef HSPMD_SIM_SIMULATE_H
#define HSPMD_SIM_SIMULATE_H

#include <stdbool.h>

#include "common/format/plan.h"

struct hspmd_sim_stage {
	double forward, backward;           /* seconds of one micro-batch */
	double weight_grads;                /* the part of `backward` that no other stage waits for; only zb-h1 defers it */
	double send_forward, send_backward; /* seconds to send its activation to the next stage, and its gradient to the previous stage */
};

enum hspmd_sim_kind { HSPMD_SIM_FORWARD, HSPMD_SIM_BACKWARD, HSPMD_SIM_SEND_FORWARD, HSPMD_SIM_SEND_BACKWARD, HSPMD_SIM_WEIGHT_GRADS };

/* A simulated operation. A transfer is listed once, at the sender. */
struct hspmd_sim_op {
	enum hspmd_sim_kind kind;
	int stage, micro_batch;
	double start, end;
};

struct hspmd_pipeline_sim {
	int stride; /* from the caller: micro-batch m has stages[m * stride], so that micro-batches may differ; 0: all are alike */
	double end;               /* end of the last operation */
	double *stage_end;        /* array of the caller, one element per stage, or NULL: end of each stage's last backward pass */
	struct hspmd_sim_op *ops; /* array of the caller with hspmd_sim_op_count() elements, or NULL */
};

int hspmd_sim_op_count(int stages, int micro_batches, enum hspmd_schedule schedule);

/* Simulate a pipeline of `count` stages. Returns 0, or -1 if memory runs out. */
int hspmd_simulate(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule,
                   struct hspmd_pipeline_sim *result);

/* simulate_interleaved.c: the stages form `chunks` chunks of equal length, and stage k of every chunk runs on the same devices. Returns
 * 0, or -1 if memory runs out. */
int hspmd_simulate_interleaved(const struct hspmd_sim_stage *stages, int count, int chunks, int micro_batches,
                               struct hspmd_pipeline_sim *result);

/* Seconds of a stage's backward pass that compute weight gradients. They are as many products as the forward pass has; a backward pass
 * takes twice the forward pass, and more if it recomputes. */
static inline double hspmd_sim_weight_grads(double forward, double backward)
{
	return forward < backward / 2 ? forward : backward / 2;
}

/* Most micro-batches for which stage `stage` has deferred weight gradients at one time; 0 if the schedule does not defer them. */
int hspmd_deferred_weight_grads(int stage, int micro_batches, enum hspmd_schedule schedule);

/* Most micro-batches whose activations stage `stage` holds at one time. */
int hspmd_in_flight(int stage, int count, int micro_batches, enum hspmd_schedule schedule);

#endif
