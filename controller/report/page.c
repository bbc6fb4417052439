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
#include "controller/report/page_parts.h"
#include "controller/report/plan_picture.h"
#include "controller/report/sample_table.h"
#include "controller/report/step_time.h"
#include "controller/report/story.h"
#include "controller/report/summary.h"

struct report_page {
	FILE *out;
	const struct report_run *const *runs;
	int count;
	struct report_summary *summaries;      /* per run */
	struct report_device_time *times;      /* per run */
	struct report_comparison *comparisons; /* per run, of the first with it; none of the first itself */
	json_t **data;                         /* per run: what its <script> will hold */
	struct report_marks marks[2];          /* over steps, and over time */
	double range[2][2];                    /* of x, over steps and over time */
};

/* ---- the runs, in words */

static void write_head(struct report_page *p)
{
	struct report_words w;
	char *name = hspmd_asprintf("%s%s", p->runs[0]->name, p->count > 1 ? " and others" : "");
	report_head_write(p->out, "hspmd report", name);
	free(name);
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
		report_story_write(p->out, r, &p->summaries[i], &p->times[i]);
		for (size_t k = 0; k < r->warning_count; k++) {
			fputs("<p class=\"warning\">", p->out);
			report_textf(p->out, "Note: %s.", r->warnings[k]);
			fputs("</p>\n", p->out);
		}
		fputs("</section>\n", p->out);
	}
	for (int i = 1; i < p->count; i++)
		report_comparison_write(p->out, &p->comparisons[i], p->runs[0]->name, p->runs[i]->name);
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
		                                                   over == OVER_TIME, p->range[over][0], p->range[over][1], p->count,
		                                                   marks->count, curves, marks->list });
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

/* Which curve is whose. */
static void write_names(struct report_page *p)
{
	if (p->count < 2)
		return;
	fputs("<p class=\"small\">", p->out);
	for (int i = 0; i < p->count; i++) {
		fprintf(p->out, "<span class=\"key\"><span class=\"swatch c%d\"></span>", i % REPORT_COLOURS);
		report_text(p->out, p->runs[i]->name);
		fputs("</span> ", p->out);
	}
	fputs("</p>\n", p->out);
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
	fputs("<h3>Training</h3>\n<p class=\"small\">Broken lines are changes of the allocation: nodes before and after. ", p->out);
	report_controls_write(p->out);
	fputs("</p>\n", p->out);
	write_names(p);
	for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
		if (write_chart(p, report_value_names[charts[i].value], charts[i].title, charts[i].height, OVER_STEPS, make_value,
		                (int)charts[i].value))
			return -1;
	return 0;
}

/* ---- comparison */

/* The first run beside each of the others, whose curve shows the difference; write_head() has said it in words. */
static int write_comparison(struct report_page *p)
{
	struct report_curve *curves = p->count > 1 ? hspmd_calloc((size_t)p->count, sizeof *curves) : NULL;
	if (p->count < 2)
		return 0;
	fputs("<h3>Comparison</h3>\n", p->out);
	for (int i = 1; i < p->count && curves; i++) {
		curves[i] = p->comparisons[i].curve;
		p->comparisons[i].curve = (struct report_curve){ 0 };
	}
	return curves ? draw(p, "loss_difference", "Relative difference of the losses", 110, OVER_STEPS, curves) : -1;
}

/* ---- devices */

static int make_efficiency(const struct report_run *r, int what, struct report_curve *c)
{
	(void)what;
	return report_efficiency_curve(r, c);
}

static int write_devices(struct report_page *p)
{
	bool devices = true, any = false;
	for (int i = 0; i < p->count; i++) {
		devices = devices && !p->times[i].nodes;
		any = any || p->times[i].total_s > 0;
	}
	if (!any)
		return 0;
	fprintf(p->out,
	        "<h3>Devices over time</h3>\n<p class=\"small\">Seconds count from the first step. <span class=\"checkpoint\">\342\226\262"
	        "</span> is a checkpoint, <span class=\"fault\">\342\226\262</span> a fault.</p>\n");
	return write_chart(p, devices ? "devices" : "nodes", devices ? "Devices in use" : "Nodes in use", 110, OVER_TIME, make_nodes,
	                   devices) ||
	                       write_chart(p, "tokens_per_s", "Tokens per second", 160, OVER_TIME, make_tokens, 0) ||
	                       write_chart(p, "efficiency", "Efficiency: percent of an ideal run in which no device waits", 110, OVER_TIME,
	                                   make_efficiency, 0)
	               ? -1
	               : 0;
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
		if (report_device_time_make(r, &p->times[i]))
			return -1;
		json_t *changes = json_array();
		int bad = !changes;
		for (size_t k = 0; k < r->change_count; k++)
			bad |= json_array_append(changes, r->changes[k].line);
		p->data[i] = json_pack("{s:s, s:s, s:s, s:o, s:o, s:{}, s:o, s:o}", "name", r->name, "job", r->job, "run", r->id, "summary",
		                       report_summary_json(&p->summaries[i]), "device_time", report_device_time_json(&p->times[i]),
		                       "curves", "changes", changes, "events", report_events_json(r));
		if (bad || !p->data[i])
			return -1;
		if (i && (report_comparison_make(p->runs[0], r, &p->comparisons[i]) ||
		          json_object_set_new(p->data[i], "comparison", report_comparison_json(&p->comparisons[i]))))
			return -1;
	}
	return 0;
}

/* All steps; and the time from the first step to the last, or to the last mark after it. */
static void find_ranges(struct report_page *p)
{
	double *steps = p->range[OVER_STEPS], *time = p->range[OVER_TIME];
	const struct report_marks *marks = &p->marks[OVER_TIME];
	steps[0] = INFINITY;
	steps[1] = -INFINITY;
	for (int i = 0; i < p->count; i++) {
		const struct report_run *r = p->runs[i];
		for (size_t k = 0; k < r->step_count; k++) {
			steps[0] = fmin(steps[0], (double)r->steps[k].step);
			steps[1] = fmax(steps[1], (double)r->steps[k].step);
		}
		time[1] = fmax(time[1], report_since_begin(r, p->summaries[i].end));
	}
	for (int i = 0; i < marks->count; i++) {
		time[0] = fmin(time[0], marks->list[i].x);
		time[1] = fmax(time[1], marks->list[i].x);
	}
}

static int write_all(struct report_page *p)
{
	write_head(p);
	if (report_marks_make(p->runs, p->count, false, &p->marks[OVER_STEPS]) ||
	    report_marks_make(p->runs, p->count, true, &p->marks[OVER_TIME]))
		return -1;
	find_ranges(p);
	if (write_over_steps(p) || write_comparison(p))
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
	report_foot_write(p->out);
	return 0;
}

int report_page_write(FILE *out, const struct report_run *const *runs, int count, struct hspmd_error *err)
{
	struct report_page p = { .out = out, .runs = runs, .count = count };
	p.summaries = hspmd_calloc((size_t)count, sizeof *p.summaries);
	p.times = hspmd_calloc((size_t)count, sizeof *p.times);
	p.comparisons = hspmd_calloc((size_t)count, sizeof *p.comparisons);
	p.data = hspmd_calloc((size_t)count, sizeof *p.data);
	int rc = !p.summaries || !p.times || !p.comparisons || !p.data || make_data(&p) || write_all(&p)
	                 ? hspmd_fail_memory(err, "writing a report")
	                 : 0;
	for (int i = 0; p.data && i < count; i++)
		json_decref(p.data[i]);
	for (int i = 0; p.comparisons && i < count; i++)
		report_curve_free(&p.comparisons[i].curve);
	free(p.comparisons);
	free(p.data);
	free(p.times);
	free(p.summaries);
	report_marks_free(&p.marks[OVER_STEPS]);
	report_marks_free(&p.marks[OVER_TIME]);
	return rc;
}
