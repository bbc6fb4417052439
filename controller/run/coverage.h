/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_RUN_COVERAGE_H
#define HSPMD_RUN_COVERAGE_H

#include <stdbool.h>

#include "common/format/plan.h"

/* Do these devices (indexes into the plan's cluster) hold every slice of the state between them? Each layer must be whole in some stage all
 * of whose devices are there; with optimizer state sharded over pipelines (zero_stage) every device is needed. Never true where a slice is
 * missing. */
bool hspmd_stages_cover(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count);

#endif
