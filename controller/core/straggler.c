/* SPDX-License-Identifier: Apache-2.0 */
/* Stragglers: devices that, for some time, take longer for their share of a step than the plan expects.
 *
 * The ratio of a device's measured compute time to the time by the cost model is compared with the ratios of the devices of its kind: those
 * of the same device type with the same layers in groups of the same size. An error of the model is the same for all of them. A device that
 * is the only one of its kind is compared with itself in the generation's first window (in which it had the slowdown that the plan knew),
 * and the change of its ratio with the changes of the others' ratios: so a cluster-wide slowdown flags no device, and one device's recovery
 * does not flag another. A verdict needs SLOW_WINDOWS windows that agree, each a third of the policy's `for_s` long. The hysteresis lies
 * between `back_below` and `slower_than`.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "controller/core/controller_internal.h"

#define SAMPLES_MIN 2     /* per device and window */
#define READMIT_FACTOR 10 /* times for_s: time after which an unused slow node is tried again; it doubles each time */

static double least_window(const struct hspmd_controller *m)
{
	return m->config->policy_terms.slower_for_s / SLOW_WINDOWS;
}

static void reset_window(struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	for (int i = 0; l && i < l->devices; i++) {
		l->device[i]->busy_s = 0;
		l->device[i]->busy_count = 0;
	}
	m->straggler_check_at = m->now + least_window(m);
}

static void set_expected(struct worker *w, double busy_s)
{
	w->expected_s = busy_s;
	w->first_ratio = 0;
}

void straggler_begin(struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	m->straggler_check_at = INFINITY;
	if (!m->config->expected_busy || m->config->policy_terms.slower_than <= 0)
		return;
	double *busy = hspmd_calloc((size_t)l->devices, sizeof *busy);
	if (!busy) {
		m->failed = true;
		return;
	}
	/* A single device has nothing to be compared with; but unused slow nodes can be readmitted. */
	bool known = l->devices > 1 && !m->config->expected_busy(m->config, l->plan, l->cluster, busy);
	for (int i = 0; i < l->devices; i++)
		set_expected(l->device[i], known ? busy[i] : 0);
	reset_window(m);
	free(busy);
}

void straggler_sample(const struct hspmd_controller *m, struct worker *w, const json_t *message)
{
	const struct bound_plan *l = m->current.bound_plan;
	json_t *s = json_object_get(message, l && l->plan && l->plan->shorter_count ? "plan_compute_s" : "compute_s");
	if (!json_is_number(s) || !(json_number_value(s) > 0))
		return;
	w->busy_s += json_number_value(s);
	w->busy_count++;
}

/* What is compared: one row per device of the plan. */
struct comparison {
	const struct hspmd_stage *stage;
	int micro_batch, type;
	int kind;        /* row of the first device of the same kind */
	double ratio;    /* busy over expected */
	double change;   /* ratio over that of the generation's first window */
	double measured; /* slowdown, relative to the slowdown that the plan knew */
};

static bool same_kind(const struct comparison *a, const struct comparison *b)
{
	return a->stage->layers[0] == b->stage->layers[0] && a->stage->layers[1] == b->stage->layers[1] &&
	       a->stage->device_count == b->stage->device_count && a->micro_batch == b->micro_batch && a->type == b->type;
}

static void fill_comparisons(const struct bound_plan *l, struct comparison *comparison)
{
	int at = 0;
	for (int p = 0; p < l->plan->pipeline_count; p++)
		for (int s = 0; s < l->plan->pipelines[p].stage_count / l->plan->virtual_stages; s++) {
			const struct hspmd_stage *stage = &l->plan->pipelines[p].stages[s];
			for (int d = 0; d < stage->device_count; d++)
				comparison[at++] = (struct comparison){ .stage = stage,
					                                .micro_batch = l->plan->pipelines[p].micro_batch,
					                                .type = l->cluster->devices[stage->devices[d]].type };
		}
	for (int i = 0; i < l->devices; i++) {
		struct worker *w = l->device[i];
		while (comparison[i].kind < i && !same_kind(&comparison[i], &comparison[comparison[i].kind]))
			comparison[i].kind++;
		comparison[i].ratio = w->busy_s / w->busy_count / w->expected_s;
		if (w->first_ratio <= 0)
			w->first_ratio = comparison[i].ratio;
		comparison[i].change = comparison[i].ratio / w->first_ratio;
	}
}

/* Of an even number of values, the lower or the upper of the two in the middle. Sorts them. */
static double median(double *value, int count, bool upper)
{
	qsort(value, (size_t)count, sizeof *value, hspmd_double_order);
	return value[(count - !upper) / 2];
}

static double lower_median(double *value, int count)
{
	return median(value, count, false);
}

/* The change of a device that is the only one of its kind. The others' change is divided out if it has the same direction: whether one of
 * them was slow or has recovered must not affect this one. */
static double change_since_start(const struct bound_plan *l, const struct comparison *comparison, int self, double *scratch)
{
	double own = comparison[self].change;
	int n = 0;
	for (int i = 0; i < l->devices; i++)
		if (i != self)
			scratch[n++] = comparison[i].change;
	double usual = n ? median(scratch, n, own < 1) : 1;
	return own > 1 ? fmax(1, own / fmax(1, usual)) : fmin(1, own / fmin(1, usual));
}

static void compare_devices(const struct bound_plan *l, struct comparison *comparison, double *scratch)
{
	int n;
	for (int k = 0; k < l->devices; k++) {
		if (comparison[k].kind != k)
			continue;
		n = 0;
		for (int i = k; i < l->devices; i++)
			if (comparison[i].kind == k)
				scratch[n++] = comparison[i].ratio;
		double usual = lower_median(scratch, n);
		for (int i = k; i < l->devices; i++)
			if (comparison[i].kind == k)
				comparison[i].measured =
				        n > 1 ? comparison[i].ratio / usual : change_since_start(l, comparison, i, scratch);
	}
}

/* The node's slowdown in the plan's cluster, relative to that in its agent's hello. */
static double planned_with(const struct bound_plan *l, const struct node *n)
{
	int at = hspmd_cluster_find_node(l->cluster, n->name);
	return at >= 0 && n->base > 0 ? l->cluster->nodes[at].slowdown / n->base : 1;
}

static void set_slowdown(struct hspmd_controller *m, struct node *n, double slowdown)
{
	bool slow = slowdown > n->slowdown;
	n->slowdown = slowdown;
	n->part->nodes[0].slowdown = n->base * slowdown;
	n->verdicts = 0;
	if (slowdown > 1)
		note_event(m, "straggler", "node %s takes %.2f times as long as it should%s", n->name, slowdown,
		           slow ? "" : ", less than before");
	else
		note_event(m, "straggler", "node %s is as fast as it should be again", n->name);
	request_replan(m, "straggler");
}

static void judge(struct hspmd_controller *m, struct node *n, double measured)
{
	const struct run_policy_terms *t = &m->config->policy_terms;
	double better = n->slowdown / t->slower_than;
	int verdict = measured > n->slowdown * t->slower_than                              ? 1
	              : n->slowdown > 1 && (measured < t->back_below || measured < better) ? -1
	                                                                                   : 0;
	bool again = verdict && (n->verdicts > 0 ? verdict > 0 : n->verdicts < 0 && verdict < 0);
	n->verdicts = verdict + (again ? n->verdicts : 0);
	n->evidence[abs(n->verdicts) % SLOW_WINDOWS] = measured;
	if (abs(n->verdicts) < SLOW_WINDOWS)
		return;
	measured = lower_median(n->evidence, SLOW_WINDOWS); /* it may have become slow in the middle of the first window */
	set_slowdown(m, n, measured < t->back_below ? 1 : fmax(1, round(measured * 20) / 20));
}

/* An unused node cannot be measured: after a while it is taken to be as fast as it should be, so that a plan tries it. */
static void readmit_slow(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		bool used = false;
		for (int k = 0; k < n->workers; k++)
			used |= bound_plan_uses(m->current.bound_plan, n->worker[k]);
		if (used || n->slowdown <= 1 || !node_usable(n)) {
			n->readmit_at = 0;
		} else if (n->readmit_at == 0) {
			n->readmit_after =
			        n->readmit_after > 0 ? 2 * n->readmit_after : READMIT_FACTOR * m->config->policy_terms.slower_for_s;
			n->readmit_at = m->now + n->readmit_after;
		} else if (m->now >= n->readmit_at) {
			set_slowdown(m, n, 1);
		}
	}
}

/* A node is as slow as the slowest of its devices. */
static void judge_all(struct hspmd_controller *m, const struct comparison *comparison)
{
	const struct bound_plan *l = m->current.bound_plan;
	for (size_t k = 0; k < m->nodes; k++) {
		struct node *n = m->node[k];
		double slowest = 0;
		for (int i = 0; i < l->devices; i++)
			if (l->device[i]->node == n)
				slowest = fmax(slowest, comparison[i].measured);
		if (slowest > 0 && n->part && node_usable(n))
			judge(m, n, slowest * planned_with(l, n));
	}
}

/* Returns false if the window must be longer. */
static bool window_is_full(const struct bound_plan *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->busy_count < SAMPLES_MIN || !(l->device[i]->expected_s > 0))
			return false;
	return true;
}

void straggler_tick(struct hspmd_controller *m)
{
	const struct bound_plan *l = m->current.bound_plan;
	if (m->current.phase != PHASE_TRAINING || m->now < m->straggler_check_at || m->shutting_down)
		return;
	m->straggler_check_at = m->now + least_window(m);
	if (window_is_full(l)) {
		struct comparison *comparison = hspmd_calloc((size_t)l->devices, sizeof *comparison);
		double *scratch = hspmd_calloc((size_t)l->devices, sizeof *scratch);
		if (comparison && scratch) {
			fill_comparisons(l, comparison);
			compare_devices(l, comparison, scratch);
			judge_all(m, comparison);
		} else {
			m->failed = true;
		}
		free(comparison);
		free(scratch);
		reset_window(m);
	}
	readmit_slow(m);
}

double straggler_deadline(const struct hspmd_controller *m)
{
	return m->current.phase == PHASE_TRAINING && !m->shutting_down ? m->straggler_check_at : INFINITY;
}
