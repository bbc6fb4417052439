/* SPDX-License-Identifier: Apache-2.0 */
/* When the state is written where: to disks at intervals that what it costs and how often things fail decide, to shared storage more seldom, and to other nodes' memory
 * as often as costs little, unless the plan itself keeps everything on enough nodes. */
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/losses.h"
#include "controller/run/machine_private.h"
#include "controller/run/risk.h"

#define FIRST_INTERVAL_S 120.0 /* nothing is measured yet */
#define LEAST_INTERVAL_S 10.0
#define MOST_INTERVAL_S 1800.0
#define COPY_COST 100          /* copies in memory may cost the training a 100th of its time */
#define COPY_MOST_S 600.0
#define LOSSES_TRIED 2000      /* sets of lost nodes */

bool save_possible(const struct hspmd_machine *m)
{
	return m->config->local || m->config->shared;
}

static double interval(const struct hspmd_machine *m)
{
	if (m->config->job->checkpoint.every_s > 0)
		return m->config->job->checkpoint.every_s;
	if (m->config->job->checkpoint.every_steps > 0)
		return INFINITY;
	if (m->save_seconds <= 0)
		return FIRST_INTERVAL_S;
	double best = hspmd_checkpoint_interval(m->save_cost, hspmd_failure_mean(nodes_usable(m), m->now - m->began, m->failures, m->risk.losses_per_s));
	return fmin(MOST_INTERVAL_S, fmax(fmax(LEAST_INTERVAL_S, 2 * m->save_seconds), best));
}

bool save_shared_due(const struct hspmd_machine *m)
{
	double every = m->config->job->checkpoint.shared_every_s;
	int64_t steps = m->config->job->checkpoint.every_steps;
	if (!m->config->shared || !m->config->local)
		return m->config->shared != NULL;
	if (every > 0)
		return m->now >= m->shared_tried + every;
	return m->now >= m->shared_tried + HSPMD_LOCAL_TO_SHARED * interval(m) || (steps > 0 && m->told - m->shared_step >= HSPMD_LOCAL_TO_SHARED * steps);
}

struct run_intervals save_intervals(const struct hspmd_machine *m)
{
	const struct hspmd_job *job = m->config->job;
	double every = interval(m);
	if (isinf(every)) /* by steps */
		every = m->step_s > 0 ? (double)job->checkpoint.every_steps * m->step_s : FIRST_INTERVAL_S;
	bool two = m->config->local && m->config->shared;
	return (struct run_intervals){ every, !two ? every : job->checkpoint.shared_every_s > 0 ? job->checkpoint.shared_every_s : HSPMD_LOCAL_TO_SHARED * every };
}

int copies_wanted(const struct hspmd_machine *m, int nodes)
{
	struct run_intervals every = save_intervals(m);
	return run_risk_copies(m->config->job, m->config->model, nodes, &every, &m->risk);
}

/* ---- copies in memory */

/* Is all state left on the nodes that are not marked? */
static bool left_whole(const struct hspmd_machine *m, const struct layout *l, const bool *lost, int *device)
{
	int count = 0;
	for (int i = 0; i < l->devices; i++) {
		int d = hspmd_cluster_device(l->cluster, l->device[i]->address, NULL);
		if (!lost[l->cluster->devices[d].node])
			device[count++] = d;
	}
	return count > 0 && m->config->covered(l->plan, l->cluster, device, count);
}

/* So when `more` further nodes of the layout's, from number `first` on, are lost? tries: what is left of the work allowed. */
static bool survives(const struct hspmd_machine *m, const struct layout *l, bool *lost, int first, int more, int *device, int *tries)
{
	if (--*tries < 0)
		return false;
	if (!more)
		return left_whole(m, l, lost, device);
	bool yes = true;
	for (int n = first; yes && n < l->cluster->node_count; n++) {
		lost[n] = true;
		yes = survives(m, l, lost, n + 1, more - 1, device, tries);
		lost[n] = false;
	}
	return yes;
}

static void mark_used(const struct layout *l, bool *used)
{
	for (int i = 0; i < l->devices; i++)
		used[l->cluster->devices[hspmd_cluster_device(l->cluster, l->device[i]->address, NULL)].node] = true;
}

/* Of the losses that take several nodes at once. */
static bool survives_together(const struct hspmd_machine *m, const struct layout *l, int copies, bool *lost, int *device, int *tries)
{
	struct hspmd_losses losses;
	struct hspmd_error err;
	mark_used(l, lost);
	if (hspmd_losses_make(l->cluster, lost, copies, l->keep, &losses, &err))
		return false;
	bool yes = true;
	for (int i = 0; yes && copies > 0 && i < hspmd_losses_count(&losses); i++) {
		for (int n = 0; n < losses.nodes; n++)
			lost[n] = hspmd_losses_takes(&losses, i, n);
		yes = --*tries >= 0 && left_whole(m, l, lost, device);
	}
	hspmd_losses_free(&losses);
	return yes;
}

bool layout_survives(struct hspmd_machine *m, const struct layout *l, int copies)
{
	bool *lost = hspmd_calloc((size_t)l->cluster->node_count, sizeof *lost);
	int *device = hspmd_calloc((size_t)l->devices, sizeof *device), tries = LOSSES_TRIED;
	bool yes = lost && device && l->cluster->node_count > copies && survives(m, l, lost, 0, copies, device, &tries) &&
		   survives_together(m, l, copies, lost, device, &tries);
	m->failed |= !lost || !device;
	free(lost);
	free(device);
	return yes;
}

int layout_keep_nodes(struct hspmd_machine *m, struct layout *l)
{
	bool *used = hspmd_calloc((size_t)l->cluster->node_count, sizeof *used);
	if (!used) {
		m->failed = true;
		return -1;
	}
	mark_used(l, used);
	l->keep = hspmd_losses_keep(l->cluster, used, m->config->job->elastic.min_nodes);
	free(used);
	return 0;
}

static double copy_interval(const struct hspmd_machine *m)
{
	double least = m->copy_failures ? 1 << (m->copy_failures < 10 ? m->copy_failures : 10) : 2 * m->copy_seconds;
	return fmin(COPY_MOST_S, fmax(least, COPY_COST * m->copy_cost));
}

/* When copies in memory are to be made; INFINITY: none are, or there is nothing new. */
static double copy_next(const struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	if (!m->config->memory || l->safe || l->nodes_used < 2 || m->told <= m->copy_tried_step)
		return INFINITY;
	return m->copy_tried + copy_interval(m);
}

/* ---- when */

static bool may_save(const struct hspmd_machine *m)
{
	return m->current.stage == STAGE_TRAINING && m->save.stage == SAVE_NONE && !m->leaving && m->end == END_NONE;
}

double save_next(const struct hspmd_machine *m)
{
	if (!may_save(m))
		return INFINITY;
	double next = copy_next(m);
	if (save_possible(m) && m->told > m->save_tried_step) /* by time, and not before there is something new */
		next = fmin(next, m->save_tried + interval(m));
	return next;
}

bool save_due(struct hspmd_machine *m)
{
	int64_t steps = m->config->job->checkpoint.every_steps;
	bool last_chance = !m->end_saved && m->end_at - m->now < fmax(30, 3 * m->save_seconds);
	bool due = m->now >= m->save_tried + interval(m) || (steps > 0 && m->told - m->save_tried_step >= steps);
	if (!may_save(m))
		return false;
	if (save_possible(m) && m->told > m->save_tried_step && (last_chance || due)) {
		m->end_saved |= last_chance;
		return save_begin(m, last_chance ? "the job's time is nearly over" : "", last_chance ? SAVE_EVERYWHERE : SAVE_DUE);
	}
	return m->now >= copy_next(m) && save_begin(m, "", SAVE_MEMORY);
}

/* ---- what it costs */

/* A step has been told of: what it took longer while a checkpoint was written is that one's cost. */
void save_step_told(struct hspmd_machine *m, double step_s)
{
	if (m->save.stage == SAVE_NONE)
		m->plain_s = m->plain_s > 0 ? 0.9 * m->plain_s + 0.1 * step_s : step_s;
	else if (m->plain_s > 0 && step_s > m->plain_s)
		m->save.slowed += step_s - m->plain_s;
}
