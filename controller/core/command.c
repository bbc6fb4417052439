/* SPDX-License-Identifier: Apache-2.0 */
/* What differs for a job with a command. Its state is the command's own, so nothing is saved, moved or settled here; ranks are told to
 * stop, and start anew from what they have saved. */
#include <math.h>

#include "controller/core/controller_internal.h"

#define KILL_S 5.0        /* for ranks that are killed after their notice, before time is over */
#define MEMBER_GRACE_S 25 /* less than Slurm's default KillWait of 30 s */

void command_progress(struct hspmd_controller *m, const json_t *message)
{
	m->elastic |= json_is_true(json_object_get(message, "elastic"));
	int64_t newest = message_integer(message, "newest", -1);
	if (newest <= m->newest_save)
		return;
	bool first = m->newest_save < 0; /* written before the job began */
	m->newest_save = newest;
	if (first)
		return;
	forgive_failures(m);
}

double command_notice_s(const struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	double most = m->shutting_down ? m->shutdown_by - m->now : INFINITY;
	for (int i = 0; l && i < l->devices; i++)
		if (l->device[i]->node->terminating)
			most = fmin(most, MEMBER_GRACE_S);
	return isinf(most) ? -1 : fmax(0, fmin(most - KILL_S, m->config->job->command.notice_s));
}

void command_stopped(struct hspmd_controller *m)
{
	struct generation *g = &m->current;
	bool finished = true, any = false;
	m->saved = true;
	m->wants_more = false;
	for (int i = 0; i < g->members; i++) {
		/* A rank that was ended by the notice: what it held is gone with it. */
		if (m->elastic && json_is_false(json_object_get(g->answer[i], "finished")))
			g->member[i]->holds = 0;
		if (!bound_plan_uses(g->bound_plan, g->member[i]))
			continue;
		int64_t status = message_integer(g->answer[i], "status", -1);
		bool well = status == 0 || status == RUN_EXIT_MORE;
		any |= well;
		m->saved &= well || json_is_true(json_object_get(g->answer[i], "by_notice"));
		m->wants_more |= status == RUN_EXIT_MORE;
		finished &= json_is_true(json_object_get(g->answer[i], "finished"));
	}
	m->saved &= any; /* if the signal ended all of them, nobody has saved */
	g->finished = finished && bound_plan_is_whole(g->bound_plan);
}

double command_stop_at(const struct hspmd_controller *m)
{
	if (!runs_command(m) || m->shutting_down || m->end != END_NONE || isinf(m->end_at))
		return INFINITY;
	return m->end_at - fmin(m->config->job->command.notice_s + 2 * KILL_S, (m->end_at - m->began) / 4);
}

void command_log_tail(struct hspmd_controller *m)
{
	json_t *line;
	size_t i;
	json_array_foreach(m->tail, i, line)
		log_msg(m, HSPMD_LOG_ERROR, "| %s", json_string_value(line) ? json_string_value(line) : "");
}
