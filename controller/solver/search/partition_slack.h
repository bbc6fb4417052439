/* SPDX-License-Identifier: Apache-2.0 */
/* By how much other numbers of pipelines may change what stages need, so that the same fits. Private to the solver. */
#ifndef HSPMD_SEARCH_PARTITION_SLACK_H
#define HSPMD_SEARCH_PARTITION_SLACK_H

#include <stdbool.h>

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

#endif
