/* SPDX-License-Identifier: Apache-2.0 */
/* Busy times of a running plan by the cost model. */
#ifndef HSPMD_RUN_STEP_MODEL_H
#define HSPMD_RUN_STEP_MODEL_H

#include "controller/core/controller.h"

/* As run_config.expected_busy. */
int run_expected_busy(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, double *busy_s);

#endif
