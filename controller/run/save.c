/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints, in two phases: all write, then the manifest says that they have. Until it stands the old one does; a failure leaves it standing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/run/machine_private.h"

void save_forget(struct hspmd_machine *m)
{
	struct save *s = &m->save;
	for (int i = 0; i < s->members; i++)
		json_decref(s->answer[i]);
	free(s->answer);
	free(s->member);
	layout_drop(s->layout);
	json_decref(s->manifest);
	memset(s, 0, sizeof *s);
}

/* Ask `member` again, for the next phase. */
static bool members(struct hspmd_machine *m, struct worker *const *who, int count)
{
	struct save *s = &m->save;
	for (int i = 0; i < s->members; i++)
		json_decref(s->answer[i]);
	free(s->answer);
	free(s->member);
	s->member = hspmd_calloc((size_t)count, sizeof *s->member);
	s->answer = hspmd_calloc((size_t)count, sizeof *s->answer);
	s->members = 0;
	if (!s->member || !s->answer) {
		m->failed = true;
		return false;
	}
	memcpy(s->member, who, (size_t)count * sizeof *who);
	s->members = count;
	return true;
}

/* Where it goes. False: nowhere. */
static bool choose_places(struct hspmd_machine *m, enum save_where where)
{
	struct save *s = &m->save;
	s->memory = where == SAVE_MEMORY && m->config->memory;
	s->local = where != SAVE_MEMORY && where != SAVE_SHARED && m->config->local;
	s->shared = m->config->shared && (where == SAVE_EVERYWHERE || where == SAVE_SHARED || (where == SAVE_DUE && save_shared_due(m)));
	return s->memory || s->local || s->shared;
}

static void note_try(struct hspmd_machine *m)
{
	if (m->save.memory) {
		m->copy_tried = m->now;
		m->copy_tried_step = m->told;
		return;
	}
	m->save_tried = m->now;
	m->save_tried_step = m->told;
	if (m->save.shared) {
		m->shared_tried = m->now;
		m->shared_step = m->told;
	}
}

static const char *if_wanted(bool wanted, const char *folder)
{
	return wanted ? folder : NULL;
}

bool save_begin(struct hspmd_machine *m, const char *why, enum save_where where)
{
	struct save *s = &m->save;
	const struct generation *g = &m->current;
	if (s->stage != SAVE_NONE || !g->layout || (g->stage != STAGE_TRAINING && g->stage != STAGE_HELD) || !choose_places(m, where))
		return false;
	s->number = ++m->saves;
	snprintf(s->id, sizeof s->id, "g%lld-%lld", (long long)g->layout->generation, (long long)s->number);
	s->layout = layout_keep(g->layout);
	s->since = m->now;
	s->slowed = 0;
	note_try(m);
	s->deadline = m->now + m->config->patience.checkpoint;
	s->step = -1;
	if (!members(m, g->layout->device, g->layout->devices))
		return false;
	s->stage = SAVE_WRITING;
	if (why[0])
		say(m, HSPMD_LOG_INFO, "checkpoint %s: %s", s->id, why);
	send_workers(m, s->member, s->members,
		     json_pack("{s:s, s:I, s:s, s:s?, s:s?, s:s*}", "type", "checkpoint", "generation", (json_int_t)g->layout->generation, "id", s->id,
			       "local", if_wanted(s->local, m->config->local), "shared", if_wanted(s->shared, m->config->shared), "memory",
			       if_wanted(s->memory, m->config->memory)));
	return true;
}

static void failed(struct hspmd_machine *m, const char *why)
{
	char text[HSPMD_ERROR_MAX + 100];
	bool memory = m->save.memory;
	snprintf(text, sizeof text, "%s %s failed: %s", memory ? "copy in memory" : "checkpoint", m->save.id, why);
	int64_t number = m->save.number;
	save_forget(m);
	if (!memory || m->copy_failures++ == 0) /* then it is tried more and more seldom, and said once */
		note_event(m, memory ? "copies_failed" : "checkpoint_failed", "%s", text);
	requests_saved(m, number, text);
}

static bool answered(const struct save *s)
{
	for (int i = 0; i < s->members; i++)
		if (!s->answer[i])
			return false;
	return true;
}

/* Is this the last answer of the phase? One may tell of an error: what one could not write another may have. */
static bool take(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct save *s = &m->save;
	const char *id = json_string_value(json_object_get(message, "id"));
	if (s->stage == SAVE_NONE || !id || strcmp(id, s->id))
		return false;
	for (int i = 0; i < s->members; i++)
		if (s->member[i] == w && !s->answer[i])
			s->answer[i] = json_incref(message);
	return answered(s);
}

static const char *error_of(const struct save *s, int i)
{
	return json_string_value(json_object_get(s->answer[i], "error"));
}

/* One worker a node puts the manifest into the node's folder, the first also into the shared one. */
static void list(struct hspmd_machine *m)
{
	struct save *s = &m->save;
	struct worker **one = hspmd_calloc((size_t)s->members, sizeof *one);
	int count = 0;
	if (!one) {
		m->failed = true;
		return;
	}
	for (int i = 0; i < s->members; i++) {
		bool known = false;
		for (int k = 0; k < count; k++)
			known |= one[k]->node == s->member[i]->node;
		if (!known && (s->local || s->memory || count == 0))
			one[count++] = s->member[i];
	}
	s->stage = SAVE_LISTING;
	s->deadline = m->now + m->config->patience.checkpoint;
	if (members(m, one, count))
		for (int i = 0; i < count; i++) {
			json_t *folders = need(m, json_array());
			const char *own = s->memory ? m->config->memory : s->local ? m->config->local : NULL;
			if (own && json_array_append_new(folders, json_string(own)))
				m->failed = true;
			if (s->shared && i == 0 && json_array_append_new(folders, json_string(m->config->shared)))
				m->failed = true;
			json_t *keep = s->memory ? json_integer(1) : NULL;
			send_workers(m, &one[i], 1, json_pack("{s:s, s:s, s:O, s:o, s:o*}", "type", "manifest", "id", s->id, "manifest", s->manifest, "folders",
							      folders, "keep", keep));
		}
	free(one);
}

static json_t *with_sender(struct hspmd_machine *m, const struct save *s)
{
	json_t *all = need(m, json_array());
	for (int i = 0; i < s->members; i++) {
		json_t *copy = need(m, json_copy(s->answer[i]));
		if (!copy || json_object_set_new(copy, "from", json_string(s->member[i]->address)) || json_array_append(all, copy))
			m->failed = true;
		json_decref(copy);
	}
	return all;
}

/* The step that all have written who have; false: they differ, or nobody has. */
static bool one_step(struct save *s)
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

void on_written(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct save *s = &m->save;
	struct hspmd_error err = { "" };
	if (s->stage != SAVE_WRITING || !take(m, w, message))
		return;
	const char *first = NULL;
	for (int i = 0; i < s->members && !first; i++)
		first = error_of(s, i);
	if (!one_step(s)) {
		failed(m, s->step < 0 && first ? first : "the workers wrote different steps");
		return;
	}
	json_t *written = with_sender(m, s);
	s->manifest = m->config->manifest ? m->config->manifest(m->config, s->id, s->layout->cluster_json, s->layout->plan_json, written, &err)
					  : json_pack("{s:s, s:I, s:O}", "id", s->id, "step", (json_int_t)s->step, "written", written);
	json_decref(written);
	if (!s->manifest) {
		failed(m, err.text[0] ? err.text : "out of memory");
		return;
	}
	if (first)
		note_event(m, "checkpoint_hurt", "checkpoint %s is whole only because of copies: %s", s->id, first);
	list(m);
}

static void done(struct hspmd_machine *m)
{
	struct save *s = &m->save;
	double seconds = m->now - s->since;
	if (s->memory) {
		m->copied_step = s->step;
		m->copied_at = m->now;
		m->copy_seconds = seconds;
		m->copy_cost = m->copy_cost > 0 ? 0.7 * m->copy_cost + 0.3 * s->slowed : s->slowed;
		m->copy_failures = 0;
		return;
	}
	if (s->shared) {
		m->shared_saved_step = s->step;
		m->shared_saved_at = m->now;
	}
	m->saved_step = s->step;
	m->saved_at = m->now;
	m->save_seconds = seconds;
	m->save_cost = s->slowed;
	note_event(m, "checkpoint", "checkpoint %s of step %lld is complete after %.2f s", s->id, (long long)s->step, seconds);
}

void on_manifested(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct save *s = &m->save;
	const char *error = NULL;
	int bad = 0;
	if (s->stage != SAVE_LISTING || !take(m, w, message))
		return;
	for (int i = 0; i < s->members; i++)
		if (error_of(s, i)) {
			bad++;
			error = error_of(s, i);
		}
	if (bad == s->members) {
		failed(m, error ? error : "nobody listed it");
		return;
	}
	if (bad)
		note_event(m, "checkpoint_hurt", "checkpoint %s is not listed on %d of %d nodes: %s", s->id, bad, s->members, error);
	int64_t number = s->number;
	done(m);
	save_forget(m);
	requests_saved(m, number, NULL);
}

void save_lost(struct hspmd_machine *m, const struct worker *w)
{
	struct save *s = &m->save;
	for (int i = 0; s->stage != SAVE_NONE && i < s->members; i++)
		if (s->member[i] == w && !s->answer[i]) {
			char why[ADDRESS_MAX + 20];
			snprintf(why, sizeof why, "worker %s is gone", w->address);
			failed(m, why);
		}
}

void save_time(struct hspmd_machine *m)
{
	struct save *s = &m->save;
	if (s->stage == SAVE_NONE || m->now < s->deadline)
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
