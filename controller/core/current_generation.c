/* SPDX-License-Identifier: Apache-2.0 */
/* The current generation: started, stopped at the end of a step, or aborted and settled. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_runs.h"
#include "controller/core/controller_internal.h"
#include "controller/core/readers.h"

#define ABORT_LEAST_S 3.0 /* for answers to `abort` after a hang */

/* Fills in the devices (indexes into the bound plan's cluster) whose workers hold the state of `step` under it. Returns their number. */
static int holders(const struct bound_plan *l, int64_t step, int *device)
{
	int count = 0;
	for (int i = 0; i < l->devices; i++) {
		const struct worker *w = l->device[i];
		if (w->process == PROC_UP && w->holds == l->generation && w->step == step)
			device[count++] = hspmd_cluster_find_device(l->cluster, w->address, NULL);
	}
	return count;
}

static bool all_held(const struct hspmd_controller *m, const struct bound_plan *l, int64_t step)
{
	int *device = hspmd_calloc((size_t)l->devices, sizeof *device);
	int count = device ? holders(l, step, device) : 0;
	bool yes = count > 0 && m->config->covered(l->plan, l->cluster, device, count);
	free(device);
	return yes;
}

struct bound_plan *held_bound_plan(const struct hspmd_controller *m, int64_t *step)
{
	struct bound_plan *best = NULL, *candidate[2] = { m->current.bound_plan, m->older };
	for (int k = 0; k < 2; k++) {
		struct bound_plan *l = candidate[k];
		int64_t last = -1;
		for (int i = 0; l && i < l->devices; i++)
			if (l->device[i]->process == PROC_UP && l->device[i]->holds == l->generation && l->device[i]->step > last)
				last = l->device[i]->step;
		if (last < 0 || (best && last <= *step) || !all_held(m, l, last))
			continue;
		best = l;
		*step = last;
	}
	return best;
}

/* Add { cluster, plan, holders } to parts: the members of g that hold `step` of this plan (-1: any step), if there are any. */
static void add_holders(struct hspmd_controller *m, const struct generation *g, const struct bound_plan *of, int64_t step, json_t *parts)
{
	const char **name = of ? hspmd_calloc((size_t)of->devices, sizeof *name) : NULL;
	int count = 0;
	for (int i = 0; name && i < of->devices; i++) {
		const struct worker *w = of->device[i];
		if (w->process == PROC_UP && w->holds == of->generation && (step < 0 || w->step == step) && member_index(g, w) >= 0)
			name[count++] = w->address;
	}
	json_t *who = check_alloc(m, !of || name ? hspmd_device_runs(name, count) : NULL);
	free(name);
	if (json_array_size(who) &&
	    json_array_append_new(parts, json_pack("{s:O, s:O, s:O}", "cluster", of->cluster_json, "plan", of->plan_json, "holders", who)))
		m->failed = true;
	json_decref(who);
}

/* New reference; NULL: nobody holds anything. */
static json_t *unless_empty(json_t *parts)
{
	if (json_array_size(parts))
		return parts;
	json_decref(parts);
	return NULL;
}

/* The members of g that hold `step`, per plan under which they hold it: [{ cluster, plan, holders }]. Slices that none of them holds come
 * from a checkpoint. New reference; NULL: there are none. */
static json_t *live_holders(struct hspmd_controller *m, const struct generation *g, int64_t step)
{
	json_t *parts = check_alloc(m, json_array());
	add_holders(m, g, m->current.bound_plan, step, parts);
	if (m->older != m->current.bound_plan)
		add_holders(m, g, m->older, step, parts);
	return unless_empty(parts);
}

json_t *expected_holders(struct hspmd_controller *m, const struct generation *g, const struct bound_plan *donor)
{
	json_t *parts = donor && !runs_command(m) ? check_alloc(m, json_array()) : NULL;
	if (parts)
		add_holders(m, g, donor, -1, parts);
	return unless_empty(parts);
}

/* NULL: the search goes on, or the generation is begun again; or the checkpoint is not this job's, and the run ends; or memory is short. */
static json_t *checkpoint_source(struct hspmd_controller *m, const struct generation *g, int64_t *step)
{
	struct run_checkpoint_choice choice = { 0 };
	struct hspmd_error err;
	json_t *map = checkpoint_readers(m, g);
	int chosen = checkpoint_choose(m, map, &choice, &err);
	if (chosen == 2)
		checkpoint_search_want(m, choice.sum);
	bool waits = chosen == 2 || (chosen >= 0 && readers_beyond(m, map, chosen ? choice.step : -1)) ||
	             (!chosen && checkpoint_search_again(m));
	json_decref(map);
	if (chosen < 0)
		end_run(m, 1, "%s", err.text);
	if (waits || chosen < 0) {
		json_decref(choice.manifest);
		json_decref(choice.files);
		return NULL;
	}
	if (!chosen) {
		*step = 0;
		if (json_object_size(m->checkpoint_search.found))
			log_msg(m, HSPMD_LOG_INFO, "no checkpoint to continue from: %s", err.text);
		if (m->steps_reported)
			log_msg(m, HSPMD_LOG_WARNING,
			        "no copy of the state is left and no checkpoint was found: starting anew from step 0");
		committed_none(m);
		m->change.source = "init";
		return check_alloc(m, json_pack("{s:b}", "init", 1));
	}
	*step = choice.step;
	memcpy(m->checkpoint_search.taken, choice.sum, sizeof choice.sum);
	committed_found(m, choice.manifest);
	choices_take_plan(m, json_object_get(json_object_get(choice.manifest, "job"), "plan"), true);
	m->change.source = choice.durable ? "checkpoint" : "copies";
	if (choice.durable) {
		m->checkpoint_step = choice.step;
		m->checkpoint_at = m->now;
	}
	return check_alloc(m, json_pack("{s:o, s:o, s:s*, s:s*, s:s*, s:o*}", "manifest", choice.manifest, "files", choice.files, "memory",
	                                m->config->memory, "local", m->config->local, "shared", m->config->shared, "live",
	                                live_holders(m, g, choice.step)));
}

static bool members_have(const struct generation *g, const struct bound_plan *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->process == PROC_UP && l->device[i]->holds == l->generation && member_index(g, l->device[i]) < 0)
			return false;
	return true;
}

/* Returns true if a member was only to give state, and its rank has ended meanwhile: others would wait for it. */
static bool giver_has_ended(const struct hspmd_controller *m, const struct generation *g)
{
	for (int i = 0; runs_command(m) && m->elastic && i < g->members; i++)
		if (!g->member[i]->holds && !bound_plan_uses(g->bound_plan, g->member[i]))
			return true;
	return false;
}

/* A large job's manifest has a megabyte, and every member needs it: it is sent to the first one, which passes it on to the others. */
static void send_stored(struct hspmd_controller *m, const struct generation *g, json_t *source)
{
	static const char *const keys[] = { "manifest", "files" };
	json_t *state = check_alloc(m, json_object());
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (json_object_set(state, keys[i], json_object_get(source, keys[i])) || json_object_del(source, keys[i]))
			m->failed = true;
	if (json_object_set_new(source, "stored", json_true()))
		m->failed = true;
	send_workers(m, g->member, 1,
	             json_pack("{s:s, s:I, s:o}", "type", "stored", "generation", (json_int_t)g->bound_plan->generation, "state", state));
}

/* Returns true if all members have told each other their addresses while the older generation trained. */
static bool have_exchanged(const struct hspmd_controller *m, const struct generation *g)
{
	bool all = !runs_command(m);
	for (int i = 0; i < g->members; i++)
		all &= json_is_true(json_object_get(g->answer[i], "preconnected"));
	return all;
}

void start_generation(struct hspmd_controller *m)
{
	struct generation *g = &m->next;
	int64_t step = 0;
	struct bound_plan *from = held_bound_plan(m, &step);
	if ((from && workers_give_state(m) && !members_have(g, from)) || giver_has_ended(m, g) || (!from && !m->checkpoint_search.asked)) {
		/* The held state has changed since the generation was prepared. */
		next_drop(m);
		m->change.wanted = true;
		return;
	}
	json_t *source;
	if (runs_command(m)) {
		step = m->elastic && from ? step : m->steps_reported;
		m->change.source = m->elastic && from ? "live" : "command";
		source = check_alloc(m, json_object());
	} else if (from) {
		m->change.source = "live";
		source = check_alloc(m, json_pack("{s:o, s:s*}", "live", live_holders(m, g, step), "local", m->config->local));
	} else if (!(source = checkpoint_source(m, g, &step))) {
		return;
	}
	if (g->expected && json_equal(json_object_get(source, "live"), g->expected) && json_object_set_new(source, "live", json_true()))
		m->failed = true;
	json_t *addresses = have_exchanged(m, g) ? NULL : member_addresses(m, g),
	       *start = json_pack("{s:s, s:I, s:I, s:o}", "type", "start", "generation", (json_int_t)g->bound_plan->generation, "step",
	                          (json_int_t)step, "state", source);
	if (m->new_choices) {
		choices_put(m, g->bound_plan);
		emit(m, ACTION_SAVE_PLAN, NULL, json_incref(g->bound_plan->plan_json), g->bound_plan->generation);
		if (json_object_set(start, "choices", json_object_get(g->bound_plan->plan_json, "choices")))
			m->failed = true;
		m->new_choices = false;
	}
	/* Of what an earlier start of this change lost, which no line tells yet, this one may have found a copy. */
	int64_t onward = step - m->steps_reported;
	onward = onward < m->change.steps_lost ? onward : m->change.steps_lost;
	m->change.steps_lost -= onward;
	m->steps_reported += onward;
	struct bound_plan *left = m->older;
	m->older = bound_plan_ref(from); /* may be m->older itself */
	bound_plan_unref(left);
	m->change.last_step_at = m->last_step_at;
	m->change.started = true;
	m->change.inherited = false;
	generation_clear(&m->current);
	m->current = *g;
	memset(g, 0, sizeof *g);
	m->step = step;
	enter_phase(&m->current, PHASE_STARTING, m->now, m->config->timeouts.start);
	journal(m); /* before any worker drops the older state */
	if (json_object_get(source, "manifest"))
		send_stored(m, &m->current, source);
	send_workers_own(m, m->current.member, m->current.members, start, addresses ? "addresses" : NULL, addresses);
	json_decref(addresses);
}

void stop_current(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	double notice_s = runs_command(m) ? command_notice_s(m) : -1;
	send_workers(m, g->member, g->members,
	             json_pack("{s:s, s:I, s:o*, s:o*}", "type", "stop", "generation", (json_int_t)g->bound_plan->generation, "notice_s",
	                       notice_s >= 0 ? json_real(notice_s) : NULL, "end",
	                       runs_command(m) && m->shutting_down ? json_true() : NULL));
	enter_phase(g, PHASE_STOPPING, m->now, m->config->timeouts.stop);
	if (runs_command(m)) {
		m->last_step_at = m->steps_told ? m->last_step_at : m->now;
		m->step_deadline = INFINITY;
		return;
	}
	extend_step_deadline(m);
	if (m->step_deadline + m->config->timeouts.stop > g->deadline)
		g->deadline = m->step_deadline + m->config->timeouts.stop;
}

void ask_holders(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	double until = g->deadline; /* of workers that are being revived */
	bool revives = false;
	for (int i = 0; i < g->members; i++)
		revives |= g->member[i]->reviving;
	send_workers(m, g->member, g->members,
	             json_pack("{s:s, s:I}", "type", "abort", "generation", (json_int_t)g->bound_plan->generation));
	enter_phase(g, PHASE_ABORTING, m->now, m->config->timeouts.abort);
	if (revives && !isinf(until))
		g->deadline = fmax(g->deadline, until);
}

void abort_current(struct hspmd_controller *m, const char *cause)
{
	struct generation *g = &m->current;
	if (!m->adopt) /* else the answers contain the deferred losses */
		replay_deferred(m);
	adopt_end(m);
	m->failures++;
	note_event(m, "abort", "generation %lld is given up at step %lld: %s", (long long)g->bound_plan->generation,
	           (long long)m->steps_reported, cause);
	snprintf(m->last_error, sizeof m->last_error, "%s", cause);
	if (runs_command(m) && (m->next.phase == PHASE_PRECONNECTING || m->next.phase == PHASE_READY))
		next_drop(m); /* ranks that are told to give up shut all their connections, those for the next generation, too */
	ask_holders(m);
	m->step_deadline = INFINITY;
	m->aborted_at = m->now;
	if (runs_command(m) && !m->steps_told)
		m->last_step_at = m->now;
}

static void add_bytes_of_node(struct hspmd_controller *m, const struct worker *w, const json_t *bytes)
{
	struct change *c = &m->change;
	const char *source;
	json_t *count;
	if (!c->by_node && !check_alloc(m, c->by_node = json_object()))
		return;
	json_t *own = json_object_get(c->by_node, w->node->name);
	if (!own && json_object_size(c->by_node) < NODES_TOLD) {
		own = check_alloc(m, json_object());
		if (own && json_object_set_new(c->by_node, w->node->name, own))
			m->failed = true;
	}
	json_object_foreach((json_t *)bytes, source, count)
		if (own && !m->failed &&
		    json_object_set_new(own, source,
		                        json_integer(json_integer_value(json_object_get(own, source)) + json_integer_value(count))))
			m->failed = true;
}

static void add_bytes(struct hspmd_controller *m, const struct worker *w, const json_t *answer)
{
	json_t *b = json_object_get(answer, "bytes"), *s = json_object_get(answer, "seconds");
	struct change *c = &m->change;
	if (b)
		add_bytes_of_node(m, w, b);
	c->local += json_number_value(json_object_get(b, "local"));
	c->peers += json_number_value(json_object_get(b, "peers"));
	c->disk += json_number_value(json_object_get(b, "disk"));
	c->shared += json_number_value(json_object_get(b, "shared"));
	c->connected = fmax(c->connected, json_number_value(json_object_get(s, "connect")));
	c->moved = fmax(c->moved, json_number_value(json_object_get(s, "move")));
}

/* A step is committed only after all members have loaded the state, but their `started` messages come on other connections, and may come
 * after the step's message. */
void replay_deferred(struct hspmd_controller *m)
{
	json_t *deferred = m->deferred, *pair;
	size_t i;
	m->deferred = NULL;
	json_array_foreach(deferred, i, pair) {
		struct worker *w = worker_find(m, json_string_value(json_array_get(pair, 0)));
		json_t *message = json_array_get(pair, 1);
		const char *type = json_string_value(json_object_get(message, "type"));
		if (w && type && !strcmp(type, "step"))
			on_step(m, w, message);
		else if (w && type)
			on_answer(m, w, type, message);
	}
	json_decref(deferred);
}

void defer_message(struct hspmd_controller *m, const struct worker *w, json_t *message)
{
	json_t *pair = check_alloc(m, json_pack("[s, O]", w->address, message));
	if (!m->deferred)
		m->deferred = check_alloc(m, json_array());
	if (!m->failed && json_array_append_new(m->deferred, pair))
		m->failed = true;
}

/* All members have started: the older generation's workers and state are dropped. */
static void enter_training(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	for (int i = 0; i < g->members; i++) {
		add_bytes(m, g->member[i], g->answer[i]);
		g->member[i]->adopted = false;
	}
	struct worker **gone = hspmd_calloc((size_t)g->members, sizeof *gone);
	int count = 0;
	m->failed |= !gone;
	for (int i = g->members - 1; gone && i >= 0; i--) {
		struct worker *w = g->member[i];
		if (bound_plan_uses(g->bound_plan, w))
			continue;
		generation_remove_member(g, w);
		w->holds = 0;
		if (!bound_plan_uses(m->next.bound_plan, w)) /* else the next plan uses it again */
			gone[count++] = w;
	}
	send_workers(m, gone, count, json_pack("{s:s}", "type", "quit"));
	for (int i = 0; i < count; i++) {
		gone[i]->quit_serial = gone[i]->serial;
		gone[i]->process = PROC_NONE;
		checkpoint_worker_lost(m, gone[i]);
	}
	free(gone);
	bound_plan_unref(m->older);
	m->older = NULL;
	enter_phase(g, PHASE_TRAINING, m->now, 0);
	m->recent_count = 0;
	m->quiet_step_s = 0;
	g->bound_plan->safe = bound_plan_survives(m, g->bound_plan, g->bound_plan->copies);
	m->copy_tried_at = -INFINITY; /* earlier copies were placed for other nodes: the first are made at once */
	m->copy_tried_step = -1;
	json_decref(m->checkpoint_search.bad);
	json_decref(m->checkpoint_search.manifests);
	m->checkpoint_search.bad = m->checkpoint_search.manifests = NULL;
	readers_forget(m);
	journal(m);
	extend_step_deadline(m);
	straggler_begin(m);
	if (runs_command(m) && !m->steps_told)
		report_change(m);
	replay_deferred(m);
}

static void enter_held(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	if (g->phase == PHASE_SETTLING) {
		m->settled_at = m->now;
		/* All that are left have answered since the loss: a related one would have shown. */
		m->change.not_before = fmin(m->change.not_before, m->now);
	}
	m->step = 0;
	for (int i = 0; i < g->members; i++) {
		struct worker *w = g->member[i];
		w->step = message_integer(g->answer[i], "step", w->step);
		if (w->holds && w->step > m->step)
			m->step = w->step;
		if (w->holds == g->bound_plan->generation)
			report_losses(m, json_object_get(g->answer[i], "losses"));
	}
	replay_deferred(m);
	device_loads_save(m);
	g->phase = PHASE_HELD;
	g->deadline = INFINITY;
	m->step_deadline = INFINITY;
	if (runs_command(m))
		command_stopped(m);
	else if (bound_plan_is_whole(g->bound_plan) && m->step >= m->config->job->steps)
		g->finished = true;
}

bool advance_current(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	switch (g->phase) {
	case PHASE_STARTING:
		if (!all_answered(g) || m->adopt) /* advance_adopted() reads the answers of adopted workers first */
			return false;
		enter_training(m);
		return true;
	case PHASE_TRAINING:
		if (g->members && all_answered(g)) { /* all have reported `finished` */
			enter_held(m);
			return true;
		}
		if (m->now < m->step_deadline)
			return false;
		count_attempt(m);
		char text[200];
		snprintf(text, sizeof text, "no step for %.1f s, where %.1f s were allowed",
		         m->now - fmax(g->since, isnan(m->last_step_at) ? 0 : m->last_step_at),
		         m->step_deadline - fmax(g->since, isnan(m->last_step_at) ? 0 : m->last_step_at));
		abort_current(m, text);
		/* Workers that wait for the hung one receive the abort at once; others within a step, whose time is known. */
		g->deadline = fmin(g->deadline, m->now + fmax(ABORT_LEAST_S, 2 * slowest_recent_step(m)));
		request_replan(m, "hang");
		return true;
	case PHASE_STOPPING:
		if (all_answered(g)) {
			enter_held(m);
			return true;
		}
		if (m->now < g->deadline)
			return false;
		abort_current(m, runs_command(m) ? "ranks did not end in time" : "workers did not stop at a step's end");
		request_replan(m, "hang");
		return true;
	case PHASE_ABORTING:
		if (!all_answered(g))
			return false;
		settle_collect(m);
		return revive_missing(m) || settle_begin(m);
	case PHASE_SETTLING:
		if (!all_answered(g))
			return false;
		enter_held(m);
		settle_end(m);
		return true;
	default:
		return false;
	}
}

void on_answer(struct hspmd_controller *m, struct worker *w, const char *type, json_t *message)
{
	struct generation *g = &m->current;
	if (!g->bound_plan || message_integer(message, "generation", -1) != g->bound_plan->generation || member_index(g, w) < 0)
		return;
	bool step = !strcmp(type, "step");
	if ((g->phase == PHASE_STARTING && (step || !strcmp(type, "finished"))) || (step && m->deferred)) { /* keeps the order */
		defer_message(m, w, message);
	} else if (step) {
		on_step(m, w, message);
	} else if (!strcmp(type, "query_reply") && g->phase == PHASE_STARTING && m->adopt) {
		record_answer(g, w, message);
	} else if (!strcmp(type, "started") && g->phase == PHASE_STARTING) {
		bool stays = bound_plan_uses(g->bound_plan, w);
		w->holds = stays ? g->bound_plan->generation : 0;
		w->step = m->step;
		record_answer(g, w, message);
	} else if (!strcmp(type, "finished") && (g->phase == PHASE_TRAINING || g->phase == PHASE_STOPPING)) {
		record_answer(g, w, message);
	} else if (!strcmp(type, "stopped") && g->phase == PHASE_STOPPING) {
		record_answer(g, w, message);
	} else if ((!strcmp(type, "aborted") && g->phase == PHASE_ABORTING) || (!strcmp(type, "settled") && g->phase == PHASE_SETTLING)) {
		w->reviving = false;
		record_answer(g, w, message);
	}
}
