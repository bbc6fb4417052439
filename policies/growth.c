/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of idle nodes and the jobs that may grow. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "policies/growth_internal.h"

struct decision_job *growth_job(const struct growth *f, int job)
{
	return &f->k->jobs[f->jobs[job]];
}

int *growth_take(const struct growth *f, int job, int pool)
{
	return &f->take[job * f->pool_count + pool];
}

/* ---- the heap */

static bool is_ahead(const void *growth, int x, int y)
{
	const struct growth *f = growth;
	double a = isnan(f->best[x]) ? INFINITY : f->best[x], b = isnan(f->best[y]) ? INFINITY : f->best[y];
	return a != b ? a > b : x < y;
}

void growth_look_again(struct growth *f, int job)
{
	f->best[job] = NAN;
	job_heap_sort(&f->heap, job);
}

void growth_move(struct growth *f, int job, int pool, int n)
{
	struct decision_job *j = growth_job(f, job);
	j->now = holding_with_nodes(f->k, j, &j->now, f->pools[pool].class, n);
	*growth_take(f, job, pool) += n;
	f->pools[pool].left -= n;
	decision_use_limits(f->k, j, n);
	growth_look_again(f, job);
}

void growth_reset(struct growth *f)
{
	memset(f->k->limit_used, 0, sizeof *f->k->limit_used * (size_t)f->k->s->limit_count);
	job_heap_clear(&f->heap);
	for (int j = 0; j < f->job_count; j++) {
		growth_job(f, j)->now = growth_job(f, j)->was;
		f->best[j] = NAN;
		if (!growth_job(f, j)->barred)
			job_heap_add(&f->heap, j);
	}
	memset(f->take, 0, sizeof *f->take * (size_t)f->job_count * (size_t)f->pool_count);
	memset(f->closed, 0, sizeof *f->closed * (size_t)f->job_count * (size_t)f->pool_count);
	for (int p = 0; p < f->pool_count; p++)
		f->pools[p].left = f->pools[p].count;
}

double growth_change(const struct growth *f, int job, int pool, int n)
{
	const struct decision_job *j = growth_job(f, job);
	struct holding h = holding_with_nodes(f->k, j, &j->now, f->pools[pool].class, n);
	return holding_value(j, &h) - holding_value(j, &j->now);
}

/* Returns the number of unassigned idle nodes, of any age, that the job could use. */
static int left_for(const struct growth *f, const struct decision_job *j)
{
	int n = 0;
	for (int p = 0; p < f->pool_count; p++)
		if (j->e->usable[f->pools[p].class])
			n += f->pools[p].left;
	return n;
}

bool growth_fits(const struct growth *f, int job, int pool, int instead)
{
	const struct decision_job *j = growth_job(f, job);
	const struct idle_pool *p = &f->pools[pool];
	if (p->reserved_for ? p->reserved_for != j->e->id : p->idle_s < j->e->terms.after_idle_s)
		return false;
	/* A job that never shrinks for pending jobs must not take nodes that one of them needs. */
	if (f->k->wanted[p->class] && j->e->terms.for_pending == HSPMD_PENDING_NONE)
		return false;
	struct holding h = holding_with_nodes(f->k, j, &j->now, p->class, 1);
	if (instead >= 0)
		h = holding_with_nodes(f->k, j, &h, f->pools[instead].class, -1);
	if (!decision_allowed(f->k, j, &h, p->class) || (instead < 0 && decision_limit_in_way(f->k, j, NULL, 1)))
		return false;
	/* If the pool is empty, a path will bring a node into it, one that this job could not use itself. */
	return instead >= 0 || p->reserved_for || !j->e->terms.reserve_nodes || left_for(f, j) - (p->left > 0) >= j->e->terms.reserve_nodes;
}

/* ---- setting up */

/* Returns why the job may not grow; "" if it may. */
static const char *why_not_grow(const struct decision_state *k, const struct decision_job *j)
{
	const struct hspmd_snapshot_elastic *e = j->e;
	if (!e->terms.into_idle)
		return "its policy does not let it grow into idle nodes";
	if (!e->reachable)
		return "its controller does not answer";
	if (e->request_pending)
		return "a request to it is under way";
	if (j->shrunk)
		return "it gives nodes back in this round";
	if (!e->curve_count)
		return "its controller has sent no scaling curve";
	if (k->s->now_s < e->declined_grow_until_s)
		return "it has declined to grow not long ago";
	if (k->s->now_s - e->resized_s < e->terms.grow_cooldown_s)
		return "it was resized not long ago (cooldown_s)";
	if (e->remaining_s < e->terms.min_life_s)
		return "it ends sooner than a node may be taken back (min_life_s)";
	if (decision_budget_is_spent(j))
		return "the budget of node hours of its policy is spent (budget_node_hours)";
	if (j->was.nodes >= e->max_nodes || j->was.nodes >= e->terms.max_nodes)
		return "it has as many nodes as it may have";
	return "";
}

static void list_candidates(struct growth *f)
{
	for (int i = 0; i < f->k->s->elastic_count; i++) {
		const char *why = why_not_grow(f->k, &f->k->jobs[i]);
		if (*why)
			decision_set_why(f->k, i, "%s", why);
		else
			f->jobs[f->job_count++] = i;
	}
}

/* Lists the different after_idle_s of the jobs. */
static int list_steps(struct growth *f)
{
	size_t room = 0;
	for (int j = 0, i; j < f->job_count; j++) {
		double after = growth_job(f, j)->e->terms.after_idle_s;
		for (i = 0; i < f->step_count && f->steps[i] != after; i++)
			;
		if (i < f->step_count)
			continue;
		if (hspmd_array_grow(&f->steps, &room, (size_t)i, sizeof *f->steps) < 0)
			return -1;
		f->steps[f->step_count++] = after;
	}
	return 0;
}

/* Returns the greatest after_idle_s that a node of this age has passed, -1: none. Nodes of the same step are interchangeable. */
static double step_of(const struct growth *f, double age)
{
	double step = -1;
	for (int i = 0; i < f->step_count; i++)
		if (f->steps[i] <= age && f->steps[i] > step)
			step = f->steps[i];
	return step;
}

static int pool_of(const struct growth *f, const struct hspmd_snapshot_node *n, double idle_s)
{
	int p = 0;
	while (p < f->pool_count &&
	       (f->pools[p].class != n->class || f->pools[p].reserved_for != n->reserved_for || f->pools[p].idle_s != idle_s))
		p++;
	return p;
}

/* Counts in a first pass, and fills in a second. */
static int make_pools(struct growth *f)
{
	const struct hspmd_snapshot *s = f->k->s;
	size_t room = 0;
	int at = 0;
	for (int i = 0; i < s->node_count; i++) {
		const struct hspmd_snapshot_node *n = &s->nodes[i];
		if (n->state != HSPMD_SNAPSHOT_IDLE || f->k->taken[i])
			continue;
		double step = step_of(f, s->now_s - n->since_s);
		int p = pool_of(f, n, step);
		if (p == f->pool_count) {
			if (hspmd_array_grow(&f->pools, &room, (size_t)p, sizeof *f->pools) < 0)
				return -1;
			f->pools[f->pool_count++] =
			        (struct idle_pool){ .class = n->class, .idle_s = step, .reserved_for = n->reserved_for };
		}
		f->pools[p].count++;
	}
	for (int p = 0; p < f->pool_count; p++) {
		f->pools[p].nodes = f->nodes + at;
		at += f->pools[p].count;
	}
	for (int i = 0; i < s->node_count; i++) {
		const struct hspmd_snapshot_node *n = &s->nodes[i];
		if (n->state != HSPMD_SNAPSHOT_IDLE || f->k->taken[i])
			continue;
		struct idle_pool *p = &f->pools[pool_of(f, n, step_of(f, s->now_s - n->since_s))];
		p->nodes[p->left++] = i;
	}
	return 0;
}

int growth_open(struct growth *f, struct decision_state *k)
{
	size_t jobs = (size_t)k->s->elastic_count;
	*f = (struct growth){ .k = k };
	f->jobs = hspmd_calloc(jobs, sizeof *f->jobs);
	f->nodes = hspmd_calloc((size_t)k->s->node_count, sizeof *f->nodes);
	if (!f->jobs || !f->nodes)
		return -1;
	list_candidates(f);
	if (list_steps(f) < 0 || make_pools(f) < 0)
		return -1;
	size_t pools = (size_t)f->pool_count;
	f->take = hspmd_calloc((size_t)f->job_count * pools, sizeof *f->take);
	f->closed = hspmd_calloc((size_t)f->job_count * pools, sizeof *f->closed);
	f->best = hspmd_calloc(jobs, sizeof *f->best);
	f->best_pool = hspmd_calloc(jobs, sizeof *f->best_pool);
	f->from_pool = hspmd_calloc(pools, sizeof *f->from_pool);
	f->from_job = hspmd_calloc(pools, sizeof *f->from_job);
	if (!f->take || !f->closed || !f->best || !f->best_pool || job_heap_open(&f->heap, k->s->elastic_count, is_ahead, f) ||
	    !f->from_pool || !f->from_job)
		return -1;
	growth_reset(f);
	return 0;
}

void growth_close(struct growth *f)
{
	free(f->jobs);
	free(f->nodes);
	free(f->pools);
	free(f->steps);
	free(f->take);
	free(f->closed);
	free(f->best);
	free(f->best_pool);
	job_heap_close(&f->heap);
	free(f->from_pool);
	free(f->from_job);
}
