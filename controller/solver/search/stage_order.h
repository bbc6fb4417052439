/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which stages are placed if the copies of each are placed together (HSPMD_PLACE_STAGES). Private to the solver. */
#ifndef HSPMD_SEARCH_STAGE_ORDER_H
#define HSPMD_SEARCH_STAGE_ORDER_H

#include "controller/solver/search/estimate.h"

#define HSPMD_STAGE_COPIES_MAX (HSPMD_PIPELINE_GROUPS_MAX * HSPMD_STAGES_MAX)

/* Stage s of all copies of a partition. */
struct hspmd_stage_copies {
	unsigned place;     /* ascending in the order */
	short partition, s; /* partition: index in the mix */
	short first, end;   /* layers */
};

/* Fill list[], which has HSPMD_STAGE_COPIES_MAX places, with the stages of all partitions: by device class; then the widest ones first,
 * while nodes are empty; then by their layers, whatever pipelines they belong to. Returns their number.
 *
 * A node sums the gradients of a layer over the network once for all stages of it that hold the layer: nodes whose stages hold other layers
 * send more. */
int hspmd_stage_order(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m, struct hspmd_stage_copies *list);

#endif
