/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient synchronisation, layer by layer between whichever stages hold the layer (after AutoHet, arXiv 2512.20953, section 4.3, and HSPMD,
 * 2504.20490).
 *
 * Layers that lie in the same stage of every pipeline make one group. Its holders form a ring in the order of their nodes, so that no node's
 * network is crossed more often than it must be; each hop carries 2 (n - 1) chunks of 1 / n of the gradients, spread over the holder's
 * devices. A group starts when all its holders have done their last backward pass, so the groups of later stages hide behind the drain of
 * the pipeline. What leaves a node leaves through one network: groups queue for it in the order they start.
 */
#include "controller/solver/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

struct holder {
	int stage; /* in the timing's array */
	const struct hspmd_stage *s;
};

struct group {
	double start, params;
	int count;
	struct holder *holders;
};

/* What one group puts on the way from one node to another. */
struct flow {
	int from_node, to_node;
	int from, to;     /* a device on each side */
	int senders, receivers;
	double bytes;     /* of one ring step, all senders together */
};

static int by_node(const void *a, const void *b)
{
	const struct holder *x = a, *y = b;
	int dx = x->s->devices[0], dy = y->s->devices[0];
	return dx < dy ? -1 : dx > dy;
}

static int by_start(const void *a, const void *b)
{
	const struct group *x = a, *y = b;
	return x->start < y->start ? -1 : x->start > y->start ? 1 : 0;
}

static int by_nodes(const void *a, const void *b)
{
	const struct flow *x = a, *y = b;
	if (x->from_node != y->from_node)
		return x->from_node < y->from_node ? -1 : 1;
	return x->to_node < y->to_node ? -1 : x->to_node > y->to_node;
}

/* One ring's hops as flows, those between the same nodes joined. Count. */
static int ring_flows(const struct hspmd_costs *c, const struct group *g, struct flow *flows)
{
	int n = g->count;
	for (int i = 0; i < n; i++) {
		const struct hspmd_stage *a = g->holders[i].s, *b = g->holders[(i + 1) % n].s;
		flows[i] = (struct flow){ c->cluster->devices[a->devices[0]].node, c->cluster->devices[b->devices[0]].node, a->devices[0],
					  b->devices[0], a->device_count, b->device_count, g->params * c->grad_bytes / n };
	}
	qsort(flows, (size_t)n, sizeof *flows, by_nodes);
	int kept = 0;
	for (int i = 1; i < n; i++) {
		if (by_nodes(&flows[kept], &flows[i])) {
			flows[++kept] = flows[i];
			continue;
		}
		flows[kept].senders += flows[i].senders;
		flows[kept].receivers += flows[i].receivers;
		flows[kept].bytes += flows[i].bytes;
	}
	return kept + 1;
}

/* Run one group's ring over the networks; net_free[node] is when a node's way out is free. */
static int run_group(struct hspmd_costs *c, struct group *g, struct flow *flows, double *net_free, double *end, struct hspmd_error *err)
{
	*end = g->start;
	if (g->count < 2 || g->params <= 0)
		return 0;
	qsort(g->holders, (size_t)g->count, sizeof *g->holders, by_node);
	int n = ring_flows(c, g, flows), steps = 2 * (g->count - 1);
	for (int i = 0; i < n; i++) {
		const struct flow *f = &flows[i];
		double step = hspmd_costs_transfer(c, f->from, f->to, f->senders, f->receivers, f->bytes, err);
		if (step < 0)
			return -1;
		double start = g->start;
		if (f->from_node != f->to_node) {
			double network = c->cluster->nodes[f->from_node].network_gbytes_per_s * 1e9;
			if (network > 0)
				step = fmax(step, f->bytes / network);
			start = fmax(start, net_free[f->from_node]);
			net_free[f->from_node] = start + steps * step;
		}
		*end = fmax(*end, start + steps * step);
	}
	return 0;
}

static int collect(const struct hspmd_costs *c, const struct hspmd_plan *p, const struct hspmd_timing *t, struct group *groups, struct holder *holders)
{
	int *at = hspmd_calloc((size_t)p->pipeline_count, sizeof *at); /* each pipeline's stage of the layer */
	int count = 0;
	if (!at)
		return -1;
	for (int layer = 0; layer < c->layer_count;) {
		int end = c->layer_count;
		struct group *g = &groups[count];
		*g = (struct group){ .count = p->pipeline_count, .holders = holders + (size_t)count * (size_t)p->pipeline_count };
		for (int i = 0; i < p->pipeline_count; i++) {
			const struct hspmd_pipeline *pipe = &p->pipelines[i];
			while (at[i] < pipe->stage_count - 1 && pipe->stages[at[i]].layers[1] <= layer)
				at[i]++;
			end = pipe->stages[at[i]].layers[1] < end ? pipe->stages[at[i]].layers[1] : end;
			g->holders[i] = (struct holder){ t->first_stage[i] + at[i], &pipe->stages[at[i]] };
			g->start = fmax(g->start, t->stages[g->holders[i].stage].end);
		}
		if (end <= layer)
			end = c->layer_count;
		g->params = c->params_sum[end] - c->params_sum[layer];
		count++;
		layer = end;
	}
	free(at);
	return count;
}

int hspmd_sync(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	size_t pipes = (size_t)p->pipeline_count, most = (size_t)c->layer_count;
	most = (size_t)t->stage_total < most ? (size_t)t->stage_total : most;
	struct group *groups = hspmd_calloc(most, sizeof *groups);
	struct holder *holders = hspmd_calloc(most * pipes, sizeof *holders);
	struct flow *flows = hspmd_calloc(pipes, sizeof *flows);
	double *net_free = hspmd_calloc((size_t)c->cluster->node_count, sizeof *net_free);
	int rc = -1, count = groups && holders && flows && net_free ? collect(c, p, t, groups, holders) : -1;
	if (count < 0) {
		hspmd_fail_memory(err, "planning the gradients' synchronisation");
		goto out;
	}
	for (int i = 0; i < t->stage_total; i++)
		t->stages[i].sync_start = t->stages[i].sync_end = t->stages[i].end;
	qsort(groups, (size_t)count, sizeof *groups, by_start);
	for (int i = 0; i < count; i++) {
		double end;
		if (run_group(c, &groups[i], flows, net_free, &end, err))
			goto out;
		for (int k = 0; k < groups[i].count; k++) {
			struct hspmd_stage_timing *st = &t->stages[groups[i].holders[k].stage];
			st->sync_end = fmax(st->sync_end, end);
		}
	}
	rc = 0;
out:
	free(groups);
	free(holders);
	free(flows);
	free(net_free);
	return rc;
}
