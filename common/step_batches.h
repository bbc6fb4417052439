/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches of a step whose samples have several lengths: which pipeline computes which samples, and in which micro-batches
 * (Hydraulis, arXiv 2412.07894, on sequence assignment; HSPMD, 2504.20490, on mixed lengths). A pure function of the samples' lengths and
 * of what the plan says of its pipelines, in integers, so that all devices and the solver come to the same without a message.
 *
 * A pipeline is expected to take the sum of its samples' times, and (depth - 1) times its longest micro-batch until it is full. The longest
 * samples come first, each onto the pipeline that then ends first (list scheduling: Graham 1969); then samples move or change places as
 * long as that lets the pipeline that ends last end sooner. A pipeline's samples of one length are divided evenly among as few
 * micro-batches as hold them; the longest micro-batches run in the middle of the step, where no stage waits for the first or the last. */
#ifndef HSPMD_COMMON_STEP_BATCHES_H
#define HSPMD_COMMON_STEP_BATCHES_H

#include <stdint.h>

#include "common/error.h"

/* What a pipeline does with samples of one length. */
struct hspmd_length_rate {
	int most;       /* samples of one micro-batch; 0: it does not take this length, nor longer ones */
	int64_t sample; /* time of one sample at the stage that takes longest, in any unit, the same for all pipelines; above 0 */
};

struct hspmd_pipeline_rates {
	int depth;                        /* stages that a micro-batch passes through */
	struct hspmd_length_rate *length; /* by index of the lengths, ascending */
};

struct hspmd_micro_batch {
	int length;  /* index of its samples' length */
	int samples; /* at least 1 */
	int first; /* of its samples in `order`; -1: the pipeline has no sample in this step, and computes one that counts nothing, so that
	                its gradients are zero */
};

struct hspmd_step_batches {
	int pipeline_count, batch_count;
	int *begin; /* [pipeline_count + 1] the pipelines' micro-batches in `batches`, in the order in which they run */
	struct hspmd_micro_batch *batches; /* [batch_count] */
	int *order;                        /* [samples] indexes in the global batch, micro-batch after micro-batch */
};

/* length_of[samples]: the index of each sample's length, below `lengths`. At least one pipeline takes every length. 0, and the caller
 * clears *out; -1 and err: no memory, or no pipeline takes a length that there is. */
int hspmd_step_batches_make(const struct hspmd_pipeline_rates *pipelines, int pipeline_count, int lengths, const int *length_of,
                            int samples, struct hspmd_step_batches *out, struct hspmd_error *err);
void hspmd_step_batches_clear(struct hspmd_step_batches *b);

/* Most micro-batches that a pipeline can have of `samples` samples, of whatever lengths; at least 1. */
int hspmd_step_batches_most(const struct hspmd_pipeline_rates *pipeline, int lengths, int samples);
/* Expected time of a pipeline with counts[lengths] samples of each length. */
int64_t hspmd_step_batches_time(const struct hspmd_pipeline_rates *pipeline, int lengths, const int *counts);

#endif
