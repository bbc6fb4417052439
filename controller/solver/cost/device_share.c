/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a stage that one of its devices has. */
#include <math.h>

#include "common/format/device_speed.h"
#include "common/format/device_traits.h"
#include "controller/solver/cost/costs.h"

/* Part `which` of a whole that is divided in this ratio, of any positive numbers; NULL: evenly. Ratios of the search add up to 1. */
static double part_of(const double *ratio, int count, int which)
{
	double sum = 0;
	for (int i = 0; ratio && i < count; i++)
		sum += ratio[i];
	return !ratio ? 1.0 / count : fabs(sum - 1) < 1e-9 ? ratio[which] : ratio[which] / sum;
}

double hspmd_stage_share(const struct hspmd_stage *s, int which)
{
	int tp = s->device_count / s->context;
	return part_of(s->shard_ratio, tp, which % tp);
}

double hspmd_stage_context_share(const struct hspmd_stage *s, int which)
{
	int tp = s->device_count / s->context;
	return part_of(s->context_ratio, s->context, which / tp);
}

bool hspmd_type_takes_parts(const struct hspmd_device_type *type)
{
	return hspmd_device_traits(type->kind)->takes_parts;
}

struct hspmd_device_share hspmd_device_share_of(const struct hspmd_device_type *type, double share, double context_share,
                                                bool sequence_parallel)
{
	const struct hspmd_device_traits *traits = hspmd_device_traits(type->kind);
	return (struct hspmd_device_share){ .share = share,
		                            .context_share = context_share,
		                            .sequence_parallel = sequence_parallel,
		                            .in_parts = hspmd_type_takes_parts(type),
		                            .blocks = &type->product_blocks,
		                            .wgmma = hspmd_capability_has_wgmma(type->compute_capability),
		                            .dnn = traits->origin == HSPMD_ORIGIN_NVIDIA,
		                            .product_bytes = traits->product_bytes,
		                            .beside_bytes = traits->beside ? traits->product_bytes : 0 };
}

struct hspmd_device_share hspmd_stage_device(const struct hspmd_costs *c, const struct hspmd_stage *s, int which)
{
	const struct hspmd_device_type *type = &c->cluster->types[c->cluster->devices[s->devices[which]].type];
	return hspmd_device_share_of(type, hspmd_stage_share(s, which), hspmd_stage_context_share(s, which), s->sequence_parallel);
}
