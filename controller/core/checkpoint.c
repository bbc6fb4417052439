/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints, in two phases: all workers write their shards, then the manifest lists them. Until the manifest is written the previous
 * checkpoint is the valid one, and it remains so after a failure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

void checkpoint_clear(struct hspmd_controller *m)
{
	struct checkpoint *s = &m->checkpoint;
	for (int i = 0; i < s->members; i++)
		json_decref(s->answer[i]);
	free(s->answer);
	free(s->member);
	bound_plan_unref(s->bound_plan);
	json_decref(s->manifest);
	memset(s, 0, sizeof *s);
}

/* Sets the workers whose answers the next phase needs. Returns false if memory is short. */
static bool members(struct hspmd_controller *m, struct worker *const *who, int count)
{
	struct checkpoint *s = &m->checkpoint;
	for (int i = 0; i < s->members; i++)
		json_decref(s->answer[i]);
	free(s->answer);
	free(s->member);
	s->member = hspmd_calloc((size_t)count, sizeof *s->member);
	s->answer = hspmd_calloc((size_t)count, sizeof *s->answer);
	s->members = s->answers = 0;
	if (!s->member || !s->answer) {
		m->failed = true;
		return false;
	}
	memcpy(s->member, who, (size_t)count * sizeof *who);
	s->members = count;
	return true;
}

/* Chooses the folders. Returns false if there is none for `target`. */
static bool choose_targets(struct hspmd_controller *m, enum checkpoint_target target)
{
	struct checkpoint *s = &m->checkpoint;
	s->memory = target == TARGET_MEMORY && m->config->memory;
	s->local = target != TARGET_MEMORY && target != TARGET_SHARED && m->config->local;
	s->shared = m->config->shared &&
	            (target == TARGET_ALL || target == TARGET_SHARED || (target == TARGET_SCHEDULED && checkpoint_shared_due(m)));
	return s->memory || s->local || s->shared;
}

static void note_try(struct hspmd_controller *m)
{
	if (m->checkpoint.memory) {
		m->copy_tried_at = m->now;
		m->copy_tried_step = m->steps_reported;
		return;
	}
	m->checkpoint_tried_at = m->now;
	m->checkpoint_tried_step = m->steps_reported;
	if (m->checkpoint.shared) {
		m->shared_tried_at = m->now;
		m->shared_tried_step = m->steps_reported;
	}
}

static const char *if_wanted(bool wanted, const char *folder)
{
	return wanted ? folder : NULL;
}

bool checkpoint_begin(struct hspmd_controller *m, const char *why, enum checkpoint_target target)
{
	struct checkpoint *s = &m->checkpoint;
	const struct generation *g = &m->current;
	if (s->phase != CHECKPOINT_NONE || !g->bound_plan || (g->phase != PHASE_TRAINING && g->phase != PHASE_HELD) ||
	    !bound_plan_is_whole(g->bound_plan) || !choose_targets(m, target))
		return false;
	s->number = ++m->checkpoint_count;
	/* Workers may still answer what an earlier incarnation of the controller asked: that is another one, though of the same
	 * generation. */
	if (m->config->journal)
		snprintf(s->id, sizeof s->id, "g%lld-%lld-%lld", (long long)g->bound_plan->generation, (long long)m->first_event,
		         (long long)s->number);
	else
		snprintf(s->id, sizeof s->id, "g%lld-%lld", (long long)g->bound_plan->generation, (long long)s->number);
	s->bound_plan = bound_plan_ref(g->bound_plan);
	s->since = m->now;
	s->slowed = 0;
	note_try(m);
	s->deadline = m->now + m->config->timeouts.checkpoint;
	s->step = -1;
	if (!members(m, g->bound_plan->device, g->bound_plan->devices))
		return false;
	s->phase = CHECKPOINT_WRITING;
	if (why[0])
		log_msg(m, HSPMD_LOG_INFO, "checkpoint %s: %s", s->id, why);
	send_workers(m, s->member, s->members,
	             json_pack("{s:s, s:I, s:s, s:s?, s:s?, s:s*}", "type", "checkpoint", "generation",
	                       (json_int_t)g->bound_plan->generation, "id", s->id, "local", if_wanted(s->local, m->config->local), "shared",
	                       if_wanted(s->shared, m->config->shared), "memory", if_wanted(s->memory, m->config->memory)));
	return true;
}

static void failed(struct hspmd_controller *m, const char *why)
{
	char text[HSPMD_ERROR_MAX + 100];
	bool memory = m->checkpoint.memory;
	snprintf(text, sizeof text, "%s %s failed: %s", memory ? "copy in memory" : "checkpoint", m->checkpoint.id, why);
	int64_t number = m->checkpoint.number;
	if (!memory) {
		if (!(m->checkpoint_fails_since > 0))
			m->checkpoint_fails_since = m->now;
		snprintf(m->checkpoint_failure, sizeof m->checkpoint_failure, "%s", why);
	}
	checkpoint_clear(m);
	if (!memory)
		samples_checkpoint_failed(m);
	if (!memory || m->copy_failures++ == 0) /* copies are tried at growing intervals, and only the first failure is noted */
		note_event(m, memory ? "copies_failed" : "checkpoint_failed", "%s", text);
	requests_checkpoint_done(m, number, text);
}

/* Records an answer. Returns true if it is the last of the phase. An answer may report an error: another worker may have written a copy of
 * the slice. */
static bool take(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct checkpoint *s = &m->checkpoint;
	const char *id = json_string_value(json_object_get(message, "id"));
	if (s->phase == CHECKPOINT_NONE || !id || strcmp(id, s->id))
		return false;
	int i = place_of(s->member, s->members, s->bound_plan->generation, w);
	if (i >= 0 && !s->answer[i]) {
		s->answer[i] = json_incref(message);
		s->answers++;
	}
	return s->answers == s->members;
}

static const char *error_of(const struct checkpoint *s, int i)
{
	return json_string_value(json_object_get(s->answer[i], "error"));
}

/* { node: folders in which its worker writes the manifest } */
static json_t *manifest_folders(struct hspmd_controller *m, struct worker *const *one, int count)
{
	const struct checkpoint *s = &m->checkpoint;
	const char *own = s->memory ? m->config->memory : s->local ? m->config->local : NULL;
	json_t *by_node = check_alloc(m, json_object());
	for (int i = 0; i < count; i++) {
		json_t *folders = check_alloc(m, json_array());
		if (own && json_array_append_new(folders, json_string(own)))
			m->failed = true;
		if (s->shared && i == 0 && json_array_append_new(folders, json_string(m->config->shared)))
			m->failed = true;
		if (json_object_set_new(by_node, one[i]->node->name, folders))
			m->failed = true;
	}
	return by_node;
}

/* Second phase: a worker on each of some nodes writes the manifest to its node's folder, the first one also to the shared folder. */
static void list(struct hspmd_controller *m)
{
	struct checkpoint *s = &m->checkpoint;
	struct worker **one = hspmd_calloc((size_t)s->members, sizeof *one);
	int count = 0;
	if (!one) {
		m->failed = true;
		return;
	}
	count = one_per_node(s->member, s->members, one);
	if (!count) {
		free(one);
		failed(m, "all who have written it are gone");
		return;
	}
	count = manifest_holders(m, s->bound_plan, one, count);
	if (!s->local && !s->memory && count > 1)
		count = 1;
	s->phase = CHECKPOINT_LISTING;
	s->deadline = m->now + m->config->timeouts.checkpoint;
	if (count && members(m, one, count)) {
		json_t *by_node = manifest_folders(m, one, count);
		send_workers_own(m, one, count,
		                 json_pack("{s:s, s:s, s:O}", "type", "write_manifest", "id", s->id, "manifest", s->manifest), "folders",
		                 by_node);
		json_decref(by_node);
	}
	free(one);
}

/* Each bears its sender's address. */
static json_t *answers(struct hspmd_controller *m, const struct checkpoint *s)
{
	json_t *all = check_alloc(m, json_array());
	for (int i = 0; i < s->members; i++)
		if (json_array_append(all, s->answer[i]))
			m->failed = true;
	return all;
}

/* Finds the step that was written. Returns false if workers wrote different steps, or none was written. */
static bool one_step(struct checkpoint *s)
{
	for (int i = 0; i < s->members; i++) {
		json_t *step = json_object_get(s->answer[i], "step");
		if (error_of(s, i))
			continue;
		if (!json_is_integer(step) || (s->step >= 0 && json_integer_value(step) != s->step))
			return false;
		s->step = json_integer_value(step);
	}
	return s->step >= 0;
}

void on_checkpoint_written(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct checkpoint *s = &m->checkpoint;
	struct hspmd_error err = { "" };
	if (s->phase != CHECKPOINT_WRITING || !take(m, w, message))
		return;
	const char *first = NULL;
	for (int i = 0; i < s->members && !first; i++)
		first = error_of(s, i);
	if (!one_step(s)) {
		failed(m, s->step < 0 && first ? first : "the workers wrote different steps");
		return;
	}
	json_t *written = answers(m, s);
	s->manifest = m->config->manifest
	                      ? m->config->manifest(m->config, s->id, s->bound_plan->cluster_json, s->bound_plan->plan_json, written, &err)
	                      : json_pack("{s:s, s:I, s:O}", "id", s->id, "step", (json_int_t)s->step, "checkpoint_written", written);
	json_decref(written);
	if (!s->manifest) {
		failed(m, err.text[0] ? err.text : "out of memory");
		return;
	}
	if (first)
		note_event(m, "checkpoint_hurt", "checkpoint %s is whole only because of copies: %s", s->id, first);
	list(m);
}

static void done(struct hspmd_controller *m)
{
	struct checkpoint *s = &m->checkpoint;
	double seconds = m->now - s->since;
	if (s->memory) {
		committed_in_memory(m, s->bound_plan, s->step);
		m->copied_step = s->step;
		m->copied_at = m->now;
		m->copy_seconds = seconds;
		m->copy_cost_s = m->copy_cost_s > 0 ? 0.7 * m->copy_cost_s + 0.3 * s->slowed : s->slowed;
		m->copy_failures = 0;
		return;
	}
	if (s->local)
		committed_locally(m, s->bound_plan, s->step);
	if (s->shared) {
		m->shared_checkpoint_step = s->step;
		m->shared_checkpoint_at = m->now;
	}
	m->checkpoint_step = s->step;
	m->checkpoint_at = m->now;
	m->checkpoint_seconds = seconds;
	m->checkpoint_fails_since = 0;
	m->checkpoint_cost_s = s->slowed;
	note_event(m, "checkpoint", "checkpoint %s of step %lld is complete after %.2f s", s->id, (long long)s->step, seconds);
	samples_checkpoint_done(m, s->step, s->shared);
}

void on_manifest_written(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct checkpoint *s = &m->checkpoint;
	const char *error = NULL;
	int bad = 0;
	if (s->phase != CHECKPOINT_LISTING || !take(m, w, message))
		return;
	for (int i = 0; i < s->members; i++)
		if (error_of(s, i)) {
			bad++;
			error = error_of(s, i);
		}
	if (bad == s->members) {
		failed(m, error ? error : "no node wrote the manifest");
		return;
	}
	if (bad)
		note_event(m, "checkpoint_hurt", "the manifest of checkpoint %s is missing on %d of %d nodes: %s", s->id, bad, s->members,
		           error);
	int64_t number = s->number;
	done(m);
	checkpoint_clear(m);
	requests_checkpoint_done(m, number, NULL);
}

void checkpoint_worker_lost(struct hspmd_controller *m, const struct worker *w)
{
	struct checkpoint *s = &m->checkpoint;
	for (int i = 0; s->phase != CHECKPOINT_NONE && i < s->members; i++) {
		if (s->member[i] != w)
			continue;
		if (s->answer[i]) { /* its part is written; nothing more is requested of it */
			s->member[i] = NULL;
			continue;
		}
		char why[ADDRESS_MAX + 20];
		snprintf(why, sizeof why, "worker %s is gone", w->address);
		failed(m, why);
	}
}

void checkpoint_tick(struct hspmd_controller *m)
{
	struct checkpoint *s = &m->checkpoint;
	if (s->phase == CHECKPOINT_NONE || m->now < s->deadline)
		return;
	char why[ADDRESS_MAX + 60];
	snprintf(why, sizeof why, "waited %.0f s", m->now - s->since);
	for (int i = 0; i < s->members; i++)
		if (!s->answer[i]) {
			snprintf(why, sizeof why, "waited %.0f s for %s", m->now - s->since, s->member[i]->address);
			break;
		}
	failed(m, why);
}

bool checkpoint_if_due(struct hspmd_controller *m)
{
	int64_t steps = m->config->job->checkpoint.every_steps;
	bool last_chance = !m->end_saved && m->end_at - m->now < fmax(30, 3 * m->checkpoint_seconds);
	bool samples = samples_due(m);
	bool due = m->now >= m->checkpoint_tried_at + checkpoint_interval_s(m) ||
	           (steps > 0 && m->steps_reported - m->checkpoint_tried_step >= steps) || samples;
	if (!checkpoint_may_begin(m))
		return false;
	if (checkpoint_possible(m) && m->steps_reported > m->checkpoint_tried_step && (last_chance || due)) {
		m->end_saved |= last_chance;
		return checkpoint_begin(m, last_chance ? "the job's time is nearly over" : "",
		                        last_chance || samples ? TARGET_ALL : TARGET_SCHEDULED);
	}
	return m->now >= checkpoint_copy_deadline(m) && checkpoint_begin(m, "", TARGET_MEMORY);
}
