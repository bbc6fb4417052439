/* SPDX-License-Identifier: Apache-2.0 */
/* Step 4: nodes by which another job gains more than their holder loses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "policies/decision_state_internal.h"

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

/* Returns the best number of nodes to move from job a to job b, 0 if no move earns back both pauses; the nodes are the first in out. */
static int best_move(const struct decision_state *k, int a, int b, int *out, double *gain)
{
	const struct decision_job *x = &k->jobs[a], *y = &k->jobs[b];
	struct holding give = x->now, get = y->now;
	int most = x->now.nodes - x->e->min_nodes, best = 0;
	int n = decision_choose_nodes(k, a, y->e->usable, false, most, out);
	double before_x = holding_true_value(x, &x->now), before_y = holding_true_value(y, &y->now);
	*gain = 0;
	for (int i = 0; i < n; i++) {
		int class = k->s->nodes[out[i]].class;
		give = holding_with_nodes(k, x, &give, class, -1);
		get = holding_with_nodes(k, y, &get, class, 1);
		if (!decision_allowed(k, y, &get, class) || decision_limit_in_way(k, y, x, i + 1))
			break;
		double change = holding_true_value(x, &give) - before_x + holding_true_value(y, &get) - before_y;
		double held_s = fmin(fmax(fmax(x->e->terms.grow_cooldown_s, y->e->terms.grow_cooldown_s), 60),
		                     fmin(x->e->remaining_s, y->e->remaining_s));
		double whole_x = holding_pause_cost_per_s(x, &x->now), whole_y = holding_pause_cost_per_s(y, &y->now);
		double pauses = whole_x * x->e->pause_s + whole_y * y->e->pause_s;
		double least = fmax(x->e->terms.min_gain, y->e->terms.min_gain) * (whole_x + whole_y);
		if (change > *gain && change >= least && change * held_s > pauses) {
			*gain = change;
			best = i + 1;
		}
	}
	return best;
}

static int move(struct decision_state *k, int a, int b, int n, const int *nodes, double gain)
{
	struct hspmd_resize_action *act = decision_new_action(k, HSPMD_RESIZE_SHRINK, a, n);
	if (!act)
		return -1;
	for (int i = 0; i < n; i++)
		decision_add_node(k, act, nodes[i]);
	act->for_job = b;
	decision_use_limits(k, &k->jobs[b], n);
	decision_use_limits(k, &k->jobs[a], -n);
	act->gain = gain;
	snprintf(act->reason, sizeof act->reason, "%d node%s bring%s job %u more than this one", n, n == 1 ? "" : "s", n == 1 ? "s" : "",
	         k->jobs[b].e->id);
	k->jobs[b].shrunk = true; /* it takes part in no other move of this round */
	return 0;
}

/* Makes the one move that gains most. Returns 1 if one was made, 0 if none gains, -1: out of memory. */
static int one_move(struct decision_state *k, int *nodes, int *scratch)
{
	int from = -1, to = -1, count = 0;
	double best = 0;
	for (int a = 0; a < k->s->elastic_count; a++)
		for (int b = 0; b < k->s->elastic_count && may_shrink(k, &k->jobs[a]); b++) {
			double gain;
			if (a == b || !may_grow(k, &k->jobs[b]))
				continue;
			int n = best_move(k, a, b, scratch, &gain);
			if (!n || gain <= best)
				continue;
			best = gain;
			from = a;
			to = b;
			count = n;
			for (int i = 0; i < n; i++)
				nodes[i] = scratch[i];
		}
	return from < 0 ? 0 : move(k, from, to, count, nodes, best) < 0 ? -1 : 1;
}

int rebalance_jobs(struct decision_state *k, struct hspmd_error *err)
{
	int *nodes = hspmd_calloc((size_t)k->s->node_count, sizeof *nodes),
	    *scratch = hspmd_calloc((size_t)k->s->node_count, sizeof *scratch);
	int rc = nodes && scratch ? 1 : -1;
	while (rc > 0)
		rc = one_move(k, nodes, scratch);
	free(nodes);
	free(scratch);
	return rc < 0 ? hspmd_fail_memory(err, "deciding") : 0;
}
