/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/decision_state_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "policies/curve.h"

static double rate(const struct decision_job *j, const double *curve, const struct holding *h)
{
	double tokens = curve ? hspmd_curve_at(curve, j->e->curve_count, h->size) : j->slope * h->size;
	/* Renewal-reward theorem: 1/losses seconds of work between two losses, then the pause and the lost work. */
	return tokens / (1 + h->losses * (j->e->pause_s + j->e->lost_s));
}

/* log1p instead of log, so that the value is finite at rate 0; the scale is then a hundredth of the rate on the job's fewest nodes. */
static double value_of_rate(const struct decision_job *j, double rate)
{
	if (j->e->terms.by == HSPMD_SHARE_PROPORTIONAL)
		return j->e->terms.weight * log1p(rate / j->scale);
	return j->scale * rate;
}

double holding_value(const struct decision_job *j, const struct holding *h)
{
	return value_of_rate(j, rate(j, j->hull, h));
}

double holding_rate(const struct decision_job *j, const struct holding *h)
{
	return rate(j, j->hull ? j->e->tokens_per_s : NULL, h);
}

double holding_true_value(const struct decision_job *j, const struct holding *h)
{
	return value_of_rate(j, holding_rate(j, h));
}

double holding_pause_cost_per_s(const struct decision_job *j, const struct holding *h)
{
	return j->e->terms.by == HSPMD_SHARE_PROPORTIONAL ? j->e->terms.weight : holding_true_value(j, h);
}

static double relative_speed_of(const struct hspmd_snapshot_elastic *e, int type)
{
	return e->relative_speed && type >= 0 ? e->relative_speed[type] : 1;
}

struct holding holding_with_nodes(const struct decision_state *k, const struct decision_job *j, const struct holding *h, int class,
                                  int count)
{
	const struct hspmd_snapshot_class *c = &k->s->classes[class];
	struct holding r = *h;
	r.nodes += count;
	r.devices += count * c->devices;
	r.size += count * relative_speed_of(j->e, c->type);
	r.price += count * c->price_per_hour;
	r.losses = fmax(0, r.losses + count * c->losses_per_s);
	return r;
}

static bool type_allowed(const struct decision_state *k, const struct hspmd_policy_list *types, int type)
{
	for (int i = 0; i < types->count; i++)
		if (type >= 0 && !strcmp(types->items[i], k->s->types[type]))
			return true;
	return !types->count;
}

bool decision_type_allowed(const struct decision_state *k, const struct decision_job *j, int class)
{
	return type_allowed(k, &j->e->terms.device_types, k->s->classes[class].type);
}

bool decision_allowed(const struct decision_state *k, const struct decision_job *j, const struct holding *h, int class)
{
	const struct hspmd_policy_terms *t = &j->e->terms;
	return j->e->usable[class] && h->nodes <= j->e->max_nodes && h->nodes <= t->max_nodes && h->devices <= t->max_devices &&
	       h->price <= t->max_price_per_hour && decision_type_allowed(k, j, class);
}

/* How long the job will hold new nodes is not known: at least for the cooldown, and as a rule for as long again as it has held its present
 * ones. So a job that nobody resizes does not wait for ever because a gain is small, or one pause was long. */
static double expected_to_hold_s(const struct decision_state *k, const struct decision_job *j)
{
	double so_far = isfinite(j->e->resized_s) ? k->s->now_s - j->e->resized_s : 0;
	return fmin(fmax(fmax(j->e->terms.grow_cooldown_s, 60), so_far), j->e->remaining_s);
}

bool resize_pays_off(const struct decision_state *k, const struct decision_job *j, const struct holding *was, const struct holding *now)
{
	double before = holding_rate(j, was), gain = holding_rate(j, now) - before, held_s = expected_to_hold_s(k, j);
	return gain > 0 && gain >= j->e->terms.min_gain * before && gain * held_s > before * j->e->pause_s;
}

/* ---- setting up */

static int holder_of(const struct decision_state *k, int node)
{
	return k->s->nodes[node].state == HSPMD_SNAPSHOT_HELD ? k->s->nodes[node].holder : -1;
}

/* Lists the nodes of each job, in one array. */
static int list_held(struct decision_state *k)
{
	k->held = hspmd_calloc((size_t)k->s->node_count, sizeof *k->held);
	if (!k->held)
		return -1;
	for (int i = 0; i < k->s->node_count; i++)
		if (holder_of(k, i) >= 0)
			k->jobs[k->s->nodes[i].holder].held_count++;
	int at = 0;
	for (int i = 0; i < k->s->elastic_count; i++) {
		k->jobs[i].held = k->held + at;
		at += k->jobs[i].held_count;
		k->jobs[i].held_count = 0;
	}
	for (int i = 0; i < k->s->node_count; i++) {
		int holder = holder_of(k, i);
		if (holder >= 0)
			k->jobs[holder].held[k->jobs[holder].held_count++] = i;
	}
	return 0;
}

static int check_snapshot(const struct hspmd_snapshot *s, struct hspmd_error *err)
{
	for (int i = 0; i < s->node_count; i++) {
		const struct hspmd_snapshot_node *n = &s->nodes[i];
		bool held = n->state == HSPMD_SNAPSHOT_HELD && !(n->leaving && n->holder < 0);
		if (n->class < 0 || n->class >= s->class_count || (held && (n->holder < 0 || n->holder >= s->elastic_count)))
			return hspmd_fail(err, "snapshot: node %s names a class or holder that does not exist", n->name);
	}
	for (int i = 0; i < s->class_count; i++)
		if (s->classes[i].type >= s->type_count)
			return hspmd_fail(err, "snapshot: a class names a device type that does not exist");
	return 0;
}

/* A job without a curve is assumed to have the mean rate per node of the others, so that it is neither the first nor the last to shrink. */
static void mean_slope(struct decision_state *k)
{
	double sum = 0;
	int n = 0;
	for (int i = 0; i < k->s->elastic_count; i++) {
		const struct decision_job *j = &k->jobs[i];
		if (j->hull && j->was.size > 0) {
			sum += hspmd_curve_at(j->hull, j->e->curve_count, j->was.size) / j->was.size;
			n++;
		}
	}
	for (int i = 0; i < k->s->elastic_count; i++)
		k->jobs[i].slope = n ? sum / n : 1;
}

static void set_scale(struct decision_job *j)
{
	double fewest = j->hull ? hspmd_curve_at(j->hull, j->e->curve_count, j->e->min_nodes) : j->slope * j->e->min_nodes;
	j->scale = j->e->terms.weight;
	if (j->e->terms.by == HSPMD_SHARE_PROPORTIONAL)
		j->scale = fewest > 0 ? fewest / 100 : 1;
	else if (j->e->terms.by == HSPMD_SHARE_RELATIVE && fewest > 0)
		j->scale /= fewest;
}

int decision_state_open(struct decision_state *k, const struct hspmd_snapshot *s, struct hspmd_decision *d, struct hspmd_error *err)
{
	memset(d, 0, sizeof *d);
	*k = (struct decision_state){ .s = s, .d = d, .blocked = -1 };
	if (check_snapshot(s, err) < 0)
		return -1;
	k->jobs = hspmd_calloc((size_t)s->elastic_count, sizeof *k->jobs);
	k->taken = hspmd_calloc((size_t)s->node_count, sizeof *k->taken);
	k->wanted = hspmd_calloc((size_t)s->class_count, sizeof *k->wanted);
	k->limit_used = hspmd_calloc((size_t)s->limit_count, sizeof *k->limit_used);
	d->eligible_since_s = hspmd_calloc((size_t)s->pending_count, sizeof *d->eligible_since_s);
	d->why = hspmd_calloc((size_t)s->elastic_count, sizeof *d->why);
	d->wait_until_s = hspmd_calloc((size_t)s->elastic_count, sizeof *d->wait_until_s);
	if (!k->jobs || !k->taken || !k->wanted || !k->limit_used || !d->eligible_since_s || !d->why || !d->wait_until_s ||
	    list_held(k) < 0)
		return hspmd_fail_memory(err, "deciding");
	for (int i = 0; i < s->elastic_count; i++) {
		struct decision_job *j = &k->jobs[i];
		j->e = &s->elastic[i];
		if (!j->e->curve_count)
			continue;
		j->hull = hspmd_calloc((size_t)j->e->curve_count, sizeof *j->hull);
		if (!j->hull)
			return hspmd_fail_memory(err, "deciding");
		hspmd_curve_hull(j->e->tokens_per_s, j->e->curve_count, j->hull);
	}
	for (int i = 0; i < s->node_count; i++) {
		const struct hspmd_snapshot_node *n = &s->nodes[i];
		if (n->state == HSPMD_SNAPSHOT_HELD && !n->leaving)
			k->jobs[n->holder].was = holding_with_nodes(k, &k->jobs[n->holder], &k->jobs[n->holder].was, n->class, 1);
	}
	mean_slope(k);
	for (int i = 0; i < s->elastic_count; i++) {
		k->jobs[i].now = k->jobs[i].was;
		set_scale(&k->jobs[i]);
		d->wait_until_s[i] = NAN;
	}
	return 0;
}

void decision_state_close(struct decision_state *k)
{
	for (int i = 0; k->jobs && i < k->s->elastic_count; i++)
		free(k->jobs[i].hull);
	free(k->jobs);
	free(k->held);
	free(k->taken);
	free(k->wanted);
	free(k->limit_used);
}

/* ---- actions */

struct hspmd_resize_action *decision_new_action(struct decision_state *k, enum hspmd_resize_kind kind, int job, int n)
{
	struct hspmd_resize_action *actions = realloc(k->d->actions, ((size_t)k->d->count + 1) * sizeof *actions);
	if (!actions)
		return NULL;
	k->d->actions = actions;
	struct hspmd_resize_action *a = &actions[k->d->count];
	*a = (struct hspmd_resize_action){
		.kind = kind, .job = job, .for_pending = -1, .for_job = -1, .nodes = hspmd_calloc((size_t)n, sizeof *a->nodes)
	};
	if (!a->nodes)
		return NULL;
	k->d->count++;
	return a;
}

void decision_add_node(struct decision_state *k, struct hspmd_resize_action *a, int node)
{
	struct decision_job *j = &k->jobs[a->job];
	a->nodes[a->node_count++] = node;
	k->taken[node] = true;
	if (a->kind == HSPMD_RESIZE_SHRINK) {
		j->shrunk = true;
		j->now = holding_with_nodes(k, j, &j->now, k->s->nodes[node].class, -1);
	}
}

void decision_set_why(struct decision_state *k, int job, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(k->d->why[job], HSPMD_REASON_MAX, fmt, ap);
	va_end(ap);
}

void hspmd_decision_clear(struct hspmd_decision *d)
{
	for (int i = 0; i < d->count; i++)
		free(d->actions[i].nodes);
	free(d->actions);
	free(d->eligible_since_s);
	free(d->wait_until_s);
	free(d->why);
	memset(d, 0, sizeof *d);
}

bool decision_budget_is_spent(const struct decision_job *j)
{
	return j->e->spent_node_hours >= j->e->terms.budget_node_hours;
}

void decision_use_limits(struct decision_state *k, const struct decision_job *j, int count)
{
	for (int l = 0; l < k->s->limit_count && j->e->limit_cost; l++)
		k->limit_used[l] += count * j->e->limit_cost[l];
}

const struct hspmd_snapshot_limit *decision_limit_in_way(const struct decision_state *k, const struct decision_job *j,
                                                         const struct decision_job *from, int count)
{
	for (int l = 0; l < k->s->limit_count && j->e->limit_cost; l++) {
		double given = from && from->e->limit_cost ? from->e->limit_cost[l] : 0;
		double more = count * (j->e->limit_cost[l] - given);
		if (more > 0 && k->limit_used[l] + more > k->s->limits[l].left + 1e-9)
			return &k->s->limits[l];
	}
	return NULL;
}

static bool is_young(const struct decision_state *k, const struct decision_job *j, const struct hspmd_snapshot_node *node)
{
	return node->held_since_s > 0 && k->s->now_s - node->held_since_s < j->e->terms.min_life_s;
}

int decision_choose_nodes(const struct decision_state *k, int job, const unsigned char *usable, bool young, int n, int *out)
{
	const struct decision_job *j = &k->jobs[job];
	struct holding hold = j->now;
	int found = 0;
	while (found < n) {
		int best = -1;
		double least = INFINITY;
		for (int h = 0; h < j->held_count; h++) {
			int i = j->held[h];
			const struct hspmd_snapshot_node *node = &k->s->nodes[i];
			bool chosen = node->fixed || node->leaving || k->taken[i] || (usable && !usable[node->class]) ||
			              (!young && is_young(k, j, node));
			for (int c = 0; c < found && !chosen; c++)
				chosen = out[c] == i;
			if (chosen)
				continue;
			struct holding less = holding_with_nodes(k, j, &hold, node->class, -1);
			double loss = holding_value(j, &hold) - holding_value(j, &less);
			if (loss <= least) { /* if several are equal the last one, as in Slurm's own shrinking */
				least = loss;
				best = i;
			}
		}
		if (best < 0)
			break;
		hold = holding_with_nodes(k, j, &hold, k->s->nodes[best].class, -1);
		out[found++] = best;
	}
	return found;
}
