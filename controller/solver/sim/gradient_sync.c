/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient synchronisation, layer by layer between the stages that hold the layer (after AutoHet, arXiv 2512.20953, section 4.3, and
 * HSPMD, 2504.20490).
 *
 * Layers that are in the same stage of every pipeline form one group; weights that two layers share form another, of the stages of both.
 * The holders form a ring in the order of their nodes, so that no node's network is crossed more often than necessary; each hop carries 2
 * (n - 1) chunks of 1 / n of the gradients, divided over the holder's devices. A group starts when all its holders have finished their
 * last backward pass, so the groups of later stages overlap with the drain of the pipeline. All messages that leave a node use one
 * network: groups queue for it in the order in which they start. Under ZeRO-1 the second half of the ring carries updated weights instead
 * of gradients, after the update. Under ZeRO-2 only the weights are left to send, under ZeRO-3 nothing: the rest is sent during the passes
 * (part_exchange.c), but for weights that two stages share.
 *
 * hspmd's programs for CPUs (which train what there is a model of) send a layer's gradients when its last backward pass is finished,
 * concurrently with the passes of the layers before it (runtime/program/gradient_sync.c). The transfer overlaps with these passes; the
 * copies and sums that the cores make themselves do not. For the gradients of n equal layers, with all transfers taking t seconds, of
 * which the cores are busy for c, the last layer's gradients complete at f, and the first layer's, without c, at l, all are synchronised
 * at
 *     max(f + t, l + c (n - 1) / n + t / n):
 * either the network is busy without a break from the first gradients on, or it waits for the last ones. Otherwise all are sent together,
 * n = 1. */
#include "controller/solver/sim/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "common/alloc.h"
#include "common/order.h"
#include "controller/solver/cost/cost_constants.h"

struct holder {
	int stage; /* index in the timing's array */
	const struct hspmd_stage *s;
};

struct group {
	double first, start; /* when the first of its gradients are complete everywhere; when all are */
	double largest;      /* the largest part of them that one holder keeps, or sums */
	double params, partial_params; /* weights; those of them whose gradients each holder sums among its own devices first */
	bool shared;                   /* weights that two layers share */
	int count, layers; /* number of holders; number of layers whose gradients are sent one after another, 1: all together */
	struct holder *holders;
};

/* What one group sends from one node to another. */
struct flow {
	int from_node, to_node;
	int from, to; /* one device on each side */
	int senders, receivers;
	double bytes; /* of one ring step, for all senders together */
};

struct sync {
	struct hspmd_costs *c;
	const struct hspmd_plan *p;
	struct hspmd_timing *t;
	struct group *groups;
	int count;
	struct holder *holders; /* array that all groups' holders are part of */
	size_t used;
	struct flow *flows;
	double *net_free; /* per node: when its network is free */
	int *stage_of;    /* per pipeline: the stage of the current layer */
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
	return x->first < y->first ? -1 : x->first > y->first ? 1 : 0;
}

static int by_nodes(const void *a, const void *b)
{
	const struct flow *x = a, *y = b;
	if (x->from_node != y->from_node)
		return x->from_node < y->from_node ? -1 : 1;
	return x->to_node < y->to_node ? -1 : x->to_node > y->to_node;
}

/* By insertion: the holders are in the order of their nodes, and so are the hops but for the last one, back to the first. */
static void order_flows(struct flow *flows, int n)
{
	for (int i = 1; i < n; i++) {
		struct flow flow = flows[i];
		int at = i;
		for (; at > 0 && by_nodes(&flows[at - 1], &flow) > 0; at--)
			flows[at] = flows[at - 1];
		flows[at] = flow;
	}
}

/* The hops of one ring. Hops between the same two nodes share a link and are merged; hops inside a node have links of their own. Returns
 * their number. */
static int ring_flows(const struct hspmd_costs *c, const struct group *g, struct flow *flows)
{
	int n = g->count;
	for (int i = 0; i < n; i++) {
		const struct hspmd_stage *a = g->holders[i].s, *b = g->holders[(i + 1) % n].s;
		flows[i] = (struct flow){ c->cluster->devices[a->devices[0]].node,
			                  c->cluster->devices[b->devices[0]].node,
			                  a->devices[0],
			                  b->devices[0],
			                  a->device_count,
			                  b->device_count,
			                  g->params * g->largest };
	}
	order_flows(flows, n);
	int last = 0;
	for (int i = 1; i < n; i++) {
		if (by_nodes(&flows[last], &flows[i])) {
			flows[++last] = flows[i];
		} else if (flows[i].from_node != flows[i].to_node) {
			flows[last].senders += flows[i].senders;
			flows[last].receivers += flows[i].receivers;
			flows[last].bytes += flows[i].bytes;
		}
	}
	return last + 1;
}

/* Seconds of one ring step of a flow. Returns -1 with err if there is no link. */
static double flow_seconds(const struct sync *y, const struct flow *f, double bytes, struct hspmd_error *err)
{
	double s = hspmd_costs_transfer(y->c, f->from, f->to, f->senders, f->receivers, bytes, err);
	double network = y->c->cluster->nodes[f->from_node].network_gbytes_per_s * 1e9;
	if (s >= 0 && f->from_node != f->to_node && network > 0)
		s = fmax(s, bytes / network);
	return s;
}

/* Let the group begin after the sums within its holders' tensor-parallel groups. */
static int sum_within(const struct hspmd_costs *c, struct group *g, struct hspmd_error *err)
{
	double most = 0;
	for (int i = 0; i < g->count && g->partial_params > 0; i++) {
		const struct hspmd_stage *s = g->holders[i].s;
		double seconds = hspmd_costs_collective(c, s->devices, s->device_count / s->context, HSPMD_FACTS_REDUCED,
		                                        g->partial_params * c->grad_bytes, err);
		if (seconds < 0)
			return -1;
		most = fmax(most, seconds);
	}
	g->first += most;
	g->start += most;
	return 0;
}

static int run_group(struct sync *y, struct group *g, double *end, struct hspmd_error *err)
{
	const struct hspmd_costs *c = y->c;
	if (sum_within(c, g, err))
		return -1;
	*end = g->start;
	if (g->count < 2 || g->params <= 0)
		return 0;
	hspmd_sort_if_needed(g->holders, (size_t)g->count, sizeof *g->holders, by_node);
	g->largest = fmax(g->largest, 1.0 / g->count);
	int n = ring_flows(c, g, y->flows), steps = g->count - 1;
	int stage = g->shared && y->p->zero_stage > 1 ? 1 : y->p->zero_stage;
	bool zero = stage > 0;
	if (stage > 2)
		return 0;
	for (int i = 0; i < n; i++) {
		const struct flow *f = &y->flows[i];
		double reduce_s = stage > 1 ? 0 : flow_seconds(y, f, f->bytes * c->grad_bytes / g->layers, err);
		double gather_s = zero ? flow_seconds(y, f, f->bytes * c->param_bytes, err) : reduce_s;
		if (reduce_s < 0 || gather_s < 0)
			return -1;
		bool leaves = f->from_node != f->to_node;
		double one = steps * (zero ? reduce_s : reduce_s + gather_s),
		       start = leaves ? fmax(g->first, y->net_free[f->from_node]) : g->first;
		/* for which the sender's cores are busy, for each layer */
		double own = hspmd_costs_own_work(c, f->from, f->bytes * (zero ? 1 : 2) * c->grad_bytes / f->senders, HSPMD_SUM_TRAFFIC);
		own = g->layers > 1 ? fmin(one, steps * own / g->layers) : 0;
		double done = fmax(start + g->layers * one, g->start + own * (g->layers - 1) + one) + (zero ? steps * gather_s : 0);
		if (leaves)
			y->net_free[f->from_node] = done;
		*end = fmax(*end, done);
	}
	return 0;
}

static bool sync_overlaps(const struct hspmd_costs *c, const struct hspmd_stage *s)
{
	return c->facts && hspmd_device_traits(c->cluster->types[c->cluster->devices[s->devices[0]].type].kind)->overlaps;
}

/* Seconds of a stage's last backward pass that are left when that of `layer` is finished. */
static double backward_left(const struct sync *y, int pipeline, int stage, int layer)
{
	const struct hspmd_pipeline *pipe = &y->p->pipelines[pipeline];
	const struct hspmd_stage *s = &pipe->stages[stage];
	const struct hspmd_stage_cost *cost = &y->t->stages[y->t->first_stage[pipeline] + stage].cost;
	const struct hspmd_layer_times *t = hspmd_costs_times(y->c, y->c->cluster->devices[s->devices[0]].type, hspmd_stage_share(s, 0),
	                                                      s->sequence_parallel, pipe->micro_batch, NULL);
	if (!t || layer == s->layers[0])
		return 0;
	const double *recompute_s = t->recompute_s[s->recompute];
	int a = s->layers[0], b = s->layers[1];
	double part = (t->backward[layer] - t->backward[a] + recompute_s[layer] - recompute_s[a]) /
	              (t->backward[b] - t->backward[a] + recompute_s[b] - recompute_s[a]);
	return part * (y->p->schedule == HSPMD_SCHEDULE_ZB_H1 ? hspmd_sim_weight_grads(cost->forward, cost->backward) : cost->backward);
}

/* Add a holder of the group's layers, [first, end). */
static void add_holder(struct sync *y, struct group *g, int pipeline, int stage, int first, int end)
{
	const struct hspmd_stage *s = &y->p->pipelines[pipeline].stages[stage];
	int index = y->t->first_stage[pipeline] + stage;
	double done = y->t->stages[index].end;
	bool overlaps = sync_overlaps(y->c, s);
	g->holders[g->count++] = (struct holder){ index, s };
	g->start = fmax(g->start, overlaps ? done - backward_left(y, pipeline, stage, first) : done);
	g->first = fmax(g->first, overlaps ? done - backward_left(y, pipeline, stage, end - 1) : done);
	g->layers = overlaps && g->layers != 1 ? end - first : 1; /* 0 initially */
	y->used++;
}

static int stage_with(const struct hspmd_pipeline *pipe, int layer)
{
	int s = 0;
	while (s < pipe->stage_count - 1 && pipe->stages[s].layers[1] <= layer)
		s++;
	return s;
}

/* The group of the weights that layer l shares with the layer it is tied to. There is nothing to send if one stage has both. */
static void collect_tied(struct sync *y, int l)
{
	struct group *g = &y->groups[y->count++];
	*g = (struct group){ .shared = true, .params = y->c->layers[l].tied_params, .holders = y->holders + y->used };
	for (int i = 0; i < y->p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &y->p->pipelines[i];
		int own = stage_with(pipe, l), other = stage_with(pipe, y->c->layers[l].tied_to);
		add_holder(y, g, i, own, l, l + 1);
		if (other != own)
			add_holder(y, g, i, other, y->c->layers[l].tied_to, y->c->layers[l].tied_to + 1);
	}
}

static double tied_params_of(const struct hspmd_costs *c, int l)
{
	int tied_to = c->layers[l].tied_to;
	return tied_to >= 0 && c->layers[tied_to].tied_to == l ? c->layers[tied_to].tied_params : 0;
}

static void collect(struct sync *y)
{
	const struct hspmd_costs *c = y->c;
	bool parts_differ = y->p->zero_stage && y->p->has_zero_shares;
	for (int layer = 0; layer < c->layer_count;) {
		int end = c->layer_count;
		struct group *g = &y->groups[y->count++];
		*g = (struct group){ .holders = y->holders + y->used, .largest = y->p->zero_stage ? 1.0 / y->p->pipeline_count : 0 };
		for (int i = 0; i < y->p->pipeline_count; i++) {
			const struct hspmd_pipeline *pipe = &y->p->pipelines[i];
			while (y->stage_of[i] < pipe->stage_count - 1 && pipe->stages[y->stage_of[i]].layers[1] <= layer)
				y->stage_of[i]++;
			int stops = pipe->stages[y->stage_of[i]].layers[1];
			end = stops > layer && stops < end ? stops : end;
		}
		for (int i = 0; i < y->p->pipeline_count; i++) {
			add_holder(y, g, i, y->stage_of[i], layer, end);
			if (parts_differ)
				g->largest = fmax(g->largest, hspmd_plan_zero_part(y->p, i, layer));
		}
		g->params = c->params_sum[end] - c->params_sum[layer];
		for (int l = layer; l < end; l++) {
			g->params -= tied_params_of(c, l);
			g->partial_params += c->layers[l].partial_params;
		}
		layer = end;
	}
	for (int i = 0; i < c->tied_layer_count; i++)
		collect_tied(y, c->tied_layers[i]);
}

int hspmd_time_gradient_sync(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	size_t pipes = (size_t)p->pipeline_count, most = (size_t)c->layer_count, tied = (size_t)c->tied_layer_count;
	most = (size_t)t->stage_total < most ? (size_t)t->stage_total : most;
	struct sync y = { .c = c, .p = p, .t = t };
	y.groups = hspmd_calloc(most + tied, sizeof *y.groups);
	y.holders = hspmd_calloc((most + 2 * tied) * pipes, sizeof *y.holders);
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
