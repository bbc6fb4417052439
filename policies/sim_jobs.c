/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of the simulated cluster: start, work, resize, end, loss. */
#include <math.h>

#include "policies/curve.h"
#include "policies/sim_internal.h"

bool sim_fits(const struct sim *s, const struct sim_job *j, int class)
{
	return class >= 0 && (s->classes[class].partition < 0 || s->classes[class].partition == j->partition);
}

/* ---- the queue: by priority, then by time of entry */

static bool before(const struct sim_job *a, const struct sim_job *b)
{
	if (a->t->priority != b->t->priority)
		return a->t->priority > b->t->priority;
	return a->queued_s < b->queued_s;
}

void sim_queue(struct sim *s, int job)
{
	struct sim_job *j = &s->jobs[job];
	j->state = SIM_WAITING;
	j->queued_s = s->now_s;
	j->eligible_since_s = NAN;
	int at = s->waiting++;
	for (; at > 0 && before(j, &s->jobs[s->queue[at - 1]]); at--)
		s->queue[at] = s->queue[at - 1];
	s->queue[at] = job;
}

static void unqueue(struct sim *s, int job)
{
	int at = 0;
	while (s->queue[at] != job)
		at++;
	for (s->waiting--; at < s->waiting; at++)
		s->queue[at] = s->queue[at + 1];
}

/* ---- work */

static double rate(const struct sim_job *j)
{
	return hspmd_curve_at(j->t->tokens_per_s, j->t->curve_count, j->held);
}

void sim_progress(struct sim *s, struct sim_job *j)
{
	double from = fmax(j->last_s, fmin(j->paused_until_s, s->now_s));
	s->result->stalled_node_s += (from - j->last_s) * j->held;
	double done = rate(j) * (s->now_s - from);
	j->tokens += done;
	s->result->tokens += done;
	j->last_s = s->now_s;
}

static void set_end(struct sim *s, struct sim_job *j)
{
	const struct hspmd_trace_job *t = j->t;
	j->ends_s = INFINITY;
	if (!t->elastic || t->run_s > 0)
		j->ends_s = j->start_s + t->run_s;
	if (t->elastic && t->tokens > 0 && rate(j) > 0)
		j->ends_s = fmin(j->ends_s, fmax(s->now_s, j->paused_until_s) + fmax(0, t->tokens - j->tokens) / rate(j));
}

void sim_pause(struct sim *s, int job)
{
	struct sim_job *j = &s->jobs[job];
	j->paused_until_s = fmax(j->paused_until_s, s->now_s + j->t->pause_s);
	j->resized_s = s->now_s;
	set_end(s, j);
}

/* ---- nodes */

void sim_free_node(struct sim *s, int node)
{
	struct sim_node *n = &s->nodes[node];
	n->job = SIM_IDLE;
	n->leaves_s = INFINITY;
	n->since_s = s->now_s;
	s->used--;
}

void sim_add_node(struct sim *s, int job, int node)
{
	s->nodes[node].job = job;
	s->nodes[node].reserved_for = -1;
	s->nodes[node].held_since_s = 0;
	s->jobs[job].held++;
	s->used++;
}

void sim_release_node(struct sim *s, int job, int node)
{
	s->nodes[node].leaves_s = s->now_s + s->options.leave_s;
	s->jobs[job].held--;
	s->jobs[job].fewest = s->jobs[job].held < s->jobs[job].fewest ? s->jobs[job].held : s->jobs[job].fewest;
}

static void free_all(struct sim *s, int job)
{
	for (int i = 0; i < s->node_count; i++)
		if (s->nodes[i].job == job)
			sim_free_node(s, i);
	s->jobs[job].held = 0;
}

/* ---- start and end */

void sim_start(struct sim *s, int job, int nodes)
{
	struct sim_job *j = &s->jobs[job];
	unqueue(s, job);
	for (int i = 0; i < s->node_count && nodes > 0; i++)
		if (s->nodes[i].up && s->nodes[i].job == SIM_IDLE && sim_fits(s, j, s->nodes[i].class)) {
			sim_add_node(s, job, i);
			nodes--;
		}
	j->waited_s += s->now_s - j->queued_s;
	if (!j->started)
		(*(j->t->elastic ? &s->result->elastic_started : &s->result->rigid_started))++;
	j->started = true;
	j->state = SIM_RUNNING;
	j->start_s = j->last_s = j->resized_s = s->now_s;
	j->paused_until_s = s->now_s;
	j->fewest = j->held;
	set_end(s, j);
}

void sim_finish(struct sim *s, int job)
{
	struct sim_job *j = &s->jobs[job];
	if (j->t->elastic)
		sim_progress(s, j);
	free_all(s, job);
	j->state = SIM_DONE;
	(*(j->t->elastic ? &s->result->elastic_done : &s->result->rigid_done))++;
}

static void lose_work(struct sim *s, struct sim_job *j, double redo_s)
{
	double lost = fmin(rate(j) * redo_s, j->tokens);
	s->result->lost_node_s += redo_s * j->held;
	s->result->lost_tokens += lost;
	s->result->tokens -= lost;
	j->tokens -= lost;
}

void sim_requeue(struct sim *s, int job, double redo_s)
{
	struct sim_job *j = &s->jobs[job];
	if (j->t->elastic)
		sim_progress(s, j);
	lose_work(s, j, redo_s);
	for (int i = 0; i < s->node_count; i++)
		if (s->nodes[i].job == job) {
			s->nodes[i].job = SIM_DRAINING;
			s->nodes[i].leaves_s = fmin(s->nodes[i].leaves_s, s->now_s + s->options.leave_s);
		}
	j->held = 0;
	s->result->requeues++;
	sim_queue(s, job);
}

/* Returns the seconds since its last checkpoint. */
static double unsaved(const struct sim *s, const struct sim_job *j, double every_s)
{
	return fmod(s->now_s - j->start_s, every_s);
}

void sim_lose_node(struct sim *s, int node)
{
	struct sim_node *n = &s->nodes[node];
	int job = n->job;
	s->classes[n->class].losses++;
	if (job >= 0 && !isfinite(n->leaves_s)) {
		struct sim_job *j = &s->jobs[job];
		s->result->node_losses++;
		if (!j->t->elastic) {
			sim_requeue(s, job, s->now_s - j->start_s);
		} else if (s->options.mode != HSPMD_POLICY_SIM_POLICY) {
			sim_requeue(s, job, unsaved(s, j, s->options.checkpoint_s));
		} else if (j->held - 1 < j->t->min_nodes) {
			sim_requeue(s, job, unsaved(s, j, s->options.local_s));
		} else {
			sim_progress(s, j);
			j->held--;
			j->fewest = j->held < j->fewest ? j->held : j->fewest;
			sim_pause(s, job);
		}
	}
	if (n->job != SIM_IDLE)
		sim_free_node(s, node);
	n->up = false;
	s->up--;
}
