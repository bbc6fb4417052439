/* SPDX-License-Identifier: Apache-2.0 */
/* For which numbers of pipelines a partition is the same, by what its search has seen of memory. Private to the solver. */
#ifndef HSPMD_SEARCH_PARTITION_RANGE_H
#define HSPMD_SEARCH_PARTITION_RANGE_H

#include "controller/solver/search/partition.h"

struct hspmd_partition_slack {
	bool limited;      /* memory did not suffice for some layers in the way of the least work */
	double more, less; /* bytes per weight that all stages might need in addition, or less, and the same would have fitted */
};

/* Note what a stage with so many weights has to spare in all that fits, and lacks in all that does not. Returns `way`. */
static inline int hspmd_partition_note(struct hspmd_partition_slack *slack, int way, double params, double spare, double lacking)
{
	if (spare < slack->more * params)
		slack->more = spare / params;
	if (lacking < slack->less * params)
		slack->less = lacking / params;
	return way;
}

/* Set the partition's `least` and `most`. */
void hspmd_partition_find_range(const struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies,
                                const struct hspmd_partition_slack *slack, struct hspmd_pipeline_partition *out);

#endif
