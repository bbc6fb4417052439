/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/trace_lanes.h"

#include <stdio.h>

struct hspmd_trace_place hspmd_trace_place_of(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, int pipeline, int stage,
                                              int member)
{
	const struct hspmd_pipeline *pipe = &plan->pipelines[pipeline];
	const struct hspmd_stage *s = &pipe->stages[stage];
	struct hspmd_trace_place at = { .pipeline = pipeline, .stage = stage, .layers = { s->layers[0], s->layers[1] } };
	at.process = pipeline < HSPMD_TRACE_PROCESSES - 1 ? pipeline : HSPMD_TRACE_PROCESSES - 2;
	for (int k = 0; k < stage; k++)
		at.thread += HSPMD_LANE_COUNT * pipe->stages[k].device_count;
	at.thread += HSPMD_LANE_COUNT * member;
	snprintf(at.process_name, sizeof at.process_name, "pipeline %d: %d micro-batches of %d", pipeline, pipe->micro_batches,
	         pipe->micro_batch);
	hspmd_cluster_device_address(cluster, s->devices[member], at.device, sizeof at.device);
	return at;
}

struct hspmd_trace_place hspmd_trace_place_find(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, int device,
                                                const char *address, int spare)
{
	for (int p = 0; device >= 0 && p < plan->pipeline_count; p++)
		for (int s = 0; s < plan->pipelines[p].stage_count / plan->virtual_stages; s++)
			for (int d = 0; d < plan->pipelines[p].stages[s].device_count; d++)
				if (plan->pipelines[p].stages[s].devices[d] == device)
					return hspmd_trace_place_of(plan, cluster, p, s, d);
	struct hspmd_trace_place at = { .pipeline = -1,
		                        .stage = -1,
		                        .process = HSPMD_TRACE_PROCESSES - 1,
		                        .thread = HSPMD_LANE_COUNT * spare,
		                        .process_name = "leaving" };
	snprintf(at.device, sizeof at.device, "%s", address);
	return at;
}

const char *hspmd_trace_lane_name(const struct hspmd_trace_place *at, enum hspmd_lane lane, char *text, size_t size)
{
	static const char *const what[] = { "", "transfers", "sums of gradients", "changes of the plan" };
	if (lane == HSPMD_LANE_COMPUTE && at->stage >= 0)
		snprintf(text, size, "%s: stage %d, layers %d-%d", at->device, at->stage, at->layers[0], at->layers[1] - 1);
	else
		snprintf(text, size, "%s: %s", at->device, lane == HSPMD_LANE_COMPUTE ? "computation" : what[lane]);
	return text;
}
