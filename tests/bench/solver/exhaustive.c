/* SPDX-License-Identifier: Apache-2.0 */
/* Exhaustive search with pruning. A pipeline alone, with its transfers undisturbed and no gradients to sum, is never slower than together
 * with others. Devices that are still free run no more micro-batches per second than the sum of their rates
 * (controller/solver/search/submesh.c), so the current pipeline must run the rest, and none of its stages may be too slow for that. If
 * there are two pipelines, the first layer's gradients are summed after the last backward pass of all, over a link that is no faster than
 * the fastest. Equal unused nodes are used in order, and pipelines are in the order of their first device, so that no plan is tried
 * twice. Passes run as 1F1B or ZB-H1; interleaved plans are not tried. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/submesh.h"
#include "controller/solver/sim/evaluate.h"
#include "tests/bench/solver/instances.h"

#define DEVICES_MOST FASTEST_PLAN_DEVICES
#define STAGES_MOST 8

struct brute {
	struct hspmd_costs *c;
	struct hspmd_submesh_tables *t;
	const struct hspmd_device_classes *device_classes;
	int micro_batch, total;
	enum hspmd_schedule schedule;
	double best;
	double tail;       /* least seconds between the end of a pipeline's passes and the end of the step */
	long looked, most; /* partitions tried, and their limit */
	struct hspmd_plan *found;
	int free[DEVICES_MOST]; /* free devices per node */
	struct hspmd_plan plan;
	struct hspmd_pipeline pipelines[DEVICES_MOST];
	struct hspmd_stage stages[DEVICES_MOST][STAGES_MOST];
	const struct hspmd_submesh *submeshes[DEVICES_MOST][STAGES_MOST];
	int devices[DEVICES_MOST][STAGES_MOST][DEVICES_MOST];
};

static void place_next(struct brute *b, int left);

/* Rates assume that devices wait for those of the whole cluster; those of a plan with fewer devices wait less. */
static double loosened(const struct brute *b, const struct hspmd_submesh *u)
{
	return u->rate * hspmd_variation(b->c, b->c->cluster->device_count, u->tp) / hspmd_variation(b->c, u->tp, u->tp);
}

/* Most micro-batches per second that the free devices can run in any plan. */
static double free_rate(const struct brute *b)
{
	double rate = 0;
	for (int n = 0; n < b->c->cluster->node_count; n++) {
		int device_class = b->device_classes->class_of_device[b->c->cluster->nodes[n].first_device];
		double most = 0;
		for (int u = 0; u < b->t->submesh_count; u++)
			if (b->t->submeshes[u].device_class == device_class)
				most = fmax(most, loosened(b, &b->t->submeshes[u]) / b->t->submeshes[u].tp);
		rate += most * b->free[n];
	}
	return rate;
}

static void time_with(struct brute *b, int zero)
{
	struct hspmd_timing t;
	struct hspmd_plan *p = &b->plan;
	p->zero_stage = zero;
	p->schedule = b->schedule;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++) {
			struct hspmd_stage *st = &p->pipelines[i].stages[s];
			double have = (double)b->c->cluster->types[b->c->cluster->devices[st->devices[0]].type].memory_bytes;
			for (int k = 0;; k++) {
				if (k == HSPMD_RECOMPUTE_KINDS)
					return;
				st->recompute = (enum hspmd_recompute)k;
				if (hspmd_plan_memory(b->c, p, i, s, 0) <= have)
					break;
			}
		}
	if (hspmd_timing_compute(b->c, p, &t, NULL))
		return;
	if (t.step_s < b->best) {
		b->best = t.step_s;
		hspmd_plan_destroy(b->found);
		b->found = hspmd_plan_copy(p);
		if (b->found)
			b->found->predicted.step_s = t.step_s;
	}
	hspmd_timing_clear(&t);
}

static void time_plan(struct brute *b)
{
	time_with(b, 0);
	if (b->plan.pipeline_count > 1)
		time_with(b, 1);
}

/* Seconds of pipeline i for m micro-batches alone, without recomputation. */
static double alone(struct brute *b, int i, int m)
{
	struct hspmd_sim_stage sim[STAGES_MOST] = { 0 };
	struct hspmd_pipeline_sim result = { 0 };
	const struct hspmd_pipeline *pipe = &b->pipelines[i];
	for (int s = 0; s < pipe->stage_count; s++) {
		struct hspmd_stage_cost cost;
		struct hspmd_stage *st = &pipe->stages[s];
		st->recompute = HSPMD_RECOMPUTE_NONE;
		if (hspmd_costs_stage(b->c, st, b->micro_batch, &cost, NULL))
			return INFINITY;
		double vary = hspmd_variation(b->c, st->device_count, st->device_count);
		sim[s].forward = cost.forward * vary;
		sim[s].backward = cost.backward * vary;
		sim[s].weight_grads = hspmd_sim_weight_grads(sim[s].forward, sim[s].backward);
		if (s + 1 < pipe->stage_count) {
			double bytes = b->c->layers[st->layers[1] - 1].output_bytes * b->micro_batch;
			sim[s].send_forward = hspmd_costs_transfer(b->c, st->devices[0], st[1].devices[0], 1, 1, bytes, NULL);
			sim[s + 1].send_backward = hspmd_costs_transfer(b->c, st[1].devices[0], st->devices[0], 1, 1, bytes, NULL);
		}
	}
	hspmd_simulate(sim, pipe->stage_count, m, b->schedule, &result);
	return result.end;
}

/* When pipeline i must be finished: together with others, or alone. */
static double deadline(const struct brute *b, int i, bool more)
{
	return i > 0 || more ? b->best - b->tail : b->best;
}

/* The fewest micro-batches that the current pipeline must run: those that the free devices cannot run in time. */
static int least_share(const struct brute *b, int left)
{
	double others = free_rate(b) * (b->best - b->tail);
	return !(others > 0) ? left : others >= left - 1 ? 1 : left - (int)floor(others * (1 + 1e-9));
}

/* Try every number of micro-batches that the current pipeline can run in time. */
static void deal(struct brute *b, int i, int left)
{
	for (int m = least_share(b, left); m <= left; m++) {
		if (alone(b, i, m) >= deadline(b, i, m < left)) {
			/* Alone it has more time. */
			m = i == 0 && m < left && alone(b, i, left) < b->best ? left - 1 : left;
			continue;
		}
		b->pipelines[i].micro_batches = m;
		if (m == left)
			time_plan(b);
		else if (free_rate(b) * (b->best - b->tail) >= left - m)
			place_next(b, left - m);
	}
}

/* Least seconds of a micro-batch on stage s with layers [first, end): nothing is sent, and devices wait only within the group. */
static double least_work(struct brute *b, int i, int s, int first, int end)
{
	const struct hspmd_submesh *u = b->submeshes[i][s];
	double alone = hspmd_variation(b->c, u->tp, u->tp) / hspmd_variation(b->c, b->c->cluster->device_count, u->tp);
	return alone * (u->work[HSPMD_RECOMPUTE_NONE][end] - u->work[HSPMD_RECOMPUTE_NONE][first]);
}

static double forward_part(const struct brute *b, int i, int s, int first, int end)
{
	const struct hspmd_submesh *u = b->submeshes[i][s];
	return (u->forward[end] - u->forward[first]) / (u->work[HSPMD_RECOMPUTE_NONE][end] - u->work[HSPMD_RECOMPUTE_NONE][first]);
}

/* Try every partition of the layers from `first` on over the stages from s on. `before`: seconds of one micro-batch on the stages before.
 * All work of a stage comes after the first micro-batch has reached it and before the last one's gradients have gone back; deferred
 * weight gradients may come after that. */
static void split(struct brute *b, int i, int s, int first, double before, int left)
{
	struct hspmd_pipeline *pipe = &b->pipelines[i];
	if (b->looked++ >= b->most)
		return;
	int stages = pipe->stage_count, layers = b->c->layer_count;
	pipe->stages[s].layers[0] = first;
	for (int end = s == stages - 1 ? layers : first + 1; end <= layers - (stages - 1 - s); end++) {
		double here = least_work(b, i, s, first, end);
		if (before + least_share(b, left) * here >= deadline(b, i, true) && (i > 0 || before + left * here >= b->best))
			return;
		pipe->stages[s].layers[1] = end;
		if (s == stages - 1)
			deal(b, i, left);
		else
			split(b, i, s + 1, end,
			      before + (b->schedule == HSPMD_SCHEDULE_ZB_H1 ? here * forward_part(b, i, s, first, end) : here), left);
	}
}

static bool alike_and_untouched(const struct brute *b, int n, int other)
{
	const struct hspmd_cluster *c = b->c->cluster;
	return b->free[n] == c->nodes[n].device_count && b->free[other] == c->nodes[other].device_count &&
	       b->device_classes->node_class_of[n] == b->device_classes->node_class_of[other];
}

/* Most micro-batches per second that the current pipeline can run. */
static double rate_of(const struct brute *b, int i)
{
	double rate = 0;
	for (int s = 0; s < b->pipelines[i].stage_count; s++)
		rate += loosened(b, b->submeshes[i][s]);
	return rate;
}

static const struct hspmd_submesh *submesh_of(const struct brute *b, int device, int tp)
{
	for (int u = 0; u < b->t->submesh_count; u++)
		if (b->t->submeshes[u].device_class == b->device_classes->class_of_device[device] && b->t->submeshes[u].tp == tp)
			return &b->t->submeshes[u];
	return NULL;
}

/* Add one more group to pipeline i, or leave it as it is. */
static void line_up(struct brute *b, int i, int least, int left)
{
	const struct hspmd_cluster *c = b->c->cluster;
	struct hspmd_pipeline *pipe = &b->pipelines[i];
	if (pipe->stage_count &&
	    (rate_of(b, i) * deadline(b, i, true) >= least_share(b, left) || rate_of(b, i) * deadline(b, i, false) >= left))
		split(b, i, 0, 0, 0, left);
	if (pipe->stage_count == STAGES_MOST || pipe->stage_count == b->c->layer_count)
		return;
	for (int n = 0; n < c->node_count; n++) {
		bool first_of_its_like = true;
		for (int k = 0; k < n; k++)
			first_of_its_like = first_of_its_like && !alike_and_untouched(b, n, k);
		int at = c->nodes[n].first_device + c->nodes[n].device_count - b->free[n];
		if (!first_of_its_like || (pipe->stage_count == 0 && at < least))
			continue;
		for (int tp = 1; tp <= b->free[n]; tp *= 2) {
			struct hspmd_stage *st = &pipe->stages[pipe->stage_count];
			*st = (struct hspmd_stage){ .device_count = tp, .context = 1, .devices = b->devices[i][pipe->stage_count] };
			for (int k = 0; k < tp; k++)
				st->devices[k] = at + k;
			b->submeshes[i][pipe->stage_count] = submesh_of(b, at, tp);
			pipe->stage_count++;
			b->free[n] -= tp;
			line_up(b, i, least, left);
			b->free[n] += tp;
			pipe->stage_count--;
		}
	}
}

static void place_next(struct brute *b, int left)
{
	int i = b->plan.pipeline_count++;
	int least = i ? b->pipelines[i - 1].stages[0].devices[0] : 0;
	b->pipelines[i] = (struct hspmd_pipeline){ .micro_batch = b->micro_batch, .stages = b->stages[i] };
	line_up(b, i, least, left);
	b->plan.pipeline_count--;
}

static void search_micro_batch(struct brute *b, const struct instance *in)
{
	b->total = in->global_batch / b->micro_batch;
	for (int n = 0; n < b->c->cluster->node_count; n++)
		b->free[n] = b->c->cluster->nodes[n].device_count;
	b->plan = (struct hspmd_plan){ .global_batch = in->global_batch,
		                       .micro_batch = b->micro_batch,
		                       .seq_len = b->c->seq_len,
		                       .schedule = b->schedule,
		                       .virtual_stages = 1,
		                       .pipelines = b->pipelines };
	place_next(b, b->total);
}

struct hspmd_plan *fastest_plan(const struct instance *in, double known, long most, bool *all, struct hspmd_error *err)
{
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	bool allowed[3] = { true, true, true };
	*all = false;
	if (in->cluster->device_count > DEVICES_MOST) {
		hspmd_fail(err, "%d devices: all plans are tried for at most %d", in->cluster->device_count, DEVICES_MOST);
		return NULL;
	}
	struct brute *b = hspmd_calloc(1, sizeof *b);
	if (!b) {
		hspmd_fail_memory(err, "searching all plans");
		return NULL;
	}
	b->best = known;
	b->most = most;
	b->c = hspmd_costs_new(in->cluster, NULL, in->profile, HSPMD_PRECISION_FP32, 0, err);
	double summing = INFINITY; /* of the first layer's gradients */
	for (int l = 0; b->c && l < in->cluster->link_count; l++)
		summing = fmin(summing, 2 * hspmd_link_seconds(&in->cluster->links[l], b->c->layers[0].params * b->c->grad_bytes / 2));
	struct hspmd_device_classes *device_classes = b->c ? hspmd_device_classes_new(in->cluster, allowed, err) : NULL;
	b->device_classes = device_classes;
	for (b->micro_batch = 1; device_classes && b->micro_batch <= in->global_batch; b->micro_batch++) {
		if (in->global_batch % b->micro_batch)
			continue;
		b->t = hspmd_submesh_tables_new(b->c, device_classes, &caps, b->micro_batch, HSPMD_DRAFT_OFFLOADS_NOTHING, err);
		for (int apart = 0; b->t && apart < 2; apart++) {
			/* With ZB-H1 the first layer's stage may finish before the others. */
			b->tail = apart ? 0 : summing;
			b->schedule = apart ? HSPMD_SCHEDULE_ZB_H1 : HSPMD_SCHEDULE_1F1B;
			search_micro_batch(b, in);
		}
		hspmd_submesh_tables_destroy(b->t);
	}
	struct hspmd_plan *found = b->found;
	*all = b->looked <= most;
	hspmd_device_classes_destroy(device_classes);
	hspmd_costs_destroy(b->c);
	free(b);
	return found;
}
