/* SPDX-License-Identifier: Apache-2.0 */
/* Of all that a partition depends on, the number of pipelines changes only the bytes per weight, if nothing is offloaded: with ZeRO-1
 * copies need the less the more there are. (A single one is apart: it has nothing to sum at the step's end.) So as long as nothing that
 * was tried and fitted would no longer fit, nor anything fit that did not, the search goes the same way. */
#include "controller/solver/search/partition_range.h"

#include <limits.h>
#include <math.h>

#define RANGE 8       /* numbers of pipelines below and above that are tried */
#define ROUNDING 1e-9 /* relative precision, and bytes, of sums of memory */

/* The most by which any submesh needs other bytes per weight in a plan of so many pipelines. */
static double change_of_need(const struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies, int pipelines)
{
	struct hspmd_layer_copies other = *copies;
	double most = 0;
	other.pipelines = pipelines;
	for (int k = 0; k < t->device_classes->count; k++) {
		const struct hspmd_device_type *type = &t->costs->cluster->types[t->device_classes->list[k].type];
		double now = hspmd_state_bytes(t->costs, copies) + hspmd_image_bytes(t->costs, type, copies),
		       then = hspmd_state_bytes(t->costs, &other) + hspmd_image_bytes(t->costs, type, &other);
		most = fmax(most, fabs(then - now));
	}
	return most + fabs(hspmd_step_end_bytes(t->costs, &other) - hspmd_step_end_bytes(t->costs, copies));
}

void hspmd_partition_find_range(const struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies,
                                const struct hspmd_partition_slack *slack, struct hspmd_pipeline_partition *out)
{
	out->least = out->most = copies->pipelines;
	if (copies->pipelines < 2 || copies->zero > 1 || t->offload != HSPMD_DRAFT_OFFLOADS_NOTHING)
		return;
	while (out->least > 2 && out->least > copies->pipelines - RANGE &&
	       change_of_need(t, copies, out->least - 1) < slack->more * (1 - ROUNDING) - ROUNDING)
		out->least--;
	if (isinf(slack->less)) {
		out->most = INT_MAX;
		return;
	}
	while (out->most < copies->pipelines + RANGE && change_of_need(t, copies, out->most + 1) < slack->less * (1 - ROUNDING) - ROUNDING)
		out->most++;
}
