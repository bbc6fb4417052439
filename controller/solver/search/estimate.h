/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates of the step of pipelines that have no devices yet. Private to the solver. */
#ifndef HSPMD_SEARCH_ESTIMATE_H
#define HSPMD_SEARCH_ESTIMATE_H

#include "controller/solver/search/draft.h"

/* Pipelines of several partitions, and how many there are of each. */
struct hspmd_pipeline_mix {
	int count;
	const struct hspmd_pipeline_partition *partition[HSPMD_PIPELINE_GROUPS_MAX];
	int copies[HSPMD_PIPELINE_GROUPS_MAX];
};

/* The most micro-batches that a pipeline runs in `seconds`. */
int hspmd_estimate_capacity(const struct hspmd_pipeline_partition *x, double seconds);
/* Seconds that the pipelines need for `total` micro-batches; INFINITY if they cannot run them. */
double hspmd_estimate_passes(const struct hspmd_pipeline_mix *m, int total);
/* Least seconds in which a node's network sums gradients: of the largest stage, if its copies are placed together; otherwise of all stages
 * that a pipeline has in the node. zero: weights are gathered instead of half of the sums. INFINITY if the pipelines need nodes that have
 * no link. */
double hspmd_estimate_summing(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m, enum hspmd_placement how,
                              bool zero);

#endif
