/* SPDX-License-Identifier: Apache-2.0 */
/* A measured timeline of some steps, asked for by `hspmd trace` or by the job file. First the clock of every worker is measured by round
 * trips (Cristian, "Probabilistic clock synchronization", 1989: the shortest trip bounds the error); then each is told which steps to
 * record and when, by its own clock, the trace began. Workers send what they recorded in parts, which the loop writes to the file.
 * Whoever is lost meanwhile is named in the file. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/format/trace_lanes.h"
#include "controller/core/controller_internal.h"

#define TRACE_ROUNDS 8              /* round trips by which a clock is measured */
#define TRACE_CLOCK_S 5.0           /* for all clocks; who is later joins when it is measured */
#define TRACE_AHEAD_S 0.3           /* for `trace` to reach all workers before its first step */
#define TRACE_JOB_AHEAD_S 2.0       /* the job's own trace begins to be prepared this long before its first step, ... */
#define TRACE_JOB_AHEAD 32          /* ... or so many steps, before any has shown how long they take */
#define TRACE_COLLECT_S 30.0        /* for the last parts, after the last step */
#define TRACE_JOB_PROCESS (1 << 30) /* of the controller's own lanes; after those of all generations */

enum { LANE_CURRENT, LANE_NEXT, LANE_PAUSE };

static bool is_traced(const struct hspmd_controller *m, const struct worker *w)
{
	return m->trace.phase != TRACE_NONE && w->process == PROC_UP && w->trace.id == m->trace.id;
}

/* ---- clocks */

static void ask_clock(struct hspmd_controller *m, struct worker *w)
{
	send_workers(m, &w, 1, json_pack("{s:s, s:f}", "type", "clock", "sent", m->now));
}

/* Begin to measure the clocks of all workers that are up and not known yet. */
static void measure_clocks(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		for (int k = 0; k < m->node[i]->workers; k++) {
			struct worker *w = m->node[i]->worker[k];
			if (w->process != PROC_UP || (w->trace.id == m->trace.id && w->trace.serial == w->serial))
				continue;
			memset(&w->trace, 0, sizeof w->trace);
			w->trace.id = m->trace.id;
			w->trace.serial = w->serial;
			w->trace.trip_s = INFINITY;
			ask_clock(m, w);
		}
}

void on_clock(struct hspmd_controller *m, struct worker *w, const json_t *message)
{
	const json_t *sent = json_object_get(message, "sent"), *theirs = json_object_get(message, "now");
	if (!is_traced(m, w) || w->trace.rounds >= TRACE_ROUNDS || !json_is_number(sent) || !json_is_number(theirs))
		return;
	double trip = m->now - json_number_value(sent);
	if (trip >= 0 && trip < w->trace.trip_s) {
		w->trace.trip_s = trip;
		w->trace.offset_s = json_number_value(theirs) - (m->now + json_number_value(sent)) / 2;
	}
	if (++w->trace.rounds < TRACE_ROUNDS)
		ask_clock(m, w);
}

static bool all_measured(const struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	for (int i = 0; l && i < l->devices; i++)
		if (is_traced(m, l->device[i]) && l->device[i]->trace.rounds < TRACE_ROUNDS)
			return false;
	return true;
}

/* ---- the file */

static void emit_text(struct hspmd_controller *m, json_t *text)
{
	emit(m, ACTION_TRACE_TEXT, NULL, check_alloc(m, text), 0);
}

static void name_lane(struct hspmd_controller *m, int lane, const char *name)
{
	emit_text(m, json_sprintf(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
	                          TRACE_JOB_PROCESS, lane, name));
}

static void add_span(struct hspmd_controller *m, int lane, const char *name, const char *category, double began, double ended)
{
	began = fmax(began, m->trace.origin);
	if (m->trace.phase == TRACE_RECORDING && ended > began)
		emit_text(m, json_sprintf(",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\",\"cat\":\"%s\"}",
		                          TRACE_JOB_PROCESS, lane, (began - m->trace.origin) * 1e6, (ended - began) * 1e6, name, category));
}

static const char *phase_word(enum phase phase)
{
	static const char *const words[] = {
		[PHASE_SOLVING] = "solve",     [PHASE_SPAWNING] = "spawn",
		[PHASE_PREPARING] = "prepare", [PHASE_PRECONNECTING] = "preconnect",
		[PHASE_READY] = "ready",       [PHASE_STARTING] = "start",
		[PHASE_TRAINING] = "train",    [PHASE_STOPPING] = "stop",
		[PHASE_ABORTING] = "abort",    [PHASE_SETTLING] = "settle",
		[PHASE_HELD] = "held",
	};
	return phase == PHASE_NONE ? NULL : words[phase];
}

/* Draw the phase that a generation has left since the last event. */
static void follow(struct hspmd_controller *m, const struct generation *g, int lane)
{
	int64_t number = g->bound_plan ? g->bound_plan->generation : 0;
	if (g->phase == m->trace.seen[lane].phase && number == m->trace.seen[lane].generation)
		return;
	const char *word = phase_word(m->trace.seen[lane].phase);
	char name[64];
	snprintf(name, sizeof name, m->trace.seen[lane].generation ? "%s generation %lld" : "%s", word ? word : "",
	         (long long)m->trace.seen[lane].generation);
	if (word)
		add_span(m, lane, name, "generation", m->trace.seen[lane].since, m->now);
	m->trace.seen[lane].phase = g->phase;
	m->trace.seen[lane].generation = number;
	m->trace.seen[lane].since = m->now;
}

void trace_pause(struct hspmd_controller *m, double from, double to)
{
	add_span(m, LANE_PAUSE, "pause", "pause", from, to);
}

void on_trace_part(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	json_t *text = json_object_get(message, "text");
	if (m->trace.phase != TRACE_RECORDING || message_integer(message, "trace", 0) != m->trace.id || !json_is_string(text))
		return;
	if (json_string_length(text))
		emit_text(m, json_incref(text));
	if (json_object_get(message, "spans"))
		emit(m, ACTION_TRACE_SPANS, NULL, json_incref(message), 0);
	m->trace.dropped += message_integer(message, "dropped", 0) - w->trace.dropped;
	w->trace.dropped = message_integer(message, "dropped", 0);
	w->trace.steps = message_integer(message, "steps", 0);
	w->trace.done |= json_is_true(json_object_get(message, "last"));
}

static void note_missing(struct hspmd_controller *m, const struct worker *w, const char *why)
{
	json_t *one = check_alloc(m, json_pack("{s:s, s:I, s:s}", "device", w->address, "step", (json_int_t)m->steps_reported, "why", why));
	if (one && json_array_append_new(m->trace.missing, one))
		m->failed = true;
}

void trace_worker_lost(struct hspmd_controller *m, struct worker *w, const char *why)
{
	if (m->trace.phase == TRACE_RECORDING && w->trace.id == m->trace.id && w->trace.told && !w->trace.done)
		note_missing(m, w, why);
	w->trace.id = 0;
}

/* ---- from the beginning to the end */

void trace_begin(struct hspmd_controller *m, int64_t first, int64_t steps)
{
	struct trace *t = &m->trace;
	json_decref(t->missing);
	memset(t, 0, sizeof *t);
	t->phase = TRACE_MEASURING;
	t->id = ++m->tickets;
	t->first = first;
	t->end = first + steps; /* first -1: to be chosen */
	t->steps = steps;
	t->deadline = m->now + TRACE_CLOCK_S;
	t->missing = check_alloc(m, json_array());
	measure_clocks(m);
}

static int64_t steps_within(const struct hspmd_controller *m, double seconds)
{
	double each = fmax(m->step_s, m->step_interval_s);
	return each > 0 ? (int64_t)ceil(fmin(1e6, seconds / each)) : 0;
}

static void begin_recording(struct hspmd_controller *m)
{
	struct trace *t = &m->trace;
	if (t->first < 0) {
		t->first = m->steps_reported + 1 + steps_within(m, TRACE_AHEAD_S);
		t->end = t->first + t->steps;
	}
	if (!runs_command(m) && t->end > m->config->job->steps)
		t->end = m->config->job->steps;
	t->phase = TRACE_RECORDING;
	t->deadline = INFINITY;
	t->origin = m->now;
	t->generation = m->current.bound_plan ? m->current.bound_plan->generation : m->generation + 1;
	t->seen[LANE_CURRENT].phase = m->current.phase;
	t->seen[LANE_CURRENT].generation = m->current.bound_plan ? m->current.bound_plan->generation : 0;
	t->seen[LANE_NEXT].phase = m->next.phase;
	t->seen[LANE_NEXT].generation = m->next.bound_plan ? m->next.bound_plan->generation : 0;
	t->seen[LANE_CURRENT].since = t->seen[LANE_NEXT].since = m->now;
	/* The head of the file, whose first event has no comma before it. */
	emit_text(m, json_sprintf(
	                     "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,"
	                     "\"args\":{\"name\":\"job controller\"}}",
	                     TRACE_JOB_PROCESS));
	name_lane(m, LANE_CURRENT, "current generation");
	name_lane(m, LANE_NEXT, "next generation");
	name_lane(m, LANE_PAUSE, "pauses");
}

/* Tell the workers whose clocks are known. */
static void tell_workers(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		for (int k = 0; k < m->node[i]->workers; k++) {
			struct worker *w = m->node[i]->worker[k];
			if (!is_traced(m, w) || w->trace.told || w->trace.rounds < TRACE_ROUNDS)
				continue;
			w->trace.told = true;
			json_t *clock =
			        check_alloc(m, json_pack("{s:f, s:f}", "offset_s", w->trace.offset_s, "error_s", w->trace.trip_s / 2));
			if (!m->trace.clocks)
				m->trace.clocks = check_alloc(m, json_object());
			if (m->failed || json_object_set_new(m->trace.clocks, w->address, clock))
				m->failed = true;
			send_workers(m, &w, 1,
			             json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "type", "trace", "trace", (json_int_t)m->trace.id, "first",
			                       (json_int_t)m->trace.first, "end", (json_int_t)m->trace.end, "generation",
			                       (json_int_t)m->trace.generation, "origin", m->trace.origin + w->trace.offset_s));
		}
}

static double worst_error(const struct hspmd_controller *m)
{
	double worst = 0;
	const char *device;
	json_t *clock;
	json_object_foreach(m->trace.clocks, device, clock)
		worst = fmax(worst, json_number_value(json_object_get(clock, "error_s")));
	return worst;
}

void trace_end(struct hspmd_controller *m)
{
	struct trace *t = &m->trace;
	const struct bound_plan *l = m->current.bound_plan;
	if (t->phase == TRACE_NONE)
		return;
	bool recorded = t->phase == TRACE_RECORDING;
	for (int i = 0; recorded && l && i < l->devices; i++)
		if (is_traced(m, l->device[i]) && !l->device[i]->trace.done)
			note_missing(m, l->device[i], "its last part did not come in time");
	follow(m, &(struct generation){ .phase = PHASE_NONE }, LANE_CURRENT);
	follow(m, &(struct generation){ .phase = PHASE_NONE }, LANE_NEXT);
	char name[64], text[400];
	snprintf(name, sizeof name, "trace-%lld-%lld.json", (long long)t->first, (long long)t->end);
	int n = snprintf(text, sizeof text, "steps %lld to %lld are in %s/%s; clocks agree within %.0f us", (long long)t->first,
	                 (long long)t->end - 1, m->config->output, name, worst_error(m) * 1e6);
	if (json_array_size(t->missing) && n > 0 && n < (int)sizeof text)
		snprintf(text + n, sizeof text - (size_t)n, "; parts of %zu devices are missing, the first: %s, %.100s",
		         json_array_size(t->missing), json_string_value(json_object_get(json_array_get(t->missing, 0), "device")),
		         json_string_value(json_object_get(json_array_get(t->missing, 0), "why")));
	if (recorded) {
		emit(m, ACTION_TRACE_END, NULL,
		     check_alloc(m, json_pack("{s:s, s:{s:[I,I], s:I, s:O, s:O*, s:I}}", "name", name, "hspmd", "steps",
		                              (json_int_t)t->first, (json_int_t)t->end, "generation", (json_int_t)t->generation, "missing",
		                              t->missing, "clocks", t->clocks, "dropped", (json_int_t)t->dropped)),
		     0);
		note_event(m, "trace", "%s", text);
	}
	requests_trace_done(m, recorded, recorded ? text : "the job ended before the trace could begin");
	json_decref(t->missing);
	json_decref(t->clocks);
	memset(t, 0, sizeof *t);
}

/* Returns true if no more steps will be recorded. */
static bool steps_are_over(const struct hspmd_controller *m)
{
	return m->steps_reported >= m->trace.end || m->current.finished || m->end != END_NONE;
}

static bool all_done(const struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	for (int i = 0; l && i < l->devices; i++)
		if (is_traced(m, l->device[i]) && l->device[i]->trace.told && !l->device[i]->trace.done)
			return false;
	return true;
}

/* The trace that the job file asks for. */
static void begin_of_job(struct hspmd_controller *m)
{
	const struct hspmd_job *job = m->config->job;
	if (m->trace_begun || job->trace_end <= job->trace_first || m->trace.phase != TRACE_NONE || m->end != END_NONE)
		return;
	int64_t ahead = m->step_s > 0 ? 2 + steps_within(m, TRACE_JOB_AHEAD_S) : TRACE_JOB_AHEAD;
	if (m->steps_reported + ahead < job->trace_first)
		return;
	m->trace_begun = true;
	if (m->steps_reported < job->trace_end)
		trace_begin(m, job->trace_first, job->trace_end - job->trace_first);
}

bool advance_trace(struct hspmd_controller *m)
{
	struct trace *t = &m->trace;
	begin_of_job(m);
	if (t->phase == TRACE_NONE)
		return false;
	measure_clocks(m);
	if (t->phase == TRACE_MEASURING) {
		if (m->end != END_NONE) {
			trace_end(m);
			return true;
		}
		if (!all_measured(m) && m->now < t->deadline)
			return false;
		begin_recording(m);
	}
	tell_workers(m);
	follow(m, &m->current, LANE_CURRENT);
	follow(m, &m->next, LANE_NEXT);
	if (!steps_are_over(m))
		return false;
	if (isinf(t->deadline))
		t->deadline = m->now + TRACE_COLLECT_S;
	if (!all_done(m) && m->now < t->deadline && m->end != END_DONE)
		return false;
	trace_end(m);
	return true;
}

double trace_deadline(const struct hspmd_controller *m)
{
	return m->trace.phase == TRACE_NONE ? INFINITY : m->trace.deadline;
}

const char *trace_obstacle(const struct hspmd_controller *m, int64_t steps)
{
	if (runs_command(m))
		return "the job runs the command of another trainer, whose instructions are not known";
	if (m->trace.phase != TRACE_NONE)
		return "a trace is being recorded already";
	if (m->shutting_down || m->end != END_NONE || m->current.finished)
		return "the job is ending";
	if (steps < 1 || steps > HSPMD_JOB_TRACE_MAX)
		return "a trace has 1 to 1000 steps";
	return NULL;
}
