/* SPDX-License-Identifier: Apache-2.0 */
/* The end: all steps are done, or the job was told to end; in both cases a last checkpoint is written. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define END_LEAD_S 10.0 /* least time before the end of the job's, for the last checkpoint; at most a quarter of the run */
#define GRACE_S 25.0    /* if the time is unknown: less than Slurm's default KillWait of 30 s */

void on_shutdown(struct hspmd_controller *m, const struct run_event *e)
{
	if (m->shutting_down || m->end == END_QUITTING || m->end == END_DONE)
		return;
	m->shutting_down = true;
	m->shutdown_by = m->now + (e->seconds > 0 ? e->seconds : GRACE_S);
	snprintf(m->shutdown_reason, sizeof m->shutdown_reason, "%s", e->text ? e->text : "told to end");
	note_event(m, "shutdown", "shutting down within %.0f s: %s", m->shutdown_by - m->now, m->shutdown_reason);
	next_drop(m);
}

/* At the end of the job's time Slurm kills the batch script before it could read an exit status, and starts the next job of a chain while
 * this one still writes. A run that can go on in another job therefore ends by itself before. */
double shutdown_stop_at(const struct hspmd_controller *m)
{
	if (runs_command(m))
		return command_stop_at(m);
	if (m->shutting_down || m->end != END_NONE || isinf(m->end_at) || !checkpoint_possible(m))
		return INFINITY;
	double saving_s = fmax(m->checkpoint_seconds, m->shared_checkpoint_seconds);
	return m->end_at - fmin(fmax(END_LEAD_S, 3 * saving_s), (m->end_at - m->began) / 4);
}

void shutdown_tick(struct hspmd_controller *m)
{
	if (m->now < shutdown_stop_at(m))
		return;
	struct run_event e = { .text = "the end of the job's time", .seconds = m->end_at - m->now };
	on_shutdown(m, &e);
}

/* All ranks have been told to stop, and have ended, or there is no more time. */
static void end_command_after_shutdown(struct hspmd_controller *m)
{
	if (m->current.phase == PHASE_HELD && m->saved)
		end_run(m, RUN_EXIT_MORE, "stopped by %s: every rank ended by itself in time", m->shutdown_reason);
	else
		end_run(m, 1, "stopped by %s: not every rank ended by itself in time", m->shutdown_reason);
}

static bool advance_end_of_command(struct hspmd_controller *m)
{
	const struct generation *g = &m->current;
	if (g->finished && g->phase == PHASE_HELD && m->wants_more && !m->shutting_down)
		end_run(m, RUN_EXIT_MORE, "the command has saved, and wants to go on (exit status %d)", RUN_EXIT_MORE);
	else if (g->finished && g->phase == PHASE_HELD && !m->wants_more)
		end_run(m, 0, "the command is done: every rank ended with exit status 0");
	else if (m->shutting_down && (m->now >= m->shutdown_by || g->phase == PHASE_NONE || g->phase == PHASE_HELD))
		end_command_after_shutdown(m);
	else if (m->shutting_down && g->phase == PHASE_TRAINING)
		stop_current(m);
	else
		return false;
	return true;
}

/* With a checkpoint the job can go on from there: in another job, or when it is requeued. */
static void end_after_shutdown(struct hspmd_controller *m)
{
	if (m->checkpoint_step >= m->steps_reported && m->steps_reported > 0)
		end_run(m, RUN_EXIT_MORE, "stopped by %s at step %lld; checkpoint of step %lld is complete", m->shutdown_reason,
		        (long long)m->steps_reported, (long long)m->checkpoint_step);
	else if (m->checkpoint_step >= 0)
		end_run(m, RUN_EXIT_MORE, "stopped by %s at step %lld; the newest checkpoint is of step %lld", m->shutdown_reason,
		        (long long)m->steps_reported, (long long)m->checkpoint_step);
	else
		end_run(m, 1, "stopped by %s at step %lld without a checkpoint", m->shutdown_reason, (long long)m->steps_reported);
}

/* At a shutdown the time may be short: the checkpoint goes first to the nodes' own disks, which are fast; then to shared storage, which is
 * available even if the job continues on other nodes. */
static bool local_first(const struct hspmd_controller *m)
{
	return m->shutting_down && m->config->local && m->config->shared;
}

/* The last step's checkpoint is in the nodes' own folders: now in the shared one, if that did not get it at the same time. */
static bool checkpoint_to_shared(struct hspmd_controller *m)
{
	if (!m->config->local || !m->config->shared || m->shared_tried_at_end || m->current.phase != PHASE_HELD ||
	    checkpoint_under_way(m) || (m->shutting_down && m->now >= m->shutdown_by) || m->shared_checkpoint_step == m->step)
		return false;
	m->shared_tried_at_end = true;
	return checkpoint_begin(m, "to shared storage, too", TARGET_SHARED);
}

/* Begins the checkpoint of the last step; workers that have stopped or finished write it at once. */
static bool final_checkpoint(struct hspmd_controller *m)
{
	if (m->checkpoint[PART_OWN].phase != CHECKPOINT_NONE || (!m->config->local && checkpoint_under_way(m)))
		return false;
	bool held = m->current.phase == PHASE_HELD, saved = held && m->checkpoint_step == m->step;
	enum checkpoint_target target = local_first(m) ? TARGET_LOCAL
	                                : saved        ? TARGET_SHARED
	                                               : TARGET_ALL; /* one that was due may have gone to nodes' own disks alone */
	if ((saved && (local_first(m) || !m->config->shared || m->shared_checkpoint_step == m->step)) ||
	    !checkpoint_begin(m, m->shutting_down ? m->shutdown_reason : "all steps are done", target)) {
		m->end = END_SAVING;
		return true;
	}
	m->shared_tried_at_end = m->checkpoint[PART_SHARED].number == m->checkpoint_count;
	if (!held)
		stop_current(m);
	m->end = END_SAVING;
	return true;
}

/* All steps are done, and what can be saved has been. */
static void end_after_last_step(struct hspmd_controller *m)
{
	bool saved = m->checkpoint_step == m->step, none = !m->config->local && !m->config->shared;
	const struct checkpoint_trouble *trouble = &m->checkpoint_trouble[PART_SHARED], *own = &m->checkpoint_trouble[PART_OWN],
	                                *any = own->since > 0 ? own : trouble;
	if (none || (saved && (!m->config->shared || m->shared_checkpoint_step == m->step)))
		end_run(m, 0, "all %lld steps are done", (long long)m->step);
	else if (saved)
		end_run(m, 1, "all steps are done, but the last checkpoint is on the nodes' own disks alone: %s failed%s%s",
		        m->config->shared, trouble->since > 0 ? ": " : "", trouble->since > 0 ? trouble->why : "");
	else
		end_run(m, 1, "all steps are done, but the last checkpoint could not be written%s%s", any->since > 0 ? ": " : "",
		        any->since > 0 ? any->why : "");
}

static bool agents_left(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->agent == PROC_UP)
			return true;
	return false;
}

bool advance_end(struct hspmd_controller *m)
{
	const struct generation *g = &m->current;
	switch (m->end) {
	case END_NONE:
		if (runs_command(m))
			return advance_end_of_command(m);
		if (m->shutting_down && (m->now >= m->shutdown_by || g->phase == PHASE_NONE)) { /* whatever is under way */
			end_after_shutdown(m);
			return true;
		}
		if ((g->finished && g->phase == PHASE_HELD) || (m->shutting_down && (g->phase == PHASE_TRAINING || g->phase == PHASE_HELD)))
			return final_checkpoint(m);
		return false;
	case END_SAVING:
		if (g->phase == PHASE_STOPPING && all_answered(g))
			return false; /* the last answers came together: it is held first, so that shared storage gets it, too */
		if (checkpoint_under_way(m) && (!m->shutting_down || m->now < m->shutdown_by))
			return false;
		if (checkpoint_to_shared(m))
			return true;
		if (g->finished)
			end_after_last_step(m);
		else
			end_after_shutdown(m);
		return true;
	case END_QUITTING:
		if (agents_left(m) && m->now < m->end_deadline)
			return false;
		m->end = END_DONE;
		trace_end(m);
		emit(m, ACTION_EXIT, NULL, NULL, 0);
		struct run_action *last = &m->actions->list[m->actions->count - 1];
		if (!m->failed && last->kind == ACTION_EXIT) {
			last->count = m->exit_status;
			last->text = strdup(m->exit_text);
		}
		return true;
	default:
		return false;
	}
}
