/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/site_page.h"

#include <math.h>

#include "controller/report/chart.h"
#include "controller/report/markup.h"
#include "controller/report/page_parts.h"

static void write_summary(FILE *out, const struct report_site *s)
{
	struct report_site_job sum = report_site_sum(s);
	struct report_words w;
	double saved_s = 0;
	for (size_t i = 0; i < s->wait_count; i++)
		saved_s += s->waits[i].saved_s;
	fputs("<p class=\"small\">", out);
	if (*report_date(&w, s->begin))
		report_textf(out, "From %s", w.text);
	if (*report_date(&w, s->end))
		report_textf(out, " to %s. A device is a GPU, or a node of a job without GPUs.", w.text);
	fputs("</p>\n<ul class=\"site\">\n", out);
	fputs("<li>", out);
	report_textf(out, "%zu of %zu jobs that ran were elastic. They held %s of device time.", s->job_count, s->all_jobs,
	             report_seconds(&w, sum.held_device_s));
	fputs("\n<li class=\"won\">", out);
	report_textf(out, "Won by growing: %s of device time, held beyond the number with which the jobs were started.",
	             report_seconds(&w, sum.won_device_s));
	fputs("\n<li class=\"given\">", out);
	report_textf(out, "Given to others by shrinking: %s of device time, held below that number.",
	             report_seconds(&w, sum.given_device_s));
	fputs("\n", out);
	if (!s->logged) {
		fputs("<li class=\"warning\">No event log of hspmdctld was read: pauses, lost work and saved waits are not known.\n</ul>\n",
		      out);
		return;
	}
	fputs("<li class=\"cost\">", out);
	report_textf(out, "Cost: %lld change%s took %s of device time in pauses", (long long)sum.resizes, sum.resizes == 1 ? "" : "s",
	             report_seconds(&w, sum.paused_device_s));
	report_textf(out, ", and %lld lost step%s took %s.", (long long)sum.steps_lost, sum.steps_lost == 1 ? "" : "s",
	             report_seconds(&w, sum.lost_device_s));
	fputs("\n<li class=\"saved\">", out);
	report_textf(out, "Waits saved: %zu job%s got nodes that elastic jobs gave back, and started at least %s sooner in all.",
	             s->wait_count, s->wait_count == 1 ? "" : "s", report_seconds(&w, saved_s));
	fputs("\n</ul>\n", out);
}

static void write_chart(FILE *out, const struct report_site *s)
{
	const struct report_curve curves[2] = { s->held, s->started_with };
	if (!s->held.count)
		return;
	fputs("<h3>Devices of elastic jobs</h3>\n<p class=\"small\"><span class=\"swatch c0\"></span>held, <span class=\"swatch "
	      "c1\"></span>"
	      "with which they were started. ",
	      out);
	report_controls_write(out);
	fputs("</p>\n", out);
	report_chart_write(out, &(struct report_chart){ .name = "devices",
	                                                .title = "Devices",
	                                                .axis = "seconds",
	                                                .height = 200,
	                                                .from_zero = true,
	                                                .x_high = s->end - s->begin,
	                                                .curve_count = 2,
	                                                .curves = curves });
}

static void write_job(FILE *out, const struct report_site *s, const struct report_site_job *j)
{
	struct report_words w;
	fprintf(out, "<tr><td class=\"n\">%u<td>", j->id);
	report_text(out, j->user);
	fputs("<td>", out);
	report_text(out, j->account);
	fputs("<td>", out);
	report_text(out, j->partition);
	fprintf(out, "<td class=\"n\">%s<td class=\"n\">%d<td class=\"n\">%d to %d", report_date(&w, j->start), j->started_with, j->least,
	        j->most);
	fprintf(out, "<td class=\"n\">%s", report_seconds(&w, j->held_device_s));
	fprintf(out, "<td class=\"n\">%s", report_seconds(&w, j->won_device_s));
	fprintf(out, "<td class=\"n\">%s", report_seconds(&w, j->given_device_s));
	if (s->logged) {
		fprintf(out, "<td class=\"n\">%lld<td class=\"n\">%s", (long long)j->resizes, report_seconds(&w, j->paused_device_s));
		fprintf(out, "<td class=\"n\">%s", report_seconds(&w, j->lost_device_s));
	}
	fputs("</tr>\n", out);
}

static void write_more(FILE *out, size_t count)
{
	if (count > REPORT_SITE_ROWS_MAX)
		fprintf(out, "<p class=\"small\">%zu more are not shown; the page's data have them.</p>\n", count - REPORT_SITE_ROWS_MAX);
}

static void write_jobs(FILE *out, const struct report_site *s)
{
	if (!s->job_count)
		return;
	fprintf(out,
	        "<h3>Elastic jobs</h3>\n<p class=\"small\">Those that won most come first. All times but the first are times of "
	        "devices.</p>\n"
	        "<table class=\"jobs\"><thead><tr><th>job<th>user<th>account<th>partition<th>start<th>started "
	        "with<th>devices<th>held<th>won"
	        "<th>given%s</tr></thead><tbody>\n",
	        s->logged ? "<th>changes<th>paused<th>lost" : "");
	for (size_t i = 0; i < s->job_count && i < REPORT_SITE_ROWS_MAX; i++)
		write_job(out, s, &s->jobs[i]);
	fputs("</tbody></table>\n", out);
	write_more(out, s->job_count);
}

static void write_waits(FILE *out, const struct report_site *s)
{
	struct report_words w;
	if (!s->wait_count)
		return;
	fputs("<h3>Jobs that got nodes back</h3>\n<p class=\"small\">Without: the earliest time at which the jobs that ran when the nodes "
	      "were "
	      "asked back had left as many by their ends, if elastic jobs had kept theirs, and if every node had gone to this job. So what "
	      "is "
	      "saved is the least that it can be.</p>\n<table class=\"waits\"><thead><tr><th>job<th>nodes asked back<th>asked"
	      "<th>started<th>without<th>saved</tr></thead><tbody>\n",
	      out);
	for (size_t i = 0; i < s->wait_count && i < REPORT_SITE_ROWS_MAX; i++) {
		const struct report_site_wait *x = &s->waits[i];
		fprintf(out, "<tr><td class=\"n\">%u<td class=\"n\">%d<td class=\"n\">%s", x->id, x->nodes, report_date(&w, x->asked));
		fprintf(out, "<td class=\"n\">%s", report_date(&w, x->start));
		fprintf(out, "<td class=\"n\">%s", report_date(&w, x->without));
		fprintf(out, "<td class=\"n\">%s</tr>\n", report_seconds(&w, x->saved_s));
	}
	fputs("</tbody></table>\n", out);
	write_more(out, s->wait_count);
}

static int write_data(FILE *out, const struct report_site *s)
{
	json_t *held = report_curve_json(&s->held), *base = report_curve_json(&s->started_with);
	return report_data(out, "site", report_site_json(s)) ||
	                       report_data(out, "run-0", json_pack("{s:s, s:{s:o}}", "name", "held", "curves", "devices", held)) ||
	                       report_data(out, "run-1", json_pack("{s:s, s:{s:o}}", "name", "started with", "curves", "devices", base))
	               ? -1
	               : 0;
}

int report_site_page_write(FILE *out, struct report_site *s, struct hspmd_error *err)
{
	report_curve_thin(&s->held);
	report_curve_thin(&s->started_with);
	report_head_write(out, "hspmd: what elasticity brought this site", NULL);
	write_summary(out, s);
	write_chart(out, s);
	write_jobs(out, s);
	write_waits(out, s);
	if (write_data(out, s))
		return hspmd_fail_memory(err, "writing a report");
	report_foot_write(out);
	return 0;
}
