/* SPDX-License-Identifier: Apache-2.0 */
/* Hill climbing: the best exchange of two nodes, repeated until none helps. This is enough, because what helps is to move one holder of
 * each layer forward. */
#include "controller/solver/search/holders.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/losses.h"
#include "common/order.h"

#define EXPOSED 4.0        /* weight of a byte that may be lost, relative to a byte that moves: it will be copied that often soon enough */
#define WORK_MAX 20000000L /* most stages examined in total */
#define LEAST_GAIN 1e-6    /* least gain, relative to the cost before */

struct holders {
	struct hspmd_search *s;
	struct hspmd_losses l;
	int *edges, edge_count; /* layers at which a stage begins, and the end */
	double bytes;           /* bytes per parameter */
	int sets;               /* number of losses of several nodes other than by count */
	bool *refused;          /* per pair of nodes: the exchanged plan would be slower, or not fit */
	long work;
};

static void end(struct holders *h)
{
	hspmd_losses_free(&h->l);
	free(h->edges);
	free(h->refused);
}

static int begin(struct holders *h, const struct hspmd_plan *p)
{
	const struct hspmd_costs *c = h->s->costs;
	struct hspmd_error err;
	int count = 0, least = h->s->request->least_nodes;
	for (int i = 0; i < p->pipeline_count; i++)
		count += p->pipelines[i].stage_count;
	h->edges = hspmd_calloc((size_t)count + 1, sizeof *h->edges);
	if (!h->edges || hspmd_losses_make(c->cluster, NULL, 1, hspmd_losses_keep(c->cluster, NULL, least), &h->l, &err))
		return -1;
	count = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			h->edges[count++] = p->pipelines[i].stages[s].layers[0];
	h->edges[count++] = c->layer_count;
	qsort(h->edges, (size_t)count, sizeof *h->edges, hspmd_int_order);
	for (int i = 0; i < count; i++)
		if (!i || h->edges[i] != h->edges[h->edge_count - 1])
			h->edges[h->edge_count++] = h->edges[i];
	h->bytes = c->param_bytes + c->master_bytes + c->moment_bytes;
	h->sets = hspmd_losses_count(&h->l) - 1;
	return 0;
}

static const struct hspmd_stage *stage_with(const struct hspmd_pipeline *pipe, int layer)
{
	for (int s = 0; s < pipe->stage_count; s++)
		if (pipe->stages[s].layers[0] <= layer && layer < pipe->stages[s].layers[1])
			return &pipe->stages[s];
	return NULL;
}

/* The highest index of a stage's nodes: a shrink must leave that node for the stage to stay complete. */
static int highest(const struct holders *h, const struct hspmd_stage *st)
{
	const struct hspmd_cluster *c = h->s->costs->cluster;
	int most = HSPMD_LOSSES_MEMBER;
	for (int d = 0; d < st->device_count; d++)
		most = h->l.place[c->devices[st->devices[d]].node] > most ? h->l.place[c->devices[st->devices[d]].node] : most;
	return most;
}

static bool is_hit(const struct holders *h, const struct hspmd_stage *st, int set)
{
	const struct hspmd_cluster *c = h->s->costs->cluster;
	for (int d = 0; d < st->device_count; d++)
		if (hspmd_losses_takes(&h->l, set, c->devices[st->devices[d]].node))
			return true;
	return false;
}

/* Number of losses that hit all holders of this layer. */
static int losses_of(struct holders *h, const struct hspmd_plan *p, int layer)
{
	int lowest = INT_MAX, count = 0;
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_stage *st = stage_with(&p->pipelines[i], layer);
		int at = st ? highest(h, st) : INT_MAX;
		lowest = at < lowest ? at : lowest;
	}
	h->work += p->pipeline_count * (1 + h->sets);
	for (int set = 1; set <= h->sets; set++) {
		bool all = true;
		for (int i = 0; i < p->pipeline_count && all; i++) {
			const struct hspmd_stage *st = stage_with(&p->pipelines[i], layer);
			all = !st || is_hit(h, st, set);
		}
		count += all;
	}
	return count + (lowest >= h->l.keep ? lowest - h->l.keep + 1 : 0);
}

static double exposed(struct holders *h, const struct hspmd_plan *p)
{
	const double *sum = h->s->costs->params_sum;
	double all = 0;
	for (int e = 0; e + 1 < h->edge_count; e++)
		all += h->bytes * (sum[h->edges[e + 1]] - sum[h->edges[e]]) * losses_of(h, p, h->edges[e]);
	return all;
}

static bool alike(const struct hspmd_cluster *c, int a, int b)
{
	const struct hspmd_node *x = &c->nodes[a], *y = &c->nodes[b];
	for (int i = 0; i < x->device_count && x->device_count == y->device_count; i++)
		if (c->devices[x->first_device + i].type != c->devices[y->first_device + i].type)
			return false;
	return x->device_count == y->device_count;
}

static void exchange(const struct hspmd_cluster *c, struct hspmd_plan *p, int a, int b)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				int *device = &p->pipelines[i].stages[s].devices[d], node = c->devices[*device].node;
				if (node == a || node == b)
					*device += c->nodes[node == a ? b : a].first_device - c->nodes[node].first_device;
			}
}

/* Cost of a plan's placement; lower is better. *moved: the bytes that move. */
static double weigh(struct holders *h, const struct hspmd_plan *p, double than, double *moved)
{
	double value = EXPOSED * exposed(h, p);
	*moved = h->s->migration && value < than ? hspmd_migration_bytes(h->s->migration, p) : NAN;
	return value + (isnan(*moved) ? 0 : *moved);
}

/* Find the best exchange. Returns false if none helps or there is no time left to search. */
static bool best_exchange(struct holders *h, struct hspmd_plan *p, double now, int *first, int *second)
{
	const struct hspmd_cluster *c = h->s->costs->cluster;
	double least = now - LEAST_GAIN * now, moved;
	bool found = false;
	for (int a = 0; a < c->node_count; a++)
		for (int b = a + 1; b < c->node_count; b++) {
			if (h->work > WORK_MAX)
				return false;
			if (h->refused[a * c->node_count + b] || !alike(c, a, b))
				continue;
			exchange(c, p, a, b);
			double value = weigh(h, p, least, &moved);
			exchange(c, p, a, b);
			if (value >= least)
				continue;
			least = value;
			*first = a;
			*second = b;
			found = true;
		}
	return found;
}

static int climb(struct holders *h, struct hspmd_plan *p, double enough, double *moved)
{
	const struct hspmd_cluster *c = h->s->costs->cluster;
	double now = weigh(h, p, INFINITY, moved);
	int a, b;
	h->refused = hspmd_calloc((size_t)c->node_count * (size_t)c->node_count, sizeof *h->refused);
	if (!h->refused)
		return -1;
	while (now > 0 && best_exchange(h, p, now, &a, &b)) {
		exchange(c, p, a, b);
		if (hspmd_best_plans_time(h->s, p, NULL) <= enough) {
			now = weigh(h, p, INFINITY, moved);
			continue;
		}
		exchange(c, p, a, b);
		h->refused[a * c->node_count + b] = true;
	}
	return 0;
}

int hspmd_holders_spread(struct hspmd_search *s, struct hspmd_plan *plan, double enough, double *moved)
{
	struct holders h = { .s = s };
	if (s->request->least_nodes < 1 || plan->zero_stage || s->costs->cluster->node_count < 2 ||
	    s->costs->cluster->node_count > HSPMD_HOLDERS_NODES)
		return 0;
	int rc = begin(&h, plan) ? -1 : climb(&h, plan, enough, moved);
	end(&h);
	return rc;
}
