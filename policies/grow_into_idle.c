/* SPDX-License-Identifier: Apache-2.0 */
/* Step 3: idle nodes. */
#include <math.h>
#include <stdio.h>

#include "policies/growth_internal.h"

/* Returns to the pools the nodes that gain only on the hull, because the true curve has a plateau there. */
static void trim(struct growth *f, int job)
{
	struct decision_job *j = growth_job(f, job);
	for (int p = 0; p < f->pool_count; p++)
		while (*growth_take(f, job, p)) {
			struct holding less = holding_with_nodes(f->k, j, &j->now, f->pools[p].class, -1);
			if (holding_true_value(j, &less) < holding_true_value(j, &j->now))
				break;
			growth_move(f, job, p, -1);
		}
}

/* Of the jobs whose resize does not pay off, bars the one with the least relative gain; others may use its nodes better. Returns true if
 * one was barred. */
static bool bar_worst(struct growth *f)
{
	int worst = -1;
	double least = 0;
	for (int i = 0; i < f->job_count; i++) {
		struct decision_job *j = growth_job(f, i);
		trim(f, i);
		if (j->now.nodes == j->was.nodes || resize_pays_off(f->k, j, &j->was, &j->now))
			continue;
		double relative = holding_rate(j, &j->now) / holding_rate(j, &j->was) - 1;
		if (worst < 0 || !(relative >= least)) {
			worst = i;
			least = relative;
		}
	}
	if (worst < 0)
		return false;
	struct decision_job *j = growth_job(f, worst);
	decision_set_why(f->k, f->jobs[worst], "%d idle nodes would bring %.1f %%: less than min_gain (%.1f %%) or than the pause costs",
	                 j->now.nodes - j->was.nodes, 100 * least, 100 * j->e->terms.min_gain);
	j->barred = true;
	return true;
}

/* Returns true if the node, which is not idle for long enough yet, will be for this job before `until_s`, or may be at any time. */
static bool is_about_to_be_idle(const struct growth *f, const struct decision_job *j, int node, double until_s)
{
	const struct hspmd_snapshot_node *n = &f->k->s->nodes[node];
	if (f->k->taken[node] || !j->e->usable[n->class] || (n->reserved_for && n->reserved_for != j->e->id))
		return false;
	if (n->state == HSPMD_SNAPSHOT_HELD)
		return n->holder < 0 && n->leaving;
	double from_s = n->since_s + (n->reserved_for ? 0 : j->e->terms.after_idle_s);
	return n->state == HSPMD_SNAPSHOT_IDLE && from_s > f->k->s->now_s && from_s <= until_s;
}

/* Returns true if the job should wait until until_s: a node that is about to be idle would bring it more. */
static bool should_wait(const struct growth *f, const struct decision_job *j, double until_s)
{
	if (f->k->s->now_s >= until_s || decision_limit_in_way(f->k, j, NULL, 1))
		return false;
	for (int i = 0; i < f->k->s->node_count; i++) {
		if (!is_about_to_be_idle(f, j, i, until_s))
			continue;
		struct holding more = holding_with_nodes(f->k, j, &j->now, f->k->s->nodes[i].class, 1);
		if (decision_allowed(f->k, j, &more, f->k->s->nodes[i].class) && holding_value(j, &more) > holding_value(j, &j->now))
			return true;
	}
	return false;
}

static int emit(struct growth *f, int job)
{
	struct decision_job *j = growth_job(f, job);
	int n = j->now.nodes - j->was.nodes;
	if (n <= 0) {
		const struct hspmd_snapshot_limit *limit = decision_limit_in_way(f->k, j, NULL, 1);
		if (limit)
			decision_set_why(f->k, f->jobs[job], "Slurm's limit leaves no room for another node: %s", limit->name);
		else if (!j->barred)
			decision_set_why(f->k, f->jobs[job], "no idle node that it may use brings it more than it brings others");
		return 0;
	}
	double *until_s = &f->k->d->wait_until_s[f->jobs[job]];
	*until_s = fmin(j->e->wait_until_s, f->k->s->now_s + HSPMD_GATHER_S);
	if (should_wait(f, j, *until_s)) {
		decision_set_why(f->k, f->jobs[job], "it waits a few seconds for nodes that are about to be idle");
		return 0;
	}
	double before = holding_rate(j, &j->was), after = holding_rate(j, &j->now);
	struct hspmd_resize_action *a = decision_new_action(f->k, HSPMD_RESIZE_GROW, f->jobs[job], n);
	if (!a)
		return -1;
	for (int p = 0; p < f->pool_count; p++)
		for (int i = 0; i < *growth_take(f, job, p); i++)
			decision_add_node(f->k, a, f->pools[p].nodes[--f->pools[p].count]);
	a->gain = holding_true_value(j, &j->now) - holding_true_value(j, &j->was);
	snprintf(a->reason, sizeof a->reason, "%d idle node%s bring%s it %.1f %% (%d -> %d nodes), the most that %s can bring to any job",
	         n, n == 1 ? "" : "s", n == 1 ? "s" : "", before > 0 ? 100 * (after / before - 1) : 100, j->was.nodes, j->now.nodes,
	         n == 1 ? "it" : "they");
	return 0;
}

int grow_into_idle(struct decision_state *k, struct hspmd_error *err)
{
	struct growth f;
	int rc = growth_open(&f, k);
	if (rc == 0 && f.job_count && f.pool_count)
		do {
			growth_reset(&f);
			growth_assign(&f);
		} while (bar_worst(&f));
	for (int i = 0; i < f.job_count && rc == 0; i++)
		rc = emit(&f, i);
	growth_close(&f);
	return rc < 0 ? hspmd_fail_memory(err, "deciding") : 0;
}
