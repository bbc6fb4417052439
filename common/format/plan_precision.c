/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/plan_precision.h"

#include <stdio.h>

#include "common/format/device_traits.h"

/* Number of the plan's devices that cannot compute in the precision, and the first of them (-1: none). */
static int without(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision precision, int *first)
{
	int count = 0;
	*first = -1;
	for (int q = 0; q < p->pipeline_count; q++)
		for (int s = 0; s < p->pipelines[q].stage_count / p->virtual_stages; s++) { /* later chunks have the same devices */
			const struct hspmd_stage *stage = &p->pipelines[q].stages[s];
			for (int d = 0; d < stage->device_count; d++) {
				if (hspmd_device_kind_computes(c->types[c->devices[stage->devices[d]].type].kind, precision))
					continue;
				*first = count++ ? *first : stage->devices[d];
			}
		}
	return count;
}

enum hspmd_precision hspmd_plan_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked)
{
	int first;
	bool runs = asked == HSPMD_PRECISION_BF16 || asked == HSPMD_PRECISION_TF32;
	return runs && without(p, c, asked, &first) ? HSPMD_PRECISION_FP32 : asked;
}

bool hspmd_plan_is_bf16(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked)
{
	int first;
	return (asked == HSPMD_PRECISION_BF16 || asked == HSPMD_PRECISION_FP8) && !without(p, c, HSPMD_PRECISION_BF16, &first);
}

int hspmd_plan_check_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked,
                               struct hspmd_error *err)
{
	char at[256];
	int first;
	if (asked != HSPMD_PRECISION_FP8 || !without(p, c, asked, &first))
		return 0;
	hspmd_cluster_device_address(c, first, at, sizeof at);
	return hspmd_fail(err,
	                  "%s, a %s device, cannot compute in fp8, and a job in fp8 cannot go on in another precision: leave it out, or "
	                  "begin another run in \"bf16\"",
	                  at, hspmd_device_kind_names[c->types[c->devices[first].type].kind]);
}

bool hspmd_plan_precision_differs(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked, char *why,
                                  size_t size)
{
	enum hspmd_precision precision = hspmd_plan_precision(p, c, asked);
	char at[256];
	int first, count;
	if (precision == asked)
		return false;
	count = without(p, c, asked, &first);
	hspmd_cluster_device_address(c, first, at, sizeof at);
	snprintf(why, size,
	         "computes in %s instead of %s: all devices of a plan compute in the same precision, and %d of its %d (%s%s) cannot "
	         "compute in %s",
	         hspmd_precision_names[precision], hspmd_precision_names[asked], count, hspmd_plan_device_count(p), at,
	         count > 1 ? " and others" : "", hspmd_precision_names[asked]);
	return true;
}
