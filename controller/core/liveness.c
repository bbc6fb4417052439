/* SPDX-License-Identifier: Apache-2.0 */
/* Liveness of workers. Preparing, connecting and a first step may take minutes, so their deadlines find a process that is stopped or hangs
 * as a whole too late. A worker's reading thread answers regardless of the other threads: a worker that has sent nothing for a while is
 * sent `ping`, and killed if it does not answer.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

#define SILENT_S 10.0 /* without a message, before a worker is sent `ping` */

void liveness_heard(struct hspmd_controller *m, struct worker *w)
{
	w->heard_at = m->now;
	w->asked_at = 0;
}

/* Returns true if answers of its members are awaited. Members that hold may be writing a checkpoint. */
static bool pending_work(const struct hspmd_controller *m, const struct generation *g)
{
	if (m->end != END_NONE && m->end != END_SAVING)
		return false;
	return g->phase == PHASE_HELD ? checkpoint_under_way(m) : g->phase >= PHASE_PREPARING && g->phase != PHASE_READY;
}

/* The time when member i is to be sent `ping`, or killed; INFINITY: never. */
static double due(const struct hspmd_controller *m, const struct generation *g, int i)
{
	const struct worker *w = g->member[i];
	if (w->process != PROC_UP)
		return INFINITY;
	/* It may have been asked for an earlier generation, which ended before the answer came. */
	double since = g->phase == PHASE_HELD ? fmax(m->checkpoint[PART_OWN].since, m->checkpoint[PART_SHARED].since) : g->since;
	return w->asked_at > 0 ? fmax(since, w->asked_at) + m->config->timeouts.ping : fmax(since, w->heard_at) + SILENT_S;
}

double liveness_deadline(const struct hspmd_controller *m)
{
	const struct generation *both[] = { &m->current, &m->next };
	double first = INFINITY;
	for (int k = 0; k < 2; k++)
		for (int i = 0; pending_work(m, both[k]) && i < both[k]->members; i++)
			first = fmin(first, due(m, both[k], i));
	return first;
}

/* If the controller checks as late as that, it was stopped itself, and has not read the messages that came meanwhile either. */
static bool controller_was_stopped(const struct hspmd_controller *m, const struct worker *w)
{
	return m->now > w->asked_at + 2 * m->config->timeouts.ping;
}

/* Sends `ping` to members that are due. Returns one that has not answered the last; NULL: none. */
static struct worker *ping_silent(struct hspmd_controller *m, const struct generation *g)
{
	struct worker *dead = NULL, **silent = hspmd_calloc((size_t)g->members, sizeof *silent);
	int count = 0;
	if (!silent) {
		m->failed = true;
		return NULL;
	}
	for (int i = 0; i < g->members && !dead; i++) {
		struct worker *w = g->member[i];
		if (m->now < due(m, g, i))
			continue;
		if (w->asked_at > 0 && !controller_was_stopped(m, w)) {
			dead = w;
			continue;
		}
		w->asked_at = m->now;
		silent[count++] = w;
	}
	if (count)
		send_workers(m, silent, count, json_pack("{s:s}", "type", "ping"));
	free(silent);
	return dead;
}

void liveness_tick(struct hspmd_controller *m)
{
	const struct generation *both[] = { &m->current, &m->next };
	for (int k = 0; k < 2; k++) {
		struct worker *dead;
		/* Killing one may replace the generation, so the members are looked at afresh. */
		while (!m->failed && pending_work(m, both[k]) && (dead = ping_silent(m, both[k]))) {
			char why[64];
			snprintf(why, sizeof why, "it has not answered for %.0f s",
			         m->now - fmax(dead->heard_at, dead->asked_at - SILENT_S));
			worker_kill(m, dead, "hang", why);
		}
	}
}
