/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a stage runs the forward and backward passes of its micro-batches. */
#ifndef HSPMD_SCHEDULE_H
#define HSPMD_SCHEDULE_H

#include <stdbool.h>

#include "common/format/plan.h"

struct hspmd_schedule_entry {
	bool backward;
	bool weights; /* zb-h1: the part of a backward pass that nobody waits for, gradients of weights; then `backward` is false */
	int micro_batch;
	int chunk; /* model chunk of the device (virtual stage): 0 unless interleaved */
};

/* A device's pipeline rank: it runs stage `stage` of `stages` in each of `chunks` model chunks. */
struct hspmd_pipeline_rank {
	int stage, stages, chunks, micro_batches;
};

/* Fill entries[0 .. hspmd_schedule_length()).
 *   - 1f1b: PipeDream-Flush (arXiv 2006.09503, section 3.2), min(stages - stage - 1, micro_batches) forward passes ahead.
 *   - gpipe (arXiv 1811.06965): all forward passes, then all backward passes in reverse order.
 *   - interleaved (Megatron-LM, arXiv 2104.04473, section 2.2): micro-batches pass through the chunks in groups of `stages`,
 *     2 * (stages - stage - 1) + (chunks - 1) * stages passes ahead. If the last group is not full, which would make stages wait for one
 *     another in a circle: all forward passes first.
 *   - zb-h1 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2): 1f1b whose backward passes send the gradient of their input
 *     first. Stage s computes the gradients of weights s micro-batches later, so it holds no more micro-batches than the first stage of
 *     1f1b. */
int hspmd_schedule_length(enum hspmd_schedule schedule, const struct hspmd_pipeline_rank *rank);
void hspmd_schedule(enum hspmd_schedule schedule, const struct hspmd_pipeline_rank *rank, struct hspmd_schedule_entry *entries);

#endif
