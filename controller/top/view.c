/* SPDX-License-Identifier: Apache-2.0 */
/* The page of one job. */
#include "controller/top/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define EVENTS_SHOWN 5
#define STALE_S 5.0 /* an answer that is older is told */

/* ---- what is known */

/* Adds steps that are newer than the last known; steps that were made again replace those from there on. */
static void add_step(struct top_view *v, int64_t step, double loss)
{
	while (v->count && v->steps[v->count - 1] >= step)
		v->count--;
	if (v->count == TOP_HISTORY) {
		memmove(v->losses, v->losses + 1, (TOP_HISTORY - 1) * sizeof *v->losses);
		memmove(v->steps, v->steps + 1, (TOP_HISTORY - 1) * sizeof *v->steps);
		v->count--;
	}
	v->losses[v->count] = loss;
	v->steps[v->count++] = step;
}

void top_view_update(struct top_view *v, const json_t *status, const char *error, double now)
{
	size_t i;
	json_t *s;
	snprintf(v->error, sizeof v->error, "%s", status || !error ? "" : error);
	if (!status)
		return;
	json_decref(v->status);
	v->status = json_incref((json_t *)status);
	v->answered_at = now;
	json_array_foreach(json_object_get(status, "history"), i, s) {
		const json_t *loss = json_array_get(s, 1);
		add_step(v, json_integer_value(json_array_get(s, 0)), json_is_number(loss) ? json_number_value(loss) : NAN);
	}
	int last = top_view_devices(v) - 1;
	v->scroll = v->scroll > last ? last : v->scroll;
	v->scroll = v->scroll < 0 ? 0 : v->scroll;
}

void top_view_clear(struct top_view *v)
{
	json_decref(v->status);
	memset(v, 0, sizeof *v);
}

int top_view_devices(const struct top_view *v)
{
	return (int)json_array_size(json_object_get(v->status, "device_list"));
}

static double number(const json_t *o, const char *key)
{
	json_t *v = json_object_get(o, key);
	return json_is_number(v) ? json_number_value(v) : NAN;
}

static double number_or_0(const json_t *o, const char *key)
{
	double x = number(o, key);
	return isnan(x) ? 0 : x;
}

/* A text of the answer, cleaned; it lives until the third call after this one. */
static const char *text(const json_t *o, const char *key)
{
	static _Thread_local char buf[4][1024];
	static _Thread_local int next;
	next = (next + 1) % 4;
	return top_clean(json_string_value(json_object_get(o, key)), buf[next], sizeof buf[next]);
}

/* The step and the seconds that remain; NaN: unknown. */
static double remaining(const json_t *s)
{
	double left = number(s, "steps") - number(s, "step"), step_s = number(s, "step_s");
	return number(s, "steps") > 0 && left >= 0 && step_s > 0 ? left * step_s : NAN;
}

/* ---- the page */

static void clock_time(double wall, char *buf, size_t size)
{
	time_t t = (time_t)wall;
	struct tm tm;
	if (!localtime_r(&t, &tm) || !strftime(buf, size, "%H:%M:%S", &tm))
		snprintf(buf, size, "--:--:--");
}

static enum top_style style_of_phase(const char *phase)
{
	return !strncmp(phase, "training", 8) ? TOP_GOOD : !strcmp(phase, "recovering") ? TOP_BAD : TOP_WARN;
}

static void draw_head(const struct top_view *v, struct top_page *p, double now, double wall)
{
	const json_t *s = v->status;
	char when[16], span[32];
	clock_time(wall, when, sizeof when);
	top_page_print(p, TOP_TITLE, "job %s", text(s, "job"));
	top_page_put(p, TOP_NORMAL, "  ");
	const char *phase = text(s, "phase");
	top_page_put(p, style_of_phase(phase), phase);
	top_page_print(p, TOP_NORMAL, "  %.0f nodes, %.0f devices, generation %.0f", number_or_0(s, "node_count"),
	               number_or_0(s, "devices"), number_or_0(s, "generation"));
	if (!isnan(number(s, "up_s")))
		top_page_print(p, TOP_DIM, "  up %s", top_duration(number(s, "up_s"), span, sizeof span));
	top_page_to(p, p->width - 8);
	top_page_put(p, TOP_DIM, when);
	top_page_end_line(p);
	if (v->error[0] || now - v->answered_at > STALE_S) {
		top_page_print(p, TOP_BAD, "no answer for %s: %s", top_duration(now - v->answered_at, span, sizeof span),
		               v->error[0] ? v->error : "the controller is busy");
		top_page_end_line(p);
	}
	if (*text(s, "waiting_for") || *text(s, "reason")) {
		bool why = *text(s, "reason"); /* of Slurm's, or a sentence */
		top_page_print(p, TOP_WARN, "%s %s", why ? "why  " : "waits for", text(s, why ? "reason" : "waiting_for"));
		top_page_end_line(p);
	}
}

static void draw_progress(const struct top_view *v, struct top_page *p)
{
	const json_t *s = v->status;
	double steps = number_or_0(s, "steps"), step = number_or_0(s, "step"), left = remaining(s);
	char span[32];
	if (steps > 0) {
		top_page_print(p, TOP_NORMAL, "step  %.0f of %.0f ", step, steps);
		top_page_bar(p, TOP_GOOD, p->width > 100 ? 40 : 20, step / steps);
		top_page_print(p, TOP_NORMAL, " %.1f %%", 100 * step / steps);
		if (!isnan(left))
			top_page_print(p, TOP_DIM, ", %s left", top_duration(left, span, sizeof span));
	} else {
		top_page_print(p, TOP_NORMAL, "step  %.0f", step);
	}
	top_page_end_line(p);
	top_page_print(p, TOP_NORMAL, "speed %.4g tokens/s, %.3g s per step", number_or_0(s, "tokens_per_s"), number_or_0(s, "step_s"));
	top_page_end_line(p);
	top_page_print(p, TOP_NORMAL, "loss  %-9.5g ", number_or_0(s, "loss"));
	double low = INFINITY, high = -INFINITY;
	for (int i = 0; i < v->count; i++) {
		low = fmin(low, v->losses[i]);
		high = fmax(high, v->losses[i]);
	}
	if (v->count > 1 && high >= low) {
		int columns = p->width - 16 - 34;
		top_page_sparkline(p, TOP_GOOD, v->losses, v->count, columns > 0 ? columns : 0);
		top_page_print(p, TOP_DIM, "  %.4g to %.4g in %d steps", low, high, v->count);
	}
	top_page_end_line(p);
}

static void draw_state(const struct top_view *v, struct top_page *p)
{
	const json_t *s = v->status, *copies = json_object_get(s, "state"), *c, *fails = json_object_get(s, "checkpoints_fail");
	char span[32], copy[160];
	size_t i;
	top_page_print(p, TOP_NORMAL, "plan  %s", *text(s, "plan") ? text(s, "plan") : "none yet");
	top_page_end_line(p);
	if (json_object_get(s, "repaired")) {
		top_page_print(p, TOP_WARN, "      repaired %s", text(json_object_get(s, "repaired"), "text"));
		top_page_end_line(p);
	}
	top_page_put(p, TOP_NORMAL, "saved ");
	if (!json_array_size(copies))
		top_page_put(p, TOP_WARN, "no copy of the state yet");
	json_array_foreach(copies, i, c) {
		int length = snprintf(copy, sizeof copy, "%s step %.0f (%s old)", text(c, "where"), number_or_0(c, "step"),
		                      top_duration(number_or_0(c, "age_s"), span, sizeof span));
		if (i)
			top_page_put(p, TOP_NORMAL, ", ");
		if (i && top_page_room(p) < length) {
			top_page_end_line(p);
			top_page_to(p, 6);
		}
		top_page_put(p, TOP_NORMAL, copy);
	}
	top_page_end_line(p);
	if (fails) {
		top_page_print(p, TOP_BAD, "checkpoints FAIL for %s: %s", top_duration(number_or_0(fails, "for_s"), span, sizeof span),
		               text(fails, "why"));
		top_page_end_line(p);
	}
	if (*text(s, "last_error")) {
		top_page_print(p, TOP_BAD, "error %s", text(s, "last_error"));
		top_page_end_line(p);
	}
}

/* Columns of the table of devices; what the page has beyond 80 goes to the two bars. */
struct columns {
	int type, place, busy, memory, sent; /* where each begins */
};

static struct columns columns_of(const struct top_page *p)
{
	int extra = p->width > 80 ? (p->width - 80) / 2 : 0;
	return (struct columns){ .type = 15, .place = 25, .busy = 37, .memory = 53 + extra, .sent = 71 + 2 * extra };
}

static void draw_device(const json_t *d, struct top_page *p, const struct columns *at)
{
	double busy = number(d, "busy"), used = number(d, "memory_bytes"), all = number(d, "memory_total_bytes");
	char size[32];
	bool in_plan = json_object_get(d, "stage") != NULL;
	top_page_print(p, TOP_NORMAL, "%.*s", at->type - 1, text(d, "device"));
	top_page_to(p, at->type);
	top_page_print(p, TOP_NORMAL, "%.*s", at->place - at->type - 1, text(d, "type"));
	top_page_to(p, at->place);
	if (!in_plan) {
		top_page_print(p, TOP_WARN, "not in the plan");
		top_page_end_line(p);
		return;
	}
	top_page_print(p, TOP_NORMAL, "%.0f.%.0f L%.0f-%.0f", number_or_0(d, "pipeline"), number_or_0(d, "stage"),
	               json_number_value(json_array_get(json_object_get(d, "layers"), 0)),
	               json_number_value(json_array_get(json_object_get(d, "layers"), 1)) - 1);
	top_page_to(p, at->busy);
	top_page_bar(p, busy < 0.5 ? TOP_WARN : TOP_GOOD, at->memory - at->busy - 6, busy);
	if (!isnan(busy))
		top_page_print(p, TOP_NORMAL, "%3.0f%%", 100 * busy);
	top_page_to(p, at->memory);
	top_page_bar(p, used > 0.95 * all ? TOP_WARN : TOP_GOOD, at->sent - at->memory - 11, all > 0 ? used / all : NAN);
	if (!isnan(used))
		top_page_print(p, TOP_NORMAL, " %s", top_bytes(used, size, sizeof size));
	else
		top_page_print(p, TOP_DIM, " %s", top_bytes(all, size, sizeof size));
	top_page_to(p, at->sent);
	if (number(d, "sent_per_s") >= 0)
		top_page_print(p, TOP_NORMAL, "%s/s", top_bytes(number(d, "sent_per_s"), size, sizeof size));
	top_page_end_line(p);
}

static void draw_devices(const struct top_view *v, struct top_page *p, int lines)
{
	const json_t *list = json_object_get(v->status, "device_list");
	struct columns at = columns_of(p);
	int count = top_view_devices(v);
	if (lines < 2 || !count)
		return;
	top_page_put(p, TOP_TITLE, "DEVICE");
	top_page_to(p, at.type);
	top_page_put(p, TOP_TITLE, "TYPE");
	top_page_to(p, at.place);
	top_page_put(p, TOP_TITLE, "STAGE");
	top_page_to(p, at.busy);
	top_page_put(p, TOP_TITLE, "BUSY (.: WAITS)");
	top_page_to(p, at.memory);
	top_page_put(p, TOP_TITLE, "MEMORY");
	top_page_to(p, at.sent);
	top_page_put(p, TOP_TITLE, "SENT");
	top_page_end_line(p);
	lines--;
	int rows = count - v->scroll <= lines && !v->scroll ? count : lines - 1;
	for (int i = v->scroll; i < count && i < v->scroll + rows; i++)
		draw_device(json_array_get(list, (size_t)i), p, &at);
	if (rows < count) {
		int last = v->scroll + rows < count ? v->scroll + rows : count;
		top_page_print(p, TOP_DIM, "devices %d to %d of %d (arrows, page up and down)", v->scroll + 1, last, count);
		top_page_end_line(p);
	}
}

static void draw_event(const json_t *e, struct top_page *p)
{
	char when[16];
	clock_time(number_or_0(e, "time"), when, sizeof when);
	top_page_print(p, TOP_DIM, "%s ", when);
	top_page_put(p, TOP_NORMAL, text(e, "text"));
	top_page_end_line(p);
}

void top_view_draw(struct top_view *v, struct top_page *p, int height, double now, double wall)
{
	const json_t *events = json_object_get(v->status, "events");
	if (!v->status) {
		top_page_put(p, v->error[0] ? TOP_BAD : TOP_NORMAL, v->error[0] ? v->error : "asking the job's controller ...");
		top_page_end_line(p);
		return;
	}
	p->height = height;
	draw_head(v, p, now, wall);
	draw_progress(v, p);
	draw_state(v, p);
	size_t have = json_array_size(events), shown = have < EVENTS_SHOWN ? have : EVENTS_SHOWN;
	int below = (shown ? (int)shown + 1 : 0) + 1; /* events with their title, and the line of keys */
	draw_devices(v, p, height - p->lines - below);
	if (shown && height - p->lines > below - 1) {
		top_page_put(p, TOP_TITLE, "EVENTS");
		top_page_end_line(p);
		for (size_t i = have - shown; i < have && p->lines < height - 1; i++)
			draw_event(json_array_get(events, i), p);
	}
	while (p->lines < height - 1)
		top_page_end_line(p);
	if (v->notice[0])
		top_page_put(p, TOP_WARN, v->notice);
	else
		top_page_put(p, TOP_DIM, "g grow  s shrink  c checkpoint  j jobs  q quit");
	top_page_end_line(p);
}

/* ---- in words */

static void describe_device(const json_t *d, struct top_page *p)
{
	double busy = number(d, "busy"), used = number(d, "memory_bytes"), all = number(d, "memory_total_bytes");
	char size[32];
	top_page_print(p, TOP_NORMAL, "device %s, %s", text(d, "device"), text(d, "type"));
	if (!json_object_get(d, "stage"))
		top_page_put(p, TOP_NORMAL, ", not in the plan");
	else
		top_page_print(p, TOP_NORMAL, ", pipeline %.0f stage %.0f, layers %.0f to %.0f", number_or_0(d, "pipeline"),
		               number_or_0(d, "stage"), json_number_value(json_array_get(json_object_get(d, "layers"), 0)),
		               json_number_value(json_array_get(json_object_get(d, "layers"), 1)) - 1);
	if (!isnan(busy))
		top_page_print(p, TOP_NORMAL, ", busy %.0f percent, waits %.0f percent", 100 * busy, 100 * (1 - busy));
	if (!isnan(used)) {
		top_page_print(p, TOP_NORMAL, ", memory %s", top_bytes(used, size, sizeof size));
		if (all > 0)
			top_page_print(p, TOP_NORMAL, " of %s", top_bytes(all, size, sizeof size));
	}
	if (number(d, "sent_per_s") >= 0)
		top_page_print(p, TOP_NORMAL, ", sends %s per second", top_bytes(number(d, "sent_per_s"), size, sizeof size));
	top_page_end_line(p);
}

void top_view_describe(struct top_view *v, struct top_page *p, double now)
{
	const json_t *s = v->status, *c, *e;
	char span[32];
	size_t i;
	if (v->error[0]) {
		top_page_print(p, TOP_BAD, "no answer: %s", v->error);
		top_page_end_line(p);
	}
	if (!s)
		return;
	top_page_print(p, TOP_NORMAL, "job %s: %s", text(s, "job"), text(s, "phase"));
	if (*text(s, "waiting_for") || *text(s, "reason"))
		top_page_print(p, TOP_NORMAL, ", waits for %s", *text(s, "reason") ? text(s, "reason") : text(s, "waiting_for"));
	if (now - v->answered_at > STALE_S)
		top_page_print(p, TOP_NORMAL, ", as of %s ago", top_duration(now - v->answered_at, span, sizeof span));
	top_page_end_line(p);
	top_page_print(p, TOP_NORMAL, "%.0f nodes, %.0f devices, generation %.0f", number_or_0(s, "node_count"), number_or_0(s, "devices"),
	               number_or_0(s, "generation"));
	top_page_end_line(p);
	top_page_print(p, TOP_NORMAL, "step %.0f", number_or_0(s, "step"));
	if (number(s, "steps") > 0)
		top_page_print(p, TOP_NORMAL, " of %.0f", number(s, "steps"));
	top_page_print(p, TOP_NORMAL, ", loss %.5g, %.4g tokens per second, %.3g s per step", number_or_0(s, "loss"),
	               number_or_0(s, "tokens_per_s"), number_or_0(s, "step_s"));
	if (!isnan(remaining(s)))
		top_page_print(p, TOP_NORMAL, ", %s left", top_duration(remaining(s), span, sizeof span));
	top_page_end_line(p);
	if (json_object_get(s, "repaired")) {
		top_page_print(p, TOP_WARN, "plan repaired %s", text(json_object_get(s, "repaired"), "text"));
		top_page_end_line(p);
	}
	json_array_foreach(json_object_get(s, "state"), i, c) {
		top_page_print(p, TOP_NORMAL, "saved in %s: step %.0f, %s old", text(c, "where"), number_or_0(c, "step"),
		               top_duration(number_or_0(c, "age_s"), span, sizeof span));
		top_page_end_line(p);
	}
	if (json_object_get(s, "checkpoints_fail")) {
		top_page_print(p, TOP_BAD, "checkpoints fail: %s", text(json_object_get(s, "checkpoints_fail"), "why"));
		top_page_end_line(p);
	}
	if (*text(s, "last_error")) {
		top_page_print(p, TOP_BAD, "last error: %s", text(s, "last_error"));
		top_page_end_line(p);
	}
	json_array_foreach(json_object_get(s, "device_list"), i, c)
		describe_device(c, p);
	json_array_foreach(json_object_get(s, "events"), i, e) {
		int64_t nr = json_integer_value(json_object_get(e, "number"));
		if (nr <= v->events_seen)
			continue;
		v->events_seen = nr;
		top_page_put(p, TOP_NORMAL, "event ");
		draw_event(e, p);
	}
	if (v->notice[0]) {
		top_page_put(p, TOP_NORMAL, v->notice);
		top_page_end_line(p);
	}
}
