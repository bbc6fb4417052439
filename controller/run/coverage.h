/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_RUN_COVERAGE_H
#define HSPMD_RUN_COVERAGE_H

#include <stdbool.h>

#include "common/format/plan.h"

/* Returns true if these devices (indexes into the plan's cluster) together hold every slice of the state: each layer is in some stage all
 * of whose devices are listed. If optimizer state is sharded over pipelines (zero_stage), every device is needed. Never true if a slice is
 * missing. */
bool hspmd_stages_cover(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count);

#endif
