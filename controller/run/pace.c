/* SPDX-License-Identifier: Apache-2.0 */
/* Stragglers: devices that take longer over their share of a step than the plan says, for a while.
 *
 * How long a device computed, over how long it should have by the cost model, is compared with the others of its kind: those of its device type that do the same
 * layers in groups of the same size. What the model takes wrongly, it takes wrongly for all of them. A device that is alone of its kind is compared with itself in
 * the first window of the generation (which it began with the slowdown that the plan knew of), and how that changed with how it changed for the others: a slow
 * day of the whole cluster makes nobody a straggler, and another's recovery nobody else. A verdict needs WINDOWS windows that agree, of a third of the policy's `for_s` each; between `back_below` and
 * `slower_than` lies the hysteresis.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/run/machine_private.h"

#define SAMPLES 2         /* the fewest that make a mean */
#define FORGIVE 10        /* times for_s: then a node that is left out for being slow is tried again; each time twice as long */

static double least_window(const struct hspmd_machine *m)
{
	return m->config->site.slower_for_s / WINDOWS;
}

static void forget(struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	for (int i = 0; l && i < l->devices; i++) {
		l->device[i]->busy_s = 0;
		l->device[i]->busy_count = 0;
	}
	m->pace_next = m->now + least_window(m);
}

static void set_expected(struct worker *w, double busy_s)
{
	w->expected_s = busy_s;
	w->first_ratio = 0;
}

void pace_begin(struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	m->pace_next = INFINITY;
	if (!m->config->expect || m->config->site.slower_than <= 0)
		return;
	double *busy = hspmd_calloc((size_t)l->devices, sizeof *busy);
	if (!busy) {
		m->failed = true;
		return;
	}
	/* One alone is compared with nobody; but what was left out may be forgiven. */
	bool known = l->devices > 1 && !m->config->expect(m->config, l->plan, l->cluster, busy);
	for (int i = 0; i < l->devices; i++)
		set_expected(l->device[i], known ? busy[i] : 0);
	forget(m);
	free(busy);
}

void pace_heard(struct worker *w, const json_t *message)
{
	json_t *s = json_object_get(message, "compute_s");
	if (!json_is_number(s) || !(json_number_value(s) > 0))
		return;
	w->busy_s += json_number_value(s);
	w->busy_count++;
}

/* What is compared: a row a device of the plan. */
struct row {
	const struct hspmd_stage *stage;
	int micro_batch, type;
	int kind;      /* row of the first device of the same kind */
	double ratio;  /* busy over expected */
	double change; /* of ratio, since the generation's first window */
	double is;     /* times as long as usual, by what it was planned with */
};

static bool same_kind(const struct row *a, const struct row *b)
{
	return a->stage->layers[0] == b->stage->layers[0] && a->stage->layers[1] == b->stage->layers[1] && a->stage->device_count == b->stage->device_count &&
	       a->micro_batch == b->micro_batch && a->type == b->type;
}

static void fill(const struct layout *l, struct row *row)
{
	int at = 0;
	for (int p = 0; p < l->plan->pipeline_count; p++)
		for (int s = 0; s < l->plan->pipelines[p].stage_count / l->plan->virtual_stages; s++) {
			const struct hspmd_stage *stage = &l->plan->pipelines[p].stages[s];
			for (int d = 0; d < stage->device_count; d++)
				row[at++] = (struct row){ .stage = stage, .micro_batch = l->plan->pipelines[p].micro_batch,
							  .type = l->cluster->devices[stage->devices[d]].type };
		}
	for (int i = 0; i < l->devices; i++) {
		struct worker *w = l->device[i];
		while (row[i].kind < i && !same_kind(&row[i], &row[row[i].kind]))
			row[i].kind++;
		row[i].ratio = w->busy_s / w->busy_count / w->expected_s;
		if (w->first_ratio <= 0)
			w->first_ratio = row[i].ratio;
		row[i].change = row[i].ratio / w->first_ratio;
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Of two in the middle the lower or the upper one. */
static double median(double *value, int count, bool upper)
{
	qsort(value, (size_t)count, sizeof *value, by_size);
	return value[(count - !upper) / 2];
}

static double lower_median(double *value, int count)
{
	return median(value, count, false);
}

/* How a device has changed that is alone of its kind. The others' change is taken off where it goes the same way: that one of them was slow or has recovered is not
 * this one's doing. */
static double changed(const struct layout *l, const struct row *row, int self, double *room)
{
	double own = row[self].change;
	int n = 0;
	for (int i = 0; i < l->devices; i++)
		if (i != self)
			room[n++] = row[i].change;
	double usual = n ? median(room, n, own < 1) : 1;
	return own > 1 ? fmax(1, own / fmax(1, usual)) : fmin(1, own / fmin(1, usual));
}

static void compare(const struct layout *l, struct row *row, double *room)
{
	int n;
	for (int k = 0; k < l->devices; k++) {
		if (row[k].kind != k)
			continue;
		n = 0;
		for (int i = k; i < l->devices; i++)
			if (row[i].kind == k)
				room[n++] = row[i].ratio;
		double usual = lower_median(room, n);
		for (int i = k; i < l->devices; i++)
			if (row[i].kind == k)
				row[i].is = n > 1 ? row[i].ratio / usual : changed(l, row, i, room);
	}
}

/* What the plan took the node for, above what its own agent said. */
static double planned_with(const struct layout *l, const struct node *n)
{
	int at = hspmd_cluster_node(l->cluster, n->name);
	return at >= 0 && n->base > 0 ? l->cluster->nodes[at].slowdown / n->base : 1;
}

static void declare(struct hspmd_machine *m, struct node *n, double slowdown)
{
	bool slow = slowdown > n->slowdown;
	n->slowdown = slowdown;
	n->part->nodes[0].slowdown = n->base * slowdown;
	n->verdicts = 0;
	if (slowdown > 1)
		note_event(m, "straggler", "node %s takes %.2f times as long as it should%s", n->name, slowdown, slow ? "" : ", less than before");
	else
		note_event(m, "straggler", "node %s is as fast as it should be again", n->name);
	want_plan(m, "straggler");
}

static void judge(struct hspmd_machine *m, struct node *n, double is)
{
	const struct run_site_terms *t = &m->config->site;
	double better = n->slowdown / t->slower_than;
	int verdict = is > n->slowdown * t->slower_than ? 1 : n->slowdown > 1 && (is < t->back_below || is < better) ? -1 : 0;
	bool again = verdict && (n->verdicts > 0 ? verdict > 0 : n->verdicts < 0 && verdict < 0);
	n->verdicts = verdict + (again ? n->verdicts : 0);
	n->evidence[abs(n->verdicts) % WINDOWS] = is;
	if (abs(n->verdicts) < WINDOWS)
		return;
	is = lower_median(n->evidence, WINDOWS); /* it may have become slow in the middle of the first */
	declare(m, n, is < t->back_below ? 1 : fmax(1, round(is * 20) / 20));
}

/* Nobody knows how fast a node is that has nothing to do. */
static void forgive(struct hspmd_machine *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		bool used = false;
		for (int k = 0; k < n->workers; k++)
			used |= layout_uses(m->current.layout, n->worker[k]);
		if (used || n->slowdown <= 1 || !node_usable(n)) {
			n->forgive_at = 0;
		} else if (n->forgive_at == 0) {
			n->forgive_after = n->forgive_after > 0 ? 2 * n->forgive_after : FORGIVE * m->config->site.slower_for_s;
			n->forgive_at = m->now + n->forgive_after;
		} else if (m->now >= n->forgive_at) {
			declare(m, n, 1);
		}
	}
}

/* A node is as slow as the slowest of its devices. */
static void judge_all(struct hspmd_machine *m, const struct row *row)
{
	const struct layout *l = m->current.layout;
	for (size_t k = 0; k < m->nodes; k++) {
		struct node *n = m->node[k];
		double slowest = 0;
		for (int i = 0; i < l->devices; i++)
			if (l->device[i]->node == n)
				slowest = fmax(slowest, row[i].is);
		if (slowest > 0 && n->part && node_usable(n))
			judge(m, n, slowest * planned_with(l, n));
	}
}

/* Else the window is made longer. */
static bool window_is_full(const struct layout *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->busy_count < SAMPLES || !(l->device[i]->expected_s > 0))
			return false;
	return true;
}

void pace_time(struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	if (m->current.stage != STAGE_TRAINING || m->now < m->pace_next || m->leaving)
		return;
	m->pace_next = m->now + least_window(m);
	if (window_is_full(l)) {
		struct row *row = hspmd_calloc((size_t)l->devices, sizeof *row);
		double *room = hspmd_calloc((size_t)l->devices, sizeof *room);
		if (row && room) {
			fill(l, row);
			compare(l, row, room);
			judge_all(m, row);
		} else {
			m->failed = true;
		}
		free(row);
		free(room);
		forget(m);
	}
	forgive(m);
}

double pace_deadline(const struct hspmd_machine *m)
{
	return m->current.stage == STAGE_TRAINING && !m->leaving ? m->pace_next : INFINITY;
}

bool pace_worth(struct hspmd_machine *m, const struct hspmd_plan *plan, const json_t *stay)
{
	double now = json_number_value(stay), then = plan->predicted.step_s;
	if (!(now > 0) || !(then > 0))
		return true;
	double gain = 1 - then / now, left = (double)(m->config->job->steps - m->told) * m->step_s;
	bool worth = gain >= m->config->site.min_gain && gain * left > m->pause_s;
	if (!worth)
		note_event(m, "straggler", "the plan stays: another would be %.1f %% faster and save %.1f s, and the change would cost %.1f s", 100 * fmax(0, gain),
			   fmax(0, gain) * left, m->pause_s);
	return worth;
}
