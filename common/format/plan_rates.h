/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan is for steps whose samples have several lengths: how fast its pipelines are at each (common/step_batches.h). */
#ifndef HSPMD_FORMAT_PLAN_RATES_H
#define HSPMD_FORMAT_PLAN_RATES_H

#include "common/format/plan.h"
#include "common/step_batches.h"

/* The pipelines' rates at `count` lengths, ascending, of at most the plan's. A length that a pipeline does not list is in micro-batches of
 * the next longer one that it lists, and takes as long per token. A pipeline that lists none takes as many tokens per micro-batch as its
 * micro_batch has at the plan's length, and its speed is its part of the global batch. Free with hspmd_plan_rates_free. NULL and err:
 * memory, no pipeline takes the longest, or one takes none. */
struct hspmd_pipeline_rates *hspmd_plan_rates(const struct hspmd_plan *p, const int64_t *lengths, int count, struct hspmd_error *err);
void hspmd_plan_rates_free(struct hspmd_pipeline_rates *rates, int pipeline_count);

/* Checks whether steps that mix lengths can run the plan: pipelines then differ in their numbers of micro-batches from step to step. 0, or
 * -1 and err, which names what it must not have. */
int hspmd_plan_check_mixing(const struct hspmd_plan *p, struct hspmd_error *err);

/* A copy of the plan with as many and as large micro-batches as any step of `count` such lengths may have, by these rates: each pipeline at
 * its longest length (seq_len), so that a program for it holds those of every step; its `lengths` have the largest micro-batch of each of
 * the given lengths that it takes, without times. NULL: memory. */
struct hspmd_plan *hspmd_plan_for_any_step(const struct hspmd_plan *p, const struct hspmd_pipeline_rates *rates, const int64_t *lengths,
                                           int count);

#endif
