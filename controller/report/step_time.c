/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/step_time.h"

#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "controller/report/generations.h"
#include "controller/report/markup.h"
#include "controller/report/report_run.h"
#include "controller/report/trace_steps.h"

#define WIDTH 300

/* The name of the trace with the latest steps; false: there is none. */
static bool newest_trace(const struct report_run *r, char *name, size_t size)
{
	DIR *d = opendir(r->folder);
	long long newest = -1;
	for (struct dirent *e; d && (e = readdir(d));) {
		long long first, last;
		int end = 0;
		if (sscanf(e->d_name, "trace-%18lld-%18lld.json%n", &first, &last, &end) == 2 && end && !e->d_name[end] && last > newest) {
			newest = last;
			snprintf(name, size, "%.*s", (int)size - 1, e->d_name);
		}
	}
	if (d)
		closedir(d);
	return newest >= 0;
}

static json_t *load(const struct report_run *r, const char *name)
{
	char *path = hspmd_asprintf("%s/%s", r->folder, name);
	json_t *v = path ? json_load_file(path, 0, NULL) : NULL;
	free(path);
	return v;
}

static int from_trace(const struct report_run *r, struct report_step_time *t)
{
	json_t *trace = load(r, t->source);
	int rc = report_trace_steps(trace, t);
	t->traced = t->count > 0;
	t->generation = json_integer_value(json_object_get(json_object_get(trace, "otherData"), "generation"));
	json_decref(trace);
	return rc;
}

static const struct report_generation *longest(const struct report_generation *list, int count)
{
	const struct report_generation *most = NULL;
	for (int i = 0; i < count; i++)
		if (!most || list[i].steps > most->steps)
			most = &list[i];
	return most;
}

static int from_counters(const struct report_run *r, struct report_step_time *t)
{
	int count;
	struct report_generation *list = report_generations_make(r, &count);
	const struct report_generation *g = list ? longest(list, count) : NULL;
	int rc = list ? 0 : -1;
	size_t i;
	json_t *one;
	t->source[0] = 0;
	if (g)
		snprintf(t->source, sizeof t->source, "devices-%lld.json", (long long)g->generation);
	json_t *v = g ? load(r, t->source) : NULL, *devices = json_object_get(v, "devices");
	json_array_foreach(devices, i, one) {
		const char *device = json_string_value(json_object_get(one, "device"));
		double compute = json_number_value(json_object_get(one, "compute_s"));
		if (!device || !(compute >= 0 && compute < 1e9))
			continue;
		if (hspmd_array_grow(&t->devices, &t->capacity, t->count, sizeof *t->devices)) {
			rc = -1;
			break;
		}
		struct report_device_step *d = &t->devices[t->count++];
		*d = (struct report_device_step){ .steps = json_integer_value(json_object_get(one, "steps")),
			                          .step_s = g->took_s / (double)g->steps,
			                          .compute_s = compute };
		snprintf(d->device, sizeof d->device, "%s", device);
		report_cut(d->device);
	}
	t->generation = g ? g->generation : 0;
	if (!t->count)
		t->source[0] = 0;
	json_decref(v);
	free(list);
	return rc;
}

int report_step_time_make(const struct report_run *r, struct report_step_time *t)
{
	*t = (struct report_step_time){ .traced = false };
	if (newest_trace(r, t->source, sizeof t->source)) {
		int rc = from_trace(r, t);
		if (rc || t->count)
			return rc;
	}
	return from_counters(r, t);
}

void report_step_time_free(struct report_step_time *t)
{
	free(t->devices);
	*t = (struct report_step_time){ .devices = NULL };
}

static void write_row(FILE *out, const struct report_step_time *t, const struct report_device_step *d)
{
	const double parts[] = { d->compute_s, d->bubble_s, d->messages_s, d->sync_s };
	struct report_words w;
	double at = 0, whole = fmax(d->step_s, 1e-12);
	fputs("<tr><td>", out);
	report_text(out, d->device);
	fprintf(out, "<td class=\"n\">%s", report_seconds(&w, d->step_s));
	for (int i = 0; i < (t->traced ? 4 : 1); i++)
		fprintf(out, "<td class=\"n\">%s (%.0f %%)", report_seconds(&w, parts[i]), parts[i] / whole * 100);
	fprintf(out, "<td><svg class=\"parts\" role=\"img\" style=\"width:%dpx\" viewBox=\"0 0 %d 14\">", WIDTH, WIDTH);
	for (int i = 0; i < (t->traced ? 4 : 1); i++) {
		double width = fmin(1, parts[i] / whole) * WIDTH;
		fprintf(out, "<rect class=\"part%d\" x=\"%.1f\" y=\"2\" width=\"%.1f\" height=\"10\"/>", i, at, width);
		at += width;
	}
	fputs("</svg></tr>\n", out);
}

void report_step_time_write(FILE *out, const struct report_run *r, const struct report_step_time *t)
{
	if (!t->count)
		return;
	fputs("<h3>Where a step's time goes: ", out);
	report_text(out, r->name);
	fputs("</h3>\n<p class=\"small\">", out);
	if (t->traced)
		report_textf(out,
		             "Measured: %s. A bubble is a wait for a stage that has not computed yet; sync is the wait for sums of "
		             "gradients and for the vote.",
		             t->source);
	else
		report_textf(out,
		             "Counted by the devices in generation %lld (%s). Only computation is counted; a trace (hspmd trace) tells the "
		             "waits apart, and the prediction below does.",
		             (long long)t->generation, t->source);
	fprintf(out, "</p>\n<table class=\"step-time\"><thead><tr><th>device<th>step<th>compute%s<th></tr></thead><tbody>\n",
	        t->traced ? "<th>bubble<th>messages<th>sync" : "");
	for (size_t i = 0; i < t->count && i < REPORT_STEP_DEVICES_MAX; i++)
		write_row(out, t, &t->devices[i]);
	fputs("</tbody></table>\n", out);
	if (t->count > REPORT_STEP_DEVICES_MAX)
		fprintf(out, "<p class=\"small\">%zu more devices are not shown.</p>\n", t->count - REPORT_STEP_DEVICES_MAX);
}

json_t *report_step_time_json(const struct report_step_time *t)
{
	json_t *list = json_array();
	int bad = !list;
	for (size_t i = 0; i < t->count && i < REPORT_STEP_DEVICES_MAX && !bad; i++) {
		const struct report_device_step *d = &t->devices[i];
		bad |= json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f}", "device", d->device, "steps", (json_int_t)d->steps,
		                                             "step_s", d->step_s, "compute_s", d->compute_s));
		if (t->traced && !bad)
			bad |= json_object_update_new(json_array_get(list, i), json_pack("{s:f, s:f, s:f}", "bubble_s", d->bubble_s,
			                                                                 "messages_s", d->messages_s, "sync_s", d->sync_s));
	}
	return bad ? json_decref(list), NULL
	           : json_pack("{s:s, s:b, s:I, s:o}", "source", t->source, "traced", t->traced, "generation", (json_int_t)t->generation,
	                       "devices", list);
}
