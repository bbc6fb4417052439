/* SPDX-License-Identifier: Apache-2.0 */
/* Explanation why there is no plan. Private to the solver. */
#ifndef HSPMD_REPORT_SHORTAGE_H
#define HSPMD_REPORT_SHORTAGE_H

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/profile.h"
#include "controller/solver/search/request.h"

/* For a request without a plan that fits in memory, write into err what is short, where and by how much, and the smallest change that
 * would be enough. Searches again with more memory, and with changes, for at most about `seconds` of this thread's CPU time. Always
 * returns -1. */
int hspmd_explain_shortage(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                           const struct hspmd_solve_request *request, double seconds, struct hspmd_error *err);

#endif
