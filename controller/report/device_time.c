/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/device_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"

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

/* The devices of a generation's plan; 0: there is no such plan. */
static int devices_of(const struct report_run *r, int64_t generation)
{
	size_t low = 0, high = r->plan_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (r->plans[middle]->generation < generation)
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->plan_count && r->plans[low]->generation == generation ? r->plans[low]->device_count : 0;
}

static bool all_plans(const struct report_run *r)
{
	for (size_t i = 0; i < r->step_count; i++)
		if ((!i || r->steps[i].generation != r->steps[i - 1].generation) && !devices_of(r, r->steps[i].generation))
			return false;
	return true;
}

/* ---- what became of the devices' time */

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

void report_device_time_make(const struct report_run *r, struct report_device_time *t)
{
	double end = NAN, devices = 0;
	*t = (struct report_device_time){ .nodes = !all_plans(r) };
	for (size_t i = 0; i < r->step_count; i++) {
		const struct report_step *s = &r->steps[i];
		bool first = !i || s->generation != s[-1].generation;
		const struct report_change *c = first ? change_of(r, s->generation) : NULL;
		if (first)
			devices = t->nodes ? s->nodes : devices_of(r, s->generation);
		double held = took(s) + (c ? c->pause_s : 0), time = s->values[REPORT_TIME];
		if (!isnan(end) && !isnan(time) && !(c && came_back(c)))
			held = fmax(held, time - end);
		end = isnan(time) ? end : time;
		t->total_s += held * devices;
		t->paused_s += (c ? c->pause_s : 0) * devices;
		*(s->repeated ? &t->lost_s : &t->useful_s) += took(s) * devices;
	}
	t->other_s = fmax(0, t->total_s - t->useful_s - t->lost_s - t->paused_s);
}

json_t *report_device_time_json(const struct report_device_time *t)
{
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "of", t->nodes ? "nodes" : "devices", "total_s", hspmd_json_real(t->total_s),
	                 "useful_s", hspmd_json_real(t->useful_s), "lost_s", hspmd_json_real(t->lost_s), "paused_s",
	                 hspmd_json_real(t->paused_s), "other_s", hspmd_json_real(t->other_s));
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
	*c = (struct report_curve){ .points = hspmd_calloc(2 * r->step_count, sizeof *c->points) };
	if (!c->points)
		return -1;
	if (devices && !all_plans(r))
		return 0;
	for (size_t i = 0; i < r->step_count; i++) {
		const struct report_step *s = &r->steps[i];
		double time = s->values[REPORT_TIME] - begin;
		if (isnan(time))
			continue;
		double held = devices ? devices_of(r, s->generation) : s->nodes;
		if (!c->count || c->points[c->count - 1][1] != held) {
			if (c->count)
				add_point(c, end, c->points[c->count - 1][1]);
			add_point(c, time - took(s), held);
		}
		end = time;
	}
	if (c->count)
		add_point(c, end, c->points[c->count - 1][1]);
	return 0;
}

/* Adds the tokens of a step that lasted from `low` to `high` to the parts of the time, each its share. */
static void spread(struct report_curve *c, double width, double low, double high, double tokens)
{
	int first = (int)fmin(fmax(0, low / width), c->count - 1), last = (int)fmin(fmax(0, high / width), c->count - 1);
	for (int k = first; k <= last; k++) {
		double within = fmin(high, (k + 1) * width) - fmax(low, k * width);
		double share = first == last ? 1 : within / (high - low);
		c->points[k][1] += fmax(0, share) * tokens / width;
	}
}

int report_tokens_curve(const struct report_run *r, struct report_curve *c)
{
	double begin = begin_of(r), end = 0;
	size_t parts = r->step_count < PARTS_MIN ? PARTS_MIN : r->step_count > PARTS_MAX ? PARTS_MAX : r->step_count;
	*c = (struct report_curve){ .points = hspmd_calloc(parts, sizeof *c->points) };
	if (!c->points)
		return -1;
	for (size_t i = 0; i < r->step_count; i++)
		end = fmax(end, r->steps[i].values[REPORT_TIME] - begin); /* fmax leaves NaN out */
	if (end <= 0)
		return 0;
	double width = end / (double)parts;
	c->count = (int)parts;
	for (int k = 0; k < c->count; k++)
		c->points[k][0] = (k + 0.5) * width;
	for (size_t i = 0; i < r->step_count; i++) {
		const struct report_step *s = &r->steps[i];
		double time = s->values[REPORT_TIME] - begin, low = fmax(0, time - took(s));
		if (!s->repeated && !isnan(time) && s->values[REPORT_TOKENS] > 0)
			spread(c, width, low, fmax(low, time), s->values[REPORT_TOKENS]);
	}
	return 0;
}
