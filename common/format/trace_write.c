/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "common/format/trace.h"
#include "common/json.h"

/* Sets members of an object; NULL values are skipped. false: out of memory. */
static bool put_string(json_t *o, const char *key, const char *text)
{
	return !text || json_object_set_new(o, key, json_string(text)) == 0;
}

static bool put_number(json_t *o, const char *key, double value, double absent)
{
	return value == absent || json_object_set_new(o, key, hspmd_json_real(value)) == 0;
}

static json_t *curve_json(const struct hspmd_trace_job *j)
{
	json_t *array = json_array();
	for (int i = 0; array && i < j->curve_count; i++)
		if (json_array_append_new(array, hspmd_json_real(j->tokens_per_s[i])) < 0) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *job_json(const struct hspmd_trace_job *j)
{
	json_t *o = json_pack("{s:I, s:i, s:s}", "id", (json_int_t)j->id, "nodes", j->nodes, "partition", j->partition);
	bool fine = o && put_number(o, "priority", j->priority, 0) && put_string(o, "user", j->user) &&
	            put_string(o, "account", j->account) && put_string(o, "qos", j->qos) && put_string(o, "policy", j->policy);
	if (fine && !j->elastic)
		fine = json_object_set_new(o, "run_s", hspmd_json_real(j->run_s)) == 0;
	else if (fine)
		fine = json_object_set_new(o, "elastic", json_true()) == 0 &&
		       json_object_set_new(o, "min_nodes", json_integer(j->min_nodes)) == 0 &&
		       json_object_set_new(o, "max_nodes", json_integer(j->max_nodes)) == 0 && put_number(o, "run_s", j->run_s, 0) &&
		       put_number(o, "tokens", j->tokens, 0) && put_number(o, "pause_s", j->pause_s, 2) &&
		       json_object_set_new(o, "tokens_per_s", curve_json(j)) == 0;
	if (fine)
		return o;
	json_decref(o);
	return NULL;
}

static json_t *nodes_json(const struct hspmd_trace *t, const struct hspmd_trace_event *e)
{
	json_t *array = json_array();
	for (int i = 0; array && i < e->node_count; i++)
		if (json_array_append_new(array, json_string(t->nodes[e->nodes[i]])) < 0) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *event_json(const struct hspmd_trace *t, const struct hspmd_trace_event *e)
{
	json_t *o = json_pack("{s:o, s:s}", "time_s", hspmd_json_real(e->time_s), "event", hspmd_trace_kind_names[e->kind]);
	bool fine = o;
	if (fine && e->kind == HSPMD_TRACE_SUBMIT)
		fine = json_object_set_new(o, "job", job_json(&t->jobs[e->job])) == 0;
	else if (fine)
		fine = json_object_set_new(o, "nodes", nodes_json(t, e)) == 0 &&
		       put_string(o, "partition", e->partition < 0 ? NULL : t->partitions[e->partition]) &&
		       put_string(o, "device_type", e->device_type) && put_number(o, "devices", e->devices, 1) &&
		       put_number(o, "price_per_hour", e->price_per_hour, 0);
	if (fine)
		return o;
	json_decref(o);
	return NULL;
}

json_t *hspmd_trace_to_json(const struct hspmd_trace *t)
{
	json_t *events = json_array();
	json_t *out = json_pack("{s:s, s:o, s:o}", "format", HSPMD_TRACE_FORMAT, "end_s", hspmd_json_real(t->end_s), "events", events);
	bool fine = out && put_string(out, "name", t->name) &&
	            (!(t->began_s > 0) || json_object_set_new(out, "began_s", hspmd_json_real(t->began_s)) == 0);
	for (int i = 0; fine && i < t->event_count; i++)
		fine = json_array_append_new(events, event_json(t, &t->events[i])) == 0;
	if (fine)
		return out;
	json_decref(out);
	return NULL;
}
