/* SPDX-License-Identifier: Apache-2.0 */
/* Steps 1 and 2: which jobs return nodes to Slurm. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/order.h"
#include "policies/decision_state_internal.h"

/* ---- limits */

/* Of a rule whose budget is spent, jobs return what was added to them. */
static bool over_budget(const struct decision_job *j)
{
	return decision_budget_is_spent(j) && j->now.nodes > j->e->fewest_nodes;
}

static bool over_limits(const struct decision_job *j)
{
	const struct hspmd_policy_terms *t = &j->e->terms;
	return over_budget(j) || j->now.nodes > t->max_nodes || j->now.devices > t->max_devices || j->now.price > t->max_price_per_hour;
}

/* Returns the node that a job over its limits returns next: first those of types that it may not use, then those whose loss costs least.
 * -1: none. */
static int next_to_go(const struct decision_state *k, int job, unsigned char *foreign)
{
	const struct decision_job *j = &k->jobs[job];
	int node;
	if (j->now.nodes <= j->e->min_nodes)
		return -1;
	for (int c = 0; c < k->s->class_count; c++)
		foreign[c] = !decision_type_allowed(k, j, c);
	if (j->e->terms.device_types.count && decision_choose_nodes(k, job, foreign, true, 1, &node) == 1)
		return node;
	return over_limits(j) && decision_choose_nodes(k, job, NULL, true, 1, &node) == 1 ? node : -1;
}

static int shrink_to_limits(struct decision_state *k, int job, unsigned char *foreign)
{
	struct decision_job *j = &k->jobs[job];
	double before = holding_value(j, &j->was);
	struct hspmd_resize_action *a = NULL;
	bool over = over_limits(j), spent = over_budget(j);
	for (int node; (node = next_to_go(k, job, foreign)) >= 0;) {
		if (!a && !(a = decision_new_action(k, HSPMD_RESIZE_SHRINK, job, j->now.nodes)))
			return -1;
		decision_add_node(k, a, node);
	}
	if (a) {
		a->gain = holding_value(j, &j->now) - before;
		if (spent)
			snprintf(a->reason, sizeof a->reason,
			         "the budget of node hours of its policy is spent, and %d of its %d nodes were added", a->node_count,
			         j->was.nodes);
		else
			snprintf(a->reason, sizeof a->reason, "holds %d nodes, %d devices: %s its policy allows", j->was.nodes,
			         j->was.devices, over ? "more than" : "not of the types that");
	}
	return 0;
}

int reclaim_over_limit(struct decision_state *k, struct hspmd_error *err)
{
	unsigned char *foreign = hspmd_calloc((size_t)k->s->class_count, 1);
	int rc = foreign ? 0 : -1;
	for (int i = 0; i < k->s->elastic_count && rc == 0; i++)
		if (k->jobs[i].e->reachable && !k->jobs[i].e->request_pending && k->s->now_s >= k->jobs[i].e->declined_shrink_until_s)
			rc = shrink_to_limits(k, i, foreign);
	free(foreign);
	return rc < 0 ? hspmd_fail_memory(err, "deciding") : 0;
}

/* ---- pending jobs */

/* Returns the number of nodes that the pending job can use and that are not taken: idle ones, and those that an elastic job is about to
 * return. */
static int count_free(const struct decision_state *k, const struct hspmd_snapshot_pending *p)
{
	int n = 0;
	for (int i = 0; i < k->s->node_count; i++) {
		const struct hspmd_snapshot_node *node = &k->s->nodes[i];
		bool coming = node->state == HSPMD_SNAPSHOT_HELD && node->leaving;
		if (!k->taken[i] && p->usable[node->class] && (node->state == HSPMD_SNAPSHOT_IDLE || coming))
			n++;
	}
	return n;
}

/* Returns the number of usable nodes of elastic jobs that Slurm may preempt for the job. */
static int count_preemptable(const struct decision_state *k, const struct hspmd_snapshot_pending *p)
{
	int n = 0;
	for (int i = 0; i < k->s->node_count; i++) {
		const struct hspmd_snapshot_node *node = &k->s->nodes[i];
		bool held = node->state == HSPMD_SNAPSHOT_HELD && !node->leaving && node->holder >= 0;
		n += held && !k->taken[i] && p->usable[node->class] && k->jobs[node->holder].e->priority < p->priority;
	}
	return n;
}

static void keep_for(struct decision_state *k, const struct hspmd_snapshot_pending *p, int n)
{
	/* First nodes that are about to be returned, because that was for a pending job, then idle ones. */
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < k->s->node_count && n > 0; i++) {
			const struct hspmd_snapshot_node *node = &k->s->nodes[i];
			bool fits = pass ? node->state == HSPMD_SNAPSHOT_IDLE : node->state == HSPMD_SNAPSHOT_HELD && node->leaving;
			if (fits && !k->taken[i] && p->usable[node->class]) {
				k->taken[i] = true;
				n--;
			}
		}
}

static bool is_pressing(const struct decision_job *j, const struct hspmd_snapshot_pending *p)
{
	return j->e->terms.yield_before_preemption && p->preempts;
}

static bool may_shrink_for(const struct decision_state *k, const struct decision_job *j, const struct hspmd_snapshot_pending *p)
{
	const struct hspmd_policy_terms *t = &j->e->terms;
	bool higher = p->priority > j->e->priority || p->preempts;
	if (!j->e->reachable || j->e->request_pending || k->s->now_s < j->e->declined_shrink_until_s)
		return false;
	if (t->for_pending == HSPMD_PENDING_NONE || (t->for_pending == HSPMD_PENDING_HIGHER && !higher))
		return false;
	/* The cooldown protects the job from frequent pauses; being preempted would cost it more. */
	return is_pressing(j, p) || k->s->now_s - j->e->resized_s >= t->shrink_cooldown_s;
}

/* A job that may return nodes, the nodes in order (cheapest loss first), and how many of them are chosen. */
struct donor {
	int job, count, given;
	int *nodes; /* part of one array for all donors */
	struct holding hold;
};

static int find_donors(const struct decision_state *k, const struct hspmd_snapshot_pending *p, struct donor *donors, int *nodes, int *sum)
{
	int n = 0, used = 0;
	for (int i = 0; i < k->s->elastic_count; i++) {
		const struct decision_job *j = &k->jobs[i];
		int most = j->now.nodes - j->e->min_nodes;
		if (most <= 0 || !may_shrink_for(k, j, p))
			continue;
		int found = decision_choose_nodes(k, i, p->usable, is_pressing(j, p), most, nodes + used);
		if (!found)
			continue;
		donors[n++] = (struct donor){ .job = i, .count = found, .nodes = nodes + used, .hold = j->now };
		used += found;
	}
	*sum = used;
	return n;
}

/* Chooses one node after the other, always from the job that loses least: optimal, since on a concave curve each further loss is larger. */
static void choose_least(const struct decision_state *k, struct donor *donors, int n, int wanted)
{
	for (; wanted > 0; wanted--) {
		struct donor *best = NULL;
		struct holding best_hold = { 0 };
		double least = INFINITY;
		for (int i = 0; i < n; i++) {
			struct donor *d = &donors[i];
			if (d->given == d->count)
				continue;
			const struct decision_job *j = &k->jobs[d->job];
			struct holding less = holding_with_nodes(k, j, &d->hold, k->s->nodes[d->nodes[d->given]].class, -1);
			double loss = holding_value(j, &d->hold) - holding_value(j, &less);
			if (loss < least) {
				least = loss;
				best = d;
				best_hold = less;
			}
		}
		if (!best)
			return;
		best->given++;
		best->hold = best_hold;
	}
}

static int shrink_donors(struct decision_state *k, const struct donor *donors, int n, int wanted, int pending)
{
	const struct hspmd_snapshot_pending *p = &k->s->pending[pending];
	for (int i = 0; i < n; i++) {
		const struct donor *d = &donors[i];
		if (!d->given)
			continue;
		struct hspmd_resize_action *a = decision_new_action(k, HSPMD_RESIZE_SHRINK, d->job, d->given);
		if (!a)
			return -1;
		double before = holding_value(&k->jobs[d->job], &k->jobs[d->job].now);
		for (int g = 0; g < d->given; g++)
			decision_add_node(k, a, d->nodes[g]);
		a->gain = holding_value(&k->jobs[d->job], &k->jobs[d->job].now) - before;
		a->for_pending = pending;
		snprintf(a->reason, sizeof a->reason, "waiting job %u needs %d node%s and starts if this job gives %d%s%s", p->id, p->nodes,
		         p->nodes == 1 ? "" : "s", d->given, n > 1 && wanted > d->given ? " and others give theirs" : "",
		         p->preempts ? "; it would preempt" : "");
	}
	return 0;
}

/* ---- EASY backfill (Lifka, JSSPP'95), as in Slurm: after the first job that cannot start, only jobs start that do not delay it */

/* Computes when the blocked job can start: once enough nodes of rigid jobs are free, in addition to the `there` nodes that are available
 * now. */
static int reserve(struct decision_state *k, int pending, int there)
{
	const struct hspmd_snapshot_pending *p = &k->s->pending[pending];
	double *ends = hspmd_calloc((size_t)k->s->node_count, sizeof *ends);
	int n = 0, lacking = p->nodes - there;
	if (!ends)
		return -1;
	for (int i = 0; i < k->s->node_count; i++)
		if (k->s->nodes[i].state == HSPMD_SNAPSHOT_BUSY && p->usable[k->s->nodes[i].class])
			ends[n++] = k->s->nodes[i].free_s;
	qsort(ends, (size_t)n, sizeof *ends, hspmd_double_order);
	k->blocked = pending;
	k->start_s = lacking <= n ? ends[lacking - 1] : INFINITY;
	k->extra = there - p->nodes;
	for (int i = 0; i < n && ends[i] <= k->start_s; i++)
		k->extra++;
	free(ends);
	return 0;
}

static bool share_nodes(const struct decision_state *k, const struct hspmd_snapshot_pending *a, const struct hspmd_snapshot_pending *b)
{
	for (int c = 0; c < k->s->class_count; c++)
		if (a->usable[c] && b->usable[c])
			return true;
	return false;
}

/* Returns true if Slurm would start this job now, before the blocked one. */
static bool backfills(struct decision_state *k, const struct hspmd_snapshot_pending *p)
{
	if (k->blocked < 0 || !share_nodes(k, &k->s->pending[k->blocked], p) || k->s->now_s + p->run_s <= k->start_s)
		return true;
	if (p->nodes > k->extra)
		return false;
	k->extra -= p->nodes;
	return true;
}

static int block(struct decision_state *k, int pending, int there)
{
	const struct hspmd_snapshot_pending *p = &k->s->pending[pending];
	for (int c = 0; c < k->s->class_count; c++)
		k->wanted[c] |= p->usable[c];
	return k->blocked < 0 ? reserve(k, pending, there) : 0;
}

static int serve(struct decision_state *k, int pending, struct donor *donors, int *nodes)
{
	const struct hspmd_snapshot_pending *p = &k->s->pending[pending];
	int have = count_free(k, p), can = 0;
	double *since = &k->d->eligible_since_s[pending];
	*since = NAN;
	if (have >= p->nodes) {
		if (!backfills(k, p))
			return 0;
		*since = isnan(p->eligible_since_s) ? k->s->now_s : p->eligible_since_s;
		if (k->s->now_s - *since < HSPMD_STALE_PENDING_S)
			keep_for(k, p, p->nodes);
		return 0;
	}
	int n = find_donors(k, p, donors, nodes, &can);
	/* If Slurm will preempt in any case, jobs return all they can: what is not returned is taken by preempting the whole job. */
	int there = have + (p->preempts ? count_preemptable(k, p) : can);
	if (have + can < p->nodes && there < p->nodes)
		return block(k, pending, there > have + can ? there : have + can);
	if (!backfills(k, p))
		return 0;
	int wanted = p->nodes - have < can ? p->nodes - have : can;
	choose_least(k, donors, n, wanted);
	keep_for(k, p, have);
	return shrink_donors(k, donors, n, wanted, pending);
}

int reclaim_for_pending(struct decision_state *k, struct hspmd_error *err)
{
	struct donor *donors = hspmd_calloc((size_t)k->s->elastic_count, sizeof *donors);
	int *nodes = hspmd_calloc((size_t)k->s->node_count, sizeof *nodes);
	int rc = donors && nodes ? 0 : -1;
	for (int i = 0; i < k->s->pending_count && rc == 0; i++)
		rc = serve(k, i, donors, nodes);
	free(donors);
	free(nodes);
	return rc < 0 ? hspmd_fail_memory(err, "deciding") : 0;
}
