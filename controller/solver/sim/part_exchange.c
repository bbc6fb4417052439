/* SPDX-License-Identifier: Apache-2.0 */
/* What pipelines take to exchange parts of weights and gradients in their passes, under ZeRO-2 and 3. */
#include "controller/solver/sim/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "controller/solver/cost/cost_constants.h"

/* The copies of a stage. */
struct copies {
	int *devices; /* the first of each copy */
	bool one_node;
	double share; /* of weights that the device has that has most */
};

static struct copies copies_of(const struct hspmd_costs *c, const struct hspmd_plan *p, int stage, int *devices)
{
	struct copies of = { devices, true, 0 };
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_stage *s = &p->pipelines[i].stages[stage];
		devices[i] = s->devices[0];
		of.one_node = of.one_node && c->cluster->devices[devices[i]].node == c->cluster->devices[devices[0]].node;
		of.share = fmax(of.share, hspmd_stage_share(s, 0));
	}
	return of;
}

/* Seconds in which they exchange one message of `bytes`: gather it, or sum it to their parts. Equal parts go round a ring; unequal ones
 * take no less time. -1 with err if there is no link. */
static double exchange_one(struct hspmd_costs *c, const struct hspmd_plan *p, int layer, const struct copies *of, double bytes,
                           struct hspmd_error *err)
{
	double ring = hspmd_costs_ring(c, of->devices, 1, p->pipeline_count, 1, bytes, err);
	if (ring < 0 || !p->has_zero_shares)
		return ring;
	double *parts = hspmd_calloc((size_t)p->pipeline_count, sizeof *parts);
	for (int i = 0; parts && i < p->pipeline_count; i++)
		parts[i] = bytes * hspmd_plan_zero_part(p, i, layer);
	double seconds =
	        parts ? hspmd_costs_gather(c, of->devices, 1, p->pipeline_count, parts, err) : hspmd_fail_memory(err, "evaluating a plan");
	free(parts);
	return seconds < 0 ? seconds : fmax(seconds, ring);
}

/* Weights that a device of the copies exchanges for passes of one layer. */
struct exchanged {
	double own, vectors, tied; /* vectors: of its own; tied: of another layer of the stage */
};

static struct exchanged exchanged_of(const struct hspmd_costs *c, const struct hspmd_stage *s, const struct copies *of, int l)
{
	/* The devices of a tensor-parallel group share their node's network. */
	double share = of->one_node ? of->share : 1, replicated = c->replicated_sum[l + 1] - c->replicated_sum[l];
	struct exchanged e = { replicated + (c->params_sum[l + 1] - c->params_sum[l] - replicated) * share,
		               hspmd_device_vectors(c, l, l + 1, share), 0 };
	for (int i = 0; i < c->tied_layer_count; i++) {
		int owner = c->layers[l].tied_to;
		if (c->tied_layers[i] == l && owner >= s->layers[0] && owner < s->layers[1])
			e.tied = c->layers[l].tied_params * share;
	}
	return e;
}

/* Seconds in which the copies sum the layer's gradients to their parts. The last one has a message of its own (runtime/program/
 * layer_parts.c): that of the weights of another layer, or mostly a vector, of which the latency alone counts. It goes round a ring as the
 * matrices do, with which it could be joined; vectors without any may be summed in fewer rounds. -1 with err. */
static double sum_layer(struct hspmd_costs *c, const struct hspmd_plan *p, int layer, const struct copies *of, const struct exchanged *e,
                        double bytes, struct hspmd_error *err)
{
	int n = p->pipeline_count;
	bool matrices = e->own > e->vectors;
	double own = matrices ? exchange_one(c, p, layer, of, e->own * bytes, err)
	                      : hspmd_costs_collective(c, of->devices, n, HSPMD_FACTS_SCATTERED, e->own * bytes, err);
	double last = own < 0       ? -1
	              : e->tied > 0 ? exchange_one(c, p, layer, of, e->tied * bytes, err)
	              : matrices    ? hspmd_costs_ring(c, of->devices, 1, n, 1, 1, err)
	                            : hspmd_costs_collective(c, of->devices, n, HSPMD_FACTS_SCATTERED, 1, err);
	return last < 0 ? -1 : own + last;
}

/* Seconds in which the copies of a stage gather `bytes` per weight, those of a layer in one message, or if `sums` sum them to their parts.
 * -1 with err. */
static double exchange(struct hspmd_costs *c, const struct hspmd_plan *p, int stage, int *devices, double bytes, bool sums,
                       struct hspmd_error *err)
{
	const struct hspmd_stage *s = &p->pipelines[0].stages[stage];
	const struct copies of = copies_of(c, p, stage, devices);
	struct exchanged last = { -1, 0, 0 };
	double seconds = 0, one = 0;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		const struct exchanged e = exchanged_of(c, s, &of, l);
		if (e.own != last.own || e.vectors != last.vectors || e.tied != last.tied)
			one = sums ? sum_layer(c, p, s->layers[0], &of, &e, bytes, err)
			           : exchange_one(c, p, s->layers[0], &of, (e.own + e.tied) * bytes, err);
		if (one < 0)
			return -1;
		last = e;
		seconds += one;
	}
	double shared = hspmd_stage_params(c, s->layers[0], s->layers[1]) - (c->params_sum[s->layers[1]] - c->params_sum[s->layers[0]]);
	double more = shared > 0 ? exchange_one(c, p, s->layers[0], &of, shared * (of.one_node ? of.share : 1) * bytes, err) : 0;
	return more < 0 ? -1 : seconds + more;
}

/* Seconds of layers [l, end) of a pass, of one sample's worth or more: only their ratios count. */
static double layer_seconds(const struct hspmd_layer_times *t, enum hspmd_recompute recompute, bool backward, int l, int end)
{
	const double *again = t->recompute_s[recompute];
	return backward ? t->backward[end] - t->backward[l] + again[end] - again[l] : t->forward[end] - t->forward[l];
}

/* Seconds for which the slowest copy's own cores are busy while all weights of a stage are gathered. */
static double gather_copies(const struct hspmd_costs *c, const struct hspmd_plan *p, int stage)
{
	double most = 0, others = 1 - 1.0 / p->pipeline_count;
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_stage *s = &p->pipelines[i].stages[stage];
		double bytes = others * c->param_bytes * hspmd_device_params(c, s->layers[0], s->layers[1], hspmd_stage_share(s, 0));
		most = fmax(most, hspmd_costs_own_work(c, s->devices[0], bytes, HSPMD_COPY_TRAFFIC));
	}
	return most;
}

/* Returns true if the cores that compute a stage also copy its copies' messages all the way: a worker's thread for messages
 * (runtime/comm/engine.c) shares the cores of its device, and within a node all of a message is copies. Prefetching then hides nothing
 * (tests/bench/RESULTS.md). */
static bool cores_carry(const struct hspmd_costs *c, const struct copies *of, int n)
{
	bool all = of->one_node;
	for (int i = 0; all && i < n; i++)
		all = hspmd_costs_own_work(c, of->devices[i], 1, 1) > 0;
	return all;
}

/* Seconds by which a pass of `pass_s` over the stage waits for its weights, all of which are gathered in gather_s: those of each layer
 * while the layer before it computes, if that is not too short. The cores that compute do not do so while they copy messages. -1 with
 * err. */
static double gather_wait(struct hspmd_costs *c, const struct hspmd_plan *p, int stage, bool backward, double pass_s, double gather_s,
                          int *devices, struct hspmd_error *err)
{
	const struct hspmd_stage *s = &p->pipelines[0].stages[stage];
	int first = s->layers[0], end = s->layers[1];
	double share = hspmd_stage_share(s, 0), all = hspmd_device_params(c, first, end, share), wait = 0;
	if (p->no_prefetch || gather_s <= 0 || all <= 0)
		return gather_s;
	const struct copies of = copies_of(c, p, stage, devices);
	const bool carry = cores_carry(c, &of, p->pipeline_count);
	const struct hspmd_layer_times *t = hspmd_costs_times(c, c->cluster->devices[s->devices[0]].type, share, s->sequence_parallel,
	                                                      p->pipelines[0].micro_batch, err);
	double total = t ? layer_seconds(t, s->recompute, backward, first, end) : 0, copies = gather_copies(c, p, stage);
	double last = -1, one = 0;
	for (int l = first; t && l < end; l++) {
		double own = total > 0 ? pass_s * layer_seconds(t, s->recompute, backward, l, l + 1) / total : 0;
		double ahead = hspmd_weights_ahead(c, s, s, l, l + 1, backward, share);
		double sent = of.one_node ? ahead : hspmd_weights_ahead(c, s, s, l, l + 1, backward, 1);
		if (sent != last && (one = exchange_one(c, p, first, &of, sent * c->param_bytes, err)) < 0)
			return -1;
		last = sent;
		wait += carry ? one : fmax(fmin(one, copies * ahead / all), one - own);
	}
	return t ? wait : -1;
}

int hspmd_time_parts(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	int *devices = hspmd_calloc((size_t)p->pipeline_count, sizeof *devices), status = 0;
	if (!devices)
		return hspmd_fail_memory(err, "evaluating a plan");
	for (int s = 0; !status && s < p->pipelines[0].stage_count; s++) {
		double gather = p->zero_stage > 2 ? exchange(c, p, s, devices, c->param_bytes, false, err) : 0;
		double scatter = gather < 0 ? -1 : exchange(c, p, s, devices, c->grad_bytes, true, err), forward = 0, backward = 0;
		status = scatter < 0 ? -1 : 0;
		for (int i = 0; i < p->pipeline_count; i++) {
			forward = fmax(forward, t->stages[t->first_stage[i] + s].cost.forward);
			backward = fmax(backward, t->stages[t->first_stage[i] + s].cost.backward);
		}
		double before_forward = gather_wait(c, p, s, false, forward, gather, devices, err),
		       before_backward = gather_wait(c, p, s, true, backward, gather, devices, err);
		status = status || before_forward < 0 || before_backward < 0 ? -1 : 0;
		for (int i = 0; i < p->pipeline_count; i++) {
			struct hspmd_stage_cost *cost = &t->stages[t->first_stage[i] + s].cost;
			cost->forward = forward + before_forward;
			cost->backward = backward + before_backward + scatter;
			cost->group_comm += before_forward + before_backward + scatter;
		}
	}
	free(devices);
	return status;
}
