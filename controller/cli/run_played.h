/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that a run outside of Slurm plays on this machine. */
#ifndef HSPMD_CONTROLLER_CLI_RUN_PLAYED_H
#define HSPMD_CONTROLLER_CLI_RUN_PLAYED_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/cluster.h"

/* `count` equal nodes of one CPU device as a cluster file's JSON, `share` of which have this machine's memory between them. Nothing is measured, so that the plan is an even
 * one. NULL when memory is short. */
json_t *run_played_nodes(int count, int share);
/* Can this machine compute as the cluster's devices do? -1 and err, which names the type of `path` that it cannot play: workers would only fail again and again. */
int run_played_check(const struct hspmd_cluster *c, const char *path, struct hspmd_error *err);

#endif
