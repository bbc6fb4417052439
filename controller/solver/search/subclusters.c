/* SPDX-License-Identifier: Apache-2.0 */
/* A subcluster's estimate is a simple roofline, the arithmetic rate of its nodes divided by their slowdown, weighted with its price as in
 * the objective; it only orders the searches. Half of the searches go to the subclusters with the best estimates, the other half to the
 * neighbours of the best one found: one node more or less of a class, half of the class, none of it, and what the limits then allow
 * filled with the other classes. */
#include "controller/solver/search/subclusters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_speed.h"
#include "controller/solver/cost/costs.h"
#include "controller/solver/search/device_classes.h"

#define SUBCLUSTERS_ALL 4096 /* up to so many subclusters, all are considered */

struct node_class {
	int *nodes, count; /* in the order in which they are used */
	int devices;       /* per node: devices of types that may be used */
	double speed;      /* per node, in arbitrary units */
	double price;
};

struct subcluster {
	int nodes[HSPMD_DEVICE_CLASSES_MAX];
	double estimate; /* an approximate objective, to order subclusters that were not searched */
	double objective;
	bool searched, expanded; /* searched; its neighbours are listed */
};

struct hspmd_subclusters {
	const struct hspmd_cluster *c;
	const struct hspmd_solve_limits *limits;
	struct hspmd_device_classes *device_classes;
	bool *allowed; /* per device type: it may be used */
	int class_count, searched, searches_max;
	struct node_class node_classes[HSPMD_DEVICE_CLASSES_MAX];
	struct subcluster *subclusters;
	size_t count, capacity;
	int now; /* index of the one being searched */
	bool short_of_memory;
};

bool hspmd_limits_are_set(const struct hspmd_solve_limits *l)
{
	return l->max_devices > 0 || l->max_nodes > 0 || l->max_price_per_hour > 0 || l->cost_weight > 0;
}

bool hspmd_limits_bind(const struct hspmd_solve_limits *l, const struct hspmd_cluster *c)
{
	return (l->max_devices > 0 && l->max_devices < c->device_count) || (l->max_nodes > 0 && l->max_nodes < c->node_count) ||
	       l->max_price_per_hour > 0 || l->cost_weight > 0;
}

/* ---- estimates */

static int devices_of(const struct hspmd_subclusters *s, const struct subcluster *k)
{
	int devices = 0;
	for (int i = 0; i < s->class_count; i++)
		devices += k->nodes[i] * s->node_classes[i].devices;
	return devices;
}

static double price_of(const struct hspmd_subclusters *s, const struct subcluster *k)
{
	double price = 0;
	for (int i = 0; i < s->class_count; i++)
		price += k->nodes[i] * s->node_classes[i].price;
	return price;
}

/* The class whose last node gives up devices if there are too many: the slowest class with more than that many in a node; -1: none. */
static int class_to_trim(const struct hspmd_subclusters *s, const struct subcluster *k, int excess)
{
	int best = -1;
	for (int i = 0; i < s->class_count; i++) {
		const struct node_class *x = &s->node_classes[i], *y = best < 0 ? NULL : &s->node_classes[best];
		if (k->nodes[i] && x->devices > excess && (!y || x->speed * y->devices < y->speed * x->devices))
			best = i;
	}
	return best;
}

static int excess_of(const struct hspmd_subclusters *s, const struct subcluster *k)
{
	int devices = devices_of(s, k);
	return s->limits->max_devices > 0 && devices > s->limits->max_devices ? devices - s->limits->max_devices : 0;
}

static bool within(const struct hspmd_subclusters *s, const struct subcluster *k)
{
	int nodes = 0, excess = excess_of(s, k);
	for (int i = 0; i < s->class_count; i++) {
		if (k->nodes[i] < 0 || k->nodes[i] > s->node_classes[i].count)
			return false;
		nodes += k->nodes[i];
	}
	if (excess && class_to_trim(s, k, excess) < 0)
		return false;
	return nodes > 0 && (s->limits->max_nodes <= 0 || nodes <= s->limits->max_nodes) &&
	       (!(s->limits->max_price_per_hour > 0) || price_of(s, k) <= s->limits->max_price_per_hour * (1 + 1e-12));
}

/* Estimated objective, as if a step took one unit of work, divided evenly. */
static double estimate_of(const struct hspmd_subclusters *s, const struct subcluster *k)
{
	double speed = 0, price = price_of(s, k);
	int excess = excess_of(s, k), trimmed = excess ? class_to_trim(s, k, excess) : -1;
	for (int i = 0; i < s->class_count; i++)
		speed += k->nodes[i] * s->node_classes[i].speed;
	if (trimmed >= 0)
		speed -= s->node_classes[trimmed].speed * excess / s->node_classes[trimmed].devices;
	return (price > 0 ? pow(price, s->limits->cost_weight) : 1) / speed;
}

/* ---- which subclusters */

static bool is_full(const struct hspmd_subclusters *s, const struct subcluster *k)
{
	struct subcluster more = *k;
	for (int i = 0; i < s->class_count; i++) {
		more.nodes[i]++;
		if (within(s, &more))
			return false;
		more.nodes[i]--;
	}
	return true;
}

static bool contains(const struct hspmd_subclusters *s, const struct subcluster *a, const struct subcluster *b)
{
	for (int i = 0; i < s->class_count; i++)
		if (a->nodes[i] < b->nodes[i])
			return false;
	return true;
}

/* List a subcluster that is allowed and new. If cost does not count, a subcluster contained in another one cannot be better and is not
 * listed. */
static void list(struct hspmd_subclusters *s, struct subcluster k)
{
	if (!within(s, &k) || s->short_of_memory)
		return;
	for (size_t i = 0; i < s->count; i++)
		if (s->limits->cost_weight > 0 ? !memcmp(s->subclusters[i].nodes, k.nodes, sizeof k.nodes)
		                               : contains(s, &s->subclusters[i], &k))
			return;
	if (hspmd_array_grow(&s->subclusters, &s->capacity, s->count, sizeof *s->subclusters)) {
		s->short_of_memory = true;
		return;
	}
	k.estimate = estimate_of(s, &k);
	k.searched = k.expanded = false;
	s->subclusters[s->count++] = k;
}

/* Add as many nodes of class i as the limits allow. */
static void fill(const struct hspmd_subclusters *s, struct subcluster *k, int i)
{
	while (k->nodes[i]++ < s->node_classes[i].count && within(s, k))
		;
	k->nodes[i]--;
}

/* List the subcluster filled class after class, from `first` on, cyclically. */
static void list_filled(struct hspmd_subclusters *s, struct subcluster k, int first)
{
	for (int i = 0; i < s->class_count && !(s->limits->cost_weight > 0); i++)
		fill(s, &k, (first + i) % s->class_count);
	list(s, k);
}

static void list_all(struct hspmd_subclusters *s)
{
	struct subcluster k = { 0 };
	for (int i = 0; i < s->class_count;) {
		if (within(s, &k) && (s->limits->cost_weight > 0 || is_full(s, &k)))
			list(s, k);
		for (i = 0; i < s->class_count && ++k.nodes[i] > s->node_classes[i].count; i++)
			k.nodes[i] = 0;
	}
}

/* List the first subclusters: each class first, then the others in turn; and each class alone. */
static void list_first(struct hspmd_subclusters *s)
{
	for (int i = 0; i < s->class_count; i++) {
		struct subcluster k = { 0 };
		fill(s, &k, i);
		if (s->limits->cost_weight > 0)
			list(s, k);
		for (int j = 1; j < s->class_count; j++)
			fill(s, &k, (i + j) % s->class_count);
		list(s, k);
	}
}

/* List the subclusters that differ from the best one by a node or by half of a class. */
static void list_neighbours(struct hspmd_subclusters *s, struct subcluster best)
{
	for (int i = 0; i < s->class_count; i++) {
		int half = best.nodes[i] / 2, rest = (s->node_classes[i].count - best.nodes[i] + 1) / 2;
		const int changes[] = { -1, 1, -half, rest, -best.nodes[i] };
		for (size_t j = 0; j < sizeof changes / sizeof *changes; j++) {
			struct subcluster k = best;
			k.nodes[i] += changes[j];
			if (!changes[j] || k.nodes[i] < 0)
				continue;
			/* More nodes of one class are made possible by fewer of another. */
			for (int other = 0; other < s->class_count; other++) {
				struct subcluster with = k;
				while (changes[j] > 0 && other != i && with.nodes[other] > 0 && !within(s, &with))
					with.nodes[other]--;
				list_filled(s, with, other);
			}
		}
	}
}

/* ---- the classes */

static double node_speed(const struct hspmd_subclusters *s, const struct hspmd_node *n, enum hspmd_precision precision, int *devices)
{
	double flops = 0, moved = 0;
	bool all = true;
	*devices = 0;
	for (int d = n->first_device; d < n->first_device + n->device_count; d++) {
		const struct hspmd_device_type *t = &s->c->types[s->c->devices[d].type];
		if (!s->allowed[s->c->devices[d].type])
			continue;
		double rate = hspmd_device_flops(t, precision);
		(*devices)++;
		flops += rate;
		moved += t->gbytes_per_s * 1e9;
		all = all && rate > 0;
	}
	return (all ? flops : moved > 0 ? moved : *devices) / n->slowdown;
}

struct candidate {
	int node;
	bool in_use;
	double slowdown;
};

/* Order of nodes: those that the current plan uses, then the faster ones, then the cluster's order. */
static int by_use(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->in_use != y->in_use)
		return x->in_use ? -1 : 1;
	if (x->slowdown != y->slowdown)
		return x->slowdown < y->slowdown ? -1 : 1;
	return x->node - y->node;
}

static void mark_used(const struct hspmd_subclusters *s, const struct hspmd_solve_request *r, struct candidate *nodes)
{
	const struct hspmd_cluster *of = r->current_cluster ? r->current_cluster : s->c;
	for (int i = 0; r->current && i < r->current->pipeline_count; i++)
		for (int k = 0; k < r->current->pipelines[i].stage_count; k++) {
			const struct hspmd_stage *st = &r->current->pipelines[i].stages[k];
			for (int d = 0; d < st->device_count; d++) {
				int node = hspmd_cluster_find_node(s->c, of->nodes[of->devices[st->devices[d]].node].name);
				if (node >= 0)
					nodes[node].in_use = true;
			}
		}
}

static int add_classes(struct hspmd_subclusters *s, const struct hspmd_solve_request *r)
{
	struct candidate *nodes = hspmd_calloc((size_t)s->c->node_count, sizeof *nodes);
	int rc = nodes ? 0 : -1;
	for (int n = 0; !rc && n < s->c->node_count; n++)
		nodes[n] = (struct candidate){ n, false, s->c->nodes[n].slowdown };
	if (!rc)
		mark_used(s, r, nodes);
	for (int node_class = 0; !rc && node_class < HSPMD_DEVICE_CLASSES_MAX; node_class++) {
		struct node_class *x = &s->node_classes[s->class_count];
		int count = 0;
		for (int n = 0; n < s->c->node_count; n++)
			count += s->device_classes->node_class_of[n] == node_class;
		struct candidate *own = count ? hspmd_calloc((size_t)count, sizeof *own) : NULL;
		if (!count)
			continue;
		x->nodes = hspmd_calloc((size_t)count, sizeof *x->nodes);
		rc = own && x->nodes ? 0 : -1;
		for (int n = 0, at = 0; !rc && n < s->c->node_count; n++)
			if (s->device_classes->node_class_of[n] == node_class)
				own[at++] = nodes[n];
		if (!rc)
			qsort(own, (size_t)count, sizeof *own, by_use);
		for (int n = 0; !rc && n < count; n++)
			x->nodes[n] = own[n].node;
		free(own);
		x->count = count;
		s->class_count++;
		if (!rc) {
			x->price = s->c->nodes[x->nodes[0]].price_per_hour;
			x->speed = node_speed(s, &s->c->nodes[x->nodes[0]], r->precision, &x->devices);
		}
	}
	free(nodes);
	return rc;
}

static void allow(struct hspmd_subclusters *s)
{
	for (int t = 0; t < s->c->type_count; t++) {
		s->allowed[t] = s->limits->type_count == 0;
		for (int i = 0; i < s->limits->type_count; i++)
			s->allowed[t] = s->allowed[t] || !strcmp(s->limits->types[i], s->c->types[t].name);
	}
}

/* Fill err if not even one node, or part of one, is allowed: only the price can be the reason. */
static int fail_of_limits(const struct hspmd_subclusters *s, struct hspmd_error *err)
{
	const struct node_class *cheapest = &s->node_classes[0];
	for (int i = 1; i < s->class_count; i++)
		cheapest = s->node_classes[i].price < cheapest->price ? &s->node_classes[i] : cheapest;
	return hspmd_fail(err, "no node costs at most %g per hour: the cheapest of the %d, %s, costs %g", s->limits->max_price_per_hour,
	                  s->c->node_count, s->c->nodes[cheapest->nodes[0]].name, cheapest->price);
}

static int list_subclusters(struct hspmd_subclusters *s, struct hspmd_error *err)
{
	double all = 1;
	for (int i = 0; i < s->class_count; i++)
		all *= s->node_classes[i].count + 1.0;
	if (all <= SUBCLUSTERS_ALL)
		list_all(s);
	else
		list_first(s);
	if (s->short_of_memory)
		return hspmd_fail_memory(err, "keeping to the limits");
	return s->count ? 0 : fail_of_limits(s, err);
}

struct hspmd_subclusters *hspmd_subclusters_new(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                                                struct hspmd_error *err)
{
	struct hspmd_subclusters *s = hspmd_calloc(1, sizeof *s);
	bool *allowed = hspmd_calloc((size_t)cluster->type_count, sizeof *allowed);
	if (!s || !allowed) {
		free(s);
		free(allowed);
		hspmd_fail_memory(err, "keeping to the limits");
		return NULL;
	}
	*s = (struct hspmd_subclusters){ .c = cluster,
		                         .limits = &request->limits,
		                         .allowed = allowed,
		                         .now = -1,
		                         .searches_max = cluster->device_count <= 64     ? 48
		                                         : cluster->device_count <= 1024 ? 12
		                                                                         : 6 };
	allow(s);
	s->device_classes = hspmd_device_classes_new(cluster, s->allowed, err);
	if (s->device_classes && add_classes(s, request))
		hspmd_fail_memory(err, "keeping to the limits");
	else if (s->device_classes && !list_subclusters(s, err))
		return s;
	hspmd_subclusters_destroy(s);
	return NULL;
}

void hspmd_subclusters_destroy(struct hspmd_subclusters *s)
{
	if (!s)
		return;
	for (int i = 0; i < HSPMD_DEVICE_CLASSES_MAX; i++)
		free(s->node_classes[i].nodes);
	hspmd_device_classes_destroy(s->device_classes);
	free(s->allowed);
	free(s->subclusters);
	free(s);
}

/* ---- one after another */

/* Make a cluster of the nodes that the subcluster uses. */
static struct hspmd_cluster *make_subcluster(const struct hspmd_subclusters *s, const struct subcluster *k, struct hspmd_error *err)
{
	int count = 0, excess = excess_of(s, k), last = -1, trimmed = excess ? class_to_trim(s, k, excess) : -1;
	int *nodes = hspmd_calloc((size_t)s->c->node_count, sizeof *nodes);
	struct hspmd_cluster view = *s->c, *part = NULL; /* the same with less devices in the last node */
	view.nodes = hspmd_calloc((size_t)s->c->node_count, sizeof *view.nodes);
	if (!nodes || !view.nodes) {
		free(nodes);
		free(view.nodes);
		hspmd_fail_memory(err, "keeping to the limits");
		return NULL;
	}
	memcpy(view.nodes, s->c->nodes, (size_t)s->c->node_count * sizeof *view.nodes);
	for (int i = 0; i < s->class_count; i++)
		for (int n = 0; n < k->nodes[i]; n++, count++) {
			nodes[count] = s->node_classes[i].nodes[n];
			last = i == trimmed ? nodes[count] : last;
		}
	if (last >= 0)
		view.nodes[last].device_count -= excess;
	part = hspmd_cluster_part(&view, nodes, count, err);
	free(nodes);
	free(view.nodes);
	return part;
}

static int best_of(const struct hspmd_subclusters *s)
{
	int best = -1;
	for (size_t i = 0; i < s->count; i++)
		if (s->subclusters[i].searched && (best < 0 || s->subclusters[i].objective < s->subclusters[best].objective))
			best = (int)i;
	return best;
}

static int best_estimate(const struct hspmd_subclusters *s)
{
	int best = -1;
	for (size_t i = 0; i < s->count; i++)
		if (!s->subclusters[i].searched && (best < 0 || s->subclusters[i].estimate < s->subclusters[best].estimate))
			best = (int)i;
	return best;
}

int hspmd_subclusters_next(struct hspmd_subclusters *s, struct hspmd_cluster **part, struct hspmd_error *err)
{
	int best = best_of(s);
	*part = NULL;
	if (s->searched >= s->searches_max)
		return 0;
	/* Half of the searches are for the most promising subclusters, the others for neighbours of the best one found. */
	if (best >= 0 && !s->subclusters[best].expanded && (s->searched >= s->searches_max / 2 || best_estimate(s) < 0)) {
		for (size_t i = 0; i < s->count;)
			if (s->subclusters[i].searched)
				i++;
			else
				s->subclusters[i] = s->subclusters[--s->count];
		best = best_of(s);
		s->subclusters[best].expanded = true;
		list_neighbours(s, s->subclusters[best]);
	}
	s->now = best_estimate(s);
	if (s->short_of_memory)
		return hspmd_fail_memory(err, "keeping to the limits");
	if (s->now < 0)
		return 0;
	*part = make_subcluster(s, &s->subclusters[s->now], err);
	return *part ? 1 : -1;
}

void hspmd_subclusters_report(struct hspmd_subclusters *s, double objective)
{
	s->subclusters[s->now].searched = true;
	s->subclusters[s->now].objective = objective;
	s->searched++;
}

int hspmd_plan_rebind(struct hspmd_plan *plan, const struct hspmd_cluster *part, const struct hspmd_cluster *cluster,
                      struct hspmd_error *err)
{
	char name[256];
	for (int p = 0; p < plan->pipeline_count; p++)
		for (int s = 0; s < plan->pipelines[p].stage_count; s++)
			for (int d = 0; d < plan->pipelines[p].stages[s].device_count; d++) {
				int *device = &plan->pipelines[p].stages[s].devices[d];
				*device = hspmd_cluster_find_device(cluster, hspmd_cluster_device_address(part, *device, name, sizeof name),
				                                    err);
				if (*device < 0)
					return -1;
			}
	for (int i = 0; i < plan->predicted.device_count; i++) {
		int *device = &plan->predicted.devices[i];
		*device = hspmd_cluster_find_device(cluster, hspmd_cluster_device_address(part, *device, name, sizeof name), err);
		if (*device < 0)
			return -1;
	}
	return 0;
}
