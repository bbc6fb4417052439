/* SPDX-License-Identifier: Apache-2.0 */
/* The plan that runs now, whose devices need not all be there any more. */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_CURRENT_H
#define HSPMD_CONTROLLER_CLI_PLAN_CURRENT_H

#include "common/format/plan.h"

/* Read the plan at `path`. Where it names devices that `cluster` does not have, *own is a cluster of those that it names, alike, which its
 * device numbers refer to; else NULL: they refer to `cluster`. The caller destroys both. NULL and err on failure. */
struct hspmd_plan *hspmd_plan_read_current(const char *path, const struct hspmd_cluster *cluster, int layers, struct hspmd_cluster **own,
                                           struct hspmd_error *err);

#endif
