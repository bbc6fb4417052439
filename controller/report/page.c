/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "controller/report/chart.h"
#include "controller/report/curve.h"
#include "controller/report/generations.h"
#include "controller/report/markup.h"
#include "controller/report/plan_picture.h"
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
	struct report_mark *marks;        /* of all runs, ascending */
	char (*words)[200];               /* per mark: what its label and title point to */
	int mark_count;
};

/* ---- what happened, in words */

static const char *state_words(const char *state)
{
	static const char *const words[][2] = { { "live", "the memory of nodes that stayed" },
		                                { "checkpoint", "a checkpoint" },
		                                { "init", "the beginning: no state was left" },
		                                { "command", "the trainer itself" } };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(state, words[i][0]))
			return words[i][1];
	return state;
}

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

/* ---- changes */

static int by_x(const void *a, const void *b)
{
	double x = ((const struct report_mark *)a)->x, y = ((const struct report_mark *)b)->x;
	return (x > y) - (x < y);
}

static int make_marks(struct report_page *p)
{
	size_t all = 0;
	struct report_words w;
	for (int i = 0; i < p->count; i++)
		all += p->runs[i]->change_count;
	p->marks = hspmd_calloc(all, sizeof *p->marks);
	p->words = hspmd_calloc(all, sizeof *p->words);
	if (!p->marks || !p->words)
		return -1;
	for (int i = 0; i < p->count; i++)
		for (size_t k = 0; k < p->runs[i]->change_count; k++) {
			const struct report_change *c = &p->runs[i]->changes[k];
			char *label = p->words[p->mark_count], *title = label + 24;
			snprintf(label, 24, "%d\342\206\222%d", c->from_nodes, c->nodes);
			snprintf(title, sizeof *p->words - 24,
			         "step %lld: %d to %d nodes (%.40s), paused %s, %lld steps lost, state from %.40s", (long long)c->step,
			         c->from_nodes, c->nodes, c->cause, report_seconds(&w, c->pause_s), (long long)c->steps_lost,
			         state_words(c->state));
			p->marks[p->mark_count++] = (struct report_mark){ (double)c->step, i, label, title };
		}
	qsort(p->marks, (size_t)p->mark_count, sizeof *p->marks, by_x);
	return 0;
}

static void write_bytes(FILE *out, const struct report_change *c)
{
	const double bytes[] = { c->bytes_from_local, c->bytes_from_peers, c->bytes_from_disk, c->bytes_from_shared };
	static const char *const from[] = { "own memory", "other nodes", "disk", "shared storage" };
	struct report_words w;
	bool any = false;
	for (int i = 0; i < 4; i++)
		if (bytes[i] > 0) {
			report_textf(out, "%s%s from %s", any ? ", " : "", report_bytes(&w, bytes[i]), from[i]);
			any = true;
		}
}

static void write_changes(FILE *out, const struct report_run *r, bool named)
{
	struct report_words w;
	if (!r->change_count)
		return;
	fputs("<h3>Changes of the allocation", out);
	if (named) {
		fputs(": ", out);
		report_text(out, r->name);
	}
	fputs("</h3>\n<table class=\"changes\"><thead><tr><th>at step<th>when<th>why<th>nodes<th>generation<th>pause<th>steps "
	      "lost<th>state "
	      "from<th>bytes moved</tr></thead><tbody>\n",
	      out);
	for (size_t i = 0; i < r->change_count; i++) {
		const struct report_change *c = &r->changes[i];
		fprintf(out, "<tr><td class=\"n\">%lld<td>%s<td>", (long long)c->step, report_date(&w, c->time));
		report_text(out, c->cause);
		fprintf(out, "<td class=\"n\">%d \342\206\222 %d<td class=\"n\">%lld<td class=\"n\">%s<td class=\"n\">%lld<td>",
		        c->from_nodes, c->nodes, (long long)c->generation, report_seconds(&w, c->pause_s), (long long)c->steps_lost);
		report_text(out, state_words(c->state));
		fputs("<td>", out);
		write_bytes(out, c);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table>\n", out);
}

/* ---- curves */

static int write_curves(struct report_page *p, enum report_value value, const char *title, int height)
{
	struct report_curve *curves = hspmd_calloc((size_t)p->count, sizeof *curves);
	int bad = !curves;
	for (int i = 0; i < p->count && !bad; i++) {
		bad |= report_curve_of(p->runs[i], value, &curves[i]);
		if (bad || !curves[i].count)
			continue;
		report_curve_thin(&curves[i]);
		bad |= json_object_set_new(json_object_get(p->data[i], "curves"), report_value_names[value], report_curve_json(&curves[i]));
	}
	if (!bad)
		report_chart_write(p->out, &(struct report_chart){ report_value_names[value], title, "step", height, p->count,
		                                                   p->mark_count, curves, p->marks });
	for (int i = 0; curves && i < p->count; i++)
		report_curve_free(&curves[i]);
	free(curves);
	return bad ? -1 : 0;
}

static int write_loss(struct report_page *p)
{
	fputs("<h3>Training</h3>\n<p class=\"small\">Broken lines are changes of the allocation: nodes before and after. Drag over a "
	      "picture to "
	      "look closer, double click to see all; <label><input type=\"checkbox\" id=\"log\"> logarithmic</label></p>\n",
	      p->out);
	return write_curves(p, REPORT_LOSS, "Loss", 280) || write_curves(p, REPORT_VALID_LOSS, "Validation loss", 160) ||
	                       write_curves(p, REPORT_LR, "Learning rate", 110) ||
	                       write_curves(p, REPORT_GRAD_NORM, "Gradient norm", 110) ||
	                       write_curves(p, REPORT_STEP_S, "Seconds per step", 110)
	               ? -1
	               : 0;
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
		p->data[i] = json_pack("{s:s, s:s, s:s, s:o, s:{}, s:o}", "name", r->name, "job", r->job, "run", r->id, "summary",
		                       report_summary_json(&p->summaries[i]), "curves", "changes", changes);
		if (bad || !p->data[i])
			return -1;
	}
	return 0;
}

static int write_all(struct report_page *p)
{
	write_head(p);
	if (make_marks(p) || write_loss(p))
		return -1;
	for (int i = 0; i < p->count; i++)
		write_changes(p->out, p->runs[i], p->count > 1);
	if (write_plans(p))
		return -1;
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
	free(p.marks);
	free(p.words);
	return rc;
}
