/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/desk.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "policies/curve.h"

static double rate(const struct desk_job *j, const double *curve, const struct desk_hold *h)
{
	double tokens = curve ? hspmd_curve_at(curve, j->e->curve_count, h->size) : j->slope * h->size;
	/* Renewal-reward: between two losses 1/losses seconds are worked, then pause and lost work go by. */
	return tokens / (1 + h->losses * (j->e->pause_s + j->e->lost_s));
}

/* The logarithm is bent so that it is finite where nothing is made; a job's scale is then a hundredth of its rate on its fewest nodes. */
static double worth(const struct desk_job *j, double rate)
{
	if (j->e->terms.by == HSPMD_SHARE_PROPORTIONAL)
		return j->e->terms.weight * log1p(rate / j->scale);
	return j->scale * rate;
}

double desk_value(const struct desk_job *j, const struct desk_hold *h)
{
	return worth(j, rate(j, j->hull, h));
}

double desk_rate(const struct desk_job *j, const struct desk_hold *h)
{
	return rate(j, j->hull ? j->e->tokens_per_s : NULL, h);
}

double desk_true_value(const struct desk_job *j, const struct desk_hold *h)
{
	return worth(j, desk_rate(j, h));
}

double desk_whole(const struct desk_job *j, const struct desk_hold *h)
{
	return j->e->terms.by == HSPMD_SHARE_PROPORTIONAL ? j->e->terms.weight : desk_true_value(j, h);
}

static double worth_of(const struct hspmd_site_elastic *e, int type)
{
	return e->worth && type >= 0 ? e->worth[type] : 1;
}

struct desk_hold desk_with(const struct desk *k, const struct desk_job *j, const struct desk_hold *h, int class, int count)
{
	const struct hspmd_site_class *c = &k->s->classes[class];
	struct desk_hold r = *h;
	r.nodes += count;
	r.devices += count * c->devices;
	r.size += count * worth_of(j->e, c->type);
	r.price += count * c->price_per_hour;
	r.losses = fmax(0, r.losses + count * c->losses_per_s);
	return r;
}

static bool type_allowed(const struct desk *k, const struct hspmd_policy_list *types, int type)
{
	for (int i = 0; i < types->count; i++)
		if (type >= 0 && !strcmp(types->items[i], k->s->types[type]))
			return true;
	return !types->count;
}

bool desk_type_allowed(const struct desk *k, const struct desk_job *j, int class)
{
	return type_allowed(k, &j->e->terms.device_types, k->s->classes[class].type);
}

bool desk_allowed(const struct desk *k, const struct desk_job *j, const struct desk_hold *h, int class)
{
	const struct hspmd_policy_terms *t = &j->e->terms;
	return j->e->usable[class] && h->nodes <= j->e->max_nodes && h->nodes <= t->max_nodes && h->devices <= t->max_devices &&
	       h->price <= t->max_price_per_hour && desk_type_allowed(k, j, class);
}

bool desk_worth_it(const struct desk_job *j, const struct desk_hold *was, const struct desk_hold *now)
{
	double before = desk_rate(j, was), gain = desk_rate(j, now) - before;
	double held_s = fmin(fmax(j->e->terms.grow_cooldown_s, 60), j->e->remaining_s);
	return gain > 0 && gain >= j->e->terms.min_gain * before && gain * held_s > before * j->e->pause_s;
}

/* ---- setting up */

static int holder_of(const struct desk *k, int node)
{
	return k->s->nodes[node].state == HSPMD_SITE_HELD ? k->s->nodes[node].holder : -1;
}

/* The nodes of each job, in one array. */
static int list_held(struct desk *k)
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

static int check_site(const struct hspmd_site *s, struct hspmd_error *err)
{
	for (int i = 0; i < s->node_count; i++) {
		const struct hspmd_site_node *n = &s->nodes[i];
		bool held = n->state == HSPMD_SITE_HELD && !(n->leaving && n->holder < 0);
		if (n->class < 0 || n->class >= s->class_count || (held && (n->holder < 0 || n->holder >= s->elastic_count)))
			return hspmd_fail(err, "snapshot: node %s names a class or holder that is not there", n->name);
	}
	for (int i = 0; i < s->class_count; i++)
		if (s->classes[i].type >= s->type_count)
			return hspmd_fail(err, "snapshot: a class names a device type that is not there");
	return 0;
}

/* Jobs whose controllers told no curve are taken to do on a node what the others do in the mean: not first to give, not last. */
static void mean_slope(struct desk *k)
{
	double sum = 0;
	int n = 0;
	for (int i = 0; i < k->s->elastic_count; i++) {
		const struct desk_job *j = &k->jobs[i];
		if (j->hull && j->was.size > 0) {
			sum += hspmd_curve_at(j->hull, j->e->curve_count, j->was.size) / j->was.size;
			n++;
		}
	}
	for (int i = 0; i < k->s->elastic_count; i++)
		k->jobs[i].slope = n ? sum / n : 1;
}

static void set_scale(struct desk_job *j)
{
	double fewest = j->hull ? hspmd_curve_at(j->hull, j->e->curve_count, j->e->min_nodes) : j->slope * j->e->min_nodes;
	j->scale = j->e->terms.weight;
	if (j->e->terms.by == HSPMD_SHARE_PROPORTIONAL)
		j->scale = fewest > 0 ? fewest / 100 : 1;
	else if (j->e->terms.by == HSPMD_SHARE_RELATIVE && fewest > 0)
		j->scale /= fewest;
}

int desk_open(struct desk *k, const struct hspmd_site *s, struct hspmd_decision *d, struct hspmd_error *err)
{
	memset(d, 0, sizeof *d);
	*k = (struct desk){ .s = s, .d = d, .blocked = -1 };
	if (check_site(s, err) < 0)
		return -1;
	k->jobs = hspmd_calloc((size_t)s->elastic_count, sizeof *k->jobs);
	k->taken = hspmd_calloc((size_t)s->node_count, sizeof *k->taken);
	k->wanted = hspmd_calloc((size_t)s->class_count, sizeof *k->wanted);
	d->could_start_s = hspmd_calloc((size_t)s->pending_count, sizeof *d->could_start_s);
	d->why = hspmd_calloc((size_t)s->elastic_count, sizeof *d->why);
	if (!k->jobs || !k->taken || !k->wanted || !d->could_start_s || !d->why || list_held(k) < 0)
		return hspmd_fail_memory(err, "deciding");
	for (int i = 0; i < s->elastic_count; i++) {
		struct desk_job *j = &k->jobs[i];
		j->e = &s->elastic[i];
		if (!j->e->curve_count)
			continue;
		j->hull = hspmd_calloc((size_t)j->e->curve_count, sizeof *j->hull);
		if (!j->hull)
			return hspmd_fail_memory(err, "deciding");
		hspmd_curve_hull(j->e->tokens_per_s, j->e->curve_count, j->hull);
	}
	for (int i = 0; i < s->node_count; i++) {
		const struct hspmd_site_node *n = &s->nodes[i];
		if (n->state == HSPMD_SITE_HELD && !n->leaving)
			k->jobs[n->holder].was = desk_with(k, &k->jobs[n->holder], &k->jobs[n->holder].was, n->class, 1);
	}
	mean_slope(k);
	for (int i = 0; i < s->elastic_count; i++) {
		k->jobs[i].now = k->jobs[i].was;
		set_scale(&k->jobs[i]);
	}
	return 0;
}

void desk_close(struct desk *k)
{
	for (int i = 0; k->jobs && i < k->s->elastic_count; i++)
		free(k->jobs[i].hull);
	free(k->jobs);
	free(k->held);
	free(k->taken);
	free(k->wanted);
}

/* ---- actions */

struct hspmd_action *desk_action(struct desk *k, enum hspmd_action_kind kind, int job, int n)
{
	struct hspmd_action *actions = realloc(k->d->actions, ((size_t)k->d->count + 1) * sizeof *actions);
	if (!actions)
		return NULL;
	k->d->actions = actions;
	struct hspmd_action *a = &actions[k->d->count];
	*a = (struct hspmd_action){
		.kind = kind, .job = job, .for_pending = -1, .for_job = -1, .nodes = hspmd_calloc((size_t)n, sizeof *a->nodes)
	};
	if (!a->nodes)
		return NULL;
	k->d->count++;
	return a;
}

void desk_action_node(struct desk *k, struct hspmd_action *a, int node)
{
	struct desk_job *j = &k->jobs[a->job];
	a->nodes[a->node_count++] = node;
	k->taken[node] = true;
	if (a->kind == HSPMD_SHRINK) {
		j->gave = true;
		j->now = desk_with(k, j, &j->now, k->s->nodes[node].class, -1);
	}
}

void desk_why(struct desk *k, int job, const char *fmt, ...)
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
	free(d->could_start_s);
	free(d->why);
	memset(d, 0, sizeof *d);
}

int desk_choose(const struct desk *k, int job, const unsigned char *usable, int n, int *out)
{
	const struct desk_job *j = &k->jobs[job];
	struct desk_hold hold = j->now;
	int found = 0;
	while (found < n) {
		int best = -1;
		double least = INFINITY;
		for (int h = 0; h < j->held_count; h++) {
			int i = j->held[h];
			const struct hspmd_site_node *node = &k->s->nodes[i];
			bool chosen = node->fixed || node->leaving || k->taken[i] || (usable && !usable[node->class]);
			for (int c = 0; c < found && !chosen; c++)
				chosen = out[c] == i;
			if (chosen)
				continue;
			struct desk_hold less = desk_with(k, j, &hold, node->class, -1);
			double loss = desk_value(j, &hold) - desk_value(j, &less);
			if (loss <= least) { /* of equal ones the last, as Slurm's own shrinking does */
				least = loss;
				best = i;
			}
		}
		if (best < 0)
			break;
		hold = desk_with(k, j, &hold, k->s->nodes[best].class, -1);
		out[found++] = best;
	}
	return found;
}
