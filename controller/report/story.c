/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/story.h"

#include <math.h>
#include <string.h>

#include "controller/report/change_table.h"
#include "controller/report/markup.h"

/* ---- what happened */

/* The time of day if the run is of one day; its dates stand above. */
static void write_when(FILE *out, const struct report_summary *s, double time)
{
	struct report_words w, first;
	const char *date = report_date(&w, time);
	bool same_day = !strncmp(date, report_date(&first, s->begin), 10) && !strncmp(date, report_date(&first, s->end), 10);
	fputs("<time>", out);
	report_text(out, same_day && strlen(date) > 11 ? date + 11 : date);
	fputs("</time>", out);
}

static void write_change(FILE *out, const struct report_summary *s, const struct report_change *c)
{
	struct report_words w;
	fputs("<li>", out);
	write_when(out, s, c->time);
	fputs("<span>", out);
	if (c->from_nodes == c->nodes)
		report_textf(out, "Step %lld: a new plan for %d node%s", (long long)c->step, c->nodes, c->nodes == 1 ? "" : "s");
	else
		report_textf(out, "Step %lld: from %d to %d node%s", (long long)c->step, c->from_nodes, c->nodes, c->nodes == 1 ? "" : "s");
	report_textf(out, "%s%s. ", *report_cause_words(c->cause) ? ", " : "", report_cause_words(c->cause));
	report_textf(out, "Training paused for %s, ", report_seconds(&w, c->pause_s));
	if (c->steps_lost)
		report_textf(out, "and made %lld step%s again", (long long)c->steps_lost, c->steps_lost == 1 ? "" : "s");
	else
		fputs("and lost no step", out);
	if (*c->state)
		report_textf(out, "; it went on from %s", report_state_words(c->state));
	fputs(".</span>\n", out);
}

static void write_events(FILE *out, const struct report_run *r, const struct report_summary *s)
{
	const struct report_step *first = &r->steps[0];
	fputs("<ol class=\"story\">\n<li>", out);
	write_when(out, s, s->begin);
	report_textf(out, "Step %lld: training begins on %d node%s", (long long)first->step, first->nodes, first->nodes == 1 ? "" : "s");
	if (!isnan(s->first_loss))
		report_textf(out, ", with a loss of %.4g", s->first_loss);
	fputs(".\n", out);
	for (size_t i = 0; i < r->change_count; i++) {
		if (r->change_count > REPORT_STORY_MAX && i == REPORT_STORY_MAX / 2) {
			i = r->change_count - REPORT_STORY_MAX / 2;
			fprintf(out, "<li>... %zu more changes; a table below has them ...\n", r->change_count - REPORT_STORY_MAX);
		}
		write_change(out, s, &r->changes[i]);
	}
	fputs("<li>", out);
	write_when(out, s, s->end);
	if (r->wanted > 0 && s->last_step + 1 >= r->wanted)
		report_textf(out, "Step %lld: the last of %lld, all are done", (long long)s->last_step, (long long)r->wanted);
	else if (r->wanted > 0)
		report_textf(out, "Step %lld: the last one recorded; the job is to make %lld", (long long)s->last_step,
		             (long long)r->wanted);
	else
		report_textf(out, "Step %lld: the last one recorded", (long long)s->last_step);
	if (!isnan(s->last_loss))
		report_textf(out, ", with a loss of %.4g", s->last_loss);
	fputs(".\n</ol>\n", out);
}

/* ---- what it cost */

static void write_cost(FILE *out, const struct report_device_time *t)
{
	const struct {
		const char *name;
		double seconds;
	} parts[] = { { "computing", t->useful_s },         { "waiting for one another", t->waiting_s }, { "in steps", t->steps_s },
		      { "paused by changes", t->paused_s }, { "lost in steps made again", t->lost_s },   { "between steps", t->other_s } };
	const int count = sizeof parts / sizeof *parts;
	struct report_words w;
	const char *one = t->nodes ? "node" : "device";
	double at = 0, efficiency = report_efficiency(t);
	if (t->total_s <= 0)
		return;
	fputs("<figure class=\"time\"><figcaption>", out);
	report_textf(out, "What it cost: %s of %s time, all %ss added up", report_seconds(&w, t->total_s), one, one);
	fputs("</figcaption>\n<svg role=\"img\" viewBox=\"0 0 1000 18\" preserveAspectRatio=\"none\">", out);
	for (int i = 0; i < count; i++) {
		double width = fmin(1, parts[i].seconds / t->total_s) * 1000;
		if (width > 0)
			fprintf(out, "<rect class=\"time%d\" x=\"%.1f\" width=\"%.1f\" height=\"18\"><title>%s: %s</title></rect>", i, at,
			        width, parts[i].name, report_seconds(&w, parts[i].seconds));
		at += width;
	}
	fputs("</svg>\n<p class=\"small\">", out);
	for (int i = 0; i < count; i++) /* what may be unknown is left out, but a loss of nothing is worth a word */
		if (parts[i].seconds > 0 || i == 3 || i == 4)
			fprintf(out, "<span class=\"key\"><span class=\"swatch time%d\"></span>%s %s (%.1f %%)</span> ", i, parts[i].name,
			        report_seconds(&w, parts[i].seconds), parts[i].seconds / t->total_s * 100);
	fputs("</p>\n", out);
	if (!isnan(efficiency))
		fprintf(out,
		        "<p class=\"efficiency\">Beside an ideal run in which no device ever waits, this one was %.0f %% as fast.</p>\n",
		        efficiency * 100);
	fputs("</figure>\n", out);
}

void report_story_write(FILE *out, const struct report_run *r, const struct report_summary *s, const struct report_device_time *t)
{
	struct report_words w;
	if (!s->steps) {
		fputs("<p>No step is recorded.</p>\n", out);
		return;
	}
	fputs("<p>", out);
	if (s->steps == 1)
		report_textf(out, "Made 1 step (%lld)", (long long)s->first_step);
	else
		report_textf(out, "Made %lld steps (%lld to %lld)", (long long)s->steps, (long long)s->first_step, (long long)s->last_step);
	if (!isnan(s->begin))
		report_textf(out, " in %s", report_seconds(&w, s->end - s->begin));
	if (s->min_nodes == s->max_nodes)
		report_textf(out, " on %d node%s.", s->max_nodes, s->max_nodes == 1 ? "" : "s");
	else
		report_textf(out, " on %d to %d nodes.", s->min_nodes, s->max_nodes);
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
	write_events(out, r, s);
	write_cost(out, t);
}
