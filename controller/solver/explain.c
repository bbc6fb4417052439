/* SPDX-License-Identifier: Apache-2.0 */
/* What limits a plan, in sentences: where the step's time goes, which device is fullest, and what one more device of each type would bring (by solving again with it). */
#include <stdio.h>
#include <stdlib.h>

#include "controller/solver/solver.h"

static void say_time(FILE *f, const struct hspmd_predicted *p)
{
	const struct {
		const char *what, *means;
		double s;
	} parts[] = {
		{ "arithmetic", "faster or more devices help, other links do not", p->compute_s },
		{ "stages that wait for one another", "more micro-batches or more equal stages help", p->bubble_s },
		{ "messages within a micro-batch", "faster links between stages or within a stage help", p->communication_s },
		{ "bringing gradients together", "faster links between pipelines or a larger batch help", p->sync_s },
	};
	size_t most = 0;
	for (size_t i = 1; i < sizeof parts / sizeof *parts; i++)
		most = parts[i].s > parts[most].s ? i : most;
	if (p->step_s > 0)
		fprintf(f, "Of %.4g s a step, %.0f%% is %s: %s.\n", p->step_s, 100 * parts[most].s / p->step_s, parts[most].what, parts[most].means);
}

static void say_memory(FILE *f, const struct hspmd_cluster *c, const struct hspmd_predicted *p)
{
	int fullest = -1;
	double most = 0;
	char name[128];
	for (int i = 0; i < p->device_count; i++) {
		double share = p->memory_bytes[i] / (double)c->types[c->devices[p->devices[i]].type].memory_bytes;
		if (share > most) {
			most = share;
			fullest = i;
		}
	}
	if (fullest >= 0)
		fprintf(f, "The fullest device, %s, needs %.1f%% of its memory.\n",
			hspmd_cluster_address(c, p->devices[fullest], name, sizeof name), 100 * most);
}

/* The cluster with a node more that has one device of this type. NULL: memory. */
static struct hspmd_cluster *with_one_more(const struct hspmd_cluster *c, int type)
{
	struct hspmd_error ignored;
	json_t *json = hspmd_cluster_to_json(c);
	json_t *node = json_pack("{ss,s[{ss,si}]}", "name", "one-more-device", "devices", "type", c->types[type].name, "count", 1);
	struct hspmd_cluster *more = NULL;
	if (json && node && !json_array_append(json_object_get(json, "nodes"), node))
		more = hspmd_cluster_from_json(json, "the cluster with a device more", &ignored);
	json_decref(node);
	json_decref(json);
	return more;
}

char *hspmd_plan_explain(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
			 const struct hspmd_solve_request *request, const struct hspmd_plan *plan)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	say_time(f, &plan->predicted);
	say_memory(f, cluster, &plan->predicted);
	for (int t = 0; request && t < cluster->type_count; t++) {
		struct hspmd_error err = { "" };
		struct hspmd_cluster *more = with_one_more(cluster, t);
		struct hspmd_plan *better = more ? hspmd_solve(more, model, profile, request, NULL, &err) : NULL;
		if (!better)
			fprintf(f, "What one more %s would bring cannot be told: %s.\n", cluster->types[t].name, more ? err.text : "out of memory");
		else if (better->predicted.step_s < plan->predicted.step_s * 0.999)
			fprintf(f, "One more %s would make a step %.1f%% shorter (%.4g s).\n", cluster->types[t].name,
				100 * (1 - better->predicted.step_s / plan->predicted.step_s), better->predicted.step_s);
		else
			fprintf(f, "One more %s would bring nothing.\n", cluster->types[t].name);
		hspmd_plan_destroy(better);
		hspmd_cluster_destroy(more);
	}
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
