/* SPDX-License-Identifier: Apache-2.0 */
/* Stragglers: devices that take longer over their share of a step than the plan says, for a while.
 *
 * What a device computed is compared with what it should have by the cost model, and this with the others of its kind (device type, size of group): an error of
 * the model or a slow day of the whole cluster concerns all alike. Kinds of which there is one are compared with everybody. A verdict needs WINDOWS means over a
 * third of the policy's `for_s` each that agree; between `back_below` and `slower_than` lies the hysteresis.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/run/machine_private.h"

#define WINDOWS 3
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

void pace_begin(struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	m->pace_next = INFINITY;
	if (!m->config->expect || m->config->site.slower_than <= 0 || l->devices < 2)
		return;
	double *busy = hspmd_calloc((size_t)l->devices, sizeof *busy);
	if (!busy) {
		m->failed = true;
		return;
	}
	if (!m->config->expect(m->config, l->plan, l->cluster, busy)) {
		for (int i = 0; i < l->devices; i++)
			l->device[i]->expected_s = busy[i];
		forget(m);
	}
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

/* Devices of the same type in groups of the same size are a kind. */
static void kinds(const struct layout *l, int *kind)
{
	int at = 0;
	for (int p = 0; p < l->plan->pipeline_count; p++)
		for (int s = 0; s < l->plan->pipelines[p].stage_count; s++) {
			const struct hspmd_stage *stage = &l->plan->pipelines[p].stages[s];
			for (int d = 0; d < stage->device_count; d++)
				kind[at++] = l->cluster->devices[stage->devices[d]].type + l->cluster->type_count * stage->device_count;
		}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* The lower median of those of one kind (-1: of all); *count: how many they are. `room` has space for all. */
static double middle(const double *ratio, const int *kind, int devices, int wanted, double *room, int *count)
{
	*count = 0;
	for (int i = 0; i < devices; i++)
		if (wanted < 0 || kind[i] == wanted)
			room[(*count)++] = ratio[i];
	qsort(room, (size_t)*count, sizeof *room, by_size);
	return room[(*count - 1) / 2];
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
	n->verdicts = verdict == 0 ? 0 : (n->verdicts > 0) == (verdict > 0) ? n->verdicts + verdict : verdict;
	if (abs(n->verdicts) >= WINDOWS)
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

static void compare(struct hspmd_machine *m, double *ratio, int *kind, double *room)
{
	const struct layout *l = m->current.layout;
	int count;
	kinds(l, kind);
	for (int i = 0; i < l->devices; i++)
		ratio[i] = l->device[i]->busy_s / l->device[i]->busy_count / l->device[i]->expected_s;
	for (size_t k = 0; k < m->nodes; k++) {
		struct node *n = m->node[k];
		double slowest = 0;
		for (int i = 0; i < l->devices; i++) {
			if (l->device[i]->node != n)
				continue;
			double usual = middle(ratio, kind, l->devices, kind[i], room, &count);
			if (count < 2)
				usual = middle(ratio, kind, l->devices, -1, room, &count);
			slowest = fmax(slowest, ratio[i] / usual * planned_with(l, n));
		}
		if (slowest > 0 && n->part && node_usable(n))
			judge(m, n, slowest);
	}
}

void pace_time(struct hspmd_machine *m)
{
	const struct layout *l = m->current.layout;
	if (m->current.stage != STAGE_TRAINING || m->now < m->pace_next || m->leaving)
		return;
	m->pace_next = m->now + least_window(m);
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->busy_count < SAMPLES || !(l->device[i]->expected_s > 0))
			return; /* the window is made longer */
	size_t n = (size_t)l->devices;
	double *ratio = hspmd_calloc(n, sizeof *ratio), *room = hspmd_calloc(n, sizeof *room);
	int *kind = hspmd_calloc(n, sizeof *kind);
	if (ratio && room && kind)
		compare(m, ratio, kind, room);
	else
		m->failed = true;
	free(ratio);
	free(room);
	free(kind);
	forget(m);
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
