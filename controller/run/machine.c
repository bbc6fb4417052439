/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/run/machine_private.h"
#include "controller/run/risk.h"

#define FIRST_PAUSE_S 1.0 /* what a change is taken to cost before there was one */
#define ROUNDS 1000 /* of advancing after one event; more means that it goes in a circle */

struct run_patience run_patience_default(void)
{
	return (struct run_patience){
		.gather = 120,
		.quiet = 0.1,
		.revive = 15,
		.revive_agent = 3,
		.look = 2,
		.solve = 60,
		.spawn = 60,
		.prepare = 300,
		.start = 600,
		.stop = 30,
		.abort = 20,
		.settle = 60,
		.answer = 20,
		.find = 20,
		.checkpoint = 600,
		.quit = 10,
		.step_least = 20,
		.step_factor = 10,
		.step_first = 600,
		.nodes = 600,
	};
}

struct hspmd_machine *hspmd_machine_create(const struct run_config *config, double now, struct hspmd_error *err)
{
	struct hspmd_machine *m = calloc(1, sizeof *m);
	if (m)
		m->events = config->events ? json_copy(config->events) : json_array();
	if (!m || !m->events) {
		free(m);
		hspmd_fail_memory(err, "starting the job controller");
		return NULL;
	}
	m->config = config;
	m->now = m->began = now;
	m->generation = config->generation;
	m->told = config->last_step;
	m->event_number = json_integer_value(json_object_get(json_array_get(m->events, json_array_size(m->events) - 1), "number"));
	m->risk = config->risk;
	m->tickets = (int64_t)(now * 1e6); /* of the clock that lives on one node share: beyond what one before has given, which agents may still speak of */
	m->saved_step = -1;
	m->save_tried = now;
	m->save_tried_step = config->last_step;
	m->shared_tried = -INFINITY;
	m->copied_step = m->copy_tried_step = m->shared_saved_step = -1;
	m->last_step_at = m->aborted_at = m->settled_at = NAN;
	m->pause_s = FIRST_PAUSE_S;
	m->pace_next = INFINITY;
	m->step_deadline = INFINITY;
	m->end_at = INFINITY;
	m->look_next = INFINITY;
	m->look_pause = 1;
	m->gather_until = now + config->patience.gather;
	if (config->journal)
		adopt_begin(m);
	else
		want_plan(m, config->resumed ? config->resumed : "start");
	return m;
}

void hspmd_machine_destroy(struct hspmd_machine *m)
{
	if (!m)
		return;
	save_forget(m);
	generation_forget(&m->next);
	generation_forget(&m->current);
	layout_drop(m->older);
	for (size_t i = 0; i < m->nodes; i++)
		node_free(m->node[i]);
	free(m->node);
	free(m->request);
	json_decref(m->find.found);
	json_decref(m->find.bad);
	json_decref(m->events);
	json_decref(m->adopt);
	json_decref(m->early);
	json_decref(m->waiting);
	json_decref(m->over);
	free(m);
}

static bool is(const char *a, const char *b)
{
	return !strcmp(a, b);
}

/* The process of a device has ended, as its agent says. */
static void on_exited(struct hspmd_machine *m, struct node *n, json_t *message)
{
	struct worker *w = worker_find(m, json_string_value(json_object_get(message, "device")));
	const char *text = json_string_value(json_object_get(message, "text"));
	if (w && w->node == n && w->life != LIFE_NONE && json_integer_value(json_object_get(message, "serial")) == w->serial)
		worker_lost(m, w, text ? text : "it ended");
}

/* Told to end by someone else (preemption, cancellation, time limit): Slurm knows whether that is one node's fate or the job's. */
static void on_leaving(struct hspmd_machine *m, struct node *n, const struct run_event *e)
{
	n->ending = true;
	act(m, RUN_POLL, NULL, NULL, 0);
	if (n->member) {
		/* Whatever time it is given is used to go on without it. */
		note_event(m, "member_leaving", "node %s is leaving: its member job %lld was told to end", n->name, (long long)n->member);
		want_plan(m, "member-left");
		return;
	}
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && !m->node[i]->member && m->node[i]->agent == LIFE_UP && !m->node[i]->ending)
			return;
	struct run_event leave = *e;
	leave.text = "SIGTERM to all agents";
	leave.seconds = 0;
	on_leave(m, &leave);
}

static void on_pulse(struct hspmd_machine *m, struct worker *w, const json_t *message)
{
	const struct layout *l = m->current.layout;
	if (l && json_integer_value(json_object_get(message, "generation")) == l->generation && layout_uses(l, w))
		pace_heard(w, message);
}

static void on_worker_message(struct hspmd_machine *m, struct worker *w, const char *type, json_t *message)
{
	alive_heard(m, w);
	if (is(type, "hello"))
		on_worker_hello(m, w);
	else if (w->life != LIFE_UP || is(type, "alive"))
		return;
	else if (m->adopt && !m->current.layout)
		keep_early(m, w, message); /* it is not known yet what it does */
	else if (is(type, "prepared"))
		on_prepared(m, w, message);
	else if (is(type, "met"))
		on_met(m, w, message);
	else if (is(type, "fault"))
		on_fault(m, w, message);
	else if (is(type, "pulse"))
		on_pulse(m, w, message);
	else if (is(type, "written"))
		on_written(m, w, message);
	else if (is(type, "manifested"))
		on_manifested(m, w, message);
	else
		on_answer(m, w, type, message);
}

static void on_message(struct hspmd_machine *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	const char *type = json_string_value(json_object_get(e->value, "type"));
	json_t *from = json_object_get(e->value, "from");
	if (!n || n->agent != LIFE_UP || !type)
		return;
	if (from) {
		struct worker *w = worker_find(m, json_string_value(from));
		if (w && w->node == n)
			on_worker_message(m, w, type, e->value);
	} else if (is(type, "exited")) {
		on_exited(m, n, e->value);
	} else if (is(type, "found")) {
		on_found(m, n, e->value);
	} else if (is(type, "leaving")) {
		on_leaving(m, n, e);
	}
}

/* Fewer copies than would pay are mended as soon as nothing else is under way, at the cost of a switch; too many are let go with the next generation. */
static bool advance_risk(struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	if (!m->risk_changed || !calm(m) || m->end != END_NONE || m->leaving)
		return false;
	m->risk_changed = false;
	int wanted = copies_wanted(m, l->nodes);
	if (wanted <= l->copies || wanted >= l->nodes)
		return false;
	note_event(m, "risk", "%d copies of the state instead of %d, by how often nodes are lost here", wanted, l->copies);
	want_plan(m, "risk");
	return true;
}

static void take(struct hspmd_machine *m, const struct run_event *e)
{
	switch (e->kind) {
	case RUN_TIME:
		break;
	case RUN_ALLOCATION:
		on_allocation(m, e);
		break;
	case RUN_AGENT_UP:
		on_agent_up(m, e);
		break;
	case RUN_AGENT_LOST:
		on_agent_lost(m, e);
		break;
	case RUN_MESSAGE:
		on_message(m, e);
		break;
	case RUN_PLAN:
		on_plan(m, e);
		break;
	case RUN_COMMAND:
		on_command(m, e);
		break;
	case RUN_HUNG_UP:
		on_hung_up(m, e);
		break;
	case RUN_RESIZED:
		on_resized(m, e);
		break;
	case RUN_RISK:
		m->risk = run_risk_read(e->value);
		m->risk_changed = true;
		break;
	case RUN_LEAVE:
		on_leave(m, e);
		break;
	}
}

int hspmd_machine_feed(struct hspmd_machine *m, const struct run_event *event, struct run_actions *actions)
{
	if (m->failed)
		return -1;
	if (m->end == END_DONE)
		return 0;
	m->actions = actions;
	m->now = event->now;
	m->wall = event->wall;
	take(m, event);
	nodes_time(m);
	alive_time(m);
	pace_time(m);
	save_time(m);
	requests_time(m);
	for (int i = 0; i < ROUNDS && !m->failed; i++)
		if (!advance_adopt(m) && !advance_end(m) && !advance_current(m) && !advance_next(m) && !advance_requests(m) && !advance_members(m) &&
		    !advance_risk(m) && !save_due(m))
			break;
	m->actions = NULL;
	return m->failed ? -1 : 0;
}

/* The waits of what is in the making, which the end makes pointless. */
static double next_deadline(const struct hspmd_machine *m)
{
	double first = INFINITY;
	if (m->next.stage == STAGE_SOLVING || m->next.stage == STAGE_PREPARING || m->next.stage == STAGE_MEETING)
		first = m->next.deadline;
	if (m->next.stage == STAGE_NONE && m->change.wanted && m->now < m->change.not_before)
		first = fmin(first, m->change.not_before);
	if (m->next.stage == STAGE_NONE && m->now < m->look_until)
		first = fmin(first, m->look_until);
	if (m->next.stage == STAGE_NONE && m->now < m->gather_until)
		first = fmin(first, m->gather_until);
	if (m->next.stage == STAGE_NONE && m->short_until > 0)
		first = fmin(first, m->short_until);
	if (m->next.stage == STAGE_READY && m->find.asked && !m->find.done)
		first = fmin(first, m->find.deadline);
	return first;
}

static double nodes_deadline(const struct hspmd_machine *m)
{
	double first = m->end == END_NONE ? fmin(m->look_next, members_deadline(m)) : members_deadline(m);
	for (size_t i = 0; i < m->nodes; i++) {
		const struct node *n = m->node[i];
		if (n->held && n->agent == LIFE_STARTING)
			first = fmin(first, n->deadline);
		if (n->benched && m->end == END_NONE)
			first = fmin(first, n->benched_until);
		for (int k = 0; k < n->workers; k++) {
			if (n->worker[k]->life == LIFE_STARTING)
				first = fmin(first, n->worker[k]->deadline);
			if (n->worker[k]->reviving)
				first = fmin(first, n->worker[k]->revive_by);
		}
	}
	return first;
}

double hspmd_machine_deadline(const struct hspmd_machine *m)
{
	if (m->end == END_DONE)
		return INFINITY;
	double first = fmin(fmin(requests_deadline(m), nodes_deadline(m)), alive_deadline(m));
	if (m->adopt && !m->current.layout)
		first = fmin(first, m->adopt_until);
	if (m->current.stage == STAGE_TRAINING)
		first = fmin(first, fmin(m->step_deadline, pace_deadline(m)));
	else if (m->current.stage >= STAGE_STARTING && m->current.stage != STAGE_HELD)
		first = fmin(first, m->current.deadline);
	if (m->save.stage != SAVE_NONE)
		first = fmin(first, m->save.deadline);
	if (m->end == END_QUITTING)
		first = fmin(first, m->end_deadline);
	else if (m->leaving)
		first = fmin(first, m->leave_until);
	if (m->end == END_NONE && !m->leaving && !m->current.finished)
		first = fmin(first, next_deadline(m));
	return fmin(first, save_next(m));
}
