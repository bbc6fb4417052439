/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/event_table.h"

#include <string.h>

#include "common/json.h"
#include "controller/report/markup.h"

static bool is_one_of(const char *word, const char *const *words)
{
	while (*words && strcmp(word, *words))
		words++;
	return *words;
}

bool report_event_is_checkpoint(const struct report_event *e)
{
	static const char *const words[] = { "checkpoint",      "checkpoint_shared", "checkpoint_failed",
		                             "checkpoint_hurt", "copies_failed",     NULL };
	return is_one_of(e->event, words);
}

bool report_event_is_fault(const struct report_event *e)
{
	static const char *const words[] = { "abort",           "agent_lost",        "fault",         "quarantined", "straggler",
		                             "resize_failed",   "no_plan",           "too_few_nodes", "revive",      "rejoins",
		                             "checkpoint_hurt", "checkpoint_failed", "copies_failed", "controller",  NULL };
	return is_one_of(e->event, words);
}

/* What the site's policy decided: what hspmdctld asked for and why, what a limit refused, who was left out. */
static bool is_of_policy(const struct report_event *e)
{
	static const char *const words[] = { "policy", "straggler", "quarantined", "risk", "grow_ended", NULL };
	return is_one_of(e->event, words);
}

static bool any(const struct report_event *e)
{
	(void)e;
	return true;
}

/* Whether number i of `count` is shown. */
static bool shown(size_t i, size_t count)
{
	return count <= REPORT_EVENTS_MAX || i < REPORT_EVENTS_MAX / 2 || i >= count - REPORT_EVENTS_MAX / 2;
}

static size_t count_of(const struct report_run *r, bool (*wanted)(const struct report_event *e))
{
	size_t n = 0;
	for (size_t i = 0; i < r->event_count; i++)
		n += wanted(&r->events[i]);
	return n;
}

static void write_table(FILE *out, const struct report_run *r, const char *name, bool (*wanted)(const struct report_event *e))
{
	struct report_words w;
	size_t count = count_of(r, wanted), n = 0;
	fprintf(out, "<table class=\"%s\"><thead><tr><th>when<th>generation<th>event<th>what</tr></thead><tbody>\n", name);
	for (size_t i = 0; i < r->event_count; i++) {
		const struct report_event *e = &r->events[i];
		if (!wanted(e) || !shown(n++, count))
			continue;
		fprintf(out, "<tr><td class=\"n\">%s<td class=\"n\">", report_date(&w, e->time));
		if (e->generation >= 0)
			fprintf(out, "%lld", (long long)e->generation);
		fputs("<td>", out);
		report_text(out, e->event);
		fputs("<td>", out);
		report_text(out, e->text);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table>\n", out);
	if (count > REPORT_EVENTS_MAX)
		fprintf(out, "<p class=\"small\">%zu in between are not shown; events.jsonl has them.</p>\n", count - REPORT_EVENTS_MAX);
}

static void write_heading(FILE *out, const char *title, const struct report_run *r)
{
	fprintf(out, "<h3>%s: ", title);
	report_text(out, r->name);
	fputs("</h3>\n", out);
}

void report_events_write(FILE *out, const struct report_run *r)
{
	if (!r->event_count)
		return;
	write_heading(out, "Checkpoints", r);
	if (count_of(r, report_event_is_checkpoint))
		write_table(out, r, "checkpoints", report_event_is_checkpoint);
	else
		fputs("<p>No checkpoint was written.</p>\n", out);
	write_heading(out, "Faults", r);
	if (count_of(r, report_event_is_fault))
		write_table(out, r, "faults", report_event_is_fault);
	else
		fputs("<p>No fault was seen.</p>\n", out);
	if (count_of(r, is_of_policy)) {
		write_heading(out, "Decisions of the site's policy", r);
		write_table(out, r, "policy", is_of_policy);
	}
	fprintf(out, "<details><summary>All %zu events</summary>\n", r->event_count);
	write_table(out, r, "events", any);
	fputs("</details>\n", out);
}

json_t *report_events_json(const struct report_run *r)
{
	json_t *list = json_array();
	int bad = !list;
	for (size_t i = 0; i < r->event_count && !bad; i++)
		if (shown(i, r->event_count))
			bad = json_array_append(list, r->events[i].line);
	return hspmd_json_unless_failed(bad, list);
}
