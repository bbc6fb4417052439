/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: plans whose stages are submeshes but not yet devices, and their way onto devices. Private to the solver. */
#ifndef HSPMD_SEARCH_DRAFT_H
#define HSPMD_SEARCH_DRAFT_H

#include "controller/solver/search/partition.h"

#define HSPMD_PIPELINE_GROUPS_MAX 12

/* Pipelines of one shape. */
struct hspmd_pipeline_group {
	struct hspmd_pipeline_partition partition;
	int copies;
	int parts, extra; /* micro-batches of each copy; the first `extra` copies have one more */
};

struct hspmd_draft {
	int group_count;
	struct hspmd_pipeline_group groups[HSPMD_PIPELINE_GROUPS_MAX];
	double seconds; /* estimate of the step without synchronisation */
};

/* How pipelines lie on nodes: each one's stages together, so that activations stay inside, or the copies of each stage together, so that
 * gradients are summed inside before they leave. */
enum hspmd_placement { HSPMD_PLACE_PIPELINES, HSPMD_PLACE_STAGES, HSPMD_PLACEMENT_COUNT };

/* Deal `total` micro-batches to the draft's pipelines (LP and whole parts, minmax.h) and set seconds. 0; 1: they cannot be dealt; -1:
 * memory is short. */
int hspmd_draft_assign_micro_batches(struct hspmd_draft *d, int total);

/* The draft on devices, micro-batches dealt. NULL with *full when there are not as many devices in one node as its submeshes want, NULL
 * without when memory is short. The caller destroys it. */
struct hspmd_plan *hspmd_draft_place(const struct hspmd_submesh_tables *t, const struct hspmd_draft *d, enum hspmd_placement how, bool zero,
                                     bool *full);

int hspmd_draft_pipelines(const struct hspmd_draft *d);

#endif
