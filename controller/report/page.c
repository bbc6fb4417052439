/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/page.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/json.h"
#include "controller/report/change_table.h"
#include "controller/report/chart.h"
#include "controller/report/comparison.h"
#include "controller/report/curve.h"
#include "controller/report/device_time.h"
#include "controller/report/event_table.h"
#include "controller/report/generations.h"
#include "controller/report/marks.h"
#include "controller/report/markup.h"
#include "controller/report/plan_picture.h"
#include "controller/report/sample_table.h"
#include "controller/report/step_time.h"
#include "controller/report/summary.h"

static const char style[] =
#include "controller/report/report_css.h"
        ;
static const char script[] =
#include "controller/report/report_js.h"
        ;

struct report_page {
	FILE *out;
	const struct report_run *const *runs;
	int count;
	struct report_summary *summaries; /* per run */
	json_t **data;                    /* per run: what its <script> will hold */
	struct report_marks marks[2];     /* over steps, and over time */
};

/* ---- what happened, in words */

static void write_story(FILE *out, const struct report_run *r, const struct report_summary *s)
{
	struct report_words w;
	if (!s->steps) {
		fputs("<p>No step is recorded.</p>\n", out);
		return;
	}
	fputs("<p>", out);
	report_textf(out, "Made %lld step%s (%lld to %lld)", (long long)s->steps, s->steps == 1 ? "" : "s", (long long)s->first_step,
	             (long long)s->last_step);
	if (!isnan(s->begin))
		report_textf(out, " in %s", report_seconds(&w, s->end - s->begin));
	if (s->min_nodes == s->max_nodes)
		report_textf(out, " on %d node%s.", s->max_nodes, s->max_nodes == 1 ? "" : "s");
	else
		report_textf(out, " on %d to %d nodes.", s->min_nodes, s->max_nodes);
	if (!isnan(s->first_loss) && !isnan(s->last_loss))
		report_textf(out, " The loss went from %.4g to %.4g.", s->first_loss, s->last_loss);
	if (r->change_count)
		report_textf(out, " The job changed its plan %zu time%s, which paused training for %s in all; ", r->change_count,
		             r->change_count == 1 ? "" : "s", report_seconds(&w, s->pause_s));
	else
		fputs(" The allocation never changed.", out);
	if (r->change_count && !s->steps_lost)
		fputs("no step was lost.", out);
	else if (r->change_count)
		report_textf(out, "%lld step%s had to be made again.", (long long)s->steps_lost, s->steps_lost == 1 ? "" : "s");
	fputs("</p>\n", out);
}

static void write_head(struct report_page *p)
{
	struct report_words w;
	fprintf(p->out,
	        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
	        "<title>hspmd report: ");
	report_text(p->out, p->runs[0]->name);
	fprintf(p->out, "%s</title>\n<style>\n%s</style></head><body>\n<h1>hspmd report</h1>\n", p->count > 1 ? " and others" : "", style);
	for (int i = 0; i < p->count; i++) {
		const struct report_run *r = p->runs[i];
		fprintf(p->out, "<section class=\"run\"><h2><span class=\"swatch c%d\"></span>", i % REPORT_COLOURS);
		report_text(p->out, r->name);
		fputs("</h2>\n<p class=\"small\">", p->out);
		if (*r->job)
			report_textf(p->out, "Job %s. ", r->job);
		if (*report_date(&w, p->summaries[i].begin))
			report_textf(p->out, "First step at %s, ", w.text);
		if (*report_date(&w, p->summaries[i].end))
			report_textf(p->out, "last at %s. ", w.text);
		fputs("</p>\n", p->out);
		write_story(p->out, r, &p->summaries[i]);
		for (size_t k = 0; k < r->warning_count; k++) {
			fputs("<p class=\"warning\">", p->out);
			report_textf(p->out, "Note: %s.", r->warnings[k]);
			fputs("</p>\n", p->out);
		}
		fputs("</section>\n", p->out);
	}
}

/* ---- curves */

enum over { OVER_STEPS, OVER_TIME };

/* Draws the curves, one per run, and frees them. */
static int draw(struct report_page *p, const char *name, const char *title, int height, enum over over, struct report_curve *curves)
{
	const struct report_marks *marks = &p->marks[over];
	int bad = 0;
	for (int i = 0; i < p->count && !bad; i++) {
		report_curve_thin(&curves[i]);
		if (curves[i].count)
			bad |= json_object_set_new(json_object_get(p->data[i], "curves"), name, report_curve_json(&curves[i]));
	}
	if (!bad)
		report_chart_write(p->out, &(struct report_chart){ name, title, over == OVER_TIME ? "seconds" : "step", height,
		                                                   over == OVER_TIME, p->count, marks->count, curves, marks->list });
	for (int i = 0; i < p->count; i++)
		report_curve_free(&curves[i]);
	free(curves);
	return bad ? -1 : 0;
}

static int write_chart(struct report_page *p, const char *name, const char *title, int height, enum over over,
                       int (*make)(const struct report_run *r, int what, struct report_curve *c), int what)
{
	struct report_curve *curves = hspmd_calloc((size_t)p->count, sizeof *curves);
	int bad = !curves;
	for (int i = 0; i < p->count && !bad; i++)
		bad |= make(p->runs[i], what, &curves[i]);
	for (int i = 0; bad && curves && i < p->count; i++)
		report_curve_free(&curves[i]);
	if (bad)
		free(curves);
	return bad ? -1 : draw(p, name, title, height, over, curves);
}

static int make_value(const struct report_run *r, int value, struct report_curve *c)
{
	return report_curve_of(r, (enum report_value)value, c);
}

static int make_nodes(const struct report_run *r, int devices, struct report_curve *c)
{
	return report_nodes_curve(r, devices, c);
}

static int make_tokens(const struct report_run *r, int what, struct report_curve *c)
{
	(void)what;
	return report_tokens_curve(r, c);
}

static int write_over_steps(struct report_page *p)
{
	static const struct {
		enum report_value value;
		const char *title;
		int height;
	} charts[] = { { REPORT_LOSS, "Loss", 280 },
		       { REPORT_VALID_LOSS, "Validation loss", 160 },
		       { REPORT_LR, "Learning rate", 110 },
		       { REPORT_GRAD_NORM, "Gradient norm", 110 },
		       { REPORT_STEP_S, "Seconds per step", 110 } };
	fputs("<h3>Training</h3>\n<p class=\"small\">Broken lines are changes of the allocation: nodes before and after. Drag over a "
	      "picture to "
	      "look closer, double click to see all; <label><input type=\"checkbox\" id=\"log\"> logarithmic</label></p>\n",
	      p->out);
	for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
		if (write_chart(p, report_value_names[charts[i].value], charts[i].title, charts[i].height, OVER_STEPS, make_value,
		                (int)charts[i].value))
			return -1;
	return 0;
}

/* ---- comparison */

/* The first run beside each of the others, whose curve shows the difference. */
static int write_comparison(struct report_page *p)
{
	struct report_curve *curves = p->count > 1 ? hspmd_calloc((size_t)p->count, sizeof *curves) : NULL;
	int bad = !curves;
	if (p->count < 2)
		return 0;
	fputs("<h3>Comparison</h3>\n", p->out);
	for (int i = 1; i < p->count && !bad; i++) {
		struct report_comparison c;
		bad |= report_comparison_make(p->runs[0], p->runs[i], &c);
		if (bad)
			break;
		report_comparison_write(p->out, &c, p->runs[0]->name, p->runs[i]->name);
		bad |= json_object_set_new(p->data[i], "comparison", report_comparison_json(&c));
		curves[i] = c.curve;
	}
	for (int i = 0; bad && curves && i < p->count; i++)
		report_curve_free(&curves[i]);
	if (bad)
		free(curves);
	return bad ? -1 : draw(p, "loss_difference", "Relative difference of the losses", 110, OVER_STEPS, curves);
}

/* ---- devices */

static void write_device_time(FILE *out, const struct report_run *r, const struct report_device_time *t)
{
	const double parts[] = { t->useful_s, t->paused_s, t->lost_s, t->other_s };
	static const char *const names[] = { "useful", "paused by changes", "lost in steps that were made again", "between steps" };
	struct report_words w;
	double at = 0;
	if (t->total_s <= 0)
		return;
	fputs("<figure class=\"time\"><figcaption>", out);
	report_textf(out, "Time of the %s, %s in all: %s", t->nodes ? "nodes" : "devices", report_seconds(&w, t->total_s), r->name);
	fputs("</figcaption>\n<svg role=\"img\" viewBox=\"0 0 1000 18\">", out);
	for (int i = 0; i < 4; i++) {
		double width = fmin(1, parts[i] / t->total_s) * 1000;
		fprintf(out, "<rect class=\"time%d\" x=\"%.1f\" width=\"%.1f\" height=\"18\"><title>%s: %s</title></rect>", i, at, width,
		        names[i], report_seconds(&w, parts[i]));
		at += width;
	}
	fputs("</svg>\n<p class=\"small\">", out);
	for (int i = 0; i < 4; i++)
		fprintf(out, "<span class=\"swatch time%d\"></span>%s %s (%.1f %%) ", i, names[i], report_seconds(&w, parts[i]),
		        parts[i] / t->total_s * 100);
	fputs("</p></figure>\n", out);
}

static int write_devices(struct report_page *p)
{
	bool devices = true, any = false;
	for (int i = 0; i < p->count; i++) {
		struct report_device_time t;
		report_device_time_make(p->runs[i], &t);
		devices = devices && !t.nodes;
		any = any || t.total_s > 0;
	}
	if (!any)
		return 0;
	fprintf(p->out,
	        "<h3>Devices over time</h3>\n<p class=\"small\">Seconds count from the first step. <span class=\"checkpoint\">\342\226\262"
	        "</span> is a checkpoint, <span class=\"fault\">\342\226\262</span> a fault.</p>\n");
	if (write_chart(p, devices ? "devices" : "nodes", devices ? "Devices in use" : "Nodes in use", 110, OVER_TIME, make_nodes,
	                devices) ||
	    write_chart(p, "tokens_per_s", "Tokens per second", 160, OVER_TIME, make_tokens, 0))
		return -1;
	for (int i = 0; i < p->count; i++) {
		struct report_device_time t;
		report_device_time_make(p->runs[i], &t);
		if (json_object_set_new(p->data[i], "device_time", report_device_time_json(&t)))
			return -1;
		write_device_time(p->out, p->runs[i], &t);
	}
	return 0;
}

/* ---- a step */

static int write_step_times(struct report_page *p)
{
	int bad = 0;
	for (int i = 0; i < p->count && !bad; i++) {
		struct report_step_time t;
		bad = report_step_time_make(p->runs[i], &t);
		if (!bad && t.count)
			bad = json_object_set_new(p->data[i], "step_time", report_step_time_json(&t));
		if (!bad)
			report_step_time_write(p->out, p->runs[i], &t);
		report_step_time_free(&t);
	}
	return bad;
}

/* ---- plans */

static int write_plans(struct report_page *p)
{
	int rc = 0;
	for (int i = 0; i < p->count && !rc; i++) {
		int count;
		struct report_generation *list = report_generations_make(p->runs[i], &count);
		if (!list || json_object_set_new(p->data[i], "generations", report_generations_json(list, count)) ||
		    json_object_set_new(p->data[i], "plans", report_plans_json(list, count)))
			rc = -1;
		else
			report_plans_write(p->out, p->runs[i], list, count);
		free(list);
	}
	return rc;
}

/* ---- samples */

static int write_samples(struct report_page *p)
{
	for (int i = 0; i < p->count; i++) {
		json_t *samples = report_samples_read(p->runs[i]);
		if (!samples || json_object_set_new(p->data[i], "samples", samples))
			return -1;
		report_samples_write(p->out, p->runs[i], samples);
	}
	return 0;
}

/* ---- the page */

static int make_data(struct report_page *p)
{
	for (int i = 0; i < p->count; i++) {
		const struct report_run *r = p->runs[i];
		report_summary_make(r, &p->summaries[i]);
		json_t *changes = json_array();
		int bad = !changes;
		for (size_t k = 0; k < r->change_count; k++)
			bad |= json_array_append(changes, r->changes[k].line);
		p->data[i] =
		        json_pack("{s:s, s:s, s:s, s:o, s:{}, s:o, s:o}", "name", r->name, "job", r->job, "run", r->id, "summary",
		                  report_summary_json(&p->summaries[i]), "curves", "changes", changes, "events", report_events_json(r));
		if (bad || !p->data[i])
			return -1;
	}
	return 0;
}

static int write_all(struct report_page *p)
{
	write_head(p);
	if (report_marks_make(p->runs, p->count, false, &p->marks[OVER_STEPS]) ||
	    report_marks_make(p->runs, p->count, true, &p->marks[OVER_TIME]) || write_over_steps(p) || write_comparison(p))
		return -1;
	for (int i = 0; i < p->count; i++)
		report_changes_write(p->out, p->runs[i]);
	if (write_devices(p) || write_step_times(p) || write_plans(p) || write_samples(p))
		return -1;
	for (int i = 0; i < p->count; i++)
		report_events_write(p->out, p->runs[i]);
	for (int i = 0; i < p->count; i++) {
		char id[24];
		snprintf(id, sizeof id, "run-%d", i);
		json_t *data = p->data[i];
		p->data[i] = NULL;
		if (report_data(p->out, id, data))
			return -1;
	}
	fprintf(p->out, "<div id=\"tip\" hidden></div>\n<script>\n%s</script>\n</body></html>\n", script);
	return 0;
}

int report_page_write(FILE *out, const struct report_run *const *runs, int count, struct hspmd_error *err)
{
	struct report_page p = { .out = out, .runs = runs, .count = count };
	p.summaries = hspmd_calloc((size_t)count, sizeof *p.summaries);
	p.data = hspmd_calloc((size_t)count, sizeof *p.data);
	int rc = !p.summaries || !p.data || make_data(&p) || write_all(&p) ? hspmd_fail_memory(err, "writing a report") : 0;
	for (int i = 0; p.data && i < count; i++)
		json_decref(p.data[i]);
	free(p.data);
	free(p.summaries);
	report_marks_free(&p.marks[OVER_STEPS]);
	report_marks_free(&p.marks[OVER_TIME]);
	return rc;
}
