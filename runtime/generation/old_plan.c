/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/old_plan.h"

#include <stdio.h>

#include "runtime/program/pipelines.h"

int hspmd_old_plan_read(const struct hspmd_graph_source *source, const struct hspmd_graph *known, const struct hspmd_plan *known_plan,
                        json_t *cluster, json_t *plan, const char *name, struct hspmd_old_plan *old, struct hspmd_error *err)
{
	char cluster_name[64], plan_name[64];
	snprintf(cluster_name, sizeof cluster_name, "%s.cluster", name);
	snprintf(plan_name, sizeof plan_name, "%s.plan", name);
	*old = (struct hspmd_old_plan){ 0 };
	old->cluster = hspmd_cluster_from_json(cluster, cluster_name, err);
	if (old->cluster)
		old->plan = hspmd_plan_from_json(plan, plan_name, old->cluster, source->layers, err);
	/* A search annotates the parameters of its own graph, and the widest tensor-parallel group decides how heads are split. */
	bool own =
	        old->plan && (old->plan->synthesis || !known || hspmd_plan_widest_group(old->plan) != hspmd_plan_widest_group(known_plan));
	if (own)
		old->graph = hspmd_pipeline_graph(source, old->plan, old->cluster, err);
	if (old->plan && (!own || old->graph))
		old->layouts = hspmd_parameter_layouts_build(own ? old->graph : known, old->plan, err);
	return old->layouts ? 0 : -1;
}

void hspmd_old_plan_clear(struct hspmd_old_plan *old)
{
	hspmd_parameter_layouts_destroy(old->layouts);
	hspmd_graph_destroy(old->graph);
	hspmd_plan_destroy(old->plan);
	hspmd_cluster_destroy(old->cluster);
	*old = (struct hspmd_old_plan){ 0 };
}
