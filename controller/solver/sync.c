/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient synchronisation, layer by layer between whichever stages hold the layer (after AutoHet, arXiv 2512.20953, section 4.3, and HSPMD,
 * 2504.20490).
 *
 * Layers that lie in the same stage of every pipeline make one group; weights that two layers share make another, of the stages of both. The
 * holders form a ring in the order of their nodes, so that no node's network is crossed more often than it must be; each hop carries
 * 2 (n - 1) chunks of 1 / n of the gradients, spread over the holder's devices. A group starts when all its holders have done their last
 * backward pass, so the groups of later stages hide behind the drain of the pipeline. What leaves a node leaves through one network: groups queue
 * for it in the order they start. Under ZeRO-1 the second half of the way carries updated weights instead of gradients.
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
	int from, to; /* a device on each side */
	int senders, receivers;
	double bytes; /* of one ring step, all senders together */
};

struct sync {
	struct hspmd_costs *c;
	const struct hspmd_plan *p;
	struct hspmd_timing *t;
	struct group *groups;
	int count;
	struct holder *holders; /* storage of all groups */
	size_t used;
	struct flow *flows;
	double *net_free; /* when a node's way out is free */
	int *stage_of;    /* each pipeline's stage of the layer at hand */
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

/* One ring's hops. Those between the same two nodes share their way and are joined; hops inside a node have ways of their own. Count. */
static int ring_flows(const struct hspmd_costs *c, const struct group *g, struct flow *flows)
{
	int n = g->count;
	for (int i = 0; i < n; i++) {
		const struct hspmd_stage *a = g->holders[i].s, *b = g->holders[(i + 1) % n].s;
		flows[i] = (struct flow){ c->cluster->devices[a->devices[0]].node, c->cluster->devices[b->devices[0]].node, a->devices[0],
					  b->devices[0], a->device_count, b->device_count, g->params / n };
	}
	qsort(flows, (size_t)n, sizeof *flows, by_nodes);
	int kept = 0;
	for (int i = 1; i < n; i++) {
		if (by_nodes(&flows[kept], &flows[i])) {
			flows[++kept] = flows[i];
		} else if (flows[i].from_node != flows[i].to_node) {
			flows[kept].senders += flows[i].senders;
			flows[kept].receivers += flows[i].receivers;
			flows[kept].bytes += flows[i].bytes;
		}
	}
	return kept + 1;
}

/* Seconds of one step of a flow. -1: no link. */
static double flow_seconds(const struct sync *y, const struct flow *f, double bytes, struct hspmd_error *err)
{
	double s = hspmd_costs_transfer(y->c, f->from, f->to, f->senders, f->receivers, bytes, err);
	double network = y->c->cluster->nodes[f->from_node].network_gbytes_per_s * 1e9;
	if (s >= 0 && f->from_node != f->to_node && network > 0)
		s = fmax(s, bytes / network);
	return s;
}

static int run_group(struct sync *y, struct group *g, double *end, struct hspmd_error *err)
{
	const struct hspmd_costs *c = y->c;
	*end = g->start;
	if (g->count < 2 || g->params <= 0)
		return 0;
	qsort(g->holders, (size_t)g->count, sizeof *g->holders, by_node);
	int n = ring_flows(c, g, y->flows), steps = g->count - 1;
	double second_half = y->p->zero_stage ? c->param_bytes : c->grad_bytes;
	for (int i = 0; i < n; i++) {
		const struct flow *f = &y->flows[i];
		double there = flow_seconds(y, f, f->bytes * c->grad_bytes, err), back = flow_seconds(y, f, f->bytes * second_half, err);
		if (there < 0 || back < 0)
			return -1;
		double start = g->start;
		if (f->from_node != f->to_node) {
			start = fmax(start, y->net_free[f->from_node]);
			y->net_free[f->from_node] = start + steps * (there + back);
		}
		*end = fmax(*end, start + steps * (there + back));
	}
	return 0;
}

static void add_holder(struct sync *y, struct group *g, int pipeline, int stage)
{
	const struct hspmd_stage *s = &y->p->pipelines[pipeline].stages[stage];
	int index = y->t->first_stage[pipeline] + stage;
	g->holders[g->count++] = (struct holder){ index, s };
	g->start = fmax(g->start, y->t->stages[index].end);
	y->used++;
}

static int stage_with(const struct hspmd_pipeline *pipe, int layer)
{
	int s = 0;
	while (s < pipe->stage_count - 1 && pipe->stages[s].layers[1] <= layer)
		s++;
	return s;
}

/* The group of the weights that layer l borrows from its twin: nothing to do where one stage has both. */
static void collect_twins(struct sync *y, int l)
{
	struct group *g = &y->groups[y->count++];
	*g = (struct group){ .params = y->c->layers[l].borrowed, .holders = y->holders + y->used };
	for (int i = 0; i < y->p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &y->p->pipelines[i];
		int here = stage_with(pipe, l), there = stage_with(pipe, y->c->layers[l].twin);
		add_holder(y, g, i, here);
		if (there != here)
			add_holder(y, g, i, there);
	}
}

static double borrowed_from(const struct hspmd_costs *c, int l)
{
	int twin = c->layers[l].twin;
	return twin >= 0 && c->layers[twin].twin == l ? c->layers[twin].borrowed : 0;
}

static void collect(struct sync *y)
{
	const struct hspmd_costs *c = y->c;
	for (int layer = 0; layer < c->layer_count;) {
		int end = c->layer_count;
		struct group *g = &y->groups[y->count++];
		*g = (struct group){ .holders = y->holders + y->used };
		for (int i = 0; i < y->p->pipeline_count; i++) {
			const struct hspmd_pipeline *pipe = &y->p->pipelines[i];
			while (y->stage_of[i] < pipe->stage_count - 1 && pipe->stages[y->stage_of[i]].layers[1] <= layer)
				y->stage_of[i]++;
			int stops = pipe->stages[y->stage_of[i]].layers[1];
			end = stops > layer && stops < end ? stops : end;
			add_holder(y, g, i, y->stage_of[i]);
		}
		g->params = c->params_sum[end] - c->params_sum[layer];
		for (int l = layer; l < end; l++)
			g->params -= borrowed_from(c, l);
		layer = end;
	}
	for (int i = 0; i < c->borrower_count; i++)
		collect_twins(y, c->borrowers[i]);
}

int hspmd_sync(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	size_t pipes = (size_t)p->pipeline_count, most = (size_t)c->layer_count, twins = (size_t)c->borrower_count;
	most = (size_t)t->stage_total < most ? (size_t)t->stage_total : most;
	struct sync y = { .c = c, .p = p, .t = t };
	y.groups = hspmd_calloc(most + twins, sizeof *y.groups);
	y.holders = hspmd_calloc((most + 2 * twins) * pipes, sizeof *y.holders);
	y.flows = hspmd_calloc(2 * pipes, sizeof *y.flows);
	y.net_free = hspmd_calloc((size_t)c->cluster->node_count, sizeof *y.net_free);
	y.stage_of = hspmd_calloc(pipes, sizeof *y.stage_of);
	int rc = -1;
	for (int i = 0; i < t->stage_total; i++)
		t->stages[i].sync_start = t->stages[i].sync_end = t->stages[i].end;
	if (!y.groups || !y.holders || !y.flows || !y.net_free || !y.stage_of) {
		hspmd_fail_memory(err, "planning the gradients' synchronisation");
		goto out;
	}
	collect(&y);
	qsort(y.groups, (size_t)y.count, sizeof *y.groups, by_start);
	for (int i = 0; i < y.count; i++) {
		double end;
		if (run_group(&y, &y.groups[i], &end, err))
			goto out;
		for (int k = 0; k < y.groups[i].count; k++) {
			struct hspmd_stage_timing *st = &t->stages[y.groups[i].holders[k].stage];
			st->sync_end = fmax(st->sync_end, end);
		}
	}
	rc = 0;
out:
	free(y.groups);
	free(y.holders);
	free(y.flows);
	free(y.net_free);
	free(y.stage_of);
	return rc;
}
