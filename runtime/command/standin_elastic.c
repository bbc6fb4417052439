/* SPDX-License-Identifier: Apache-2.0 */
/* A command that takes changes of the generation in its own process (standin.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/process_tree.h"
#include "runtime/command/standin_internal.h"

/* ---- to the command */

void standin_say(struct standin *s, json_t *message)
{
	char *line = message ? json_dumps(message, JSON_COMPACT) : NULL;
	size_t n = line ? strlen(line) : 0;
	if (line)
		line[n] = '\n'; /* in place of the 0 */
	/* One that reads nothing although little is said to it hangs. It is ended when its answer is overdue. */
	if (!line || s->process.steps < 0 || send(s->process.steps, line, n + 1, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)n + 1)
		hspmd_warn("the command cannot be told of a change: %s", strerror(errno));
	free(line);
	json_decref(message);
}

/* What a command must know of a generation. */
static json_t *order(const struct standin *s, const char *type, int64_t generation, const struct hspmd_placement *p, const char *host,
                     int port)
{
	return json_pack("{ss,sI,si,si,si,si,si,si,si,ss,si}", "type", type, "generation", (json_int_t)generation, "rank", p->rank, "world",
	                 p->world, "local_rank", p->local_rank, "local_world", p->local_world, "node_rank", p->node_rank, "member",
	                 s->next_member, "members", s->next_members, "host", host, "port", port);
}

void standin_say_connect(struct standin *s, const char *host, int port)
{
	standin_say(s, order(s, "connect", s->prepared, &s->next, host, port));
}

void standin_say_start(struct standin *s, const char *host, int port)
{
	json_t *m = order(s, "start", s->generation, &s->place, host, port);
	if (m && json_object_set_new(m, "step", json_integer(s->step))) {
		json_decref(m);
		m = NULL;
	}
	json_decref(s->start_line);
	s->start_line = m;
	if (s->elastic)
		standin_say(s, json_incref(m));
}

/* ---- does it live? */

/* Seconds of processor time that all its threads have used. */
static double used_s(const struct standin *s)
{
	clockid_t clock;
	struct timespec t;
	if (s->process.pid <= 0 || clock_getcpuclockid(s->process.pid, &clock) || clock_gettime(clock, &t))
		return 0;
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pong(struct standin *s)
{
	s->pinged = false;
	standin_send(s, json_pack("{ss}", "type", "pong"));
}

/* What the command itself does not say. */
static bool seems_alive(const struct standin *s)
{
	if (s->prepare_waits) /* it cannot answer before it has declared itself, and may wait for a slow disk until then */
		return !hspmd_process_is_stopped(s->process.pid);
	/* Python answers nothing while it is inside a library that keeps its lock. Such a command uses the processor, and one that is
	 * stopped does not. */
	return s->debt == DEBT_NONE || used_s(s) > s->pinged_used_s;
}

void standin_ping_again(struct standin *s)
{
	if (s->pinged && seems_alive(s))
		pong(s);
}

void standin_ping(struct standin *s)
{
	s->pinged = true;
	s->pinged_used_s = used_s(s);
	if (s->elastic && s->debt != DEBT_NONE)
		standin_say(s, json_pack("{ss}", "type", "ping"));
	standin_ping_again(s);
}

/* ---- from the command */

static void on_declared(struct standin *s)
{
	s->elastic = s->elastic_job = true;
	standin_send(s, json_pack("{ss,sI,sb}", "type", "elastic", "generation", (json_int_t)s->generation, "elastic", 1));
	if (s->state == STANDIN_RUNNING && s->start_line)
		standin_say(s, json_incref(s->start_line));
	if (s->prepare_waits && s->prepare_waits == s->prepared)
		standin_prepared(s);
	s->prepare_waits = 0;
}

static json_t *or_null(json_t *v)
{
	return v ? json_incref(v) : json_null();
}

/* The answer to an order: goes to the controller as it is, with what only this process knows. */
static void pass_on(struct standin *s, json_t *told, int64_t generation)
{
	json_t *m = json_copy(told);
	json_t *holds = json_object_get(told, "holds");
	int64_t step = json_integer_value(json_object_get(told, "step"));
	s->step = json_is_integer(json_object_get(told, "step")) ? step : s->step;
	if (m)
		json_object_update_new(m, json_pack("{sI,sI,so,so}", "generation", (json_int_t)generation, "step", (json_int_t)s->step,
		                                    "newest", standin_newest(s), "losses", or_null(json_object_get(told, "losses"))));
	if (json_is_integer(holds))
		s->holds = json_integer_value(holds);
	standin_send(s, m);
}

static void on_started(struct standin *s, json_t *told)
{
	bool owed = s->debt == DEBT_STARTED;
	s->debt = owed ? DEBT_NONE : s->debt;
	s->holds = s->place.rank < 0 ? s->holds : s->generation;
	s->told_at = hspmd_now();
	if (owed)
		pass_on(s, told, s->generation);
}

static bool is(const char *type, const char *name)
{
	return !strcmp(type, name);
}

static void on_answer(struct standin *s, const char *type, json_t *told)
{
	if (is(type, "elastic"))
		on_declared(s);
	else if (!s->elastic)
		hspmd_warn("HSPMD_FD: \"%.40s\" of a command that has not declared itself elastic", type);
	else if (is(type, "pong") && s->pinged)
		pong(s);
	else if (is(type, "connected"))
		standin_preconnected(s, json_integer_value(json_object_get(told, "generation")));
	else if (is(type, "started"))
		on_started(s, told);
	else if (is(type, "stopped") && s->debt == DEBT_STOPPED) {
		s->debt = DEBT_NONE;
		s->state = STANDIN_PAUSED;
		pass_on(s, told, s->generation);
	} else if (is(type, "aborted") && s->debt == DEBT_ABORTED) {
		s->debt = DEBT_NONE;
		s->state = STANDIN_PAUSED;
		pass_on(s, told, s->aborted);
	} else if (is(type, "settled") && s->debt == DEBT_SETTLED) {
		s->debt = DEBT_NONE;
		pass_on(s, told, s->aborted);
	} else if (is(type, "fault") && s->state == STANDIN_RUNNING) {
		const char *text = json_string_value(json_object_get(told, "text"));
		standin_send(s, json_pack("{ss,sI,ss,sb}", "type", "fault", "generation", (json_int_t)s->generation, "text",
		                          text ? text : "a fault without a reason", "lives", 1));
	}
}

void standin_line(struct standin *s, const char *line)
{
	json_t *told = standin_parse(line), *step = json_object_get(told, "step");
	const char *type = json_string_value(json_object_get(told, "type"));
	if (type && s->state != STANDIN_IDLE && s->state != STANDIN_ENDING) {
		on_answer(s, type, told);
	} else if (!type && json_is_integer(step) && json_integer_value(step) >= 0) {
		standin_step(s, told);
	} else if (!type) {
		if (!s->line_wrong && s->place.rank == 0)
			hspmd_warn("HSPMD_FD: expected {\"step\": number, ...}, got %.200s", line);
		s->line_wrong = true;
	}
	json_decref(told);
}
