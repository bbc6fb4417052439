/* SPDX-License-Identifier: Apache-2.0 */
/* The end: all steps are done, or the job is told to leave and saves what there is. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/run/machine_private.h"

#define GRACE_S 25.0 /* where nobody said how much: less than Slurm's KillWait of 30 s */

void on_leave(struct hspmd_machine *m, const struct run_event *e)
{
	if (m->leaving || m->end != END_NONE)
		return;
	m->leaving = true;
	m->leave_until = m->now + (e->seconds > 0 ? e->seconds : GRACE_S);
	snprintf(m->leave_why, sizeof m->leave_why, "%s", e->text ? e->text : "told to leave");
	note_event(m, "leave", "leaving within %.0f s: %s", m->leave_until - m->now, m->leave_why);
	next_drop(m);
}

static void end_left(struct hspmd_machine *m)
{
	if (m->saved_step >= m->told && m->told > 0)
		end_run(m, 1, "stopped by %s at step %lld; checkpoint of step %lld is complete", m->leave_why, (long long)m->told, (long long)m->saved_step);
	else if (m->saved_step >= 0)
		end_run(m, 1, "stopped by %s at step %lld; the newest checkpoint is of step %lld", m->leave_why, (long long)m->told, (long long)m->saved_step);
	else
		end_run(m, 1, "stopped by %s at step %lld without a checkpoint", m->leave_why, (long long)m->told);
}

/* Told to leave, who knows how long there is: first to the nodes' own disks, which are quick, and a whole copy; then to shared storage, which is there even where
 * other nodes go on. */
static bool in_two(const struct hspmd_machine *m)
{
	return m->leaving && m->config->local && m->config->shared;
}

static bool save_shared(struct hspmd_machine *m)
{
	if (!in_two(m) || m->left_shared || m->current.stage != STAGE_HELD || m->save.stage != SAVE_NONE || m->now >= m->leave_until)
		return false;
	m->left_shared = true;
	return save_begin(m, "to shared storage, too", SAVE_SHARED);
}

/* A checkpoint of where it stops; workers that have stopped or finished take it at once. */
static bool save_last(struct hspmd_machine *m)
{
	if (m->save.stage != SAVE_NONE)
		return false;
	bool held = m->current.stage == STAGE_HELD;
	if (held && m->saved_step == m->step) {
		m->end = END_SAVING;
		return true;
	}
	if (!save_begin(m, m->leaving ? m->leave_why : "all steps are done", in_two(m) ? SAVE_LOCAL : SAVE_EVERYWHERE)) {
		m->end = END_SAVING;
		return true;
	}
	if (!held)
		stop_current(m);
	m->end = END_SAVING;
	return true;
}

static bool agents_left(const struct hspmd_machine *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->agent == LIFE_UP)
			return true;
	return false;
}

bool advance_end(struct hspmd_machine *m)
{
	const struct generation *g = &m->current;
	switch (m->end) {
	case END_NONE:
		if (g->finished && g->stage == STAGE_HELD)
			return save_last(m);
		if (!m->leaving)
			return false;
		if (g->stage == STAGE_TRAINING || g->stage == STAGE_HELD)
			return save_last(m);
		if (g->stage != STAGE_NONE && m->now < m->leave_until)
			return false;
		end_left(m);
		return true;
	case END_SAVING:
		if (m->save.stage != SAVE_NONE && (!m->leaving || m->now < m->leave_until))
			return false;
		if (save_shared(m))
			return true;
		if (g->finished && (m->saved_step == m->step || !(m->config->local || m->config->shared)))
			end_run(m, 0, "all %lld steps are done", (long long)m->step);
		else if (g->finished)
			end_run(m, 1, "all steps are done, but the last checkpoint could not be written");
		else
			end_left(m);
		return true;
	case END_QUITTING:
		if (agents_left(m) && m->now < m->end_deadline)
			return false;
		m->end = END_DONE;
		act(m, RUN_EXIT, NULL, NULL, 0);
		struct run_action *last = &m->actions->list[m->actions->count - 1];
		if (!m->failed && last->kind == RUN_EXIT) {
			last->count = m->exit_status;
			last->text = strdup(m->exit_text);
		}
		return true;
	default:
		return false;
	}
}
