/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns idle nodes to jobs so that the sum of gains is greatest. */
#include <math.h>

#include "policies/growth_internal.h"

#define EPSILON 1e-12
#define IMPROVE_MAX_JOBS 64 /* moves and swaps are tried only with at most so many jobs, since their cost is quadratic */
#define IMPROVE_MAX 1000    /* most steps of improvement; each gains, so they end anyway, but not necessarily soon */

/* Searches, breadth first, for a path that frees a node in an empty pool: a job that took from it takes from another pool instead. Returns
 * the pool at the end of the path, which has nodes left; from_pool and from_job lead back to the start. -1: none. */
static int find_path(struct growth *f, int start)
{
	int queue[256], head = 0, tail = 0;
	if (f->pool_count > 256)
		return -1;
	for (int p = 0; p < f->pool_count; p++)
		f->from_pool[p] = -2;
	f->from_pool[start] = -1;
	queue[tail++] = start;
	while (head < tail) {
		int at = queue[head++];
		if (f->pools[at].left)
			return at;
		for (int j = 0; j < f->job_count; j++) {
			if (!*growth_take(f, j, at))
				continue;
			for (int p = 0; p < f->pool_count; p++) {
				if (f->from_pool[p] != -2 || !growth_fits(f, j, p, at))
					continue;
				f->from_pool[p] = at;
				f->from_job[p] = j;
				queue[tail++] = p;
			}
		}
	}
	return -1;
}

/* Gives a job one more node along a path of other jobs that exchange theirs. Returns true if the sum of all values has grown; otherwise
 * nothing has changed. */
static bool augment(struct growth *f, int job, int start)
{
	int end = find_path(f, start);
	if (end < 0 || end == start)
		return false;
	double gain = growth_change(f, job, start, 1);
	for (int p = end; f->from_pool[p] >= 0; p = f->from_pool[p]) {
		const struct decision_job *j = growth_job(f, f->from_job[p]);
		double before = holding_value(j, &j->now);
		growth_move(f, f->from_job[p], f->from_pool[p], -1);
		growth_move(f, f->from_job[p], p, 1);
		gain += holding_value(j, &j->now) - before;
	}
	if (gain > EPSILON && growth_fits(f, job, start, -1)) {
		growth_move(f, job, start, 1);
		return true;
	}
	/* Undo. */
	for (int p = end; f->from_pool[p] >= 0; p = f->from_pool[p]) {
		growth_move(f, f->from_job[p], p, -1);
		growth_move(f, f->from_job[p], f->from_pool[p], 1);
	}
	return false;
}

/* Finds the pool whose node gains a job most: one with nodes left, or one that a path may still open. */
static void find_best(struct growth *f, int job)
{
	double best = -INFINITY;
	int at = -1;
	for (int p = 0; p < f->pool_count; p++) {
		if (f->closed[job * f->pool_count + p] || !growth_fits(f, job, p, -1))
			continue;
		double gain = growth_change(f, job, p, 1);
		if (gain > best || (gain == best && !f->pools[at].left && f->pools[p].left)) {
			best = gain;
			at = p;
		}
	}
	f->best[job] = best;
	f->best_pool[job] = at;
}

/* Assigns the one node that gains most, along a path if its pool is empty. Returns false if no node gains any more. A pool that no path
 * opens now will not be opened later (the sets of increments that can be served form a matroid), so a closed pair stays closed. While a job
 * gets nothing its greatest gain only falls, as pools get empty: only the first of the heap needs to be looked at again. */
static bool step(struct growth *f)
{
	if (!f->heap.count)
		return false;
	int job = f->heap.items[0];
	while (isnan(f->best[job]) || (f->best_pool[job] >= 0 && !f->pools[f->best_pool[job]].left)) {
		double was = f->best[job];
		find_best(f, job);
		job_heap_sort(&f->heap, job);
		if (f->heap.items[0] == job && was == f->best[job])
			break; /* a path may open its pool */
		job = f->heap.items[0];
	}
	if (f->best_pool[job] < 0 || !(f->best[job] > EPSILON))
		return false;
	int pool = f->best_pool[job];
	growth_look_again(f, job);
	if (!growth_fits(f, job, pool, -1))
		return true; /* other jobs have taken from the reserve since; the best pool is searched again */
	if (f->pools[pool].left)
		growth_move(f, job, pool, 1);
	else if (!augment(f, job, pool))
		f->closed[job * f->pool_count + pool] = true;
	return true;
}

/* ---- unequal nodes: moves and swaps */

/* Moves a node of pool p from job a to job b, and one of pool q (if q >= 0) from b to a. Returns true if the sum of values has grown;
 * otherwise nothing has changed. */
static bool exchange(struct growth *f, int a, int p, int b, int q)
{
	const struct decision_job *x = growth_job(f, a), *y = growth_job(f, b);
	double before = holding_value(x, &x->now) + holding_value(y, &y->now);
	growth_move(f, a, p, -1);
	if (q >= 0)
		growth_move(f, b, q, -1);
	bool fits = growth_fits(f, b, p, -1) && (q < 0 || growth_fits(f, a, q, -1));
	growth_move(f, b, p, 1);
	if (q >= 0)
		growth_move(f, a, q, 1);
	if (fits && holding_value(x, &x->now) + holding_value(y, &y->now) > before + EPSILON + 1e-9 * before)
		return true;
	growth_move(f, b, p, -1);
	growth_move(f, a, p, 1);
	if (q >= 0) {
		growth_move(f, a, q, -1);
		growth_move(f, b, q, 1);
	}
	return false;
}

static bool improve_pair(struct growth *f, int a, int b)
{
	for (int p = 0; p < f->pool_count; p++) {
		if (!*growth_take(f, a, p))
			continue;
		if (exchange(f, a, p, b, -1))
			return true;
		for (int q = 0; q < f->pool_count; q++)
			if (q != p && *growth_take(f, b, q) && exchange(f, a, p, b, q))
				return true;
	}
	return false;
}

/* Replaces one of a job's nodes by a better one that is idle. Returns true if there was one. */
static bool improve_one(struct growth *f, int j)
{
	for (int p = 0; p < f->pool_count; p++)
		for (int q = 0; q < f->pool_count && *growth_take(f, j, p); q++) {
			if (q == p || !f->pools[q].left)
				continue;
			const struct decision_job *job = growth_job(f, j);
			double before = holding_value(job, &job->now);
			growth_move(f, j, p, -1);
			bool fits = growth_fits(f, j, q, -1);
			growth_move(f, j, q, 1);
			if (fits && holding_value(job, &job->now) > before + EPSILON + 1e-9 * before)
				return true;
			growth_move(f, j, q, -1);
			growth_move(f, j, p, 1);
		}
	return false;
}

static bool improve(struct growth *f)
{
	for (int a = 0; a < f->job_count; a++) {
		if (growth_job(f, a)->barred)
			continue;
		if (improve_one(f, a))
			return true;
		for (int b = 0; b < f->job_count; b++)
			if (a != b && !growth_job(f, b)->barred && improve_pair(f, a, b))
				return true;
	}
	return false;
}

/* Returns true if all pools have nodes of the same kind and price; the greedy assignment is then optimal. */
static bool alike(const struct growth *f)
{
	for (int p = 1; p < f->pool_count; p++) {
		const struct hspmd_snapshot_class *a = &f->k->s->classes[f->pools[0].class], *b = &f->k->s->classes[f->pools[p].class];
		if (a->type != b->type || a->devices != b->devices || a->price_per_hour != b->price_per_hour ||
		    a->losses_per_s != b->losses_per_s)
			return false;
	}
	return true;
}

void growth_assign(struct growth *f)
{
	bool one_kind = alike(f);
	while (step(f))
		;
	for (int i = 0; i < IMPROVE_MAX && !one_kind && f->job_count <= IMPROVE_MAX_JOBS && improve(f); i++)
		;
}
