/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/report_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/json.h"

#define COUNT_MAX (1 << 20)
#define SECONDS_MAX 1e12

int report_devices_split(const char *run, size_t *length, int *first)
{
	const char *colon = strrchr(run, ':');
	int last = 0, read = 0;
	if (!colon || colon == run)
		return 0;
	*length = (size_t)(colon - run);
	int found = sscanf(colon + 1, "%6d-%6d%n", first, &last, &read);
	if (found == 1 && sscanf(colon + 1, "%6d%n", first, &read) == 1 && !colon[1 + read] && *first >= 0)
		return 1;
	return found == 2 && !colon[1 + read] && *first >= 0 && last >= *first ? last - *first + 1 : 0;
}

static int read_devices(struct hspmd_json *at, struct report_stage *s)
{
	struct hspmd_json runs = hspmd_json_array(at, "devices", 1, COUNT_MAX);
	s->devices = runs.value;
	for (size_t i = 0; i < hspmd_json_length(&runs); i++) {
		struct hspmd_json one = hspmd_json_at(&runs, i);
		const char *run = hspmd_json_string_value(&one);
		size_t length;
		int first, count = run ? report_devices_split(run, &length, &first) : 0;
		if (!count)
			return hspmd_json_fail(&one, "expected node:index or node:first-last");
		s->device_count += count;
	}
	return hspmd_json_failed(at) ? -1 : 0;
}

static int read_stage(struct hspmd_json *at, struct report_stage *s)
{
	struct hspmd_json layers = hspmd_json_array(at, "layers", 2, 2);
	struct hspmd_json first = hspmd_json_at(&layers, 0), end = hspmd_json_at(&layers, 1);
	s->first = (int)hspmd_json_int_value(&first, 0, COUNT_MAX);
	s->end = (int)hspmd_json_int_value(&end, 1, COUNT_MAX);
	s->recompute = hspmd_json_any(at, "recompute").value;
	s->offload = hspmd_json_any(at, "offload").value;
	s->activations = hspmd_json_any(at, "offload_activations").value;
	if (!hspmd_json_failed(at) && s->end <= s->first)
		return hspmd_json_fail(&layers, "[%d, %d) has no layer", s->first, s->end);
	return read_devices(at, s);
}

static int read_pipeline(struct report_plan *p, struct hspmd_json *at, int micro_batch, int rounds)
{
	struct report_pipeline *pl = &p->pipelines[p->pipeline_count++];
	struct hspmd_json stages = hspmd_json_array(at, "stages", 1, COUNT_MAX);
	size_t n = hspmd_json_length(&stages);
	pl->micro_batches = (int)hspmd_json_int_or(at, "micro_batches", 0, INT32_MAX, 0);
	pl->micro_batch = (int)hspmd_json_int_or(at, "micro_batch", 0, INT32_MAX, micro_batch);
	pl->stages = hspmd_calloc(n, sizeof *pl->stages);
	if (!pl->stages)
		return hspmd_json_fail_memory(at);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json stage = hspmd_json_at(&stages, i);
		struct report_stage *s = &pl->stages[pl->stage_count++];
		if (read_stage(&stage, s))
			return -1;
		p->layers = s->end > p->layers ? s->end : p->layers;
		if (i < (n + (size_t)rounds - 1) / (size_t)rounds) /* later chunks of an interleaved plan are on the same devices */
			p->device_count += s->device_count;
	}
	return hspmd_json_failed(at) ? -1 : 0;
}

static int read_all(struct report_plan *p, struct hspmd_json *root)
{
	struct hspmd_json all = hspmd_json_array(root, "pipelines", 1, COUNT_MAX), predicted = hspmd_json_object_or_none(root, "predicted");
	int micro_batch = (int)hspmd_json_int_or(root, "micro_batch", 0, INT32_MAX, 0);
	int rounds = (int)hspmd_json_int_or(root, "virtual_stages", 1, 1024, 1);
	p->step_s = hspmd_json_number_or(&predicted, "step_s", 0, SECONDS_MAX, 0);
	p->compute_s = hspmd_json_number_or(&predicted, "compute_s", 0, SECONDS_MAX, 0);
	p->bubble_s = hspmd_json_number_or(&predicted, "bubble_s", 0, SECONDS_MAX, 0);
	p->communication_s = hspmd_json_number_or(&predicted, "communication_s", 0, SECONDS_MAX, 0);
	p->sync_s = hspmd_json_number_or(&predicted, "sync_s", 0, SECONDS_MAX, 0);
	p->pipelines = hspmd_calloc(hspmd_json_length(&all), sizeof *p->pipelines);
	if (!p->pipelines)
		return hspmd_json_fail_memory(root);
	for (size_t i = 0; i < hspmd_json_length(&all); i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		if (read_pipeline(p, &at, micro_batch, rounds))
			return -1;
	}
	return hspmd_json_failed(root) ? -1 : 0;
}

/* ---- what the devices measured */

static double computes(const json_t *entry)
{
	double s = json_number_value(json_object_get(entry, "compute_s"));
	return s > 0 && s < SECONDS_MAX ? s : NAN;
}

static int read_measured(struct report_plan *p, const char *folder)
{
	char *path = hspmd_asprintf("%s/devices-%" PRId64 ".json", folder, p->generation);
	json_t *v = path ? json_load_file(path, 0, NULL) : NULL, *one;
	size_t i;
	int bad = !path || !(p->measured = json_object());
	p->busy_s = 0;
	json_array_foreach(json_object_get(v, "devices"), i, one) {
		const char *device = json_string_value(json_object_get(one, "device"));
		if (bad || !device || isnan(computes(one)) || json_object_get(p->measured, device))
			continue;
		bad = json_object_set(p->measured, device, one);
		p->busy_s += computes(one);
	}
	json_decref(v);
	free(path);
	if (!bad && (int)json_object_size(p->measured) != p->device_count)
		p->busy_s = NAN;
	return bad ? -1 : 0;
}

/* Layers of a pipeline that a stage's devices have, also in their other chunks of an interleaved plan. */
static int layers_of_devices(const struct report_pipeline *pl, const struct report_stage *s)
{
	int n = 0;
	for (int i = 0; i < pl->stage_count; i++)
		if (json_equal(pl->stages[i].devices, s->devices))
			n += pl->stages[i].end - pl->stages[i].first;
	return n;
}

static double slowest(const struct report_plan *p, const struct report_stage *s)
{
	double most = 0;
	for (size_t i = 0; i < json_array_size(s->devices); i++) {
		const char *run = json_string_value(json_array_get(s->devices, i));
		size_t length;
		int first, count = report_devices_split(run, &length, &first);
		for (int k = 0; k < count; k++) {
			char address[300];
			snprintf(address, sizeof address, "%.*s:%d", (int)length, run, first + k);
			double s_device = computes(json_object_get(p->measured, address));
			if (isnan(s_device))
				return NAN;
			most = fmax(most, s_device);
		}
	}
	return most;
}

static void time_stages(struct report_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++) {
			const struct report_pipeline *pl = &p->pipelines[i];
			struct report_stage *s = &pl->stages[k];
			s->compute_s = slowest(p, s) * (s->end - s->first) / layers_of_devices(pl, s) / fmax(1, pl->micro_batches);
			p->busy_s = isnan(s->compute_s) ? NAN : p->busy_s;
		}
}

struct report_plan *report_plan_read(const char *folder, int64_t generation, struct hspmd_error *err)
{
	char name[48];
	size_t size;
	snprintf(name, sizeof name, "plan-%" PRId64 ".json", generation);
	char *path = hspmd_asprintf("%s/%s", folder, name);
	char *text = path ? hspmd_read_file(path, HSPMD_JSON_MAX_BYTES, &size, err) : NULL;
	struct report_plan *p = text ? calloc(1, sizeof *p) : NULL;
	struct hspmd_json_doc doc;
	int rc = p ? 0 : text || !path ? hspmd_fail_memory(err, "reading a plan") : -1;
	free(path);
	if (!rc)
		rc = hspmd_json_parse(&doc, name, text, size, err);
	if (!rc) {
		struct hspmd_json root = hspmd_json_root(&doc);
		p->generation = generation;
		p->source = json_incref(doc.root);
		rc = read_all(p, &root);
		hspmd_json_close(&doc);
	}
	if (!rc && read_measured(p, folder))
		rc = hspmd_fail_memory(err, "reading a plan");
	if (!rc)
		time_stages(p);
	free(text);
	if (rc) {
		report_plan_destroy(p);
		return NULL;
	}
	return p;
}

void report_plan_destroy(struct report_plan *p)
{
	if (!p)
		return;
	for (int i = 0; i < p->pipeline_count; i++)
		free(p->pipelines[i].stages);
	free(p->pipelines);
	json_decref(p->source);
	json_decref(p->measured);
	free(p);
}
