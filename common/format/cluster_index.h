/* SPDX-License-Identifier: Apache-2.0 */
/* What the index of a cluster finds wrong while it is made; for the reader alone. */
#ifndef HSPMD_FORMAT_CLUSTER_INDEX_H
#define HSPMD_FORMAT_CLUSTER_INDEX_H

#include <stdbool.h>

#include "common/format/cluster.h"

/* A node name that two nodes have, or NULL. Needs the index. */
const char *hspmd_cluster_repeated_node(const struct hspmd_cluster *c);
/* Whether two links are for the same scope, places and gpus, and which (first < second). Needs the index. */
bool hspmd_cluster_repeated_link(const struct hspmd_cluster *c, int *first, int *second);

#endif
