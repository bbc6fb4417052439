/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints, in two phases: all write, then the manifest says that they have. Until it stands the old one does; a failure leaves it standing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/run/machine_private.h"

/* Where the job file leaves the interval to us: the optimum for a cost C a checkpoint and a mean time M between failures is sqrt(2 C M) (Young, "A first
 * order approximation to the optimum checkpoint interval", CACM 1974). */
#define FIRST_INTERVAL_S 120.0
#define LEAST_INTERVAL_S 30.0
#define MOST_INTERVAL_S 1800.0
#define NODE_FAILURE_S (30 * 86400.0)

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

static bool possible(const struct hspmd_machine *m)
{
	return m->config->local || m->config->shared;
}

static double interval(const struct hspmd_machine *m)
{
	if (m->config->job->checkpoint.every_s > 0)
		return m->config->job->checkpoint.every_s;
	if (m->config->job->checkpoint.every_steps > 0)
		return INFINITY;
	if (m->save_cost <= 0)
		return FIRST_INTERVAL_S;
	int nodes = nodes_usable(m);
	return fmin(MOST_INTERVAL_S, fmax(LEAST_INTERVAL_S, sqrt(2 * m->save_cost * NODE_FAILURE_S / (nodes > 0 ? nodes : 1))));
}

double save_next(const struct hspmd_machine *m)
{
	if (!possible(m) || m->current.stage != STAGE_TRAINING || m->save.stage != SAVE_NONE || m->leaving || m->told <= m->save_tried_step)
		return INFINITY; /* by time, and not before there is something new */
	return m->save_tried + interval(m);
}

bool save_due(struct hspmd_machine *m)
{
	int64_t steps = m->config->job->checkpoint.every_steps;
	bool last_chance = !m->end_saved && m->end_at - m->now < fmax(30, 3 * m->save_cost);
	bool due = m->now >= m->save_tried + interval(m) || (steps > 0 && m->told - m->save_tried_step >= steps);
	if (!possible(m) || m->current.stage != STAGE_TRAINING || m->save.stage != SAVE_NONE || m->leaving || m->told <= m->save_tried_step)
		return false;
	m->end_saved |= last_chance;
	return (last_chance || due) && save_begin(m, last_chance ? "the job's time is nearly over" : "");
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

bool save_begin(struct hspmd_machine *m, const char *why)
{
	struct save *s = &m->save;
	const struct generation *g = &m->current;
	if (!possible(m) || s->stage != SAVE_NONE || !g->layout || (g->stage != STAGE_TRAINING && g->stage != STAGE_HELD))
		return false;
	s->number = ++m->saves;
	snprintf(s->id, sizeof s->id, "g%lld-%lld", (long long)g->layout->generation, (long long)s->number);
	s->layout = layout_keep(g->layout);
	s->since = m->save_tried = m->now;
	m->save_tried_step = m->told;
	s->deadline = m->now + m->config->patience.checkpoint;
	s->step = -1;
	if (!members(m, g->layout->device, g->layout->devices))
		return false;
	s->stage = SAVE_WRITING;
	if (why[0])
		say(m, HSPMD_LOG_INFO, "checkpoint %s: %s", s->id, why);
	send_workers(m, s->member, s->members,
		     json_pack("{s:s, s:I, s:s, s:s?, s:s?}", "type", "checkpoint", "generation", (json_int_t)g->layout->generation, "id", s->id, "local",
			       m->config->local, "shared", m->config->shared));
	return true;
}

static void failed(struct hspmd_machine *m, const char *why)
{
	char text[HSPMD_ERROR_MAX + 100];
	snprintf(text, sizeof text, "checkpoint %s failed: %s", m->save.id, why);
	int64_t number = m->save.number;
	save_forget(m);
	note_event(m, "checkpoint_failed", "%s", text);
	requests_saved(m, number, text);
}

static bool answered(const struct save *s)
{
	for (int i = 0; i < s->members; i++)
		if (!s->answer[i])
			return false;
	return true;
}

static bool take(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct save *s = &m->save;
	const char *id = json_string_value(json_object_get(message, "id"));
	const char *error = json_string_value(json_object_get(message, "error"));
	if (s->stage == SAVE_NONE || !id || strcmp(id, s->id))
		return false;
	if (error) {
		char why[HSPMD_ERROR_MAX];
		snprintf(why, sizeof why, "%s: %s", w->address, error);
		failed(m, why);
		return false;
	}
	for (int i = 0; i < s->members; i++)
		if (s->member[i] == w && !s->answer[i])
			s->answer[i] = json_incref(message);
	return answered(s);
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
		if (!known && (m->config->local || count == 0))
			one[count++] = s->member[i];
	}
	s->stage = SAVE_LISTING;
	s->deadline = m->now + m->config->patience.checkpoint;
	if (members(m, one, count))
		for (int i = 0; i < count; i++) {
			json_t *folders = need(m, json_array());
			if (m->config->local && json_array_append_new(folders, json_string(m->config->local)))
				m->failed = true;
			if (m->config->shared && i == 0 && json_array_append_new(folders, json_string(m->config->shared)))
				m->failed = true;
			send_workers(m, &one[i], 1, json_pack("{s:s, s:s, s:O, s:o}", "type", "manifest", "id", s->id, "manifest", s->manifest, "folders", folders));
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

void on_written(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct save *s = &m->save;
	struct hspmd_error err = { "" };
	if (s->stage != SAVE_WRITING || !take(m, w, message))
		return;
	for (int i = 0; i < s->members; i++) {
		json_t *step = json_object_get(s->answer[i], "step");
		if (!json_is_integer(step) || (i > 0 && json_integer_value(step) != s->step)) {
			failed(m, "the workers wrote different steps");
			return;
		}
		s->step = json_integer_value(step);
	}
	json_t *written = with_sender(m, s);
	s->manifest = m->config->manifest ? m->config->manifest(m->config, s->id, s->layout->cluster_json, s->layout->plan_json, written, &err)
					  : json_pack("{s:s, s:I, s:O}", "id", s->id, "step", (json_int_t)s->step, "written", written);
	json_decref(written);
	if (!s->manifest)
		failed(m, err.text[0] ? err.text : "out of memory");
	else
		list(m);
}

void on_manifested(struct hspmd_machine *m, struct worker *w, json_t *message)
{
	struct save *s = &m->save;
	if (s->stage != SAVE_LISTING || !take(m, w, message))
		return;
	m->saved_step = s->step;
	m->saved_at = m->now;
	m->save_cost = m->now - s->since;
	int64_t number = s->number;
	note_event(m, "checkpoint", "checkpoint %s of step %lld is complete after %.2f s", s->id, (long long)s->step, m->save_cost);
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
