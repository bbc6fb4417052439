/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the run: its exit status and text, and when failures are too many. */
#include <stdarg.h>
#include <stdio.h>

#include "controller/core/controller_internal.h"

void end_run(struct hspmd_controller *m, int status, const char *fmt, ...)
{
	va_list ap;
	if (m->end == END_QUITTING || m->end == END_DONE)
		return;
	va_start(ap, fmt);
	vsnprintf(m->exit_text, sizeof m->exit_text, fmt, ap);
	va_end(ap);
	m->exit_status = status;
	m->end = END_QUITTING;
	m->end_deadline = m->now + m->config->timeouts.quit;
	requests_end(m);
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->agent == PROC_UP)
			send_node(m, m->node[i], json_pack("{s:s}", "type", "quit"));
}

void count_attempt(struct hspmd_controller *m)
{
	m->attempts += m->attempted != m->generation;
	m->attempted = m->generation;
}

bool check_attempts(struct hspmd_controller *m)
{
	if (m->attempts <= m->config->max_attempts || m->end != END_NONE)
		return false;
	if (runs_command(m))
		command_log_tail(m);
	end_run(m, 1, "given up after %d attempts without a %s: %s", m->attempts, runs_command(m) ? "step or a newer checkpoint" : "step",
	        m->last_error);
	return true;
}
