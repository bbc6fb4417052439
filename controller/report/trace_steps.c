/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/report/trace_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/trace_lanes.h"

#define SECONDS 1e-6

/* A span of a trace, with what is needed of it. */
struct event {
	int process, device; /* device: number of its first lane */
	enum hspmd_lane lane;
	const char *category, *tensor;
	int64_t step, micro_batch;
	double began, ended;
	bool sends, pairwise; /* pairwise: a message from one device to another */
};

struct events {
	struct event *list;
	size_t count, capacity;
};

static int64_t whole(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);
	return json_is_integer(v) ? json_integer_value(v) : -1;
}

static const char *word(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));
	return text ? text : "";
}

static int collect(const json_t *all, struct events *e)
{
	size_t i;
	json_t *v;
	json_array_foreach(all, i, v) {
		const json_t *args = json_object_get(v, "args");
		int64_t process = whole(v, "pid"), thread = whole(v, "tid");
		double began = json_number_value(json_object_get(v, "ts")), length = json_number_value(json_object_get(v, "dur"));
		if (strcmp(word(v, "ph"), "X") || whole(args, "step") < 0 || process < 0 || process > INT32_MAX || thread < 0 ||
		    thread > INT32_MAX || !(fabs(began) < 1e15) || !(length >= 0 && length < 1e15))
			continue;
		if (hspmd_array_grow(&e->list, &e->capacity, e->count, sizeof *e->list))
			return -1;
		e->list[e->count++] = (struct event){
			.process = (int)process,
			.device = (int)thread / HSPMD_LANE_COUNT,
			.lane = (enum hspmd_lane)(thread % HSPMD_LANE_COUNT),
			.category = word(v, "cat"),
			.tensor = word(args, "tensor"),
			.step = whole(args, "step"),
			.micro_batch = whole(args, "micro_batch"),
			.began = began,
			.ended = began + length,
			.sends = json_is_true(json_object_get(args, "sends")),
			.pairwise = !strcmp(word(v, "name"), "send-receive"),
		};
	}
	return 0;
}

/* By what is sent, then by when: both ends of a message stand together. */
static int by_message(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	if (x->micro_batch != y->micro_batch)
		return x->micro_batch < y->micro_batch ? -1 : 1;
	int tensor = strcmp(x->tensor, y->tensor);
	return tensor ? tensor : x->sends != y->sends ? y->sends - x->sends : (x->began > y->began) - (x->began < y->began);
}

static bool same_message(const struct event *x, const struct event *y)
{
	return x->process == y->process && x->step == y->step && x->micro_batch == y->micro_batch && !strcmp(x->tensor, y->tensor);
}

static int by_device(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return (x->began > y->began) - (x->began < y->began);
}

/* A message is on its way from when its sender begins; before that its receiver waits for the other stage. */
static void cut_receives(struct events *e)
{
	if (e->count)
		qsort(e->list, e->count, sizeof *e->list, by_message);
	for (size_t i = 0, first = 0; i < e->count; i++) {
		struct event *x = &e->list[i];
		if (i && !same_message(x, &e->list[i - 1]))
			first = i;
		const struct event *sender = &e->list[first];
		if (x->lane == HSPMD_LANE_TRANSFERS && x->pairwise && !x->sends && sender->sends && sender->lane == HSPMD_LANE_TRANSFERS)
			x->began = fmin(x->ended, fmax(x->began, sender->began));
	}
}

/* Seconds of [began, ended] in which some transfer of the device is under way; `list`: its events, by their begin. */
static double under_way(const struct event *list, size_t count, double began, double ended)
{
	double total = 0, upto = began;
	for (size_t i = 0; i < count && list[i].began < ended; i++) {
		if (list[i].lane != HSPMD_LANE_TRANSFERS || list[i].ended <= upto)
			continue;
		double from = fmax(upto, list[i].began), to = fmin(ended, list[i].ended);
		total += fmax(0, to - from);
		upto = fmax(upto, to);
	}
	return total;
}

static void add_device(struct report_device_step *d, const struct event *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct event *x = &list[i];
		double length = (x->ended - x->began) * SECONDS;
		if (x->lane != HSPMD_LANE_COMPUTE)
			continue;
		if (!strcmp(x->category, "step")) {
			d->steps++;
			d->step_s += length;
		} else if (!strcmp(x->category, "forward") || !strcmp(x->category, "backward") || !strcmp(x->category, "optimizer")) {
			d->compute_s += length;
		} else if (!strcmp(x->category, "wait")) {
			double messages = under_way(list, count, x->began, x->ended) * SECONDS;
			d->messages_s += messages;
			d->bubble_s += length - messages;
		} else if (!strcmp(x->category, "vote") || (!strcmp(x->category, "synchronisation") && !*x->tensor)) {
			d->sync_s += length;
		}
	}
	double n = d->steps > 0 ? (double)d->steps : 1;
	double *parts[] = { &d->step_s, &d->compute_s, &d->messages_s, &d->bubble_s, &d->sync_s };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		*parts[i] /= n;
}

/* The device of a process's lanes: the name of the first is "ADDRESS: stage ...". */
static void name_device(const json_t *all, const struct event *of, char *name, size_t size)
{
	size_t i;
	json_t *v;
	snprintf(name, size, "?");
	json_array_foreach(all, i, v) {
		const char *text = word(json_object_get(v, "args"), "name"), *colon = strstr(text, ": ");
		if (strcmp(word(v, "name"), "thread_name") || whole(v, "pid") != of->process ||
		    whole(v, "tid") != (int64_t)of->device * HSPMD_LANE_COUNT || !colon)
			continue;
		snprintf(name, size, "%.*s", (int)(colon - text), text);
		return;
	}
}

int report_trace_steps(const json_t *trace, struct report_step_time *t)
{
	const json_t *all = json_object_get(trace, "traceEvents");
	struct events e = { 0 };
	int rc = collect(all, &e);
	if (!rc)
		cut_receives(&e);
	if (!rc && e.count)
		qsort(e.list, e.count, sizeof *e.list, by_device);
	for (size_t i = 0, end; !rc && i < e.count; i = end) {
		for (end = i + 1; end < e.count && e.list[end].process == e.list[i].process && e.list[end].device == e.list[i].device;)
			end++;
		if (hspmd_array_grow(&t->devices, &t->capacity, t->count, sizeof *t->devices)) {
			rc = -1;
			break;
		}
		struct report_device_step *d = &t->devices[t->count];
		*d = (struct report_device_step){ .steps = 0 };
		add_device(d, e.list + i, end - i);
		name_device(all, &e.list[i], d->device, sizeof d->device);
		t->count += d->steps > 0;
	}
	free(e.list);
	return rc;
}
