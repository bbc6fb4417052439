/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/device_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "controller/report/generations.h"

#define PARTS_MIN 20
#define PARTS_MAX 300

static double took(const struct report_step *s)
{
	double seconds = s->values[REPORT_STEP_S];
	return seconds > 0 ? seconds : 0;
}

static double begin_of(const struct report_run *r)
{
	for (size_t i = 0; i < r->step_count; i++)
		if (!isnan(r->steps[i].values[REPORT_TIME]))
			return r->steps[i].values[REPORT_TIME] - took(&r->steps[i]);
	return NAN;
}

double report_since_begin(const struct report_run *r, double time)
{
	return time - begin_of(r);
}

static const struct report_plan *plan_of(const struct report_run *r, int64_t generation)
{
	size_t low = 0, high = r->plan_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (r->plans[middle]->generation < generation)
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->plan_count && r->plans[low]->generation == generation ? r->plans[low] : NULL;
}

/* The devices that made a step; 0: neither its line nor a plan tells. */
static int devices_of(const struct report_run *r, const struct report_step *s)
{
	const struct report_plan *p = s->devices ? NULL : plan_of(r, s->generation);
	return p ? p->device_count : s->devices;
}

static bool all_told(const struct report_run *r)
{
	for (size_t i = 0; i < r->step_count; i++)
		if ((!i || r->steps[i].generation != r->steps[i - 1].generation) && !devices_of(r, &r->steps[i]))
			return false;
	return true;
}

/* ---- how long devices held, and what they did then */

/* True if the generation began in another job, or after a requeue: nothing was held before it. */
static bool came_back(const struct report_change *c)
{
	return !strcmp(c->cause, "requeue") || !strcmp(c->cause, "resume");
}

static const struct report_change *change_of(const struct report_run *r, int64_t generation)
{
	for (size_t i = 0; i < r->change_count; i++)
		if (r->changes[i].generation == generation)
			return &r->changes[i];
	return NULL;
}

/* One step after another, with what is the same for all steps of a generation. */
struct walk {
	const struct report_run *r;
	bool nodes;
	struct report_generation *list; /* its generations */
	int count, at;                  /* at: the step's generation */
	size_t next;
	double end; /* of the step before; NaN: unknown */
	/* the step */
	const struct report_step *s;
	const struct report_change *change; /* that ended with it; NULL: none */
	double devices, held_s;             /* held_s: since the end of the step before, or as long as is known */
	double share;                       /* of a step's time in which devices compute; NaN: not measured */
};

static int walk_begin(struct walk *w, const struct report_run *r)
{
	*w = (struct walk){ .r = r, .nodes = !all_told(r), .at = -1, .end = NAN };
	w->list = report_generations_make(r, &w->count);
	return w->list ? 0 : -1;
}

/* The devices' counters run over all steps of a generation, also those that were lost. */
static double share_of(const struct walk *w, const struct report_generation *g)
{
	double all_s = g->took_s * w->devices;
	bool known = !w->nodes && g->plan && !isnan(g->plan->busy_s) && all_s > 0;
	return known ? fmin(1, g->plan->busy_s * (double)g->steps / all_s) : NAN;
}

static bool walk_on(struct walk *w)
{
	if (w->next == w->r->step_count)
		return false;
	const struct report_step *s = w->s = &w->r->steps[w->next];
	bool first = !w->next || s->generation != s[-1].generation;
	w->next++;
	w->change = first ? change_of(w->r, s->generation) : NULL;
	if (first) {
		w->devices = w->nodes ? s->nodes : devices_of(w->r, s);
		w->share = share_of(w, &w->list[++w->at]);
	}
	w->held_s = took(s) + (w->change ? w->change->pause_s : 0);
	double time = s->values[REPORT_TIME];
	if (!isnan(w->end) && !isnan(time) && !(w->change && came_back(w->change)))
		w->held_s = fmax(w->held_s, time - w->end);
	w->end = isnan(time) ? w->end : time;
	return true;
}

int report_device_time_make(const struct report_run *r, struct report_device_time *t)
{
	struct walk w;
	*t = (struct report_device_time){ .nodes = false };
	if (walk_begin(&w, r))
		return -1;
	t->nodes = w.nodes;
	while (walk_on(&w)) {
		double step_s = took(w.s) * w.devices, useful_s = isnan(w.share) ? 0 : step_s * w.share;
		t->total_s += w.held_s * w.devices;
		t->paused_s += (w.change ? w.change->pause_s : 0) * w.devices;
		if (w.s->repeated) {
			t->lost_s += step_s;
			continue;
		}
		t->useful_s += useful_s;
		*(isnan(w.share) ? &t->steps_s : &t->waiting_s) += step_s - useful_s;
	}
	t->other_s = fmax(0, t->total_s - t->useful_s - t->waiting_s - t->steps_s - t->lost_s - t->paused_s);
	free(w.list);
	return 0;
}

double report_efficiency(const struct report_device_time *t)
{
	return t->total_s > 0 && t->useful_s > 0 && t->steps_s <= 0 ? t->useful_s / t->total_s : NAN;
}

json_t *report_device_time_json(const struct report_device_time *t)
{
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "of", t->nodes ? "nodes" : "devices", "total_s",
	                 hspmd_json_real(t->total_s), "useful_s", hspmd_json_real(t->useful_s), "waiting_s", hspmd_json_real(t->waiting_s),
	                 "steps_s", hspmd_json_real(t->steps_s), "lost_s", hspmd_json_real(t->lost_s), "paused_s",
	                 hspmd_json_real(t->paused_s), "other_s", hspmd_json_real(t->other_s), "efficiency",
	                 hspmd_json_real(report_efficiency(t)));
}

/* ---- over time */

static void add_point(struct report_curve *c, double x, double y)
{
	double last = c->count ? c->points[c->count - 1][0] : 0;
	c->points[c->count][0] = fmax(x, last); /* a clock may be set back */
	c->points[c->count++][1] = y;
}

int report_nodes_curve(const struct report_run *r, bool devices, struct report_curve *c)
{
	double begin = begin_of(r), end = 0;
	*c = (struct report_curve){ .points = hspmd_calloc(4 * r->step_count + 1, sizeof *c->points) };
	if (!c->points)
		return -1;
	if (devices && !all_told(r))
		return 0;
	for (size_t i = 0; i < r->step_count; i++) {
		const struct report_step *s = &r->steps[i];
		double time = s->values[REPORT_TIME] - begin;
		if (isnan(time))
			continue;
		double held = devices ? devices_of(r, s) : s->nodes;
		double before = c->count ? c->points[c->count - 1][1] : 0;
		const struct report_change *change = i && s->generation != s[-1].generation ? change_of(r, s->generation) : NULL;
		if (c->count && change && came_back(change)) {
			add_point(c, end, before);
			add_point(c, end, 0);
			add_point(c, time - took(s), 0);
			add_point(c, time - took(s), held);
		} else if (!c->count) {
			add_point(c, time - took(s), held);
		} else if (before != held) { /* in the pause the job has what it goes on with */
			add_point(c, end, before);
			add_point(c, end, held);
		}
		end = time;
	}
	if (c->count)
		add_point(c, end, c->points[c->count - 1][1]);
	return 0;
}

/* Makes a curve of equal parts of the time, with y 0; without points if no step has a time. */
static int make_parts(const struct report_run *r, struct report_curve *c, double *width)
{
	double begin = begin_of(r), end = 0;
	size_t parts = r->step_count < PARTS_MIN ? PARTS_MIN : r->step_count > PARTS_MAX ? PARTS_MAX : r->step_count;
	*c = (struct report_curve){ .points = hspmd_calloc(parts, sizeof *c->points) };
	if (!c->points)
		return -1;
	for (size_t i = 0; i < r->step_count; i++)
		end = fmax(end, r->steps[i].values[REPORT_TIME] - begin); /* fmax leaves NaN out */
	*width = end / (double)parts;
	c->count = end > 0 ? (int)parts : 0;
	for (int k = 0; k < c->count; k++)
		c->points[k][0] = (k + 0.5) * *width;
	return 0;
}

/* Adds what belongs to the time from `low` to `high` to the parts, each its share. */
static void spread(struct report_curve *c, double width, double low, double high, double amount)
{
	int first = (int)fmin(fmax(0, low / width), c->count - 1), last = (int)fmin(fmax(0, high / width), c->count - 1);
	for (int k = first; k <= last; k++) {
		double within = fmin(high, (k + 1) * width) - fmax(low, k * width);
		double share = first == last ? 1 : within / (high - low);
		c->points[k][1] += fmax(0, share) * amount;
	}
}

int report_tokens_curve(const struct report_run *r, struct report_curve *c)
{
	double begin = begin_of(r), width;
	if (make_parts(r, c, &width))
		return -1;
	for (size_t i = 0; i < r->step_count && c->count; i++) {
		const struct report_step *s = &r->steps[i];
		double time = s->values[REPORT_TIME] - begin, low = fmax(0, time - took(s));
		if (!s->repeated && !isnan(time) && s->values[REPORT_TOKENS] > 0)
			spread(c, width, low, fmax(low, time), s->values[REPORT_TOKENS] / width);
	}
	return 0;
}

/* Keeps the parts in which anything was held: useful device seconds become percent of those that were held. */
static void divide(struct report_curve *useful, const struct report_curve *held)
{
	int n = 0;
	for (int k = 0; k < useful->count; k++) {
		if (held->points[k][1] <= 0)
			continue;
		useful->points[n][0] = useful->points[k][0];
		useful->points[n++][1] = fmin(100, useful->points[k][1] / held->points[k][1] * 100);
	}
	useful->count = n;
}

int report_efficiency_curve(const struct report_run *r, struct report_curve *c)
{
	struct report_curve held = { 0 };
	struct walk w = { 0 };
	double begin = begin_of(r), width;
	bool known = true;
	int rc = make_parts(r, c, &width) || make_parts(r, &held, &width) || walk_begin(&w, r) ? -1 : 0;
	while (!rc && c->count && known && walk_on(&w)) {
		double time = w.s->values[REPORT_TIME] - begin, low = fmax(0, time - took(w.s));
		if (isnan(time))
			continue;
		known = !isnan(w.share);
		spread(&held, width, fmax(0, time - w.held_s), fmax(low, time), w.held_s * w.devices);
		if (known && !w.s->repeated)
			spread(c, width, low, fmax(low, time), took(w.s) * w.devices * w.share);
	}
	if (rc || !known)
		c->count = 0;
	else
		divide(c, &held);
	report_curve_free(&held);
	free(w.list);
	return rc;
}
