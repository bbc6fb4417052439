/* SPDX-License-Identifier: Apache-2.0 */
/* A plan explained in words and as a timeline. */
#ifndef HSPMD_REPORT_EXPLAIN_H
#define HSPMD_REPORT_EXPLAIN_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "common/format/profile.h"
#include "controller/solver/search/request.h"

/* Up to so many devices, explanations compare a plan with those of further searches. Among more, these would take long, and one more device
 * brings less than by how much plans differ that searches for nearly the same cluster end with. */
#define HSPMD_EXPLAIN_SEARCH_MOST 512

/* Describe what limits a plan whose `predicted` is filled, one sentence per line: where the time goes, the limiting stage and pipeline, the
 * gradients that are summed last, and the fullest device. With a request (may be NULL) also the effect of one more device of each type,
 * each in a node of its own; this searches once per type. The caller frees the text. Returns NULL if memory runs out. */
char *hspmd_plan_explain(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_solve_request *request, const struct hspmd_plan *plan);

/* The predicted schedule of a plan as Chrome trace events (trace.c), in a new object {"traceEvents": [...]}: one process per pipeline, and
 * two threads per stage, for what it computes and what it sends. Returns NULL with err on failure. */
json_t *hspmd_plan_trace(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_plan *plan, struct hspmd_error *err);

#endif
