/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/core/controller.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/core/controller_internal.h"
#include "controller/core/risk.h"

#define FIRST_PAUSE_S 1.0 /* assumed pause of a change before the first one */
#define ROUNDS 1000       /* of advancing per event; more means an endless loop */

struct run_timeouts run_timeouts_default(void)
{
	return (struct run_timeouts){
		.startup = 120,
		.debounce = 0.1,
		.revive = 15,
		.revive_agent = 3,
		.slurm_confirm = 2,
		.solve = 60,
		.spawn = 60,
		.prepare = 300,
		.start = 600,
		.stop = 30,
		.abort = 20,
		.settle = 60,
		.ping = 20,
		.checkpoint_search = 20,
		.checkpoint = 600,
		.quit = 10,
		.step_min = 20,
		.step_factor = 10,
		.step_first = 600,
		.nodes = 600,
	};
}

struct hspmd_controller *hspmd_controller_create(const struct run_config *config, double now, struct hspmd_error *err)
{
	struct hspmd_controller *m = calloc(1, sizeof *m);
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
	m->steps_reported = m->furthest = config->last_step;
	m->event_number = json_integer_value(json_object_get(json_array_get(m->events, json_array_size(m->events) - 1), "number"));
	m->first_event = m->event_number;
	m->risk = config->risk;
	/* All incarnations on a node share this clock, so that tickets are larger than earlier ones, which agents may still send. */
	m->tickets = (int64_t)(now * 1e6);
	m->checkpoint_step = m->newest_save = m->attempted = -1;
	m->checkpoint_tried_at = now;
	m->checkpoint_tried_step = config->last_step;
	samples_init(m);
	m->shared_tried_at = -INFINITY;
	m->copied_step = m->copy_tried_step = m->shared_checkpoint_step = -1;
	m->committed_all = !config->resumed;
	m->last_step_at = m->aborted_at = m->settled_at = NAN;
	m->pause_s = FIRST_PAUSE_S;
	m->straggler_check_at = INFINITY;
	m->step_deadline = INFINITY;
	m->end_at = INFINITY;
	m->slurm_poll_at = INFINITY;
	m->slurm_poll_interval = 1;
	m->startup_until = now + config->timeouts.startup;
	if (config->journal)
		adopt_begin(m);
	else
		request_replan(m, config->resumed ? config->resumed : "start");
	return m;
}

void hspmd_controller_destroy(struct hspmd_controller *m)
{
	if (!m)
		return;
	checkpoint_clear(m);
	json_decref(m->better_plan.answer);
	generation_clear(&m->next);
	generation_clear(&m->current);
	bound_plan_unref(m->older);
	for (size_t i = 0; i < m->nodes; i++)
		node_free(m->node[i]);
	free(m->node);
	nodes_forget_names(m);
	free(m->request);
	json_decref(m->committed);
	checkpoint_search_clear(m);
	json_decref(m->events);
	json_decref(m->choices);
	json_decref(m->adopt);
	json_decref(m->deferred);
	json_decref(m->waiting);
	json_decref(m->over);
	json_decref(m->tail);
	json_decref(m->trace.missing);
	json_decref(m->change.by_node);
	json_decref(m->trace.clocks);
	free(m);
}

static bool equals(const char *a, const char *b)
{
	return !strcmp(a, b);
}

/* The agent reports that the process of a device has ended. */
static void on_exited(struct hspmd_controller *m, struct node *n, json_t *message)
{
	struct worker *w = worker_find(m, json_string_value(json_object_get(message, "device")));
	const char *text = json_string_value(json_object_get(message, "text"));
	if (w && w->node == n && w->process != PROC_NONE && json_integer_value(json_object_get(message, "serial")) == w->serial)
		worker_lost(m, w, text ? text : "it ended");
}

/* Slurm ends the agent (preemption, cancellation, time limit), and knows whether only this node or the whole job ends. */
static void on_agent_terminating(struct hspmd_controller *m, struct node *n, const struct run_event *e)
{
	emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
	if (n->member) {
		member_terminating(m, n);
		return;
	}
	n->terminating = true;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && !m->node[i]->member && m->node[i]->agent == PROC_UP && !m->node[i]->terminating)
			return;
	struct run_event shutdown = *e;
	shutdown.text = "SIGTERM to all agents";
	shutdown.seconds = 0;
	on_shutdown(m, &shutdown);
}

static void on_heartbeat(struct hspmd_controller *m, struct worker *w, const json_t *message)
{
	const struct bound_plan *l = m->current.bound_plan;
	if (l && json_integer_value(json_object_get(message, "generation")) == l->generation && bound_plan_uses(l, w)) {
		straggler_sample(m, w, message);
		device_load_note(w, message);
	}
}

static void on_worker_message(struct hspmd_controller *m, struct worker *w, const char *type, json_t *message)
{
	liveness_heard(m, w);
	if (runs_command(m))
		command_progress(m, message);
	if (equals(type, "hello"))
		on_worker_hello(m, w);
	else if (equals(type, "trace_part"))
		on_trace_part(m, w, message); /* also of one that was told to quit */
	else if (w->process != PROC_UP || equals(type, "pong"))
		return;
	else if (m->adopt && !m->current.bound_plan)
		defer_message(m, w, message); /* its generation is not known yet */
	else if (equals(type, "prepared"))
		on_prepared(m, w, message);
	else if (equals(type, "preconnected"))
		on_preconnected(m, w, message);
	else if (equals(type, "fault"))
		on_fault(m, w, message);
	else if (equals(type, "clock"))
		on_clock(m, w, message);
	else if (equals(type, "heartbeat"))
		on_heartbeat(m, w, message);
	else if (equals(type, "checkpoint_written"))
		on_checkpoint_written(m, w, message);
	else if (equals(type, "manifest_written"))
		on_manifest_written(m, w, message);
	else
		on_answer(m, w, type, message);
}

static void on_message(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	const char *type = json_string_value(json_object_get(e->value, "type"));
	json_t *from = json_object_get(e->value, "from");
	if (!n || n->agent != PROC_UP || !type)
		return;
	newcomer_first_heard(m, n);
	if (from) {
		struct worker *w = worker_find(m, json_string_value(from));
		if (w && w->node == n)
			on_worker_message(m, w, type, e->value);
	} else if (equals(type, "exited")) {
		on_exited(m, n, e->value);
	} else if (equals(type, "checkpoint_list")) {
		on_checkpoint_list(m, n, e->value);
	} else if (equals(type, "manifest")) {
		on_manifest(m, n, e->value);
	} else if (equals(type, "checkpoint_wanted")) {
		json_t *request = check_alloc(m, json_pack("{s:s}", "command", "checkpoint"));
		on_command(m, &(struct run_event){ .kind = EVENT_COMMAND, .value = request });
		json_decref(request);
	} else if (equals(type, "alone")) {
		n->agent_locks = true;
	} else if (equals(type, "pong")) {
		newcomer_first_lives(m, n->name);
	} else if (equals(type, "terminating")) {
		on_agent_terminating(m, n, e);
	}
}

/* If more copies of the state would pay, a new plan is requested as soon as no other change is under way. Surplus copies are dropped by the
 * next generation. */
static bool advance_risk(struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	if (!m->risk_changed || !is_steady(m) || m->end != END_NONE || m->shutting_down)
		return false;
	m->risk_changed = false;
	int wanted = copies_wanted(m, l->nodes);
	if (wanted <= l->copies || wanted >= l->nodes)
		return false;
	note_event(m, "risk", "%d copies of the state instead of %d, by the rate of node losses", wanted, l->copies);
	request_replan(m, "risk");
	return true;
}

static void dispatch(struct hspmd_controller *m, const struct run_event *e)
{
	switch (e->kind) {
	case EVENT_TICK:
		break;
	case EVENT_ALLOCATION:
		on_allocation(m, e);
		break;
	case EVENT_AGENT_UP:
		on_agent_up(m, e);
		newcomer_first_lives(m, e->node);
		break;
	case EVENT_AGENT_LOST:
		on_agent_lost(m, e);
		break;
	case EVENT_NEWCOMER:
		on_newcomer(m, e);
		break;
	case EVENT_NEWCOMER_MESSAGE:
		on_newcomer_message(m, e);
		break;
	case EVENT_NEWCOMER_GONE:
		on_newcomer_gone(m, e);
		break;
	case EVENT_MESSAGE:
		on_message(m, e);
		break;
	case EVENT_PLAN:
		on_plan(m, e);
		on_better_plan(m, e);
		break;
	case EVENT_COMMAND:
		on_command(m, e);
		break;
	case EVENT_DISCONNECTED:
		on_disconnected(m, e);
		break;
	case EVENT_RESIZED:
		on_resized(m, e);
		break;
	case EVENT_SAMPLED:
		on_sampled(m, e);
		break;
	case EVENT_OUTPUT:
		note_warning(m, "output", "%s", e->text);
		break;
	case EVENT_RISK:
		m->risk = run_risk_read(e->value);
		m->risk_changed = true;
		break;
	case EVENT_WAS_SUSPENDED:
		note_event(m, "suspended", "the job was suspended for about %.0f s, which count for no deadline", e->seconds);
		break;
	case EVENT_SHUTDOWN:
		on_shutdown(m, e);
		break;
	}
}

int hspmd_controller_handle(struct hspmd_controller *m, const struct run_event *event, struct run_actions *actions)
{
	if (m->failed)
		return -1;
	if (m->end == END_DONE)
		return 0;
	m->actions = actions;
	m->now = event->now;
	m->wall = event->wall;
	dispatch(m, event);
	if (event->more) {
		m->actions = NULL;
		return m->failed ? -1 : 0;
	}
	shutdown_tick(m);
	nodes_tick(m);
	newcomers_tick(m);
	liveness_tick(m);
	straggler_tick(m);
	checkpoint_tick(m);
	requests_tick(m);
	for (int i = 0; i < ROUNDS && !m->failed; i++)
		if (!advance_adopt(m) && !advance_end(m) && !advance_current(m) && !advance_adopted(m) && !advance_current_overdue(m) &&
		    !advance_better_plan(m) && !advance_next(m) && !advance_next_overdue(m) && !advance_requests(m) &&
		    !advance_members(m) && !advance_risk(m) && !checkpoint_if_due(m))
			break;
	advance_trace(m);
	m->actions = NULL;
	return m->failed ? -1 : 0;
}

/* Deadlines on the way to the next generation, which do not matter once the run ends. */
static double next_deadline(const struct hspmd_controller *m)
{
	double first = INFINITY;
	if (m->next.phase == PHASE_SOLVING || m->next.phase == PHASE_PREPARING || m->next.phase == PHASE_PRECONNECTING)
		first = m->next.deadline;
	if (m->next.phase == PHASE_NONE && m->change.wanted && m->now < m->change.not_before)
		first = fmin(first, m->change.not_before);
	if (m->next.phase == PHASE_NONE && m->now < m->slurm_confirm_until)
		first = fmin(first, m->slurm_confirm_until);
	if (m->next.phase == PHASE_NONE && m->now < m->startup_until)
		first = fmin(first, m->startup_until);
	if (m->next.phase == PHASE_NONE && m->short_until > 0)
		first = fmin(first, m->short_until);
	if (m->next.phase == PHASE_READY && m->checkpoint_search.asked && !m->checkpoint_search.done)
		first = fmin(first, m->checkpoint_search.deadline);
	return first;
}

static double nodes_deadline(const struct hspmd_controller *m)
{
	double first = m->end == END_NONE ? fmin(m->slurm_poll_at, members_deadline(m)) : members_deadline(m);
	for (size_t i = 0; i < m->nodes; i++) {
		const struct node *n = m->node[i];
		if (n->held && n->agent == PROC_STARTING)
			first = fmin(first, n->deadline);
		if (n->quarantined && m->end == END_NONE)
			first = fmin(first, n->quarantined_until);
		for (int k = 0; k < n->workers; k++) {
			if (n->worker[k]->process == PROC_STARTING)
				first = fmin(first, n->worker[k]->deadline);
			if (n->worker[k]->reviving)
				first = fmin(first, n->worker[k]->revive_by);
		}
	}
	return first;
}

double hspmd_controller_deadline(const struct hspmd_controller *m)
{
	if (m->end == END_DONE)
		return INFINITY;
	double first = fmin(fmin(requests_deadline(m), nodes_deadline(m)), fmin(newcomers_deadline(m), liveness_deadline(m)));
	if (m->adopt && !m->current.bound_plan)
		first = fmin(first, m->adopt_until);
	if (m->current.phase == PHASE_TRAINING)
		first = fmin(first, fmin(m->step_deadline, straggler_deadline(m)));
	else if (m->current.phase >= PHASE_STARTING && m->current.phase != PHASE_HELD)
		first = fmin(first, m->current.deadline);
	for (int p = 0; p < PARTS; p++)
		if (m->checkpoint[p].phase != CHECKPOINT_NONE)
			first = fmin(first, m->checkpoint[p].deadline);
	if (m->end == END_QUITTING)
		first = fmin(first, m->end_deadline);
	else if (m->shutting_down)
		first = fmin(first, m->shutdown_by);
	first = fmin(first, fmin(shutdown_stop_at(m), trace_deadline(m)));
	if (m->end == END_NONE && !m->shutting_down && !m->current.finished)
		first = fmin(first, next_deadline(m));
	return fmin(fmin(first, better_plan_deadline(m)), checkpoint_deadline(m));
}
