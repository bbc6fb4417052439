/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for shorter steps, in sentences. */
#ifndef HSPMD_REPORT_EXPLAIN_LENGTHS_H
#define HSPMD_REPORT_EXPLAIN_LENGTHS_H

#include "common/format/plan.h"
#include "controller/solver/search/length_plans.h"

/* What each plan is for, in what it differs from the plan for the longest steps, and what steps are expected to take. The caller frees the
 * text; NULL: memory. */
char *hspmd_plan_explain_lengths(const struct hspmd_plan *plan, const struct hspmd_length_report *report);

#endif
