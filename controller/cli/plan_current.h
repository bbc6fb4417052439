/* SPDX-License-Identifier: Apache-2.0 */
/* The running plan, some of whose devices may no longer exist. */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_CURRENT_H
#define HSPMD_CONTROLLER_CLI_PLAN_CURRENT_H

#include "common/format/plan.h"

/* Read the plan at `path`. If it names devices that `cluster` does not have, *own is a cluster of identical devices with the plan's
 * addresses, to which its device numbers refer; else *own is NULL, and the numbers refer to `cluster`. The caller destroys both. NULL and
 * err on failure. */
struct hspmd_plan *hspmd_plan_read_current(const char *path, const struct hspmd_cluster *cluster, int layers, struct hspmd_cluster **own,
                                           struct hspmd_error *err);

#endif
