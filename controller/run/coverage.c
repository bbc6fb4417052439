/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/coverage.h"

static bool there(int device, const int *devices, int count)
{
	for (int i = 0; i < count; i++)
		if (devices[i] == device)
			return true;
	return false;
}

static bool stage_whole(const struct hspmd_stage *s, const int *devices, int count)
{
	for (int i = 0; i < s->device_count; i++)
		if (!there(s->devices[i], devices, count))
			return false;
	return true;
}

static bool layer_whole(const struct hspmd_plan *plan, int layer, const int *devices, int count)
{
	for (int p = 0; p < plan->pipeline_count; p++)
		for (int s = 0; s < plan->pipelines[p].stage_count; s++) {
			const struct hspmd_stage *stage = &plan->pipelines[p].stages[s];
			if (stage->layers[0] <= layer && layer < stage->layers[1] && stage_whole(stage, devices, count))
				return true;
		}
	return false;
}

bool hspmd_stages_cover(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count)
{
	(void)cluster;
	if (plan->zero_stage && count < hspmd_plan_device_count(plan))
		return false;
	const struct hspmd_pipeline *first = &plan->pipelines[0];
	int layers = first->stages[first->stage_count - 1].layers[1];
	for (int layer = 0; layer < layers; layer++)
		if (!layer_whole(plan, layer, devices, count))
			return false;
	return true;
}
