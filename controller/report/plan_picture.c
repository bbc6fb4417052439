/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/plan_picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/report/change_table.h"
#include "controller/report/markup.h"

#define WIDTH 500
#define LEFT 64 /* for the micro-batches */
#define ROW 34
#define BLOCK 26
#define LETTER 6.2 /* width of one, about */
#define TYPES 6    /* colours of types in report.css: .t0 to .t5; further types repeat them */

/* ---- device types */

struct types {
	const char *names[TYPES * 4];
	int count;
};

static int type_number(struct types *t, const char *name)
{
	int i = 0;
	while (i < t->count && strcmp(t->names[i], name))
		i++;
	if (i == t->count && t->count < TYPES * 4)
		t->names[t->count++] = name;
	return i % TYPES;
}

/* The predicted memory of the fullest of a stage's devices, as a share of what such a device has; NaN: unknown. */
static double fullest(const struct report_run *r, const struct report_plan *p, const struct report_stage *s)
{
	const json_t *memory = json_object_get(json_object_get(p->source, "predicted"), "memory_bytes");
	double most = NAN;
	for (size_t i = 0; i < json_array_size(s->devices); i++) {
		const char *run = json_string_value(json_array_get(s->devices, i));
		struct report_device d = report_run_device(r, run);
		size_t length;
		int first, count = report_devices_split(run, &length, &first);
		for (int k = 0; k < count; k++) {
			char address[300];
			snprintf(address, sizeof address, "%.*s:%d", (int)length, run, first + k);
			const json_t *bytes = json_object_get(memory, address);
			if (json_is_number(bytes) && d.memory_bytes > 0)
				most = fmax(isnan(most) ? 0 : most, json_number_value(bytes) / d.memory_bytes);
		}
	}
	return most;
}

/* ---- one plan */

/* The time of a micro-batch through the longest pipeline; 0: not all stages are measured, and blocks are as wide as their layers. */
static double longest(const struct report_plan *p)
{
	double most = 0;
	for (int i = 0; i < p->pipeline_count; i++) {
		double all = 0;
		for (int k = 0; k < p->pipelines[i].stage_count; k++)
			all += p->pipelines[i].stages[k].compute_s;
		if (isnan(all))
			return 0;
		most = fmax(most, all);
	}
	return most;
}

static void write_devices(FILE *out, const struct report_stage *s, size_t room)
{
	size_t used = 0;
	for (size_t i = 0; i < json_array_size(s->devices); i++) {
		const char *run = json_string_value(json_array_get(s->devices, i));
		if (used && used + strlen(run) + 3 > room) {
			fputs(" ...", out);
			break;
		}
		used += strlen(run) + 1;
		fputs(i ? " " : "", out);
		report_text(out, run);
	}
}

/* from, to: of the row's width. */
static void write_block(FILE *out, const struct report_run *r, const struct report_plan *p, const struct report_stage *s, double from,
                        double to, int top, struct types *types)
{
	double left = LEFT + from * (WIDTH - LEFT), width = (to - from) * (WIDTH - LEFT);
	const char *type = report_run_device(r, json_string_value(json_array_get(s->devices, 0))).type;
	double memory = fullest(r, p, s);
	struct report_words w;
	fprintf(out, "<g class=\"stage t%d\"><rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>", type_number(types, type), left + 1,
	        top, fmax(1, width - 2), BLOCK);
	if (!isnan(memory))
		fprintf(out, "<path class=\"memory\" d=\"M%.1f %dh%.1f\"/>", left + 3, top + BLOCK - 3,
		        fmin(1, memory) * fmax(0, width - 6));
	size_t letters = (size_t)fmax(0, (width - 8) / LETTER);
	const char *first = json_string_value(json_array_get(s->devices, 0));
	if (letters >= strlen(first)) {
		fprintf(out, "<text x=\"%.1f\" y=\"%d\">", left + 5, top + 16);
		write_devices(out, s, letters > 8 ? letters - 8 : 1);
		if (letters >= strlen(first) + 9)
			fprintf(out, " \302\267 L%d-%d", s->first, s->end);
		fputs("</text>", out);
	}
	fputs("<title>", out);
	write_devices(out, s, 200);
	report_textf(out, " (%s): layers %d to %d", *type ? type : "type not known", s->first, s->end - 1);
	if (json_is_string(s->recompute) && strcmp(json_string_value(s->recompute), "none"))
		report_textf(out, ", recompute %s", json_string_value(s->recompute));
	for (size_t i = 0; i < json_array_size(s->recompute); i++)
		report_textf(out, "%s %s", i ? "" : ", recompute", json_string_value(json_array_get(s->recompute, i)));
	if (json_is_string(s->offload) && strcmp(json_string_value(s->offload), "none"))
		report_textf(out, ", %s in the host's memory", json_string_value(s->offload));
	if (json_is_array(s->activations) || (json_is_string(s->activations) && strcmp(json_string_value(s->activations), "none") != 0))
		report_textf(out, ", activations in the host's memory");
	if (!isnan(memory))
		report_textf(out, ", memory %.0f %% of a device", memory * 100);
	if (!isnan(s->compute_s))
		report_textf(out, ", computes %s per micro-batch", report_seconds(&w, s->compute_s));
	fputs("</title></g>\n", out);
}

static void write_row_of_blocks(FILE *out, const struct report_run *r, const struct report_plan *p, const struct report_pipeline *pl,
                                double whole, int top, struct types *types)
{
	double at = 0;
	for (int k = 0; k < pl->stage_count; k++) {
		const struct report_stage *s = &pl->stages[k];
		double from = whole > 0 ? at / whole : (double)s->first / p->layers;
		at += s->compute_s;
		write_block(out, r, p, s, from, whole > 0 ? at / whole : (double)s->end / p->layers, top, types);
	}
}

static void write_picture(FILE *out, const struct report_run *r, const struct report_plan *p, struct types *types)
{
	double whole = longest(p);
	struct report_words w;
	int rows = p->pipeline_count < REPORT_PIPELINES_MAX ? p->pipeline_count : REPORT_PIPELINES_MAX;
	fprintf(out, "<svg class=\"plan\" role=\"img\" viewBox=\"0 0 %d %d\">\n", WIDTH, rows * ROW);
	for (int i = 0; i < rows; i++) {
		const struct report_pipeline *pl = &p->pipelines[i];
		fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d mb<title>%d micro-batch%s of %d</title></text>\n", LEFT - 6,
		        i * ROW + 20, pl->micro_batches, pl->micro_batches, pl->micro_batches == 1 ? "" : "es", pl->micro_batch);
		write_row_of_blocks(out, r, p, pl, whole, i * ROW + 4, types);
	}
	fputs("</svg>\n", out);
	fputs("<p class=\"small\">", out);
	if (whole > 0)
		report_textf(out, "Widths: time per micro-batch, measured; the longest row is %s.", report_seconds(&w, whole));
	else
		fputs("Widths: layers; the time of the stages was not measured.", out);
	fputs("</p>\n", out);
	if (rows < p->pipeline_count)
		fprintf(out, "<p class=\"small\">%d more pipelines are not drawn.</p>\n", p->pipeline_count - rows);
}

static void write_legend(FILE *out, const struct types *types)
{
	fputs("<p class=\"small\">", out);
	for (int i = 0; i < types->count; i++) {
		fprintf(out, "<span class=\"swatch type t%d\"></span>", i % TYPES);
		report_textf(out, "%s ", *types->names[i] ? types->names[i] : "type not known");
	}
	fputs("</p>\n", out);
}

/* Where a predicted step's time goes. */
static void write_parts(FILE *out, const struct report_plan *p)
{
	const double parts[] = { p->compute_s, p->bubble_s, p->communication_s, p->sync_s };
	static const char *const names[] = { "compute", "bubble", "messages", "sums of gradients" };
	double all = p->compute_s + p->bubble_s + p->communication_s + p->sync_s, at = LEFT;
	struct report_words w;
	if (all <= 0)
		return;
	fprintf(out, "<svg class=\"parts\" role=\"img\" viewBox=\"0 0 %d 16\"><text x=\"%d\" y=\"12\" text-anchor=\"end\">step</text>",
	        WIDTH, LEFT - 6);
	for (int i = 0; i < 4; i++) {
		double width = parts[i] / all * (WIDTH - LEFT);
		fprintf(out,
		        "<rect class=\"part%d\" x=\"%.1f\" y=\"3\" width=\"%.1f\" height=\"10\"><title>%s, predicted: %s</title></rect>", i,
		        at, width, names[i], report_seconds(&w, parts[i]));
		at += width;
	}
	fputs("</svg>\n<p class=\"small\">Predicted: ", out);
	for (int i = 0; i < 4; i++)
		if (parts[i] > 0)
			fprintf(out, "<span class=\"swatch part%d\"></span>%s %s ", i, names[i], report_seconds(&w, parts[i]));
	fputs("</p>\n", out);
}

/* ---- all generations of a run */

static bool drawn(int i, int count)
{
	return count <= REPORT_PLANS_MAX || i < REPORT_PLANS_MAX / 2 || i >= count - REPORT_PLANS_MAX / 2;
}

static void write_row(FILE *out, const struct report_generation *g)
{
	struct report_words w;
	double predicted = g->plan ? g->plan->step_s : 0;
	fprintf(out, "<tr><td class=\"n\">%" PRId64 "<td class=\"n\">%" PRId64 " to %" PRId64 "<td class=\"n\">%d<td class=\"n\">",
	        g->generation, g->first_step, g->last_step, g->nodes);
	if (g->plan)
		fprintf(out, "%d", g->plan->device_count);
	fprintf(out, "<td class=\"n\">%s", predicted > 0 ? report_seconds(&w, predicted) : "");
	fprintf(out, "<td class=\"n\">%s<td class=\"n\">", g->step_s > 0 ? report_seconds(&w, g->step_s) : "");
	if (predicted > 0 && g->step_s > 0)
		fprintf(out, "%.2f", g->step_s / predicted);
	fputs("</tr>\n", out);
}

#define FAR 1.5 /* times as long as predicted, of which a reader will ask why */

/* Why the generation that was farthest from its prediction took longer, as far as its devices' own counters tell. */
static void write_far(FILE *out, const struct report_generation *list, int count)
{
	const struct report_generation *far = NULL;
	double most = FAR;
	struct report_words w, v;
	for (int i = 0; i < count; i++)
		if (list[i].plan && list[i].plan->step_s > 0 && list[i].step_s >= most * list[i].plan->step_s) {
			far = &list[i];
			most = far->step_s / far->plan->step_s;
		}
	if (!far)
		return;
	double computed = far->plan->busy_s / far->plan->device_count, predicted = far->plan->compute_s;
	fprintf(out, "<p class=\"far\">A step of generation %" PRId64 " took %.*f times as long as predicted. ", far->generation, most < 10,
	        most);
	if (computed >= FAR * predicted && predicted > 0)
		fprintf(out,
		        "Its devices computed for %s of it, where %s were predicted: they were slower than when their speed was measured. "
		        "That "
		        "happens if other work, or other nodes of the same machine, use the same cores or GPU.",
		        report_seconds(&w, computed), report_seconds(&v, predicted));
	else if (computed > 0)
		fprintf(out, "Its devices computed for %s of it (predicted: %s); the rest are waits, for messages, one another, or a core.",
		        report_seconds(&w, computed), report_seconds(&v, predicted));
	fputs("</p>\n", out);
}

/* What moved between the generation before and this one. */
static void write_moved(FILE *out, const struct report_change *c)
{
	if (!c || !(c->bytes_from_local + c->bytes_from_peers + c->bytes_from_disk + c->bytes_from_shared > 0))
		return;
	fputs("<p class=\"small\">Moved for it: ", out);
	report_change_bytes(out, c);
	fputs(".</p>\n", out);
}

void report_plans_write(FILE *out, const struct report_run *r, const struct report_generation *list, int count)
{
	struct types types = { .count = 0 };
	if (!count)
		return;
	fputs("<h3>Plans: ", out);
	report_text(out, r->name);
	fputs("</h3>\n<p class=\"small\">A generation is the life of one plan. Measured is the median of its steps without the first.</p>\n"
	      "<table class=\"generations\"><thead><tr><th>generation<th>steps<th>nodes<th>devices<th>predicted step<th>measured "
	      "step<th>measured / "
	      "predicted</tr></thead><tbody>\n",
	      out);
	for (int i = 0; i < count; i++)
		if (drawn(i, count))
			write_row(out, &list[i]);
	fputs("</tbody></table>\n", out);
	write_far(out, list, count);
	fputs("<p class=\"small\">A row is a pipeline with its micro-batches (mb) per step; a block is a stage, as wide "
	      "as the time in which its slowest device computes for one micro-batch. The line at a block's bottom is the memory predicted "
	      "for its fullest device, as a share of what it has.</p>\n<div "
	      "class=\"plans\">\n",
	      out);
	for (int i = 0; i < count; i++) {
		if (!drawn(i, count) || !list[i].plan)
			continue;
		fprintf(out, "<figure class=\"plan\"><figcaption>Generation %" PRId64 ", step %" PRId64 " to %" PRId64 "</figcaption>\n",
		        list[i].generation, list[i].first_step, list[i].last_step);
		write_moved(out, list[i].change);
		write_picture(out, r, list[i].plan, &types);
		write_parts(out, list[i].plan);
		fputs("</figure>\n", out);
	}
	fputs("</div>\n", out);
	write_legend(out, &types);
	if (count > REPORT_PLANS_MAX)
		fprintf(out, "<p class=\"small\">%d generations in between are not shown.</p>\n", count - REPORT_PLANS_MAX / 2 * 2);
}

json_t *report_plans_json(const struct report_generation *list, int count)
{
	json_t *all = json_object();
	bool bad = !all;
	for (int i = 0; i < count; i++) {
		char key[24];
		snprintf(key, sizeof key, "%" PRId64, list[i].generation);
		if (drawn(i, count) && list[i].plan && !bad)
			bad = json_object_set(all, key, list[i].plan->source);
	}
	if (!bad)
		return all;
	json_decref(all);
	return NULL;
}
