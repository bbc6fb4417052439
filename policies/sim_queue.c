/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated Slurm: jobs start in order, with EASY backfill after the first job that cannot start, and preemption of whole jobs if the mode
 * has it. */
#include <math.h>
#include <stdlib.h>

#include "common/order.h"
#include "policies/sim_internal.h"

static int count_idle(const struct sim *s, const struct sim_job *j)
{
	int n = 0;
	for (int i = 0; i < s->node_count; i++)
		n += s->nodes[i].up && s->nodes[i].job == SIM_IDLE && sim_fits(s, j, s->nodes[i].class);
	return n;
}

static bool may_preempt(const struct sim *s, const struct sim_job *j, int victim)
{
	const struct sim_job *v = victim >= 0 ? &s->jobs[victim] : NULL;
	bool now = s->options.mode == HSPMD_POLICY_SIM_PREEMPT ||
	           (s->options.mode == HSPMD_POLICY_SIM_POLICY && s->now_s - j->queued_s >= s->options.preempt_s);
	return v && now && v->t->elastic && v->state == SIM_RUNNING && v->t->priority < j->t->priority;
}

static int count_coming(const struct sim *s, const struct sim_job *j)
{
	int n = 0;
	for (int i = 0; i < s->node_count; i++)
		n += isfinite(s->nodes[i].leaves_s) && sim_fits(s, j, s->nodes[i].class);
	return n;
}

static int count_preemptable(const struct sim *s, const struct sim_job *j)
{
	int n = 0;
	for (int i = 0; i < s->node_count; i++)
		n += may_preempt(s, j, s->nodes[i].job) && sim_fits(s, j, s->nodes[i].class);
	return n;
}

/* Preempts whole jobs, those of least priority and latest start first, until enough nodes are idle or draining. */
static void preempt_for(struct sim *s, const struct sim_job *j)
{
	while (count_idle(s, j) + count_coming(s, j) < j->t->nodes) {
		int victim = -1;
		for (int i = 0; i < s->node_count; i++) {
			int v = s->nodes[i].job;
			if (v == victim || !may_preempt(s, j, v) || !sim_fits(s, j, s->nodes[i].class))
				continue;
			const struct sim_job *a = &s->jobs[v], *b = victim >= 0 ? &s->jobs[victim] : NULL;
			if (!b || a->t->priority < b->t->priority || (a->t->priority == b->t->priority && a->start_s > b->start_s))
				victim = v;
		}
		if (victim < 0)
			return;
		s->result->preemptions++;
		/* Under hspmd a job writes a checkpoint when it gets SIGTERM. */
		double redo =
		        s->options.mode == HSPMD_POLICY_SIM_POLICY ? 0 : fmod(s->now_s - s->jobs[victim].start_s, s->options.checkpoint_s);
		sim_requeue(s, victim, redo);
	}
}

static double ends(const struct sim *s, const struct sim_job *j, const struct sim_node *n)
{
	const struct sim_job *v = n->job >= 0 ? &s->jobs[n->job] : NULL;
	if (v && v->t->elastic && v->t->priority < j->t->priority && s->options.mode != HSPMD_POLICY_SIM_WITHOUT)
		return s->now_s; /* it will be preempted, or shrink */
	return n->job >= 0 ? fmin(s->jobs[n->job].ends_s, n->leaves_s) : n->leaves_s;
}

/* Returns when the blocked job can start if no other job starts; *extra: how many nodes are left over then. */
static double shadow_time(const struct sim *s, const struct sim_job *j, int idle, int *extra)
{
	int n = 0;
	for (int i = 0; i < s->node_count; i++)
		if (s->nodes[i].up && s->nodes[i].job != SIM_IDLE && sim_fits(s, j, s->nodes[i].class))
			s->ends[n++] = ends(s, j, &s->nodes[i]);
	qsort(s->ends, (size_t)n, sizeof *s->ends, hspmd_double_order);
	int lacking = j->t->nodes - idle;
	if (lacking > n)
		return INFINITY;
	double at = s->ends[lacking - 1];
	int there = idle;
	for (int i = 0; i < n && s->ends[i] <= at; i++)
		there++;
	*extra = there - j->t->nodes;
	return at;
}

static int nodes_for(const struct sim *s, const struct sim_job *j, int idle)
{
	if (s->options.mode != HSPMD_POLICY_SIM_PREEMPT || !j->t->elastic)
		return j->t->nodes;
	return idle < j->t->max_nodes ? idle : j->t->max_nodes;
}

/* The reservation of the first job that cannot start: when it can, and how many nodes are left over then. */
struct reservation {
	bool made;
	double at_s;
	int extra;
};

/* Tries to start one job. Returns true if others were preempted for it, which changes the queue. */
static bool try_job(struct sim *s, int job, struct reservation *r)
{
	const struct sim_job *j = &s->jobs[job];
	int idle = count_idle(s, j), coming = count_coming(s, j);
	if (idle < j->t->nodes) {
		bool preempts = !r->made && idle + coming < j->t->nodes && idle + coming + count_preemptable(s, j) >= j->t->nodes;
		if (preempts) {
			preempt_for(s, j);
		} else if (!r->made) {
			r->made = true;
			r->at_s = shadow_time(s, j, idle, &r->extra);
		}
		return preempts;
	}
	bool in_time = s->now_s + j->t->run_s <= r->at_s;
	if (r->made && (j->t->elastic || (!in_time && j->t->nodes > r->extra)))
		return false; /* an elastic job has no end, so it fits into no gap before a reservation */
	if (r->made && !in_time)
		r->extra -= j->t->nodes;
	sim_start(s, job, nodes_for(s, j, idle));
	return false;
}

/* Returns true if the queue has changed, so that another pass is needed. */
static bool pass(struct sim *s)
{
	struct reservation r = { .at_s = INFINITY };
	int jobs[1024], n = s->waiting < 1024 ? s->waiting : 1024; /* bounded as by Slurm's bf_max_job_test */
	for (int i = 0; i < n; i++)
		jobs[i] = s->queue[i];
	for (int i = 0; i < n; i++)
		if (try_job(s, jobs[i], &r))
			return true;
	return false;
}

void sim_schedule(struct sim *s)
{
	while (s->waiting && pass(s))
		;
}
