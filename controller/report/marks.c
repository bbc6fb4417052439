/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/marks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "controller/report/change_table.h"
#include "controller/report/device_time.h"
#include "controller/report/event_table.h"
#include "controller/report/markup.h"

struct report_mark_words {
	char label[24], title[240];
};

static void add(struct report_marks *m, double x, int run, enum report_mark_kind kind)
{
	struct report_mark_words *w = &m->words[m->count];
	report_cut(w->title);
	if (isfinite(x)) /* a line without its time is in the tables only */
		m->list[m->count++] = (struct report_mark){ x, run, kind, w->label, w->title };
}

static void add_events(struct report_marks *m, const struct report_run *r, int run)
{
	for (size_t i = 0; i < r->event_count; i++) {
		const struct report_event *e = &r->events[i];
		bool fault = report_event_is_fault(e);
		if (!fault && !report_event_is_checkpoint(e))
			continue;
		snprintf(m->words[m->count].title, sizeof m->words->title, "%s", e->text);
		*m->words[m->count].label = 0;
		add(m, report_since_begin(r, e->time), run, fault ? REPORT_MARK_FAULT : REPORT_MARK_CHECKPOINT);
	}
}

static int by_x(const void *a, const void *b)
{
	double x = ((const struct report_mark *)a)->x, y = ((const struct report_mark *)b)->x;
	return (x > y) - (x < y);
}

int report_marks_make(const struct report_run *const *runs, int count, bool over_time, struct report_marks *m)
{
	size_t all = 0;
	for (int i = 0; i < count; i++)
		all += runs[i]->change_count + (over_time ? runs[i]->event_count : 0);
	*m = (struct report_marks){ 0, hspmd_calloc(all, sizeof *m->list), hspmd_calloc(all + 1, sizeof *m->words) };
	if (!m->list || !m->words)
		return -1;
	for (int i = 0; i < count; i++) {
		for (size_t k = 0; k < runs[i]->change_count; k++) {
			const struct report_change *c = &runs[i]->changes[k];
			report_change_label(c, m->words[m->count].label, sizeof m->words->label);
			report_change_title(c, m->words[m->count].title, sizeof m->words->title);
			add(m, over_time ? report_since_begin(runs[i], c->time) : (double)c->step, i, REPORT_MARK_CHANGE);
		}
		if (over_time)
			add_events(m, runs[i], i);
	}
	if (m->count)
		qsort(m->list, (size_t)m->count, sizeof *m->list, by_x);
	return 0;
}

void report_marks_free(struct report_marks *m)
{
	free(m->list);
	free(m->words);
	*m = (struct report_marks){ 0 };
}
