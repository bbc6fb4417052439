/* SPDX-License-Identifier: Apache-2.0 */
/* What losses of nodes that were seen mean for a job: how many copies of its state it keeps, and which of two plans is worth more. Both by
 * the tokens that are committed, not by throughput (policies/liveput.h). Pure. */
#ifndef HSPMD_CORE_RISK_H
#define HSPMD_CORE_RISK_H

#include <jansson.h>

#include "common/format/job.h"
#include "common/format/model.h"
#include "common/format/plan.h"
#include "controller/core/checkpoint_interval.h"
#include "policies/liveput.h"

/* Out of { losses_per_node_s, together }, as hspmdctld tells it. What is not there is 0: nothing was ever seen to be lost. */
struct hspmd_risk run_risk_read(const json_t *v);

/* Copies on other nodes for a job on so many: what its file and the site's policy ask for, or more where nodes are lost so often, or so
 * many at once, that more bring more committed tokens than they cost (policies/copies.h). `every`: how often copies are made and shared
 * storage is written. The model may be NULL: then what the job asks for. */
int run_risk_copies(const struct hspmd_job *job, const struct hspmd_model *model, int nodes, const struct run_intervals *every,
                    const struct hspmd_risk *risk);

/* Is `other` (whose state may be sharded over its pipelines, so that a lost worker takes a part of it along) worth more on so many nodes
 * than `whole`? */
bool run_risk_prefers(const struct hspmd_job *job, const struct hspmd_model *model, int nodes, int copies,
                      const struct run_intervals *every, const struct hspmd_risk *risk, const struct hspmd_plan *whole,
                      const struct hspmd_plan *other);

#endif
