/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's step time: every pipeline simulated, transfers slowed by those that share their network, gradients synchronised, weights
 * updated.
 *
 *     step = last gradient synchronised + slowest optimizer
 * Clipping by the global norm needs all gradients, so no device updates its weights before the last group is synchronised. */
#include "controller/solver/sim/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/schedule.h"
#include "controller/solver/cost/cost_constants.h"
#include "controller/solver/sim/predict.h"

#define DIFFERENT_MAX 16 /* pipelines that others are compared with */

void hspmd_timing_clear(struct hspmd_timing *t)
{
	free(t->first_stage);
	free(t->stages);
	*t = (struct hspmd_timing){ 0 };
}

/* An activation is sent from one stage to the next once, from one device to one device. */
struct message {
	int stage; /* index of the sender (forward) in the timing's array */
	int from_node, to_node, from, to;
	double bytes;
};

static int node_of(const struct message *m, bool sender)
{
	return sender ? m->from_node : m->to_node;
}

/* Copies the messages in the order of the nodes that send, or receive, them; those of one node stay in order. room: an int per node, and
 * one more. */
static void order_by_node(const struct message *from, struct message *to, int count, bool sender, int *room, int nodes)
{
	memset(room, 0, ((size_t)nodes + 1) * sizeof *room);
	for (int i = 0; i < count; i++)
		room[node_of(&from[i], sender) + 1]++;
	for (int n = 0; n < nodes; n++)
		room[n + 1] += room[n];
	for (int i = 0; i < count; i++)
		to[room[node_of(&from[i], sender)]++] = from[i];
}

/* In the order of senders, then of receivers, then of stages. `messages` has room for twice as many. */
static int collect_messages(const struct hspmd_costs *c, const struct hspmd_plan *p, const struct hspmd_timing *t, struct message *messages,
                            int *room)
{
	struct message *other = messages + t->stage_total;
	int count = 0;
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &p->pipelines[i];
		for (int s = 0; s + 1 < pipe->stage_count; s++) {
			const struct hspmd_stage *a = &pipe->stages[s], *b = a + 1;
			messages[count++] = (struct message){ t->first_stage[i] + s,
				                              c->cluster->devices[a->devices[0]].node,
				                              c->cluster->devices[b->devices[0]].node,
				                              a->devices[0],
				                              b->devices[0],
				                              c->layers[a->layers[1] - 1].output_bytes * pipe->micro_batch };
		}
	}
	order_by_node(messages, other, count, false, room, c->cluster->node_count);
	order_by_node(other, messages, count, true, room, c->cluster->node_count);
	return count;
}

/* Seconds of `senders` messages of `bytes` in total over one link, forward and backward. Returns 0, or -1 with err if there is no
 * link. */
static int both_directions(const struct hspmd_costs *c, const struct message *w, int senders, double bytes, double seconds[2],
                           struct hspmd_error *err)
{
	seconds[0] = hspmd_costs_transfer(c, w->from, w->to, senders, senders, bytes, err);
	seconds[1] = seconds[0] < 0 ? -1 : hspmd_costs_transfer(c, w->to, w->from, senders, senders, bytes, err);
	return seconds[1] < 0 ? -1 : 0;
}

/* Pipelines run in step, so what they send from one node to others reaches its network at the same time and queues. The message in the
 * middle of n waits for half of the others: (own + all) / 2. */
static int transfers(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	struct message *messages = hspmd_calloc((size_t)t->stage_total * 2, sizeof *messages);
	int *room = hspmd_calloc((size_t)c->cluster->node_count + 1, sizeof *room);
	double *leaving = hspmd_calloc((size_t)c->cluster->node_count * 2, sizeof *leaving), *returning = leaving + c->cluster->node_count;
	int rc = -1, count;
	if (!messages || !leaving || !room) {
		hspmd_fail_memory(err, "evaluating a plan");
		goto out;
	}
	count = collect_messages(c, p, t, messages, room);
	for (int i = 0, end; i < count; i = end) {
		double bytes = 0, seconds[2];
		for (end = i;
		     end < count && messages[end].from_node == messages[i].from_node && messages[end].to_node == messages[i].to_node; end++)
			bytes += messages[end].bytes;
		if (messages[i].from_node == messages[i].to_node)
			continue;
		if (both_directions(c, &messages[i], end - i, bytes, seconds, err))
			goto out;
		leaving[messages[i].from_node] += seconds[0];
		returning[messages[i].to_node] += seconds[1];
	}
	for (int i = 0; i < count; i++) {
		const struct message *w = &messages[i];
		double seconds[2];
		if (w->from == w->to)
			continue;
		if (both_directions(c, w, 1, w->bytes, seconds, err))
			goto out;
		if (w->from_node != w->to_node) {
			seconds[0] = (seconds[0] + leaving[w->from_node]) / 2;
			seconds[1] = (seconds[1] + returning[w->to_node]) / 2;
		}
		t->stages[w->stage].send_forward = seconds[0];
		t->stages[w->stage + 1].send_backward = seconds[1];
	}
	rc = 0;
out:
	free(messages);
	free(leaving);
	free(room);
	return rc;
}

struct hspmd_sim_stage hspmd_sim_stage_of(const struct hspmd_stage_timing *t)
{
	return (struct hspmd_sim_stage){ .forward = t->cost.forward,
		                         .backward = t->cost.backward,
		                         .weight_grads = hspmd_sim_weight_grads(t->cost.forward, t->cost.backward),
		                         .send_forward = t->send_forward,
		                         .send_backward = t->send_backward };
}

int hspmd_simulate_pipeline(const struct hspmd_plan *p, int pipeline, const struct hspmd_sim_stage *stages,
                            struct hspmd_pipeline_sim *result)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	if (p->schedule == HSPMD_SCHEDULE_INTERLEAVED)
		return hspmd_simulate_interleaved(stages, pipe->stage_count, p->virtual_stages, pipe->micro_batches, result);
	return hspmd_simulate(stages, pipe->stage_count, pipe->micro_batches, p->schedule, result);
}

/* ends: room for a number per stage. */
static int simulate_stages(const struct hspmd_plan *p, int pipeline, struct hspmd_pipeline_memo *known,
                           const struct hspmd_sim_stage *stages, double *ends, double *end)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	if (p->schedule == HSPMD_SCHEDULE_INTERLEAVED) {
		struct hspmd_pipeline_sim result = { .stage_end = ends };
		int status = hspmd_simulate_pipeline(p, pipeline, stages, &result);
		*end = result.end;
		return status;
	}
	const struct hspmd_pipeline_run run = { stages, pipe->stage_count, pipe->micro_batches, p->schedule };
	return hspmd_pipeline_memo_simulate(known, &run, ends, end);
}

static int simulate_pipeline(const struct hspmd_plan *p, int pipeline, struct hspmd_pipeline_memo *known, struct hspmd_timing *t,
                             double *end, struct hspmd_error *err)
{
	struct hspmd_stage_timing *st = &t->stages[t->first_stage[pipeline]];
	size_t n = (size_t)p->pipelines[pipeline].stage_count;
	struct hspmd_sim_stage *sim = hspmd_calloc(n, sizeof *sim);
	double *ends = hspmd_calloc(n, sizeof *ends);
	for (size_t s = 0; sim && s < n; s++)
		sim[s] = hspmd_sim_stage_of(&st[s]);
	int status = sim && ends ? simulate_stages(p, pipeline, known, sim, ends, end) : -1;
	for (size_t s = 0; !status && s < n; s++)
		st[s].end = ends[s];
	free(sim);
	free(ends);
	return status ? hspmd_fail_memory(err, "simulating a pipeline") : 0;
}

/* Returns true if two pipelines run alike, so that one need not be simulated. */
static bool run_alike(const struct hspmd_plan *p, const struct hspmd_timing *t, int a, int b)
{
	const struct hspmd_stage_timing *x = &t->stages[t->first_stage[a]], *y = &t->stages[t->first_stage[b]];
	if (p->pipelines[a].stage_count != p->pipelines[b].stage_count || p->pipelines[a].micro_batches != p->pipelines[b].micro_batches)
		return false;
	for (int s = 0; s < p->pipelines[a].stage_count; s++)
		if (x[s].cost.forward != y[s].cost.forward || x[s].cost.backward != y[s].cost.backward ||
		    x[s].send_forward != y[s].send_forward || x[s].send_backward != y[s].send_backward)
			return false;
	return true;
}

/* Simulates the pipelines, those that are alike once: large clusters have many. */
static int simulate_pipelines(const struct hspmd_plan *p, struct hspmd_pipeline_memo *known, struct hspmd_timing *t,
                              struct hspmd_error *err)
{
	int different[DIFFERENT_MAX], count = 0; /* the last pipelines that were simulated, and when they end */
	double end[DIFFERENT_MAX];
	for (int i = 0; i < p->pipeline_count; i++) {
		int k = count - 1;
		while (k >= 0 && k >= count - DIFFERENT_MAX && !run_alike(p, t, different[k % DIFFERENT_MAX], i))
			k--;
		if (k < 0 || k < count - DIFFERENT_MAX) {
			k = count++;
			different[k % DIFFERENT_MAX] = i;
			if (simulate_pipeline(p, i, known, t, &end[k % DIFFERENT_MAX], err))
				return -1;
		}
		for (int s = 0, like = different[k % DIFFERENT_MAX]; s < p->pipelines[i].stage_count; s++)
			t->stages[t->first_stage[i] + s].end = t->stages[t->first_stage[like] + s].end;
		if (end[k % DIFFERENT_MAX] > t->compute_end) {
			t->compute_end = end[k % DIFFERENT_MAX];
			t->worst_pipeline = i;
		}
	}
	return 0;
}

struct hspmd_stage_timing hspmd_timing_all_chunks(const struct hspmd_plan *p, const struct hspmd_timing *t, int pipeline, int s)
{
	const struct hspmd_stage_timing *stages = &t->stages[t->first_stage[pipeline]];
	struct hspmd_stage_timing sum = { 0 };
	int count = p->pipelines[pipeline].stage_count;
	for (; s < count; s += count / p->virtual_stages) {
		sum.cost.forward += stages[s].cost.forward;
		sum.cost.backward += stages[s].cost.backward;
		sum.cost.group_comm += stages[s].cost.group_comm;
		sum.cost.optimizer += stages[s].cost.optimizer;
		sum.send_forward += stages[s].send_forward;
		sum.send_backward += stages[s].send_backward;
	}
	return sum;
}

static double busy(const struct hspmd_plan *p, const struct hspmd_timing *t, int pipeline, int s)
{
	struct hspmd_stage_timing sum = hspmd_timing_all_chunks(p, t, pipeline, s);
	return sum.cost.forward + sum.cost.backward + sum.send_forward + sum.send_backward;
}

/* Find the slowest optimizer, and the busiest devices of the pipeline that ends last. */
static void find_slowest(const struct hspmd_plan *p, struct hspmd_timing *t)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			t->optimizer_s = fmax(t->optimizer_s, hspmd_timing_all_chunks(p, t, i, s).cost.optimizer);
	for (int s = 1; s < p->pipelines[t->worst_pipeline].stage_count / p->virtual_stages; s++)
		if (busy(p, t, t->worst_pipeline, s) > busy(p, t, t->worst_pipeline, t->worst_stage))
			t->worst_stage = s;
}

/* Returns true if a stage costs what the other does: the same work on like devices that are as near to each other. */
static bool cost_alike(const struct hspmd_cluster *c, const struct hspmd_stage *a, const struct hspmd_stage *b)
{
	if (a->layers[0] != b->layers[0] || a->layers[1] != b->layers[1] || a->recompute != b->recompute ||
	    a->zero_share != b->zero_share || a->offload != b->offload || a->offload_activations != b->offload_activations ||
	    a->shard_ratio || b->shard_ratio || a->context_ratio || b->context_ratio || !hspmd_stage_same_splits(a, b))
		return false;
	int away = c->devices[a->devices[0]].node - c->devices[b->devices[0]].node;
	for (int d = 0; d < a->device_count; d++) {
		const struct hspmd_cluster_device *x = &c->devices[a->devices[d]], *y = &c->devices[b->devices[d]];
		if (x->type != y->type || x->node - y->node != away || c->nodes[x->node].slowdown != c->nodes[y->node].slowdown)
			return false;
	}
	return true;
}

/* Fill in the costs of all stages; those of a stage like that of the pipeline before it are copied. Large plans have many. */
static int cost_stages(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	int devices = hspmd_plan_device_count(p);
	bool any_like = !hspmd_cluster_names_nodes(c->cluster), parts_differ = p->has_zero_shares;
	for (int i = 0; i < p->pipeline_count; i++) {
		const struct hspmd_pipeline *pipe = &p->pipelines[i], *last = i && any_like ? pipe - 1 : NULL;
		for (int s = 0; s < pipe->stage_count; s++) {
			struct hspmd_stage_timing *st = &t->stages[t->first_stage[i] + s];
			const struct hspmd_stage *stage = &pipe->stages[s];
			if (last && s < last->stage_count && last->micro_batch == pipe->micro_batch &&
			    cost_alike(c->cluster, stage, &last->stages[s])) {
				st->cost = t->stages[t->first_stage[i - 1] + s].cost;
				continue;
			}
			if (hspmd_costs_stage(c, stage, pipe->micro_batch, &st->cost, err))
				return -1;
			double vary = hspmd_variation(c, devices, stage->device_count);
			st->cost.forward *= vary;
			st->cost.backward *= vary;
			st->cost.group_comm *= vary;
			if (p->zero_stage)
				st->cost.optimizer *= parts_differ ? hspmd_plan_zero_part(p, i, stage->layers[0]) : 1.0 / p->pipeline_count;
		}
	}
	return 0;
}

int hspmd_timing_compute(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	return hspmd_timing_compute_below(c, p, NULL, INFINITY, t, err);
}

int hspmd_timing_passes(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_pipeline_memo *known, struct hspmd_timing *t,
                        struct hspmd_error *err)
{
	*t = (struct hspmd_timing){ 0 };
	t->first_stage = hspmd_calloc((size_t)p->pipeline_count, sizeof *t->first_stage);
	if (!t->first_stage)
		return hspmd_fail_memory(err, "evaluating a plan");
	for (int i = 0; i < p->pipeline_count; i++) {
		t->first_stage[i] = t->stage_total;
		t->stage_total += p->pipelines[i].stage_count;
	}
	t->stages = hspmd_calloc((size_t)t->stage_total, sizeof *t->stages);
	if (!t->stages) {
		hspmd_fail_memory(err, "evaluating a plan");
		goto fail;
	}
	if (cost_stages(c, p, t, err) || (p->zero_stage > 1 && p->pipeline_count > 1 && hspmd_time_parts(c, p, t, err)) ||
	    transfers(c, p, t, err) || simulate_pipelines(p, known, t, err))
		goto fail;
	find_slowest(p, t);
	return 0;
fail:
	hspmd_timing_clear(t);
	return -1;
}

int hspmd_timing_end(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_timing *t, struct hspmd_error *err)
{
	if (hspmd_time_gradient_sync(c, p, t, err)) {
		hspmd_timing_clear(t);
		return -1;
	}
	t->sync_end = t->compute_end;
	for (int s = 0; s < t->stage_total; s++)
		t->sync_end = fmax(t->sync_end, t->stages[s].sync_end);
	t->step_s = t->sync_end + t->optimizer_s;
	return 0;
}

int hspmd_timing_compute_below(struct hspmd_costs *c, const struct hspmd_plan *p, struct hspmd_pipeline_memo *known, double limit_s,
                               struct hspmd_timing *t, struct hspmd_error *err)
{
	if (hspmd_timing_passes(c, p, known, t, err))
		return -1;
	if (t->compute_end + t->optimizer_s < limit_s)
		return hspmd_timing_end(c, p, t, err);
	hspmd_timing_clear(t);
	return 1;
}

/* ---- predicted */

int hspmd_predicted_resize(struct hspmd_predicted *p, int devices, struct hspmd_error *err)
{
	int *ids = hspmd_calloc((size_t)devices, sizeof *ids);
	double *bytes = hspmd_calloc((size_t)devices, sizeof *bytes);
	if (!ids || !bytes) {
		free(ids);
		free(bytes);
		return hspmd_fail_memory(err, "predicting memory");
	}
	free(p->devices);
	free(p->memory_bytes);
	p->device_count = devices;
	p->devices = ids;
	p->memory_bytes = bytes;
	return 0;
}

static int fill_memory(const struct hspmd_costs *c, struct hspmd_plan *p, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	int at = 0;
	if (hspmd_predicted_resize(&p->predicted, hspmd_plan_device_count(p), err))
		return -1;
	int *ids = p->predicted.devices;
	double *bytes = p->predicted.memory_bytes;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++, at++) {
				ids[at] = p->pipelines[i].stages[s].devices[d];
				bytes[at] = hspmd_plan_memory(c, p, i, s, d);
				const struct hspmd_device_type *type = &c->cluster->types[c->cluster->devices[ids[at]].type];
				const struct hspmd_shortage of[] = { { ids[at], i, s, bytes[at], (double)type->memory_bytes, false },
					                             { ids[at], i, s, hspmd_plan_host_memory(c, p, i, s, d),
					                               (double)type->host.memory_bytes, true } };
				for (int k = 0; report && k < 2; k++)
					if (of[k].need_bytes > of[k].have_bytes && hspmd_report_shortage(report, &of[k], err))
						return -1;
			}
	return 0;
}

/* Where the step's time goes, from the point of view of the busiest stage of the pipeline that ends last; the parts add up to the
 * step. */
static void fill_times(const struct hspmd_plan *p, const struct hspmd_timing *t, struct hspmd_predicted *out)
{
	struct hspmd_stage_timing w = hspmd_timing_all_chunks(p, t, t->worst_pipeline, t->worst_stage);
	int m = p->pipelines[t->worst_pipeline].micro_batches;
	double compute = m * (w.cost.forward + w.cost.backward), sent = m * (w.send_forward + w.send_backward);
	out->step_s = t->step_s;
	out->compute_s = compute + t->optimizer_s;
	out->communication_s = sent;
	out->sync_s = t->sync_end - t->compute_end;
	out->bubble_s = fmax(0, t->compute_end - compute - sent);
}

static void warn_origins(struct hspmd_costs *c, const struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++) {
			const struct hspmd_stage *st = &p->pipelines[i].stages[s];
			for (int d = 0; d < st->device_count; d++) {
				const struct hspmd_layer_times *t =
				        hspmd_costs_times(c, c->cluster->devices[st->devices[d]].type, hspmd_stage_share(st, d),
				                          st->sequence_parallel, p->pipelines[i].micro_batch, NULL);
				if (t && t->origins)
					hspmd_costs_warn_origins(c, t);
			}
		}
}

int hspmd_predict(struct hspmd_costs *c, struct hspmd_plan *p, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	struct hspmd_timing t;
	if (hspmd_timing_compute(c, p, &t, err))
		return -1;
	fill_times(p, &t, &p->predicted);
	hspmd_timing_clear(&t);
	warn_origins(c, p);
	return fill_memory(c, p, report, err);
}

int hspmd_evaluate(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                   enum hspmd_precision precision, struct hspmd_plan *plan, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	struct hspmd_costs *c = hspmd_costs_of_plan(cluster, facts, profile, precision, plan, err);
	if (!c)
		return -1;
	int rc = hspmd_predict(c, plan, report, err);
	if (!rc && report) {
		hspmd_report_take_warnings(report, c);
		if (facts)
			hspmd_report_precision(report, cluster, plan, precision);
	}
	hspmd_costs_destroy(c);
	return rc;
}
