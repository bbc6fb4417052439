/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that a run outside of Slurm emulates on this machine. */
#ifndef HSPMD_CLI_LOCAL_NODES_H
#define HSPMD_CLI_LOCAL_NODES_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/cluster.h"

/* `count` identical nodes with one CPU device each, as a cluster file's JSON; `share` of them divide this machine's memory among
 * themselves. Nothing is measured, so that the plan is even. NULL: out of memory. */
json_t *local_nodes_create(int count, int share);
/* 0 if this machine can compute as the cluster's devices do. -1 and err, which names the type in `path` that it cannot emulate: workers
 * would only fail again and again. */
int local_nodes_check(const struct hspmd_cluster *c, const char *path, struct hspmd_error *err);

#endif
