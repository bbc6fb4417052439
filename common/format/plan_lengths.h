/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan's pipelines do with samples of several lengths in one step (`lengths` of a pipeline): which they take, in what micro-batches,
 * and how long these take. plan_rates.h says what follows for a step. */
#ifndef HSPMD_FORMAT_PLAN_LENGTHS_H
#define HSPMD_FORMAT_PLAN_LENGTHS_H

#include <jansson.h>

#include "common/format/plan.h"
#include "common/json.h"

/* Read `lengths` of a pipeline, which are at most `seq_len`. 0 or -1. */
int hspmd_pipeline_lengths_read(struct hspmd_json *pipeline, int seq_len, struct hspmd_pipeline *p);
json_t *hspmd_pipeline_lengths_json(const struct hspmd_pipeline *p);

bool hspmd_pipeline_same_lengths(const struct hspmd_pipeline *a, const struct hspmd_pipeline *b);

bool hspmd_pipeline_takes(const struct hspmd_pipeline *p, int64_t length); /* samples of this length */
/* Returns true if some pipeline does. */
bool hspmd_plan_takes(const struct hspmd_plan *p, int64_t length);

#endif
