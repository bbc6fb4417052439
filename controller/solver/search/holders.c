/* SPDX-License-Identifier: Apache-2.0 */
/* Hill climbing: the best exchange of two nodes, repeated until none helps. This is enough, because what helps is to move one holder of
 * each layer forward.
 *
 * The nodes of the given plan are `places`; the climb only changes which node takes which place. What an exchange changes is computed from
 * the stages on its two places alone, and exchanges that cannot make anything safer are not looked at, so that plans over thousands of
 * nodes cost little. */
#include "controller/solver/search/holders.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/losses.h"
#include "common/order.h"

#define EXPOSED 4.0        /* weight of a byte that may be lost, relative to a byte that moves: it will be copied that often soon enough */
#define WORK_MAX 20000000L /* most stages examined in total */
#define LEAST_GAIN 1e-6    /* least gain, relative to the cost before */

/* A stage: the edges of its layers, and where its places stand in holders.places. */
struct holder {
	int edges[2], first, count;
	int highest; /* position of its last node in Slurm's order: a shrink must leave that node for the stage to stay complete */
};

struct holders {
	struct hspmd_search *s;
	const struct hspmd_cluster *c;
	struct hspmd_losses l;
	struct hspmd_migration_needs *needs; /* NULL: no current plan */
	int pipelines, stage_count, edge_count, sets;
	struct holder *stages;
	int *edges;                /* layers at which a stage begins, and the end */
	int *places;               /* of all stages */
	int *first_of, *stages_of; /* per place: index of its first stage in stages_of; stages */
	int *node, *place;         /* node of a place; place of a node */
	int *stage_at;             /* per edge and pipeline: the stage that holds the layers from there; -1: none */
	int *lowest;               /* per edge: the least `highest` of its stages */
	int *spared;               /* per edge and set of nodes that are lost together: stages of which no node is in the set */
	int *touched, *changed;    /* by the last exchange: stages, edges */
	bool *is_changed;          /* per edge: it is in changed */
	bool *doomed;              /* per node: one of its sets takes all holders of something */
	double *bytes;             /* per edge: of the layers from there to the next edge */
	bool *refused;             /* per pair of nodes: the exchanged plan would be slower, or not fit */
	int reach;                 /* nodes from this position on make nothing safer */
	long work;
};

static void end(struct holders *h)
{
	hspmd_losses_free(&h->l);
	hspmd_migration_needs_destroy(h->needs);
	free(h->stages);
	free(h->edges);
	free(h->places);
	free(h->first_of);
	free(h->stages_of);
	free(h->node);
	free(h->place);
	free(h->stage_at);
	free(h->lowest);
	free(h->spared);
	free(h->touched);
	free(h->changed);
	free(h->is_changed);
	free(h->doomed);
	free(h->bytes);
	free(h->refused);
}

static int find_edges(struct holders *h, const struct hspmd_plan *p)
{
	const struct hspmd_costs *c = h->s->costs;
	double state_bytes = c->param_bytes + c->master_bytes + c->moment_bytes;
	int count = 0;
	h->edges = hspmd_calloc((size_t)h->stage_count + 1, sizeof *h->edges);
	h->bytes = hspmd_calloc((size_t)h->stage_count + 1, sizeof *h->bytes);
	if (!h->edges || !h->bytes)
		return -1;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			h->edges[count++] = p->pipelines[i].stages[s].layers[0];
	h->edges[count++] = c->layer_count;
	qsort(h->edges, (size_t)count, sizeof *h->edges, hspmd_int_order);
	int all = 0;
	for (int i = 0; i < count; i++)
		if (!i || h->edges[i] != h->edges[all - 1])
			h->edges[all++] = h->edges[i];
	h->edge_count = all - 1;
	for (int e = 0; e < h->edge_count; e++)
		h->bytes[e] = state_bytes * (c->params_sum[h->edges[e + 1]] - c->params_sum[h->edges[e]]);
	return 0;
}

/* Add the stage with its places, each once. */
static void add_stage(struct holders *h, const struct hspmd_stage *st, int pipeline, int *stages, int *places)
{
	struct holder *g = &h->stages[*stages];
	*g = (struct holder){ .first = *places };
	for (int d = 0; d < st->device_count; d++) {
		int node = h->c->devices[st->devices[d]].node, k = g->first;
		while (k < *places && h->places[k] != node)
			k++;
		if (k == *places)
			h->places[(*places)++] = node;
	}
	g->count = *places - g->first;
	for (int k = 0; k < g->count; k++)
		h->first_of[h->places[g->first + k] + 1]++;
	while (h->edges[g->edges[0]] < st->layers[0])
		g->edges[0]++;
	for (g->edges[1] = g->edges[0]; h->edges[g->edges[1]] < st->layers[1]; g->edges[1]++)
		h->stage_at[g->edges[1] * h->pipelines + pipeline] = *stages;
	(*stages)++;
}

static int add_stages(struct holders *h, const struct hspmd_plan *p)
{
	size_t nodes = (size_t)h->c->node_count, cells = (size_t)h->edge_count * (size_t)h->pipelines;
	int devices = hspmd_plan_device_count(p) * p->virtual_stages, stages = 0, places = 0;
	h->stages = hspmd_calloc((size_t)h->stage_count, sizeof *h->stages);
	h->places = hspmd_calloc((size_t)devices, sizeof *h->places);
	h->stages_of = hspmd_calloc((size_t)devices, sizeof *h->stages_of);
	h->first_of = hspmd_calloc(nodes + 2, sizeof *h->first_of);
	h->stage_at = hspmd_calloc(cells, sizeof *h->stage_at);
	if (!h->stages || !h->places || !h->stages_of || !h->first_of || !h->stage_at)
		return -1;
	for (size_t i = 0; i < cells; i++)
		h->stage_at[i] = -1;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			add_stage(h, &p->pipelines[i].stages[s], i, &stages, &places);
	for (size_t n = 0; n <= nodes; n++)
		h->first_of[n + 1] += h->first_of[n];
	/* Filled from the end, the end of a place's list becomes its beginning. */
	for (int g = stages - 1; g >= 0; g--)
		for (int k = 0; k < h->stages[g].count; k++)
			h->stages_of[--h->first_of[h->places[h->stages[g].first + k] + 1]] = g;
	memmove(h->first_of, h->first_of + 1, (nodes + 1) * sizeof *h->first_of);
	return 0;
}

static int begin(struct holders *h, const struct hspmd_plan *p)
{
	struct hspmd_error err;
	size_t nodes = (size_t)h->c->node_count;
	if (hspmd_losses_make(h->c, NULL, 1, hspmd_losses_keep(h->c, NULL, h->s->request->least_nodes), &h->l, &err))
		return -1;
	h->pipelines = p->pipeline_count;
	for (int i = 0; i < p->pipeline_count; i++)
		h->stage_count += p->pipelines[i].stage_count;
	h->sets = h->l.racks + h->l.members;
	if (find_edges(h, p) || add_stages(h, p))
		return -1;
	h->lowest = hspmd_calloc((size_t)h->edge_count, sizeof *h->lowest);
	h->touched = hspmd_calloc((size_t)h->stage_count, sizeof *h->touched);
	h->changed = hspmd_calloc((size_t)h->edge_count, sizeof *h->changed);
	h->is_changed = hspmd_calloc((size_t)h->edge_count, sizeof *h->is_changed);
	h->spared = hspmd_calloc((size_t)h->edge_count * (size_t)h->sets + 1, sizeof *h->spared);
	h->doomed = hspmd_calloc(nodes, sizeof *h->doomed);
	h->node = hspmd_calloc(nodes, sizeof *h->node);
	h->place = hspmd_calloc(nodes, sizeof *h->place);
	h->refused = hspmd_calloc(nodes * nodes, sizeof *h->refused);
	if (!h->lowest || !h->touched || !h->changed || !h->is_changed || !h->spared || !h->doomed || !h->node || !h->place || !h->refused)
		return -1;
	for (int n = 0; n < h->c->node_count; n++)
		h->node[n] = h->place[n] = n;
	h->needs = h->s->migration ? hspmd_migration_needs_new(h->s->migration, p) : NULL;
	return h->s->migration && !h->needs ? -1 : 0;
}

/* ---- what a placement exposes */

/* The sets that contain a node: its rack's and its member job's. Returns their number. */
static int sets_of(const struct holders *h, int node, int sets[2])
{
	int count = 0;
	if (h->l.rack[node] >= 0)
		sets[count++] = h->l.rack[node];
	if (h->l.member[node] >= 0)
		sets[count++] = h->l.racks + h->l.member[node];
	return count;
}

static bool is_hit(const struct holders *h, const struct holder *g, int set)
{
	for (int k = 0; k < g->count; k++) {
		int own[2], count = sets_of(h, h->node[h->places[g->first + k]], own);
		for (int i = 0; i < count; i++)
			if (own[i] == set)
				return true;
	}
	return false;
}

static int highest(const struct holders *h, const struct holder *g)
{
	int most = HSPMD_LOSSES_MEMBER;
	for (int k = 0; k < g->count; k++) {
		int at = h->l.place[h->node[h->places[g->first + k]]];
		most = at > most ? at : most;
	}
	return most;
}

static int lowest_at(struct holders *h, int edge)
{
	int lowest = INT_MAX;
	for (int i = 0; i < h->pipelines; i++) {
		int g = h->stage_at[edge * h->pipelines + i];
		if (g >= 0 && h->stages[g].highest < lowest)
			lowest = h->stages[g].highest;
	}
	h->work += h->pipelines;
	return lowest;
}

/* Number of shrinks by count that leave no holder. */
static int shrinks(const struct holders *h, int lowest)
{
	return lowest >= h->l.keep ? lowest - h->l.keep + 1 : 0;
}

/* Count everything anew. Returns the bytes exposed, summed over the losses. */
static double exposed(struct holders *h)
{
	double all = 0;
	memset(h->spared, 0, ((size_t)h->edge_count * (size_t)h->sets + 1) * sizeof *h->spared);
	memset(h->doomed, 0, (size_t)h->c->node_count * sizeof *h->doomed);
	h->reach = HSPMD_LOSSES_MEMBER;
	for (int g = 0; g < h->stage_count; g++) {
		struct holder *st = &h->stages[g];
		st->highest = highest(h, st);
		for (int set = 0; set < h->sets; set++)
			for (int e = st->edges[0], hit = is_hit(h, st, set); !hit && e < st->edges[1]; e++)
				h->spared[e * h->sets + set]++;
		h->work += 1 + h->sets;
	}
	for (int e = 0; e < h->edge_count; e++) {
		h->lowest[e] = lowest_at(h, e);
		int losses = shrinks(h, h->lowest[e]);
		h->reach = losses && h->lowest[e] > h->reach ? h->lowest[e] : h->reach;
		for (int set = 0; set < h->sets; set++)
			losses += !h->spared[e * h->sets + set];
		all += h->bytes[e] * losses;
	}
	for (int n = 0; n < h->c->node_count; n++) {
		int sets[2], count = sets_of(h, n, sets);
		for (int e = 0; e < h->edge_count; e++)
			for (int i = 0; i < count; i++)
				h->doomed[n] = h->doomed[n] || !h->spared[e * h->sets + sets[i]];
	}
	return all;
}

/* ---- exchanges */

/* Fill `touched` with the stages on one of the two places. A stage on both does not change. Returns their number. */
static int find_touched(struct holders *h, int x, int y)
{
	int count = 0;
	for (int side = 0; side < 2; side++) {
		int at = side ? y : x, other = side ? x : y;
		for (int i = h->first_of[at]; i < h->first_of[at + 1]; i++) {
			const struct holder *g = &h->stages[h->stages_of[i]];
			bool both = false;
			for (int k = 0; k < g->count; k++)
				both = both || h->places[g->first + k] == other;
			if (!both)
				h->touched[count++] = h->stages_of[i];
		}
	}
	h->work += count;
	return count;
}

static int find_changed(struct holders *h, int touched)
{
	int count = 0;
	for (int i = 0; i < touched; i++) {
		const struct holder *g = &h->stages[h->touched[i]];
		for (int e = g->edges[0]; e < g->edges[1]; e++)
			if (!h->is_changed[e]) {
				h->is_changed[e] = true;
				h->changed[count++] = e;
			}
	}
	for (int i = 0; i < count; i++)
		h->is_changed[h->changed[i]] = false;
	return count;
}

/* The sets of two nodes. Returns their number. */
static int sets_of_both(const struct holders *h, int a, int b, int sets[4])
{
	int own[2], count = sets_of(h, a, sets), more = sets_of(h, b, own);
	for (int i = 0, was = count; i < more; i++)
		if (!was || (own[i] != sets[0] && own[i] != sets[was - 1]))
			sets[count++] = own[i];
	return count;
}

/* Add the touched stages to, or take them from, the counts of the sets that spare them. */
static void count_spared(struct holders *h, int touched, const int *sets, int set_count, int by)
{
	for (int i = 0; i < touched; i++) {
		const struct holder *g = &h->stages[h->touched[i]];
		for (int k = 0; k < set_count; k++)
			for (int e = g->edges[0], hit = is_hit(h, g, sets[k]); !hit && e < g->edges[1]; e++)
				h->spared[e * h->sets + sets[k]] += by;
	}
}

static double exposed_at(const struct holders *h, int changed, const int *sets, int set_count)
{
	double sum = 0;
	for (int i = 0; i < changed; i++) {
		int e = h->changed[i], losses = shrinks(h, h->lowest[e]);
		for (int k = 0; k < set_count; k++)
			losses += !h->spared[e * h->sets + sets[k]];
		sum += h->bytes[e] * losses;
	}
	return sum;
}

/* Exchange two nodes. Returns by how much the exposed bytes grow. */
static double exchange(struct holders *h, int a, int b)
{
	int x = h->place[a], y = h->place[b], sets[4], set_count = h->sets ? sets_of_both(h, a, b, sets) : 0;
	int touched = find_touched(h, x, y), changed = find_changed(h, touched);
	double before = exposed_at(h, changed, sets, set_count);
	count_spared(h, touched, sets, set_count, -1);
	h->place[a] = y;
	h->place[b] = x;
	h->node[x] = b;
	h->node[y] = a;
	count_spared(h, touched, sets, set_count, 1);
	for (int i = 0; i < touched; i++)
		h->stages[h->touched[i]].highest = highest(h, &h->stages[h->touched[i]]);
	for (int i = 0; i < changed; i++)
		h->lowest[h->changed[i]] = lowest_at(h, h->changed[i]);
	return exposed_at(h, changed, sets, set_count) - before;
}

/* By how much the bytes that move would grow if two nodes were exchanged. */
static double moved_more(const struct holders *h, int a, int b)
{
	int x = h->place[a], y = h->place[b];
	if (!h->needs)
		return 0;
	return hspmd_migration_node_bytes(h->needs, x, b) + hspmd_migration_node_bytes(h->needs, y, a) -
	       hspmd_migration_node_bytes(h->needs, x, a) - hspmd_migration_node_bytes(h->needs, y, b);
}

static bool alike(const struct hspmd_cluster *c, int a, int b)
{
	const struct hspmd_node *x = &c->nodes[a], *y = &c->nodes[b];
	for (int i = 0; i < x->device_count && x->device_count == y->device_count; i++)
		if (c->devices[x->first_device + i].type != c->devices[y->first_device + i].type)
			return false;
	return x->device_count == y->device_count;
}

/* Returns true if the exchange may make something safer: the earlier node brings a stage forward, or one of the nodes is in a set that
 * takes all holders of something. */
static bool may_help(const struct holders *h, int a, int b)
{
	int first = h->l.place[a] < h->l.place[b] ? h->l.place[a] : h->l.place[b];
	return (first < h->reach || h->doomed[a] || h->doomed[b]) && !h->refused[a * h->c->node_count + b] && alike(h->c, a, b);
}

/* Find the best exchange. least: gain in bytes. Returns false if none helps as much, or if there is no time left to search. */
static bool best_exchange(struct holders *h, double least, int *first, int *second)
{
	bool found = false;
	for (int a = 0; a < h->c->node_count; a++)
		for (int b = a + 1; b < h->c->node_count; b++) {
			if (!may_help(h, a, b))
				continue;
			if (h->work > WORK_MAX)
				return false;
			double safer = -EXPOSED * exchange(h, a, b);
			exchange(h, a, b);
			double gain = safer > least ? safer - moved_more(h, a, b) : 0;
			if (gain <= least)
				continue;
			least = gain;
			*first = a;
			*second = b;
			found = true;
		}
	return found;
}

/* ---- the climb */

static void exchange_devices(const struct hspmd_cluster *c, struct hspmd_plan *p, int a, int b)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				int *device = &p->pipelines[i].stages[s].devices[d], node = c->devices[*device].node;
				if (node == a || node == b)
					*device += c->nodes[node == a ? b : a].first_device - c->nodes[node].first_device;
			}
}

static int climb(struct holders *h, struct hspmd_plan *p, double enough)
{
	const struct hspmd_cluster *c = h->c;
	double moved = h->needs ? hspmd_migration_bytes(h->s->migration, p) : 0;
	int a = 0, b = 0;
	for (double exposes = exposed(h); exposes > 0; exposes = exposed(h)) {
		if (isnan(moved))
			return -1;
		if (!best_exchange(h, LEAST_GAIN * (EXPOSED * exposes + moved), &a, &b))
			return 0;
		double more = moved_more(h, a, b);
		exchange_devices(c, p, a, b);
		if (hspmd_best_plans_time(h->s, p, NULL) <= enough) {
			exchange(h, a, b);
			moved += more;
			continue;
		}
		exchange_devices(c, p, a, b);
		h->refused[a * c->node_count + b] = true;
	}
	return 0;
}

int hspmd_holders_spread(struct hspmd_search *s, struct hspmd_plan *plan, double enough, double *moved)
{
	struct holders h = { .s = s, .c = s->costs->cluster };
	if (s->request->least_nodes < 1 || plan->zero_stage || h.c->node_count < 2 || h.c->node_count > HSPMD_HOLDERS_NODES)
		return 0;
	int rc = begin(&h, plan) ? -1 : climb(&h, plan, enough);
	if (s->migration && !rc)
		*moved = hspmd_migration_bytes(s->migration, plan);
	end(&h);
	return rc;
}
