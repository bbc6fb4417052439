/* SPDX-License-Identifier: Apache-2.0 */
/* What the index of a cluster says beyond lookups (cluster.h). */
#ifndef HSPMD_FORMAT_CLUSTER_INDEX_H
#define HSPMD_FORMAT_CLUSTER_INDEX_H

#include <stdbool.h>

#include "common/format/cluster.h"

/* The largest number in `gpus` of a link: with larger n and m, hspmd_cluster_find_link only finds links without `gpus`. */
int hspmd_cluster_most_gpus(const struct hspmd_cluster *c);

/* Faults, for the reader of a file: */
/* A name that two nodes have, or NULL. Needs the index. */
const char *hspmd_cluster_repeated_node(const struct hspmd_cluster *c);
/* Returns true if two links have the same scope, ends and gpus; their indexes (first < second). Needs the index. */
bool hspmd_cluster_repeated_link(const struct hspmd_cluster *c, int *first, int *second);

#endif
