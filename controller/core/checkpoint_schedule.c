/* SPDX-License-Identifier: Apache-2.0 */
/* When the state is written, and where to: to local disks at intervals that follow from its cost and from the rate of failures, to shared
 * storage less often, and to other nodes' memory as often as is cheap, unless the plan itself keeps all state on enough nodes. */
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/losses.h"
#include "controller/core/controller_internal.h"
#include "controller/core/risk.h"

#define FIRST_INTERVAL_S 120.0 /* before the first checkpoint was measured */
#define LEAST_INTERVAL_S 10.0
#define MOST_INTERVAL_S 1800.0
#define COPY_COST 100 /* copies in memory may cost 1 / COPY_COST of the training time */
#define COPY_MOST_S 600.0
#define LOSSES_TRIED 2000 /* sets of lost nodes */

bool checkpoint_possible(const struct hspmd_controller *m)
{
	return m->config->local || m->config->shared;
}

double checkpoint_interval_s(const struct hspmd_controller *m)
{
	if (m->config->job->checkpoint.every_s > 0)
		return m->config->job->checkpoint.every_s;
	if (m->config->job->checkpoint.every_steps > 0)
		return INFINITY;
	if (m->checkpoint_seconds <= 0)
		return FIRST_INTERVAL_S;
	double best = hspmd_checkpoint_interval(m->checkpoint_cost_s, hspmd_mean_time_between_failures(nodes_usable(m), m->now - m->began,
	                                                                                               m->failures, m->risk.losses_per_s));
	return fmin(MOST_INTERVAL_S, fmax(fmax(LEAST_INTERVAL_S, 2 * m->checkpoint_seconds), best));
}

bool checkpoint_shared_due(const struct hspmd_controller *m)
{
	double every = m->config->job->checkpoint.shared_every_s;
	int64_t steps = m->config->job->checkpoint.every_steps;
	if (!m->config->shared || !m->config->local)
		return m->config->shared != NULL;
	if (every > 0)
		return m->now >= m->shared_tried_at + every;
	return m->now >= m->shared_tried_at + HSPMD_LOCAL_PER_SHARED_CHECKPOINT * checkpoint_interval_s(m) ||
	       (steps > 0 && m->steps_reported - m->shared_tried_step >= HSPMD_LOCAL_PER_SHARED_CHECKPOINT * steps);
}

struct run_intervals checkpoint_intervals(const struct hspmd_controller *m)
{
	const struct hspmd_job *job = m->config->job;
	double every = checkpoint_interval_s(m);
	if (isinf(every)) /* by steps */
		every = m->step_s > 0 ? (double)job->checkpoint.every_steps * m->step_s : FIRST_INTERVAL_S;
	bool two = m->config->local && m->config->shared;
	return (struct run_intervals){ every, !two                                 ? every
		                              : job->checkpoint.shared_every_s > 0 ? job->checkpoint.shared_every_s
		                                                                   : HSPMD_LOCAL_PER_SHARED_CHECKPOINT * every };
}

int copies_wanted(const struct hspmd_controller *m, int nodes)
{
	struct run_intervals every = checkpoint_intervals(m);
	if (runs_command(m))
		return 0;
	return run_risk_copies(m->config->job, m->config->facts, nodes, &every, &m->risk);
}

/* ---- copies in memory */

/* Returns true if the workers on the nodes that are not marked in `lost` hold all state. */
static bool left_whole(const struct hspmd_controller *m, const struct bound_plan *l, const bool *lost, int *device)
{
	int count = 0;
	for (int i = 0; i < l->devices; i++) {
		int d = hspmd_cluster_find_device(l->cluster, l->device[i]->address, NULL);
		if (!lost[l->cluster->devices[d].node])
			device[count++] = d;
	}
	return count > 0 && m->config->covered(l->plan, l->cluster, device, count);
}

/* The same for every loss of `more` further nodes, from number `first` on. tries: combinations that may still be checked. */
static bool survives(const struct hspmd_controller *m, const struct bound_plan *l, bool *lost, int first, int more, int *device, int *tries)
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

static void mark_used(const struct bound_plan *l, bool *used)
{
	for (int i = 0; i < l->devices; i++)
		used[l->cluster->devices[hspmd_cluster_find_device(l->cluster, l->device[i]->address, NULL)].node] = true;
}

/* The same for losses that take several nodes at once (common/losses.h). */
static bool survives_together(const struct hspmd_controller *m, const struct bound_plan *l, int copies, bool *lost, int *device, int *tries)
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

bool bound_plan_survives(struct hspmd_controller *m, const struct bound_plan *l, int copies)
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

int layout_keep_nodes(struct hspmd_controller *m, struct bound_plan *l)
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

static double copy_interval(const struct hspmd_controller *m)
{
	double least = m->copy_failures ? 1 << (m->copy_failures < 10 ? m->copy_failures : 10) : 2 * m->copy_seconds;
	return fmin(COPY_MOST_S, fmax(least, COPY_COST * m->copy_cost_s));
}

double checkpoint_copy_deadline(const struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	if (!m->config->memory || l->safe || l->nodes_used < 2 || m->steps_reported <= m->copy_tried_step)
		return INFINITY;
	return m->copy_tried_at + copy_interval(m);
}

/* ---- when */

bool checkpoint_may_begin(const struct hspmd_controller *m)
{
	return m->current.phase == PHASE_TRAINING && m->checkpoint[PART_OWN].phase == CHECKPOINT_NONE && !m->shutting_down &&
	       m->end == END_NONE;
}

bool checkpoint_under_way(const struct hspmd_controller *m)
{
	return m->checkpoint[PART_OWN].phase != CHECKPOINT_NONE || m->checkpoint[PART_SHARED].phase != CHECKPOINT_NONE;
}

double checkpoint_deadline(const struct hspmd_controller *m)
{
	if (!checkpoint_may_begin(m))
		return INFINITY;
	double next = checkpoint_copy_deadline(m);
	bool free = m->config->local || (m->config->shared && m->checkpoint[PART_SHARED].phase == CHECKPOINT_NONE);
	if (free && m->steps_reported > m->checkpoint_tried_step) /* not before there is a new step */
		next = fmin(next, m->checkpoint_tried_at + checkpoint_interval_s(m));
	return next;
}

/* ---- what it costs */

/* A step was reported: if a checkpoint is being written, the step's extra time is the checkpoint's cost. */
void checkpoint_step_done(struct hspmd_controller *m, double step_s)
{
	if (!checkpoint_under_way(m))
		m->quiet_step_s = m->quiet_step_s > 0 ? 0.9 * m->quiet_step_s + 0.1 * step_s : step_s;
	for (int p = 0; p < PARTS; p++)
		if (m->checkpoint[p].phase != CHECKPOINT_NONE && m->quiet_step_s > 0 && step_s > m->quiet_step_s)
			m->checkpoint[p].slowed += step_s - m->quiet_step_s;
}
