/* SPDX-License-Identifier: Apache-2.0 */
/* A site's and a user's limits, before the search: the part of the cluster that may be used. */
#ifndef HSPMD_CONTROLLER_SOLVER_LIMITS_H
#define HSPMD_CONTROLLER_SOLVER_LIMITS_H

#include "controller/solver/solver.h"

/* The nodes worth most (speed, or speed per price where price is limited) within max_nodes, max_devices and max_price_per_hour. *part NULL: nothing has to be left
 * out; else the caller destroys it. -1 and err: not even one node fits. */
int hspmd_limits_part(const struct hspmd_cluster *cluster, const struct hspmd_solve_limits *limits, struct hspmd_cluster **part, struct hspmd_error *err);
/* Make a plan over the part one over the cluster. */
int hspmd_limits_rebind(struct hspmd_plan *plan, const struct hspmd_cluster *part, const struct hspmd_cluster *cluster, struct hspmd_error *err);

#endif
