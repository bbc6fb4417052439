/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a job with a command: which devices have a rank. In the terms of hspmd-plan-1 it is a pipeline of one stage with one layer
 * per rank, in the order of ranks. */
#ifndef HSPMD_CONTROLLER_RUN_COMMAND_PLAN_H
#define HSPMD_CONTROLLER_RUN_COMMAND_PLAN_H

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/plan.h"

#define RUN_COMMAND_LAYERS 1

/* Chooses the largest world size on min_nodes to max_nodes nodes with which every {...} of the command can be evaluated: all devices of
 * the first nodes, or as many on each of them. New reference; NULL and err: there is none, or memory is short. */
json_t *run_command_plan(const struct hspmd_job *job, const struct hspmd_cluster *c, struct hspmd_error *err);

/* For run_config.covered: the state is the command's own. */
bool run_command_covered(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count);

#endif
