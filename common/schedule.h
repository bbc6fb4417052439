/* SPDX-License-Identifier: Apache-2.0 */
/* In what order a stage runs the forward and backward passes of its micro-batches. */
#ifndef HSPMD_SCHEDULE_H
#define HSPMD_SCHEDULE_H

#include <stdbool.h>

#include "common/format/plan.h"

struct hspmd_turn {
	bool backward;
	bool weights; /* zb-h1: of a backward pass only what nobody waits for, the gradients of weights; such a turn is not `backward` */
	int micro_batch;
	int round; /* of the device's stages, which: 0 unless interleaved */
};

/* Where a device stands: stage `stage` of `stages` in each of `rounds` rounds. */
struct hspmd_seat {
	int stage, stages, rounds, micro_batches;
};

/* Fill turns[0 .. hspmd_schedule_turns()).
 * 1f1b: PipeDream-Flush (arXiv 2006.09503, section 3.2), min(stages - stage - 1, micro_batches) forward passes ahead.
 * gpipe (arXiv 1811.06965): all forward, then all backward in reverse order.
 * interleaved (Megatron-LM, arXiv 2104.04473, section 2.2): micro-batches go through the rounds in groups of `stages`, 2 * (stages - stage - 1) +
 * (rounds - 1) * stages passes ahead; where the last group is not full, which would make stages wait for one another in a circle, all forward first.
 * zb-h1 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2): 1f1b whose backward passes hand the gradient of their input on first; stage
 * number s has the gradients of weights follow s micro-batches later, so that it holds no more micro-batches than the first stage of 1f1b does. */
int hspmd_schedule_turns(enum hspmd_schedule schedule, const struct hspmd_seat *seat);
void hspmd_schedule(enum hspmd_schedule schedule, const struct hspmd_seat *seat, struct hspmd_turn *turns);

#endif
