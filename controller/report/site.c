/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/site.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"

#define SAME_S 2 /* rows of a resized job follow one another within this time; a requeued one pauses for longer */

/* A change of what an elastic job holds, and of what it was started with. */
struct step {
	double time;
	int held, base, runs; /* differences; runs: of its first job */
};

struct steps {
	struct step *list;
	size_t count, capacity;
};

/* The elastic job to which a row belongs. */
static uint32_t job_of(const struct report_site_row *r)
{
	return r->anchor ? r->anchor : r->id;
}

static int by_job(const void *a, const void *b)
{
	const struct report_site_row *x = a, *y = b;
	uint32_t i = job_of(x), k = job_of(y);
	if (i != k)
		return i < k ? -1 : 1;
	if (!x->anchor != !y->anchor)
		return x->anchor ? 1 : -1; /* the job first, then its members */
	return (x->start > y->start) - (x->start < y->start);
}

static int by_time(const void *a, const void *b)
{
	const struct step *x = a, *y = b;
	return (x->time > y->time) - (x->time < y->time);
}

static int add_step(struct steps *s, double time, int held, int base, int runs)
{
	if (hspmd_array_grow(&s->list, &s->capacity, s->count, sizeof *s->list))
		return -1;
	s->list[s->count++] = (struct step){ time, held, base, runs };
	return 0;
}

/* The steps of a job's rows: its own, each row of which says what it holds, and its members'. */
static int make_steps(const struct report_site_row *rows, size_t count, struct steps *s)
{
	int base = 0, bad = 0;
	s->count = 0;
	for (size_t i = 0; i < count; i++) {
		const struct report_site_row *r = &rows[i];
		bool own = !r->anchor;
		if (own && (!i || r->start > rows[i - 1].end + SAME_S))
			base = r->devices;
		bad |= add_step(s, r->start, r->devices, own ? base : 0, own) | add_step(s, r->end, -r->devices, own ? -base : 0, -own);
	}
	if (!bad)
		qsort(s->list, s->count, sizeof *s->list, by_time);
	return bad;
}

static void integrate(struct report_site_job *j, const struct steps *s)
{
	int held = 0, base = 0, runs = 0;
	for (size_t i = 0; i < s->count; i++) {
		const struct step *at = &s->list[i];
		held += at->held;
		base += at->base;
		runs += at->runs;
		double seconds = i + 1 < s->count ? at[1].time - at->time : 0;
		if (seconds <= 0)
			continue;
		j->held_device_s += seconds * held;
		if (!runs) /* members that its end has left behind win nothing */
			continue;
		j->won_device_s += seconds * fmax(0, held - base);
		j->given_device_s += seconds * fmax(0, base - held);
		j->least = j->least && j->least < held ? j->least : held;
		j->most = held > j->most ? held : j->most;
	}
}

/* Events sorted by job. */
struct log {
	const struct report_site_event *events;
	size_t count;
};

static int by_event_job(const void *a, const void *b)
{
	const struct report_site_event *x = a, *y = b;
	if (x->job != y->job)
		return x->job < y->job ? -1 : 1;
	return (x->time > y->time) - (x->time < y->time);
}

/* Index of the first event of a job, or of where it would be. */
static size_t first_event(const struct log *log, uint32_t job)
{
	size_t low = 0, high = log->count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (log->events[middle].job < job)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void add_events(struct report_site_job *j, const struct log *log)
{
	for (size_t i = first_event(log, j->id); i < log->count && log->events[i].job == j->id; i++) {
		const struct report_site_event *e = &log->events[i];
		if (e->kind != REPORT_SITE_RESIZED)
			continue;
		j->resizes += e->resizes;
		j->steps_lost += e->steps_lost;
		j->pause_s += e->pause_s;
		j->paused_device_s += e->paused_device_s;
		j->lost_device_s += e->lost_device_s;
	}
}

static bool is_elastic(const struct report_site_row *rows, size_t count, const struct log *log)
{
	size_t i = first_event(log, rows[0].id);
	bool elastic = rows[count - 1].anchor || (i < log->count && log->events[i].job == rows[0].id);
	for (i = 0; i < count && !elastic; i++)
		elastic = rows[i].elastic;
	return elastic;
}

/* ---- waits */

static int by_end(const void *a, const void *b)
{
	const struct report_site_row *x = *(const struct report_site_row *const *)a, *y = *(const struct report_site_row *const *)b;
	return (x->end > y->end) - (x->end < y->end);
}

/* The earliest time at which the jobs that ran when the nodes were asked back have left as many nodes by their ends, had nobody been asked,
 * and had no other job taken any of them. */
static int free_without(const struct report_site_row *rows, size_t count, double never, struct report_site_wait *w)
{
	const struct report_site_row **ends = hspmd_calloc(count, sizeof *ends);
	size_t n = 0;
	int nodes = 0;
	if (!ends)
		return -1;
	w->without = never;
	for (size_t i = 0; i < count; i++)
		if (rows[i].id != w->id && rows[i].start <= w->asked && rows[i].end > w->asked)
			ends[n++] = &rows[i];
	if (n)
		qsort(ends, n, sizeof *ends, by_end);
	for (size_t i = 0; i < n && nodes < w->nodes; i++) {
		nodes += ends[i]->nodes;
		w->without = nodes < w->nodes ? never : ends[i]->end;
	}
	free(ends);
	return 0;
}

/* Rows as they would have been had no elastic job changed: what one held when it was asked, it would have held to its end. */
static struct report_site_row *without_recalls(const struct report_site_row *rows, size_t count)
{
	struct report_site_row *all = hspmd_calloc(count, sizeof *all);
	for (size_t i = 0, next; all && i < count; i = next) {
		double end = rows[i].end;
		for (next = i; next < count && job_of(&rows[next]) == job_of(&rows[i]); next++)
			end = rows[next].anchor ? end : fmax(end, rows[next].end);
		for (size_t k = i; k < next; k++) {
			all[k] = rows[k];
			all[k].end = fmax(rows[k].end, end);
		}
	}
	return all;
}

static int make_waits(struct report_site *s, const struct report_site_row *rows, size_t count, const struct log *log)
{
	struct report_site_row *all = NULL;
	int rc = 0;
	for (size_t i = 0; i < log->count && !rc; i++) {
		const struct report_site_event *e = &log->events[i];
		size_t k = 0;
		if (e->kind != REPORT_SITE_RECALL)
			continue;
		while (k < s->wait_count && s->waits[k].id != e->waiting)
			k++;
		if (k == s->wait_count) {
			if ((rc = hspmd_array_grow(&s->waits, &s->wait_capacity, k, sizeof *s->waits)))
				break;
			s->waits[s->wait_count++] = (struct report_site_wait){ .id = e->waiting, .asked = e->time, .start = NAN };
		}
		s->waits[k].nodes += e->nodes;
		s->waits[k].asked = fmin(s->waits[k].asked, e->time);
	}
	if (!rc && s->wait_count && !(all = without_recalls(rows, count)))
		rc = -1;
	size_t kept = 0;
	for (size_t k = 0; k < s->wait_count && !rc; k++) {
		struct report_site_wait w = s->waits[k];
		for (size_t i = 0; i < count; i++)
			if (rows[i].id == w.id && rows[i].start >= w.asked - SAME_S)
				w.start = fmin(w.start, rows[i].start); /* fmin leaves NaN out */
		if (isnan(w.start))                                     /* cancelled, or waiting still */
			continue;
		rc = free_without(all, count, s->end, &w);
		w.saved_s = fmax(0, w.without - w.start);
		s->waits[kept++] = w;
	}
	s->wait_count = rc ? s->wait_count : kept;
	free(all);
	return rc;
}

/* ---- all */

static int by_won(const void *a, const void *b)
{
	const struct report_site_job *x = a, *y = b;
	if (x->won_device_s != y->won_device_s)
		return x->won_device_s > y->won_device_s ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

/* Upright lines where the devices change. */
static int make_curve(const struct report_site *s, const struct steps *all, bool base, struct report_curve *c)
{
	double now = 0;
	*c = (struct report_curve){ .points = hspmd_calloc(2 * all->count + 1, sizeof *c->points) };
	if (!c->points)
		return -1;
	for (size_t i = 0, next; i < all->count; i = next) {
		double x = all->list[i].time - s->begin, before = now;
		for (next = i; next < all->count && all->list[next].time == all->list[i].time; next++)
			now += base ? all->list[next].base : all->list[next].held;
		if (now == before && c->count)
			continue;
		c->points[c->count][0] = x;
		c->points[c->count++][1] = before;
		c->points[c->count][0] = x;
		c->points[c->count++][1] = now;
	}
	return 0;
}

static int take_job(struct report_site *s, const struct report_site_row *rows, size_t count, const struct log *log, struct steps *steps,
                    struct steps *all)
{
	if (rows[0].anchor || !is_elastic(rows, count, log)) /* members of a job of an earlier time are not looked at */
		return 0;
	if (make_steps(rows, count, steps) || hspmd_array_grow(&s->jobs, &s->job_capacity, s->job_count, sizeof *s->jobs))
		return -1;
	struct report_site_job *j = &s->jobs[s->job_count++];
	*j = (struct report_site_job){ .id = rows[0].id,
		                       .user = rows[0].user,
		                       .account = rows[0].account,
		                       .partition = rows[0].partition,
		                       .start = rows[0].start,
		                       .end = rows[0].end,
		                       .started_with = rows[0].devices };
	for (size_t i = 0; i < count; i++)
		if (!rows[i].anchor)
			j->end = fmax(j->end, rows[i].end);
	integrate(j, steps);
	add_events(j, log);
	for (size_t i = 0; i < steps->count; i++)
		if (add_step(all, steps->list[i].time, steps->list[i].held, steps->list[i].base, 0))
			return -1;
	return 0;
}

int report_site_make(struct report_site *s, struct report_site_row *rows, size_t row_count, struct report_site_event *events,
                     size_t event_count, bool logged)
{
	const struct log log = { events, event_count };
	struct steps steps = { 0 }, all = { 0 };
	int rc = 0;
	*s = (struct report_site){ .begin = NAN, .end = NAN, .logged = logged };
	if (row_count)
		qsort(rows, row_count, sizeof *rows, by_job);
	if (event_count)
		qsort(events, event_count, sizeof *events, by_event_job);
	for (size_t i = 0; i < row_count; i++) {
		s->begin = fmin(s->begin, rows[i].start);
		s->end = fmax(s->end, rows[i].end);
	}
	for (size_t i = 0, end; i < row_count && !rc; i = end) {
		for (end = i + 1; end < row_count && job_of(&rows[end]) == job_of(&rows[i]);)
			end++;
		s->all_jobs += !rows[i].anchor;
		rc = take_job(s, &rows[i], end - i, &log, &steps, &all);
	}
	if (!rc && all.count)
		qsort(all.list, all.count, sizeof *all.list, by_time);
	if (!rc && s->job_count)
		qsort(s->jobs, s->job_count, sizeof *s->jobs, by_won);
	if (!rc)
		rc = make_curve(s, &all, false, &s->held) || make_curve(s, &all, true, &s->started_with) ||
		                     make_waits(s, rows, row_count, &log)
		             ? -1
		             : 0;
	free(steps.list);
	free(all.list);
	return rc;
}

void report_site_clear(struct report_site *s)
{
	free(s->jobs);
	free(s->waits);
	report_curve_free(&s->held);
	report_curve_free(&s->started_with);
	*s = (struct report_site){ 0 };
}

struct report_site_job report_site_sum(const struct report_site *s)
{
	struct report_site_job sum = { 0 };
	for (size_t i = 0; i < s->job_count; i++) {
		const struct report_site_job *j = &s->jobs[i];
		sum.held_device_s += j->held_device_s;
		sum.won_device_s += j->won_device_s;
		sum.given_device_s += j->given_device_s;
		sum.resizes += j->resizes;
		sum.steps_lost += j->steps_lost;
		sum.pause_s += j->pause_s;
		sum.paused_device_s += j->paused_device_s;
		sum.lost_device_s += j->lost_device_s;
	}
	return sum;
}

/* ---- as data */

/* What only the event log knows is null without one. */
static json_t *figures_json(const struct report_site *s, const struct report_site_job *j)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "held_device_s", hspmd_json_real(j->held_device_s), "won_device_s",
	                 hspmd_json_real(j->won_device_s), "given_device_s", hspmd_json_real(j->given_device_s), "resizes",
	                 hspmd_json_real(s->logged ? (double)j->resizes : NAN), "steps_lost",
	                 hspmd_json_real(s->logged ? (double)j->steps_lost : NAN), "pause_s", hspmd_json_real(s->logged ? j->pause_s : NAN),
	                 "paused_device_s", hspmd_json_real(s->logged ? j->paused_device_s : NAN), "lost_device_s",
	                 hspmd_json_real(s->logged ? j->lost_device_s : NAN));
}

json_t *report_site_json(const struct report_site *s)
{
	struct report_site_job sum = report_site_sum(s);
	json_t *jobs = json_array(), *waits = json_array(), *total = figures_json(s, &sum);
	double saved_s = 0;
	int bad = !jobs || !waits || !total;
	for (size_t i = 0; i < s->job_count && !bad; i++) {
		const struct report_site_job *j = &s->jobs[i];
		json_t *o = json_pack("{s:I, s:s, s:s, s:s, s:o, s:o, s:i, s:i, s:i}", "job", (json_int_t)j->id, "user", j->user, "account",
		                      j->account, "partition", j->partition, "start", hspmd_json_real(j->start), "end",
		                      hspmd_json_real(j->end), "started_with", j->started_with, "least", j->least, "most", j->most);
		bad = !o || json_object_update_new(o, figures_json(s, j)) | json_array_append_new(jobs, o);
	}
	for (size_t i = 0; i < s->wait_count && !bad; i++) {
		const struct report_site_wait *w = &s->waits[i];
		saved_s += w->saved_s;
		bad = json_array_append_new(waits,
		                            json_pack("{s:I, s:i, s:o, s:o, s:o, s:o}", "job", (json_int_t)w->id, "nodes", w->nodes,
		                                      "asked", hspmd_json_real(w->asked), "start", hspmd_json_real(w->start), "without",
		                                      hspmd_json_real(w->without), "saved_s", hspmd_json_real(w->saved_s)));
	}
	if (!bad)
		bad = json_object_set_new(total, "waits_saved_s", hspmd_json_real(s->logged ? saved_s : NAN)) |
		      json_object_set_new(total, "waits", hspmd_json_real(s->logged ? (double)s->wait_count : NAN)) |
		      json_object_set_new(total, "elastic_jobs", json_integer((json_int_t)s->job_count)) |
		      json_object_set_new(total, "jobs", json_integer((json_int_t)s->all_jobs));
	json_t *all = bad ? NULL
	                  : json_pack("{s:o, s:o, s:O, s:O, s:O}", "begin", hspmd_json_real(s->begin), "end", hspmd_json_real(s->end),
	                              "total", total, "jobs", jobs, "waits", waits);
	json_decref(jobs);
	json_decref(waits);
	json_decref(total);
	return all;
}
