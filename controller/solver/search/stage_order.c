/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/stage_order.h"

#define WIDTH_BIT 16 /* bits of `place`: twice the middle of the layers; then the width; then the device class */
#define CLASS_BIT 24

int hspmd_stage_order(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m, struct hspmd_stage_copies *list)
{
	int count = 0;
	for (int i = 0; i < m->count; i++) {
		const struct hspmd_pipeline_partition *x = m->partition[i];
		for (int s = 0, first = 0; s < x->sequence.stages; first = x->ends[s++]) {
			const struct hspmd_submesh *u = &t->submeshes[x->sequence.submesh[s]];
			struct hspmd_stage_copies own = { (unsigned)u->device_class << CLASS_BIT |
				                                  (unsigned)(HSPMD_MAX_TP - u->tp) << WIDTH_BIT |
				                                  (unsigned)(first + x->ends[s]),
				                          (short)i, (short)s, (short)first, x->ends[s] };
			int at = count++; /* by insertion: stages of one partition are mostly in order */
			for (; at > 0 && list[at - 1].place > own.place; at--)
				list[at] = list[at - 1];
			list[at] = own;
		}
	}
	return count;
}
