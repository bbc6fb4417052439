/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/plan_current.h"

#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "common/json.h"
#include "common/log.h"

/* "node:2" and "node:0-2" mean that the node has at least three devices. */
static int count_run(json_t *nodes, const char *run)
{
	const char *colon = run ? strrchr(run, ':') : NULL, *dash = colon ? strchr(colon, '-') : NULL;
	if (!colon || colon == run)
		return 0;
	long last = strtol(dash ? dash + 1 : colon + 1, NULL, 10);
	json_t *name = json_stringn(run, (size_t)(colon - run));
	const char *key = json_string_value(name);
	int bad = !name;
	if (name && last >= json_integer_value(json_object_get(nodes, key)))
		bad = json_object_set_new(nodes, key, json_integer(last + 1));
	json_decref(name);
	return bad;
}

/* An object that maps each node of a plan to the number of devices that it must have. NULL: out of memory. */
static json_t *named_nodes(const json_t *plan)
{
	json_t *nodes = json_object(), *pipeline, *stage, *run;
	size_t p, s, r;
	int bad = !nodes;
	json_array_foreach(json_object_get(plan, "pipelines"), p, pipeline)
		json_array_foreach(json_object_get(pipeline, "stages"), s, stage)
			json_array_foreach(json_object_get(stage, "devices"), r, run)
				bad |= count_run(nodes, json_string_value(run));
	return hspmd_json_unless_failed(bad, nodes);
}

/* Only the identity of devices matters in this cluster. */
static struct hspmd_cluster *cluster_of(const json_t *plan, struct hspmd_error *err)
{
	json_t *named = named_nodes(plan), *list = json_array(), *count;
	const char *name;
	int bad = !named || !list;
	json_object_foreach(named, name, count)
		bad |= json_array_append_new(list,
		                             json_pack("{s:s, s:[{s:s, s:O}]}", "name", name, "devices", "type", "any", "count", count));
	json_t *value =
	        json_pack("{s:s, s:{s:{s:s, s:i, s:i, s:{s:i}}}, s:O}", "format", HSPMD_CLUSTER_FORMAT, "device_types", "any", "kind",
	                  hspmd_device_name_of_cores(), "memory_bytes", 1, "gbytes_per_s", 1, "peak_tflops", "fp32", 1, "nodes", list);
	struct hspmd_cluster *c = bad || !value ? NULL : hspmd_cluster_from_json(value, "current", err);
	json_decref(named);
	json_decref(list);
	json_decref(value);
	return c;
}

struct hspmd_plan *hspmd_plan_read_current(const char *path, const struct hspmd_cluster *cluster, int layers, struct hspmd_cluster **own,
                                           struct hspmd_error *err)
{
	struct hspmd_error no = { "" };
	struct hspmd_json_doc doc;
	*own = NULL;
	if (hspmd_json_open(&doc, path, err))
		return NULL;
	struct hspmd_plan *plan = hspmd_plan_from_json(doc.root, path, cluster, layers, err);
	if (!plan && (*own = cluster_of(doc.root, &no)) && (plan = hspmd_plan_from_json(doc.root, path, *own, layers, &no)))
		hspmd_info("%s; what ran there is lost", err->text);
	if (!plan) {
		hspmd_cluster_destroy(*own);
		*own = NULL;
	}
	hspmd_json_close(&doc);
	return plan;
}
