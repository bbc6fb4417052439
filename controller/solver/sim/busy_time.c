/* SPDX-License-Identifier: Apache-2.0 */
/* Busy time of each device: the passes of all its micro-batches and its update, without waiting. */
#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/predict.h"

/* The search has said it. */
static int of_program(const struct hspmd_plan *plan, double *busy_s, struct hspmd_error *err)
{
	const struct hspmd_pipeline *p = &plan->pipelines[0];
	const json_t *busy = json_object_get(plan->program, "busy_s");
	if (json_array_size(busy) != (size_t)p->stages[0].device_count)
		return hspmd_fail(err, "the plan does not say how long its program takes on each device");
	for (int d = 0; d < p->stages[0].device_count; d++)
		busy_s[d] = p->micro_batches * json_number_value(json_array_get(busy, (size_t)d));
	return 0;
}

int hspmd_plan_busy_time(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_plan *plan, double *busy_s, struct hspmd_error *err)
{
	if (plan->synthesis)
		return of_program(plan, busy_s, err);
	struct hspmd_costs *c = hspmd_costs_of_plan(cluster, facts, profile, precision, plan, err);
	int rc = c ? 0 : -1, at = 0;
	for (int i = 0; !rc && i < plan->pipeline_count; i++) {
		const struct hspmd_pipeline *p = &plan->pipelines[i];
		int ranks = p->stage_count / plan->virtual_stages, first = at;
		for (int k = 0; !rc && k < p->stage_count; k++) {
			struct hspmd_stage_cost cost;
			rc = hspmd_costs_stage(c, &p->stages[k], p->micro_batch, &cost, err);
			at = k % ranks ? at : first; /* the stages of each chunk are on the devices of the first chunk's stages */
			for (int d = 0; !rc && d < p->stages[k].device_count; d++, at++)
				busy_s[at] =
				        (k < ranks ? 0 : busy_s[at]) + p->micro_batches * (cost.forward + cost.backward) + cost.optimizer;
		}
	}
	hspmd_costs_destroy(c);
	return rc;
}
