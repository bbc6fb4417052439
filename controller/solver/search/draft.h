/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: plans whose stages are submeshes instead of devices, and their placement onto devices. Private to the solver. */
#ifndef HSPMD_SEARCH_DRAFT_H
#define HSPMD_SEARCH_DRAFT_H

#include "controller/solver/search/partition.h"

#define HSPMD_PIPELINE_GROUPS_MAX 12

/* Pipelines with the same partition. */
struct hspmd_pipeline_group {
	struct hspmd_pipeline_partition partition;
	int copies;
	int parts, extra; /* micro-batches of each copy; the first `extra` copies run one more */
};

struct hspmd_draft {
	int group_count;
	struct hspmd_pipeline_group groups[HSPMD_PIPELINE_GROUPS_MAX];
	double seconds; /* estimated seconds of the step without gradient synchronisation */
};

/* Distribute `total` micro-batches over the draft's pipelines (minmax.h) and set seconds. Returns 0, or 1 if they cannot be distributed. */
int hspmd_draft_assign_micro_batches(struct hspmd_draft *d, int total);

/* Place the draft on devices. Returns a plan that the caller destroys; NULL with *full true if no node has as many free devices as a
 * submesh needs; NULL with *full false if memory runs out. */
struct hspmd_plan *hspmd_draft_place(const struct hspmd_submesh_tables *t, const struct hspmd_draft *d, enum hspmd_placement how, bool zero,
                                     bool *full);

/* What drafts like this plan offload. */
enum hspmd_draft_offload hspmd_draft_offload_of(const struct hspmd_plan *p);
/* How stage s of the partition keeps what its passes save, and whether its optimizer's state is offloaded: set in *stage. */
void hspmd_draft_set_saving(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_partition *of, int s,
                            struct hspmd_stage *stage);

int hspmd_draft_pipelines(const struct hspmd_draft *d);

#endif
