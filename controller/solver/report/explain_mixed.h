/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for steps that mix lengths, in sentences. */
#ifndef HSPMD_REPORT_EXPLAIN_MIXED_H
#define HSPMD_REPORT_EXPLAIN_MIXED_H

#include "common/format/plan.h"
#include "controller/solver/search/mixed_plans.h"

/* Which pipelines compute the samples of each length, in what micro-batches, and what steps are expected to take. The caller frees the
 * text; NULL: memory. */
char *hspmd_plan_explain_mixed(const struct hspmd_plan *plan, const struct hspmd_mixed_report *report);

#endif
