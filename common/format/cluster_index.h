/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that the index of a cluster finds while it is made; for the reader only. */
#ifndef HSPMD_FORMAT_CLUSTER_INDEX_H
#define HSPMD_FORMAT_CLUSTER_INDEX_H

#include <stdbool.h>

#include "common/format/cluster.h"

/* A name that two nodes have, or NULL. Needs the index. */
const char *hspmd_cluster_repeated_node(const struct hspmd_cluster *c);
/* Returns true if two links have the same scope, ends and gpus; their indexes (first < second). Needs the index. */
bool hspmd_cluster_repeated_link(const struct hspmd_cluster *c, int *first, int *second);

#endif
