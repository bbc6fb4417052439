/* SPDX-License-Identifier: Apache-2.0 */
/* Step 4: nodes by which another job gains more than their holder loses. The move that gains most is made, and its two jobs take part in no
 * other; so again, until none gains.
 *
 * A site has thousands of jobs, hence millions of pairs. What a move can gain is bounded by what its giver loses, which is computed, plus
 * what so many nodes of its best type can bring to its taker. Takers are tried in the order of that bound per node, until no other can
 * reach what was found. The best move of a giver stays its best until its taker is gone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "policies/decision_state_internal.h"
#include "policies/job_heap.h"

static bool may_shrink(const struct decision_state *k, const struct decision_job *j)
{
	const struct hspmd_snapshot_elastic *e = j->e;
	return e->terms.rebalance && e->reachable && !e->request_pending && !j->shrunk && j->now.nodes == j->was.nodes &&
	       j->now.nodes > e->min_nodes && k->s->now_s >= e->declined_shrink_until_s &&
	       k->s->now_s - e->resized_s >= fmax(e->terms.shrink_cooldown_s, e->terms.grow_cooldown_s);
}

static bool may_grow(const struct decision_state *k, const struct decision_job *j)
{
	const struct hspmd_snapshot_elastic *e = j->e;
	return e->terms.rebalance && e->terms.into_idle && e->reachable && !e->request_pending && !j->shrunk && e->curve_count &&
	       !decision_budget_is_spent(j) && e->remaining_s >= e->terms.min_life_s && j->now.nodes == j->was.nodes &&
	       j->now.nodes < e->max_nodes && k->s->now_s >= e->declined_grow_until_s &&
	       k->s->now_s - e->resized_s >= e->terms.grow_cooldown_s;
}

#define TABLE 64 /* numbers of nodes up to which gains are bounded one by one */

/* Nodes that a job may give, in order, and the change of its value by the first n. Which it gives depends on what the taker can use. */
struct offer {
	int count; /* -1: not computed yet */
	int *nodes;
	double *change; /* [n - 1] */
};

struct best_move {
	int giver, taker, count; /* jobs; taker -1: there is none */
	double gain;
};

/* A job that may get nodes. */
struct taker {
	int job, mask;
	double per_node;      /* no number of nodes brings it more than this for each */
	double gained[TABLE]; /* [n - 1]: nor do n nodes bring it more than this */
};

struct rebalance {
	struct decision_state *k;
	int taker_count, mask_count;
	struct taker *takers;             /* by mask; of equal ones the greatest gain per node first */
	int *first;                       /* [mask]: its first taker; one more than there are masks */
	struct offer *offers;             /* [job * mask_count + mask] */
	double *value, *pause_cost_per_s; /* per job, now */
	struct best_move *best;           /* per job that may give: without Slurm's limits */
	struct job_heap heap;             /* such jobs, the best move first */
	int *aside;
};

/* ---- bounds */

/* What nodes of its fastest type bring a taker, on the best part of its curve up to there, and without further losses. */
static void bound_gains(const struct rebalance *r, struct taker *t)
{
	const struct decision_state *k = r->k;
	const struct decision_job *j = &k->jobs[t->job];
	double now = r->value[t->job], fastest = 0, best = 0;
	struct holding h = j->now;
	for (int c = 0; c < k->s->class_count; c++)
		if (j->e->usable[c])
			fastest = fmax(fastest, holding_with_nodes(k, j, &j->now, c, 1).size - j->now.size);
	for (int n = 1; n <= TABLE + 1; n++) {
		double to = n <= TABLE ? j->now.size + n * fastest : j->e->curve_count;
		/* The curve is straight between two whole sizes, and level behind its end. */
		for (; h.size < to; best = fmax(best, holding_true_value(j, &h) - now))
			h.size = h.size < j->e->curve_count ? fmin(to, floor(h.size) + 1) : to;
		if (n <= TABLE)
			t->gained[n - 1] = best;
		t->per_node = fmax(t->per_node, best / n);
	}
}

static double bound_of(const struct offer *o, double per_node, const double *gained)
{
	double most = -1;
	for (int n = 0; n < o->count; n++)
		most = fmax(most, o->change[n] + (gained && n < TABLE ? gained[n] : (n + 1) * per_node));
	return most + 1e-9 * fabs(most); /* it is summed in another order than the gain */
}

/* NULL: out of memory. */
static const struct offer *offer_of(struct rebalance *r, int giver, int mask)
{
	struct offer *o = &r->offers[(size_t)giver * (size_t)r->mask_count + (size_t)mask];
	const struct decision_job *j = &r->k->jobs[giver];
	struct holding give = j->now;
	if (o->count >= 0)
		return o;
	int most = j->now.nodes - j->e->min_nodes;
	o->nodes = hspmd_calloc((size_t)most, sizeof *o->nodes);
	o->change = hspmd_calloc((size_t)most, sizeof *o->change);
	if (!o->nodes || !o->change)
		return NULL;
	const unsigned char *usable = r->k->jobs[r->takers[r->first[mask]].job].e->usable;
	o->count = decision_choose_nodes(r->k, giver, usable, false, most, o->nodes);
	for (int i = 0; i < o->count; i++) {
		give = holding_with_nodes(r->k, j, &give, r->k->s->nodes[o->nodes[i]].class, -1);
		o->change[i] = holding_true_value(j, &give) - r->value[giver];
	}
	return o;
}

/* ---- moves */

/* What a move must bring. */
struct demand {
	double least, held_s, pauses;
};

static struct demand demand_of(const struct rebalance *r, int giver, int taker)
{
	const struct hspmd_snapshot_elastic *x = r->k->jobs[giver].e, *y = r->k->jobs[taker].e;
	double cost_x = r->pause_cost_per_s[giver], cost_y = r->pause_cost_per_s[taker];
	return (struct demand){
		.least = fmax(x->terms.min_gain, y->terms.min_gain) * (cost_x + cost_y),
		.held_s = fmin(fmax(fmax(x->terms.grow_cooldown_s, y->terms.grow_cooldown_s), 60), fmin(x->remaining_s, y->remaining_s)),
		.pauses = cost_x * x->pause_s + cost_y * y->pause_s,
	};
}

static bool is_met(const struct demand *d, double change)
{
	return change >= d->least && change * d->held_s > d->pauses;
}

/* Returns the best number of an offer's nodes to move to a job, 0 if no move brings what it must. */
static int best_count(const struct rebalance *r, int giver, const struct offer *o, int taker, bool limits, const struct demand *d,
                      double *gain)
{
	const struct decision_state *k = r->k;
	const struct decision_job *y = &k->jobs[taker];
	struct holding get = y->now;
	int best = 0;
	*gain = 0;
	for (int i = 0; i < o->count; i++) {
		int class = k->s->nodes[o->nodes[i]].class;
		get = holding_with_nodes(k, y, &get, class, 1);
		if (!decision_allowed(k, y, &get, class) || (limits && decision_limit_in_way(k, y, &k->jobs[giver], i + 1)))
			break;
		double change = o->change[i] + holding_true_value(y, &get) - r->value[taker];
		if (change > *gain && is_met(d, change)) {
			*gain = change;
			best = i + 1;
		}
	}
	return best;
}

/* Finds a giver's best move to a job that still takes part, of equal ones that to the first job. Returns -1: out of memory. */
static int find_best(struct rebalance *r, int giver, bool limits, struct best_move *best)
{
	*best = (struct best_move){ .giver = giver, .taker = -1 };
	for (int m = 0; m < r->mask_count; m++) {
		const struct offer *o = offer_of(r, giver, m);
		if (!o)
			return -1;
		for (int i = r->first[m]; i < r->first[m + 1]; i++) {
			const struct taker *t = &r->takers[i];
			double gain, most;
			if (bound_of(o, t->per_node, NULL) < best->gain)
				break;
			if (t->job == giver || r->k->jobs[t->job].shrunk || (most = bound_of(o, t->per_node, t->gained)) < best->gain)
				continue;
			struct demand d = demand_of(r, giver, t->job);
			int n = is_met(&d, most) ? best_count(r, giver, o, t->job, limits, &d, &gain) : 0;
			if (n && (gain > best->gain || (gain == best->gain && t->job < best->taker)))
				*best = (struct best_move){ giver, t->job, n, gain };
		}
	}
	return 0;
}

static bool is_ahead(const struct best_move *a, const struct best_move *b)
{
	return a->gain != b->gain ? a->gain > b->gain : a->giver < b->giver;
}

static bool has_better_move(const void *rebalance, int x, int y)
{
	const struct rebalance *r = rebalance;
	return is_ahead(&r->best[x], &r->best[y]);
}

/* Finds the move that gains most. What a giver's best move gains without Slurm's limits bounds what it gains with them. Returns -1: out of
 * memory. */
static int find_best_of_all(struct rebalance *r, struct best_move *best)
{
	bool limits = r->k->s->limit_count > 0;
	int aside = 0, rc = 0;
	*best = (struct best_move){ .taker = -1 };
	while (r->heap.count && !rc) {
		int giver = r->heap.items[0];
		struct best_move *own = &r->best[giver], with_limits = *own;
		if (own->taker < 0 || r->k->jobs[giver].shrunk) {
			job_heap_drop_first(&r->heap);
			continue;
		}
		if (r->k->jobs[own->taker].shrunk) {
			rc = find_best(r, giver, false, own);
			job_heap_sort(&r->heap, giver);
			continue;
		}
		if (best->taker >= 0 && !is_ahead(own, best))
			break;
		if (limits)
			rc = find_best(r, giver, true, &with_limits);
		if (with_limits.taker >= 0 && (best->taker < 0 || is_ahead(&with_limits, best)))
			*best = with_limits;
		job_heap_drop_first(&r->heap);
		r->aside[aside++] = giver;
	}
	while (aside)
		job_heap_add(&r->heap, r->aside[--aside]);
	return rc;
}

static int move(struct rebalance *r, const struct best_move *m)
{
	struct decision_state *k = r->k;
	const struct offer *o = NULL;
	for (int i = 0; i < r->taker_count && !o; i++)
		if (r->takers[i].job == m->taker)
			o = offer_of(r, m->giver, r->takers[i].mask);
	struct hspmd_resize_action *act = o ? decision_new_action(k, HSPMD_RESIZE_SHRINK, m->giver, m->count) : NULL;
	if (!act)
		return -1;
	for (int i = 0; i < m->count; i++)
		decision_add_node(k, act, o->nodes[i]);
	act->for_job = m->taker;
	decision_use_limits(k, &k->jobs[m->taker], m->count);
	decision_use_limits(k, &k->jobs[m->giver], -m->count);
	act->gain = m->gain;
	snprintf(act->reason, sizeof act->reason, "%d node%s bring%s job %u more than this one", m->count, m->count == 1 ? "" : "s",
	         m->count == 1 ? "s" : "", k->jobs[m->taker].e->id);
	k->jobs[m->taker].shrunk = true; /* it takes part in no other move of this round */
	return 0;
}

/* ---- setting up */

static int by_mask(const void *a, const void *b, void *state)
{
	const struct taker *x = a, *y = b;
	const struct decision_state *k = state;
	int masks = memcmp(k->jobs[x->job].e->usable, k->jobs[y->job].e->usable, (size_t)k->s->class_count);
	if (masks)
		return masks;
	return x->per_node != y->per_node ? (x->per_node > y->per_node ? -1 : 1) : x->job - y->job;
}

static void sort_takers(struct rebalance *r)
{
	size_t classes = (size_t)r->k->s->class_count;
	qsort_r(r->takers, (size_t)r->taker_count, sizeof *r->takers, by_mask, r->k);
	for (int i = 0; i < r->taker_count; i++) {
		const struct decision_job *jobs = r->k->jobs;
		if (!i || memcmp(jobs[r->takers[i - 1].job].e->usable, jobs[r->takers[i].job].e->usable, classes))
			r->first[r->mask_count++] = i;
		r->takers[i].mask = r->mask_count - 1;
	}
	r->first[r->mask_count] = r->taker_count;
}

static int open_rebalance(struct rebalance *r, struct decision_state *k)
{
	size_t jobs = (size_t)k->s->elastic_count;
	*r = (struct rebalance){ .k = k };
	r->first = hspmd_calloc(jobs + 1, sizeof *r->first);
	r->best = hspmd_calloc(jobs, sizeof *r->best);
	r->value = hspmd_calloc(jobs, sizeof *r->value);
	r->pause_cost_per_s = hspmd_calloc(jobs, sizeof *r->pause_cost_per_s);
	r->aside = hspmd_calloc(jobs, sizeof *r->aside);
	for (size_t i = 0; i < jobs; i++)
		r->taker_count += may_grow(k, &k->jobs[i]);
	r->takers = hspmd_calloc((size_t)r->taker_count, sizeof *r->takers);
	if (!r->first || !r->best || !r->value || !r->pause_cost_per_s || job_heap_open(&r->heap, (int)jobs, has_better_move, r) ||
	    !r->aside || !r->takers)
		return -1;
	for (size_t i = 0; i < jobs; i++) {
		r->value[i] = holding_true_value(&k->jobs[i], &k->jobs[i].now);
		r->pause_cost_per_s[i] = holding_pause_cost_per_s(&k->jobs[i], &k->jobs[i].now);
	}
	r->taker_count = 0;
	for (size_t i = 0; i < jobs; i++)
		if (may_grow(k, &k->jobs[i])) {
			r->takers[r->taker_count] = (struct taker){ .job = (int)i };
			bound_gains(r, &r->takers[r->taker_count++]);
		}
	sort_takers(r);
	size_t offers = jobs * (size_t)r->mask_count;
	r->offers = hspmd_calloc(offers, sizeof *r->offers);
	for (size_t i = 0; r->offers && i < offers; i++)
		r->offers[i].count = -1;
	for (size_t i = 0; r->offers && i < jobs; i++)
		if (may_shrink(k, &k->jobs[i])) {
			if (find_best(r, (int)i, false, &r->best[i]))
				return -1;
			job_heap_add(&r->heap, (int)i);
		}
	return r->offers ? 0 : -1;
}

static void close_rebalance(struct rebalance *r)
{
	size_t offers = (size_t)r->k->s->elastic_count * (size_t)r->mask_count;
	for (size_t i = 0; r->offers && i < offers; i++) {
		free(r->offers[i].nodes);
		free(r->offers[i].change);
	}
	free(r->offers);
	free(r->takers);
	free(r->first);
	free(r->best);
	free(r->value);
	free(r->pause_cost_per_s);
	job_heap_close(&r->heap);
	free(r->aside);
}

int rebalance_jobs(struct decision_state *k, struct hspmd_error *err)
{
	struct rebalance r;
	struct best_move best;
	int rc = open_rebalance(&r, k);
	while (!rc && !(rc = find_best_of_all(&r, &best)) && best.taker >= 0)
		rc = move(&r, &best);
	close_rebalance(&r);
	return rc < 0 ? hspmd_fail_memory(err, "deciding") : 0;
}
