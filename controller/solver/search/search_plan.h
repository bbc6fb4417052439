/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the fastest plan, without an explanation if there is none. */
#ifndef HSPMD_SEARCH_SEARCH_PLAN_H
#define HSPMD_SEARCH_SEARCH_PLAN_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "common/format/profile.h"
#include "controller/solver/search/request.h"
#include "controller/solver/sim/solve_report.h"

/* Find the fastest plan; its `predicted` is filled, and the caller destroys it. At least one of model and profile must be given. report may
 * be NULL. If the input is wrong or no plan is possible, returns NULL with err; then *too_large (may be NULL) is true if there are plans,
 * but none of them fits in memory. */
struct hspmd_plan *hspmd_search_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                     struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err);

#endif
