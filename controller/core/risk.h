/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions that follow from the observed rate of node losses: how many copies of its state a job keeps, and which of two plans is better.
 * Both maximise committed tokens, not throughput (policies/liveput.h). Pure. */
#ifndef HSPMD_CORE_RISK_H
#define HSPMD_CORE_RISK_H

#include <jansson.h>

#include "common/format/job.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "controller/core/checkpoint_interval.h"
#include "policies/liveput.h"

/* Reads { losses_per_node_s, together }, as hspmdctld sends it. Missing values are 0: no loss was ever observed. NULL is fine. */
struct hspmd_risk run_risk_read(const json_t *v);

/* Number of copies on other nodes for a job on `nodes` nodes: as its file and the site's policy ask for, or more, if nodes are lost so
 * often, or so many at once, that further copies save more committed tokens than they cost (policies/copies.h). `every`: the checkpoint
 * intervals. facts NULL: unknown; then the number that the job asks for. */
int run_risk_copies(const struct hspmd_job *job, const struct hspmd_model_facts *facts, int nodes, const struct run_intervals *every,
                    const struct hspmd_risk *risk);

/* Returns true if `other`, whose state may be sharded over its pipelines (so that a part of it is lost with a worker), commits more tokens
 * on `nodes` nodes than `whole`. */
bool run_risk_prefers(const struct hspmd_job *job, const struct hspmd_model_facts *facts, int nodes, int copies,
                      const struct run_intervals *every, const struct hspmd_risk *risk, const struct hspmd_plan *whole,
                      const struct hspmd_plan *other);

#endif
