/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints, in two phases: all workers write their shards, then the manifest lists them. Until the manifest is written the previous
 * checkpoint is the valid one, and it remains so after a failure. What nodes write to folders of their own and what they write to the
 * folder that they share are two parts, each of which is complete or fails by itself: a shared folder that hangs holds up nothing else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

static void clear_members(struct checkpoint *s)
{
	for (int i = 0; i < s->members; i++) {
		json_decref(s->answer[i]);
		json_decref(s->shard[i]);
	}
	free(s->answer);
	free(s->shard);
	free(s->member);
	s->members = s->answers = 0;
}

static void clear(struct checkpoint *s)
{
	clear_members(s);
	bound_plan_unref(s->bound_plan);
	json_decref(s->manifest);
	memset(s, 0, sizeof *s);
}

void checkpoint_clear(struct hspmd_controller *m)
{
	for (int p = 0; p < PARTS; p++)
		clear(&m->checkpoint[p]);
}

/* Sets the workers whose answers the next phase needs. Returns false if memory is short. */
static bool members(struct hspmd_controller *m, struct checkpoint *s, struct worker *const *who, int count)
{
	clear_members(s);
	s->member = hspmd_calloc((size_t)count, sizeof *s->member);
	s->answer = hspmd_calloc((size_t)count, sizeof *s->answer);
	s->shard = hspmd_calloc((size_t)count, sizeof *s->shard);
	if (!s->member || !s->answer || !s->shard) {
		m->failed = true;
		return false;
	}
	memcpy(s->member, who, (size_t)count * sizeof *who);
	s->members = count;
	return true;
}

/* Where workers are to write. */
struct targets {
	bool memory, local, shared;
};

/* While the shared folder is busy with the part of an earlier checkpoint, it is none. */
static struct targets choose_targets(const struct hspmd_controller *m, enum checkpoint_target target)
{
	return (struct targets){
		.memory = target == TARGET_MEMORY && m->config->memory,
		.local = target != TARGET_MEMORY && target != TARGET_SHARED && m->config->local,
		.shared = m->config->shared && m->checkpoint[PART_SHARED].phase == CHECKPOINT_NONE &&
		          (target == TARGET_ALL || target == TARGET_SHARED || (target == TARGET_SCHEDULED && checkpoint_shared_due(m))),
	};
}

static void note_try(struct hspmd_controller *m, const struct targets *t)
{
	if (t->memory) {
		m->copy_tried_at = m->now;
		m->copy_tried_step = m->steps_reported;
		return;
	}
	m->checkpoint_tried_at = m->now;
	m->checkpoint_tried_step = m->steps_reported;
	if (t->shared) {
		m->shared_tried_at = m->now;
		m->shared_tried_step = m->steps_reported;
	}
}

static void name_checkpoint(const struct hspmd_controller *m, const struct bound_plan *l, char *id, size_t size)
{
	/* Workers may still answer what an earlier incarnation of the controller asked: that is another one, though of the same
	 * generation. */
	if (m->config->journal)
		snprintf(id, size, "g%lld-%lld-%lld", (long long)l->generation, (long long)m->first_event, (long long)m->checkpoint_count);
	else
		snprintf(id, size, "g%lld-%lld", (long long)l->generation, (long long)m->checkpoint_count);
}

/* Returns false if memory is short. */
static bool begin_part(struct hspmd_controller *m, enum checkpoint_part part, const struct targets *t, const char *id)
{
	struct checkpoint *s = &m->checkpoint[part];
	struct bound_plan *l = m->current.bound_plan;
	s->number = m->checkpoint_count;
	snprintf(s->id, sizeof s->id, "%s", id);
	s->memory = t->memory && part == PART_OWN;
	s->local = t->local && part == PART_OWN;
	s->shared = part == PART_SHARED;
	s->bound_plan = bound_plan_ref(l);
	s->since = m->now;
	s->deadline = m->now + m->config->timeouts.checkpoint;
	s->step = -1;
	s->phase = CHECKPOINT_WRITING;
	return members(m, s, l->device, l->devices);
}

static const char *if_wanted(bool wanted, const char *folder)
{
	return wanted ? folder : NULL;
}

bool checkpoint_begin(struct hspmd_controller *m, const char *why, enum checkpoint_target target)
{
	const struct generation *g = &m->current;
	if (m->checkpoint[PART_OWN].phase != CHECKPOINT_NONE || !g->bound_plan || (g->phase != PHASE_TRAINING && g->phase != PHASE_HELD) ||
	    !bound_plan_is_whole(g->bound_plan))
		return false;
	struct targets t = choose_targets(m, target);
	bool own = t.memory || t.local;
	char id[sizeof m->checkpoint[0].id];
	if (!own && !t.shared)
		return false;
	m->checkpoint_count++;
	name_checkpoint(m, g->bound_plan, id, sizeof id);
	note_try(m, &t);
	if ((own && !begin_part(m, PART_OWN, &t, id)) || (t.shared && !begin_part(m, PART_SHARED, &t, id)))
		return false;
	if (why[0])
		log_msg(m, HSPMD_LOG_INFO, "checkpoint %s: %s", id, why);
	send_workers(m, g->bound_plan->device, g->bound_plan->devices,
	             json_pack("{s:s, s:I, s:s, s:s?, s:s?, s:s*}", "type", "checkpoint", "generation",
	                       (json_int_t)g->bound_plan->generation, "id", id, "local", if_wanted(t.local, m->config->local), "shared",
	                       if_wanted(t.shared, m->config->shared), "memory", if_wanted(t.memory, m->config->memory)));
	return true;
}

/* A part is over: those who asked for the checkpoint are answered when all of it is, or some of it has failed. */
static void answer_requests(struct hspmd_controller *m, int64_t number, int64_t step, const char *why_not)
{
	bool over = true;
	for (int p = 0; p < PARTS; p++)
		over &= m->checkpoint[p].phase == CHECKPOINT_NONE || m->checkpoint[p].number != number;
	if (over || why_not)
		requests_checkpoint_done(m, number, step, why_not);
}

static const char *in_shared(const struct hspmd_controller *m, const struct checkpoint *s)
{
	return s->shared && m->config->local ? " in the shared folder" : "";
}

static void failed(struct hspmd_controller *m, struct checkpoint *s, const char *why)
{
	char text[HSPMD_ERROR_MAX + 120];
	bool memory = s->memory, for_samples = s->shared || (s->local && !m->config->shared);
	snprintf(text, sizeof text, "%s %s failed%s: %s", memory ? "copy in memory" : "checkpoint", s->id, in_shared(m, s), why);
	int64_t number = s->number, step = s->step;
	struct checkpoint_trouble *trouble = &m->checkpoint_trouble[s->shared ? PART_SHARED : PART_OWN];
	if (!memory) {
		if (!(trouble->since > 0))
			trouble->since = m->now;
		snprintf(trouble->why, sizeof trouble->why, "%s", why);
	}
	clear(s);
	if (for_samples)
		samples_checkpoint_failed(m);
	if (!memory || m->copy_failures++ == 0) /* copies are tried at growing intervals, and only the first failure is noted */
		note_event(m, memory ? "copies_failed" : "checkpoint_failed", "%s", text);
	answer_requests(m, number, step, text);
}

/* The part of which a worker's answer tells. */
static struct checkpoint *part_of(struct hspmd_controller *m, const json_t *message)
{
	return &m->checkpoint[json_is_true(json_object_get(message, "shared")) ? PART_SHARED : PART_OWN];
}

static bool is_of(const struct checkpoint *s, const json_t *message)
{
	const char *id = json_string_value(json_object_get(message, "id"));
	return s->phase != CHECKPOINT_NONE && id && !strcmp(id, s->id);
}

/* A worker describes its shard, which is the same in both parts, in the first of its answers: also if that part has failed meanwhile. */
static void note_shard(struct hspmd_controller *m, const struct worker *w, const json_t *message)
{
	json_t *shard = json_object_get(message, "shard");
	for (int p = 0; p < PARTS && shard; p++) {
		struct checkpoint *s = &m->checkpoint[p];
		int i = s->phase == CHECKPOINT_WRITING && is_of(s, message) ? place_of(s->member, s->members, s->bound_plan->generation, w)
		                                                            : -1;
		if (i >= 0 && !s->shard[i])
			s->shard[i] = json_incref(shard);
	}
}

/* Records an answer. Returns true if it is the last of the phase. An answer may report an error: another worker may have written a copy of
 * the slice. */
static bool take(struct checkpoint *s, struct worker *w, json_t *message)
{
	if (!is_of(s, message))
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
static json_t *manifest_folders(struct hspmd_controller *m, const struct checkpoint *s, struct worker *const *one, int count)
{
	const char *folder = s->memory ? m->config->memory : s->local ? m->config->local : m->config->shared;
	json_t *by_node = check_alloc(m, json_object());
	for (int i = 0; i < count; i++)
		if (json_object_set_new(by_node, one[i]->node->name, json_pack("[s]", folder)))
			m->failed = true;
	return by_node;
}

/* Second phase: a worker on each of some nodes writes the manifest to its node's folder, or one of them to the shared folder. */
static void list(struct hspmd_controller *m, struct checkpoint *s)
{
	struct worker **one = hspmd_calloc((size_t)s->members, sizeof *one);
	int count = 0;
	if (!one) {
		m->failed = true;
		return;
	}
	count = one_per_node(s->member, s->members, one);
	if (!count) {
		free(one);
		failed(m, s, "all who have written it are gone");
		return;
	}
	count = manifest_holders(m, s->bound_plan, one, count);
	if (s->shared && count > 1)
		count = 1;
	s->phase = CHECKPOINT_LISTING;
	s->deadline = m->now + m->config->timeouts.checkpoint;
	if (count && members(m, s, one, count)) {
		json_t *by_node = manifest_folders(m, s, one, count);
		send_workers_own(m, one, count,
		                 json_pack("{s:s, s:s, s:b, s:O}", "type", "write_manifest", "id", s->id, "shared", (int)s->shared,
		                           "manifest", s->manifest),
		                 "folders", by_node);
		json_decref(by_node);
	}
	free(one);
}

/* Each bears its sender's address, and its shard unless it could not be written. */
static json_t *answers(struct hspmd_controller *m, const struct checkpoint *s)
{
	json_t *all = check_alloc(m, json_array());
	for (int i = 0; i < s->members; i++) {
		bool lacks = s->shard[i] && !error_of(s, i) && !json_object_get(s->answer[i], "shard");
		json_t *one = check_alloc(m, lacks ? json_copy(s->answer[i]) : json_incref(s->answer[i]));
		if ((lacks && json_object_set(one, "shard", s->shard[i])) || json_array_append_new(all, one))
			m->failed = true;
	}
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

static json_t *make_manifest(struct hspmd_controller *m, struct checkpoint *s, struct hspmd_error *err)
{
	json_t *written = answers(m, s), *manifest;
	if (m->config->manifest)
		manifest = m->config->manifest(m->config, s->id, s->bound_plan->cluster_json, s->bound_plan->plan_json, written, err);
	else
		manifest = json_pack("{s:s, s:I, s:O}", "id", s->id, "step", (json_int_t)s->step, "checkpoint_written", written);
	json_decref(written);
	return manifest;
}

/* The other part has the same shards, and therefore the same manifest, if every worker writes its own there. */
static void lend_manifest(struct hspmd_controller *m, const struct checkpoint *s)
{
	struct checkpoint *other = &m->checkpoint[PART_SHARED];
	if (s != other && other->phase == CHECKPOINT_WRITING && other->number == s->number && !other->manifest)
		other->manifest = json_incref(s->manifest);
}

void on_checkpoint_written(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct checkpoint *s = part_of(m, message);
	struct hspmd_error err = { "" };
	note_shard(m, w, message);
	if (s->phase != CHECKPOINT_WRITING || !take(s, w, message))
		return;
	const char *first = NULL;
	for (int i = 0; i < s->members && !first; i++)
		first = error_of(s, i);
	if (!one_step(s) || (first && s->shared)) { /* nobody else writes another's shard to the shared folder */
		failed(m, s, first && (s->step < 0 || s->shared) ? first : "the workers wrote different steps");
		return;
	}
	if (!s->manifest)
		s->manifest = make_manifest(m, s, &err);
	if (!s->manifest) {
		failed(m, s, err.text[0] ? err.text : "out of memory");
		return;
	}
	if (first)
		note_event(m, "checkpoint_hurt", "checkpoint %s is whole only because of copies: %s", s->id, first);
	lend_manifest(m, s);
	list(m, s);
}

static void copied(struct hspmd_controller *m, const struct checkpoint *s)
{
	committed_in_memory(m, s->bound_plan, s->step);
	m->copied_step = s->step;
	m->copied_at = m->now;
	m->copy_seconds = m->now - s->since;
	m->copy_cost_s = m->copy_cost_s > 0 ? 0.7 * m->copy_cost_s + 0.3 * s->slowed : s->slowed;
	m->copy_failures = 0;
}

static void done(struct hspmd_controller *m, const struct checkpoint *s)
{
	double seconds = m->now - s->since;
	bool second = s->shared && m->config->local;
	if (s->local)
		committed_locally(m, s->bound_plan, s->step);
	if (s->shared) {
		m->shared_checkpoint_step = s->step;
		m->shared_checkpoint_at = m->now;
		m->shared_checkpoint_seconds = seconds;
	}
	if (s->number >= m->checkpoint_done) { /* a later one may have been complete before */
		m->checkpoint_done = s->number;
		m->checkpoint_step = s->step;
		m->checkpoint_at = m->now;
	}
	if (!second) {
		m->checkpoint_seconds = seconds;
		m->checkpoint_cost_s = s->slowed;
	}
	m->checkpoint_trouble[s->shared ? PART_SHARED : PART_OWN].since = 0;
	note_event(m, second ? "checkpoint_shared" : "checkpoint", "checkpoint %s of step %lld is complete%s after %.2f s", s->id,
	           (long long)s->step, in_shared(m, s), seconds);
	samples_checkpoint_done(m, s->step, s->shared);
}

void on_manifest_written(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct checkpoint *s = part_of(m, message);
	const char *error = NULL;
	int bad = 0;
	if (s->phase != CHECKPOINT_LISTING || !take(s, w, message))
		return;
	for (int i = 0; i < s->members; i++)
		if (error_of(s, i)) {
			bad++;
			error = error_of(s, i);
		}
	if (bad == s->members) {
		failed(m, s, error ? error : "no node wrote the manifest");
		return;
	}
	if (bad)
		note_event(m, "checkpoint_hurt", "the manifest of checkpoint %s is missing on %d of %d nodes: %s", s->id, bad, s->members,
		           error);
	int64_t number = s->number, step = s->step;
	if (s->memory)
		copied(m, s);
	else
		done(m, s);
	clear(s);
	answer_requests(m, number, step, NULL);
}

static void part_worker_lost(struct hspmd_controller *m, struct checkpoint *s, const struct worker *w)
{
	for (int i = 0; s->phase != CHECKPOINT_NONE && i < s->members; i++) {
		if (s->member[i] != w)
			continue;
		if (s->answer[i]) { /* its part is written; nothing more is requested of it */
			s->member[i] = NULL;
			continue;
		}
		char why[ADDRESS_MAX + 20];
		snprintf(why, sizeof why, "worker %s is gone", w->address);
		failed(m, s, why);
	}
}

void checkpoint_worker_lost(struct hspmd_controller *m, const struct worker *w)
{
	for (int p = 0; p < PARTS; p++)
		part_worker_lost(m, &m->checkpoint[p], w);
}

static void part_tick(struct hspmd_controller *m, struct checkpoint *s)
{
	if (s->phase == CHECKPOINT_NONE || m->now < s->deadline)
		return;
	char why[ADDRESS_MAX + 60];
	snprintf(why, sizeof why, "waited %.0f s", m->now - s->since);
	for (int i = 0; i < s->members; i++)
		if (!s->answer[i]) {
			snprintf(why, sizeof why, "waited %.0f s for %s", m->now - s->since, s->member[i]->address);
			break;
		}
	failed(m, s, why);
}

void checkpoint_tick(struct hspmd_controller *m)
{
	for (int p = 0; p < PARTS; p++)
		part_tick(m, &m->checkpoint[p]);
}

bool checkpoint_if_due(struct hspmd_controller *m)
{
	int64_t steps = m->config->job->checkpoint.every_steps;
	bool last_chance = !m->end_saved && m->end_at - m->now < fmax(30, 3 * m->checkpoint_seconds);
	bool samples = samples_due(m) && (!m->config->shared || m->checkpoint[PART_SHARED].phase == CHECKPOINT_NONE);
	bool due = m->now >= m->checkpoint_tried_at + checkpoint_interval_s(m) ||
	           (steps > 0 && m->steps_reported - m->checkpoint_tried_step >= steps) || samples;
	if (!checkpoint_may_begin(m))
		return false;
	if (checkpoint_possible(m) && m->steps_reported > m->checkpoint_tried_step && (last_chance || due) &&
	    checkpoint_begin(m, last_chance ? "the job's time is nearly over" : "",
	                     last_chance || samples ? TARGET_ALL : TARGET_SCHEDULED)) {
		m->end_saved |= last_chance;
		return true;
	}
	return m->now >= checkpoint_copy_deadline(m) && checkpoint_begin(m, "", TARGET_MEMORY);
}
