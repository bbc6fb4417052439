/* SPDX-License-Identifier: Apache-2.0 */
/* Reported steps: lines of metrics.jsonl, and the deadline of the next step. */
#include <math.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define START_FACTOR 10     /* what a start may take, as a multiple of the slowest one */
#define UNKNOWN_START_S 600 /* if none has been seen */

static double value(const json_t *message, const char *key, double absent)
{
	json_t *v = json_object_get(message, key);
	return json_is_number(v) ? json_number_value(v) : absent;
}

static double job_tokens(const struct hspmd_controller *m)
{
	return (double)m->config->job->global_batch * (double)m->config->job->seq_len;
}

static void resize_line(struct hspmd_controller *m, double step_s)
{
	struct change *c = &m->change;
	const struct bound_plan *l = m->current.bound_plan;
	bool first = m->generation == m->config->generation + 1 && !m->config->resumed;
	if (c->open && l && !first) {
		double from = isnan(c->last_step_at) ? c->noticed : c->last_step_at;
		double pause = c->inherited ? c->connected + c->moved : fmax(0, m->now - step_s - from);
		bool hurt = m->aborted_at >= from;
		double needed = c->connected + c->moved; /* all else a planned change does before its pause */
		m->pause_s = hurt && needed > 0 ? fmin(pause, needed) : pause;
		trace_pause(m, from, from + pause);
		json_t *line = json_pack(
		        "{s:s, s:I, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:i, s:i, s:i, s:I, s:f}", "event", "resize",
		        "generation", (json_int_t)l->generation, "cause", c->cause, "pause_s", pause, "steps_lost",
		        (json_int_t)c->steps_lost, "bytes_moved", (json_int_t)(c->local + c->peers + c->disk + c->shared),
		        "bytes_from_local", (json_int_t)(c->local + c->disk), "bytes_from_disk", (json_int_t)c->disk, "bytes_from_peers",
		        (json_int_t)c->peers, "bytes_from_shared", (json_int_t)c->shared, "state", c->source, "from_nodes", c->from_nodes,
		        "nodes", l->nodes, "devices", l->devices, "at_step", (json_int_t)m->step, "time", m->wall);
		json_t *phases = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "detect", hurt ? m->aborted_at - from : 0.0, "settle",
		                           hurt && m->settled_at >= m->aborted_at ? m->settled_at - m->aborted_at : 0.0, "plan", c->planned,
		                           "specialise", c->specialised, "connect", c->connected, "move", c->moved, "first_step", step_s);
		if (!check_alloc(m, line) || !check_alloc(m, phases) || json_object_set(line, "phases_s", phases))
			m->failed = true;
		json_decref(phases);
		if (line && c->by_node && l->nodes <= NODES_TOLD && json_object_set(line, "bytes_by_node", c->by_node))
			m->failed = true;
		note_event(m, "resize", "generation %lld on %d node%s (%s): paused %.3f s at step %lld, %lld steps lost, state from %s",
		           (long long)l->generation, l->nodes, l->nodes == 1 ? "" : "s", c->cause, pause, (long long)m->step,
		           (long long)c->steps_lost, c->source ? c->source : "nowhere");
		if (line)
			emit(m, ACTION_METRICS_LINE, NULL, line, 0);
	}
	struct change previous = *c;
	json_decref(c->by_node);
	memset(c, 0, sizeof *c);
	if (previous.wanted || m->next.phase != PHASE_NONE) { /* another change has begun meanwhile, or its plan is under way */
		request_replan(m, previous.next);
		c->not_before = previous.not_before;
		c->wanted = previous.wanted;
	}
}

void report_change(struct hspmd_controller *m)
{
	if (m->change.open && m->change.started)
		resize_line(m, 0);
}

/* Writes the line of one step. message NULL: only survivors know the step. */
static void line(struct hspmd_controller *m, int64_t step, double loss, double step_s, const json_t *message)
{
	json_t *l = check_alloc(m, json_pack("{s:I, s:o, s:I, s:f, s:I, s:i, s:i, s:f}", "step", (json_int_t)step, "loss",
	                                     isfinite(loss) ? json_real(loss) : json_null(), "tokens",
	                                     (json_int_t)value(message, "tokens", job_tokens(m)), "step_s", step_s, "generation",
	                                     (json_int_t)m->current.bound_plan->generation, "nodes", m->current.bound_plan->nodes,
	                                     "devices", m->current.bound_plan->devices, "time", m->wall));
	static const char *const more[] = { "lr", "grad_norm", "compute_s", "valid_loss", "plan_seq_len", "gather_s" };
	for (size_t i = 0; l && i < sizeof more / sizeof *more; i++)
		if (json_object_get(message, more[i]) && json_object_set(l, more[i], json_object_get(message, more[i])))
			m->failed = true;
	if (l)
		emit(m, ACTION_METRICS_LINE, NULL, l, 0);
	history_note(m, step, loss);
	m->steps_reported = step + 1;
	m->loss = isfinite(loss) ? loss : 0;
	if (!runs_command(m) || step >= m->furthest) {
		m->attempts = 0;
		m->attempted = -1;
	}
	m->furthest = step >= m->furthest ? step + 1 : m->furthest;
}

/* JSON has no infinities and no NaN: such a loss is sent as null. */
static double loss_value(const json_t *v)
{
	return json_is_number(v) ? json_number_value(v) : NAN;
}

void report_losses(struct hspmd_controller *m, json_t *losses)
{
	size_t i;
	json_t *pair;
	json_array_foreach(losses, i, pair) {
		int64_t step = json_integer_value(json_array_get(pair, 0));
		if (step != m->steps_reported || !json_is_array(pair))
			continue;
		if (m->change.open && m->change.started)
			resize_line(m, 0);
		line(m, step, loss_value(json_array_get(pair, 1)), 0, NULL);
	}
}

double slowest_recent_step(const struct hspmd_controller *m)
{
	double slowest = 0;
	for (int i = 0; i < m->recent_count && i < RECENT_STEPS; i++)
		slowest = fmax(slowest, m->recent[i]);
	return slowest;
}

/* Seconds for a command to tell the first step of a generation. A command that has told none may never tell one. */
static double first_step_of_command(const struct hspmd_controller *m)
{
	if (!m->steps_told)
		return INFINITY;
	return fmax(m->config->timeouts.step_min, m->slowest_start_s > 0 ? START_FACTOR * m->slowest_start_s : UNKNOWN_START_S);
}

void extend_step_deadline(struct hspmd_controller *m)
{
	const struct run_timeouts *p = &m->config->timeouts;
	double slowest = slowest_recent_step(m);
	if (runs_command(m) && !m->recent_count)
		m->step_deadline = m->now + first_step_of_command(m);
	else
		m->step_deadline = m->now + (m->recent_count ? fmax(p->step_min, p->step_factor * slowest) : p->step_first);
}

/* With the first step that a generation of a command tells, the step is known at which its own checkpoint was written. */
static void rewind_command(struct hspmd_controller *m, const struct worker *w, const json_t *message)
{
	const struct bound_plan *l = m->current.bound_plan;
	int64_t step = message_integer(message, "step", -1);
	if (!l || message_integer(message, "generation", -1) != l->generation || l->device[0] != w || step < 0 ||
	    m->told_generation == l->generation)
		return;
	m->steps_told = true;
	m->told_generation = l->generation;
	m->slowest_start_s = fmax(m->slowest_start_s, m->now - m->current.since);
	if (step >= m->steps_reported)
		return;
	m->change.steps_lost += m->steps_reported - step;
	m->steps_reported = m->step = step;
}

/* A command tells a step again that it has saved, in case the line was lost with the process that carried it. Such a line says nothing
 * about time, nor where the command goes on. */
static void report_again(struct hspmd_controller *m, const json_t *message)
{
	int64_t step = message_integer(message, "step", -1);
	if (step < m->steps_reported)
		return;
	line(m, step, loss_value(json_object_get(message, "loss")), 0, message);
	m->step = m->steps_reported;
}

void on_step(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	const struct bound_plan *l = m->current.bound_plan;
	json_t *step = json_object_get(message, "step");
	bool again = runs_command(m) && json_is_true(json_object_get(message, "again"));
	if (runs_command(m) && !again)
		rewind_command(m, w, message);
	if (!l || json_integer_value(json_object_get(message, "generation")) != l->generation || !bound_plan_uses(l, w))
		return;
	if (again)
		report_again(m, message);
	if (again || !json_is_integer(step) || json_integer_value(step) < m->steps_reported)
		return;
	if (json_integer_value(step) > m->steps_reported && !runs_command(m))
		log_msg(m, HSPMD_LOG_WARNING, "steps %lld to %lld were not reported", (long long)m->steps_reported,
		        (long long)json_integer_value(step) - 1);
	double step_s = value(message, "step_s", 0);
	bool progress = !runs_command(m) || json_integer_value(step) >= m->furthest;
	if (m->change.open && m->change.started)
		resize_line(m, step_s);
	straggler_sample(m, w, message);
	device_load_note(w, message);
	m->step_interval_s = isnan(m->last_step_at) ? 0 : m->now - m->last_step_at;
	line(m, json_integer_value(step), loss_value(json_object_get(message, "loss")), step_s, message);
	m->last_step_at = m->now;
	m->step_s = step_s;
	checkpoint_step_done(m, step_s);
	m->tokens_per_s = step_s > 0 ? value(message, "tokens", job_tokens(m)) / step_s : 0;
	m->recent[m->recent_count++ % RECENT_STEPS] = step_s;
	if (m->recent_count >= 1 << 30)
		m->recent_count = RECENT_STEPS;
	if (progress)
		forgive_failures(m);
	if (m->current.phase == PHASE_TRAINING) {
		extend_step_deadline(m);
		nodes_rejoin(m); /* not before the change without them has its line */
	}
}
