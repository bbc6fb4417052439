/* SPDX-License-Identifier: Apache-2.0 */
/* One pipeline's step, event by event: 1F1B (PipeDream-flush, arXiv 2006.09503; Megatron-LM, 2104.04473), GPipe (1811.06965) or ZB-H1
 * (2401.10241). */
#ifndef HSPMD_SIM_SIMULATE_H
#define HSPMD_SIM_SIMULATE_H

#include <stdbool.h>

#include "common/format/plan.h"

struct hspmd_sim_stage {
	double forward, backward;           /* seconds of one micro-batch */
	double weight_grads;                /* of `backward`: what no other stage waits for; only zb-h1 puts it off */
	double send_forward, send_backward; /* seconds of its activation to the next stage, of its gradient to the one before */
};

enum hspmd_sim_kind { HSPMD_SIM_FORWARD, HSPMD_SIM_BACKWARD, HSPMD_SIM_SEND_FORWARD, HSPMD_SIM_SEND_BACKWARD, HSPMD_SIM_WEIGHT_GRADS };

/* An operation as it was simulated. Transfers are listed once, at the sender. */
struct hspmd_sim_op {
	enum hspmd_sim_kind kind;
	int stage, micro_batch;
	double start, end;
};

struct hspmd_pipeline_sim {
	double end;               /* of the last operation */
	double *stage_end;        /* caller's array of one per stage, or NULL: when each stage has done its last backward pass */
	struct hspmd_sim_op *ops; /* caller's array of hspmd_sim_op_count() elements, or NULL */
};

int hspmd_sim_op_count(int stages, int micro_batches, enum hspmd_schedule schedule);

/* 0, or -1 when memory is short. */
int hspmd_simulate(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule,
                   struct hspmd_pipeline_sim *result);

/* simulate_interleaved.c: the stages come in `chunks` of equal length, and stage k of every chunk runs on the same devices. 0, or -1 when
 * memory is short. */
int hspmd_simulate_interleaved(const struct hspmd_sim_stage *stages, int count, int chunks, int micro_batches,
                               struct hspmd_pipeline_sim *result);

/* Of a stage's backward pass what gradients of weights take. They are as many products as the forward pass; a backward pass is twice that,
 * and more where it computes anew. */
double hspmd_sim_weight_grads(double forward, double backward);

/* Micro-batches whose gradients of weights stage `stage` has still to compute, at most; 0 where they are not put off. */
int hspmd_deferred_weight_grads(int stage, int micro_batches, enum hspmd_schedule schedule);

/* Micro-batches whose activations stage `stage` holds at once at its fullest. */
int hspmd_in_flight(int stage, int count, int micro_batches, enum hspmd_schedule schedule);

#endif
