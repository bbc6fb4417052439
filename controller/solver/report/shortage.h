/* SPDX-License-Identifier: Apache-2.0 */
/* Why there is no plan. Private to the solver. */
#ifndef HSPMD_REPORT_SHORTAGE_H
#define HSPMD_REPORT_SHORTAGE_H

#include "controller/solver/solver.h"

/* Say in err what is short, where and by how much, and the nearest change that would do, for a request that has no plan for want of memory.
 * Solves it again with more memory, and with changes, for at most about `seconds`. Always returns -1. */
int hspmd_explain_shortage(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
                           const struct hspmd_solve_request *request, double seconds, struct hspmd_error *err);

#endif
