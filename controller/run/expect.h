/* SPDX-License-Identifier: Apache-2.0 */
/* What the cost model expects of a running plan. */
#ifndef HSPMD_CONTROLLER_RUN_EXPECT_H
#define HSPMD_CONTROLLER_RUN_EXPECT_H

#include "controller/run/machine.h"

/* As run_config.expect. */
int run_expect(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, double *busy_s);

#endif
