/* SPDX-License-Identifier: Apache-2.0 */
/* For which numbers of pipelines a partition is the same, by what its search has seen of memory. Private to the solver. */
#ifndef HSPMD_SEARCH_PARTITION_RANGE_H
#define HSPMD_SEARCH_PARTITION_RANGE_H

#include "controller/solver/search/partition.h"

/* Set the partition's `least` and `most`. */
void hspmd_partition_find_range(const struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies,
                                const struct hspmd_partition_slack *slack, struct hspmd_pipeline_partition *out);

#endif
