/* SPDX-License-Identifier: Apache-2.0 */
/* What limits a plan, in sentences: where the step's time goes, which stage of which pipeline is the limit and why, which gradients are
 * synchronised last, which device is fullest, and what one more device of each type would bring (by searching again with it). */
#include "controller/solver/report/explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/format/recompute_sets.h"
#include "controller/solver/cost/cost_constants.h"
#include "controller/solver/search/search_plan.h"
#include "controller/solver/search/subclusters.h"
#include "controller/solver/sim/evaluate.h"

static void write_time(FILE *f, const struct hspmd_predicted *p)
{
	const struct {
		const char *what, *means;
		double s;
	} parts[] = {
		{ "arithmetic", "faster or more devices help, other links do not", p->compute_s },
		{ "stages that wait for one another", "more micro-batches or more equal stages help", p->bubble_s },
		{ "messages within a micro-batch", "faster links between stages or within a stage help", p->communication_s },
		{ "gradient synchronisation", "faster links between pipelines or a larger batch help", p->sync_s },
	};
	size_t most = 0;
	for (size_t i = 1; i < sizeof parts / sizeof *parts; i++)
		most = parts[i].s > parts[most].s ? i : most;
	if (p->step_s > 0)
		fprintf(f, "Of a step's %.4g s, %.0f%% is %s: %s.\n", p->step_s, 100 * parts[most].s / p->step_s, parts[most].what,
		        parts[most].means);
}

/* Write "layers 0-3 and 8-11 on a:0 and 1 more, H20". */
static void write_location(FILE *f, const struct hspmd_cluster *c, const struct hspmd_plan *p, int pipeline, int stage)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	const struct hspmd_stage *st = &pipe->stages[stage];
	int ranks = pipe->stage_count / p->virtual_stages;
	char name[256];
	fputs("layers ", f);
	for (int s = stage; s < pipe->stage_count; s += ranks)
		fprintf(f, "%s%d-%d",
		        s == stage                      ? ""
		        : s + ranks < pipe->stage_count ? ", "
		                                        : " and ",
		        pipe->stages[s].layers[0], pipe->stages[s].layers[1] - 1);
	bool alike = true;
	for (int d = 1; d < st->device_count; d++)
		alike = alike && c->devices[st->devices[d]].type == c->devices[st->devices[0]].type;
	fprintf(f, " on %s", hspmd_cluster_device_address(c, st->devices[0], name, sizeof name));
	if (st->device_count > 1)
		fprintf(f, " and %d more", st->device_count - 1);
	fprintf(f, ", %s", alike ? c->types[c->devices[st->devices[0]].type].name : "of several types");
}

static double cycle_of(const struct hspmd_stage_timing *x)
{
	return x->cost.forward + x->cost.backward + x->send_forward + x->send_backward;
}

/* Write what the busiest stage of the pipeline that ends last does per micro-batch, and how much less the least busy stage has to do. */
static void write_stage(FILE *f, const struct hspmd_cluster *c, const struct hspmd_plan *p, const struct hspmd_timing *t)
{
	int pipeline = t->worst_pipeline, ranks = p->pipelines[pipeline].stage_count / p->virtual_stages, least = t->worst_stage;
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	struct hspmd_stage_timing x = hspmd_timing_all_chunks(p, t, pipeline, t->worst_stage), low = x;
	double cycle = cycle_of(&x), sent = x.send_forward + x.send_backward, group_comm = x.cost.group_comm;
	for (int s = 0; s < ranks; s++) {
		struct hspmd_stage_timing y = hspmd_timing_all_chunks(p, t, pipeline, s);
		if (cycle_of(&y) < cycle_of(&low)) {
			low = y;
			least = s;
		}
	}
	if (p->pipeline_count > 1)
		fprintf(f, "Pipeline %d ends last", pipeline);
	else
		fputs("There is one pipeline", f);
	fprintf(f, "; its limit is stage %d (", t->worst_stage);
	write_location(f, c, p, pipeline, t->worst_stage);
	fprintf(f, "): a micro-batch takes it %.4g ms forward and backward, %.4g of them arithmetic", 1e3 * cycle,
	        1e3 * (cycle - sent - group_comm));
	if (group_comm > 0)
		fprintf(f, ", %.4g messages within its group", 1e3 * group_comm);
	if (sent > 0)
		fprintf(f, ", %.4g messages to its neighbours", 1e3 * sent);
	fprintf(f, "; its %d micro-batches are %.0f%% of the step.\n", pipe->micro_batches, 100 * pipe->micro_batches * cycle / t->step_s);
	if (cycle_of(&low) < 0.97 * cycle)
		fprintf(f,
		        "Stage %d has the least to do, %.4g ms: layers cannot be divided more evenly, or memory or a boundary's messages "
		        "prevent it.\n",
		        least, 1e3 * cycle_of(&low));
}

/* Write which gradients are synchronised last. */
static void write_sync(FILE *f, const struct hspmd_plan *p, const struct hspmd_timing *t)
{
	int pipeline = 0, stage = 0;
	double last = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			if (t->stages[t->first_stage[i] + s].sync_end > last) {
				last = t->stages[t->first_stage[i] + s].sync_end;
				pipeline = i;
				stage = s;
			}
	double waited = last - t->compute_end;
	if (!(waited > 1e-3 * t->step_s))
		return;
	const int *layers = p->pipelines[pipeline].stages[stage].layers;
	fprintf(f,
	        "Gradients are synchronised %.4g s after the last backward pass; the last ones are those of layers %d-%d (stage %d of "
	        "pipeline "
	        "%d%s).\n",
	        waited, layers[0], layers[1] - 1, stage, pipeline, p->pipeline_count > 1 ? " and those like it" : "");
}

struct location {
	int pipeline, stage, which;
	double bytes, share;
};

static struct location fullest(const struct hspmd_cluster *c, const struct hspmd_plan *p)
{
	const struct hspmd_predicted *x = &p->predicted;
	struct location most = { 0 };
	int at = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count && at < x->device_count; d++, at++) {
				double share = x->memory_bytes[at] / (double)c->types[c->devices[x->devices[at]].type].memory_bytes;
				if (share > most.share)
					most = (struct location){ i, s, d, x->memory_bytes[at], share };
			}
	return most;
}

static void write_memory(FILE *f, const struct hspmd_costs *costs, const struct hspmd_plan *p)
{
	const struct hspmd_cluster *c = costs->cluster;
	struct location at = fullest(c, p);
	const struct hspmd_pipeline *pipe = &p->pipelines[at.pipeline];
	char name[256];
	double state = 0, workspace = 0;
	if (!(at.share > 0))
		return;
	for (int s = at.stage; s < pipe->stage_count; s += pipe->stage_count / p->virtual_stages) {
		const struct hspmd_layer_copies copies = hspmd_costs_copies(costs, p, at.pipeline, s);
		const struct hspmd_memory m = hspmd_costs_memory(costs, &pipe->stages[s], at.which, pipe->micro_batch, false, &copies);
		state += m.state;
		workspace = fmax(workspace, m.workspace);
	}
	fprintf(f,
	        "The fullest device, %s (pipeline %d, stage %d), needs %.1f%% of its memory: %.3g GB for weights, gradients and moments, "
	        "%.3g GB within operators, %.3g GB for the rest.\n",
	        hspmd_cluster_device_address(c, pipe->stages[at.stage].devices[at.which], name, sizeof name), at.pipeline, at.stage,
	        100 * at.share, state / 1e9, workspace / 1e9, (at.bytes - state - workspace) / 1e9);
}

/* Write how unequally the pipelines divide the state, if they do. */
static void write_parts(FILE *f, const struct hspmd_plan *p)
{
	int least = 0, most = 0, layer = 0;
	for (int i = 1; i < p->pipeline_count; i++) {
		least = hspmd_plan_zero_part(p, i, layer) < hspmd_plan_zero_part(p, least, layer) ? i : least;
		most = hspmd_plan_zero_part(p, i, layer) > hspmd_plan_zero_part(p, most, layer) ? i : most;
	}
	double low = hspmd_plan_zero_part(p, least, layer), high = hspmd_plan_zero_part(p, most, layer);
	if (p->zero_stage && high > low * 1.001)
		fprintf(f,
		        "The pipelines divide %s by what their devices have free: pipeline %d keeps %.3g%%, pipeline %d keeps %.3g%%; "
		        "equal parts "
		        "would be %.3g%%.\n",
		        p->zero_stage == 1   ? "the optimizer's state"
		        : p->zero_stage == 2 ? "the optimizer's state and gradients"
		                             : "weights, gradients and the optimizer's state",
		        most, 100 * high, least, 100 * low, 100.0 / p->pipeline_count);
}

/* How many stages of the plan recompute in this way; *pipeline and *stage: the first of them. */
static int count_stages(const struct hspmd_plan *p, enum hspmd_recompute recompute, int *pipeline, int *stage)
{
	int count = 0;
	for (int i = p->pipeline_count - 1; i >= 0; i--)
		for (int s = p->pipelines[i].stage_count - 1; s >= 0; s--)
			if (p->pipelines[i].stages[s].recompute == recompute) {
				count++;
				*pipeline = i;
				*stage = s;
			}
	return count;
}

/* Bytes that a micro-batch in flight has of the stage, on a device and in the host's memory. */
static double kept_bytes(const struct hspmd_costs *costs, const struct hspmd_stage *st, int micro_batch,
                         const struct hspmd_layer_copies *copies)
{
	struct hspmd_memory m = hspmd_costs_memory(costs, st, 0, micro_batch, false, copies);
	return m.in_flight + m.offloaded_activations;
}

/* Write what the stage saves by recomputation, for which time, and what its fullest device would need if it recomputed less. */
static void write_gain(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p, int pipeline, int stage)
{
	struct hspmd_plan *less = hspmd_plan_copy(p);
	struct hspmd_stage *st = less ? &less->pipelines[pipeline].stages[stage] : NULL;
	const struct hspmd_layer_copies copies = hspmd_costs_copies(costs, p, pipeline, stage);
	int micro_batch = p->pipelines[pipeline].micro_batch;
	unsigned kinds = hspmd_recompute_kinds(p->recompute_sets);
	struct hspmd_stage_cost with = { 0 }, without = { 0 };
	if (!st || hspmd_costs_stage(costs, st, micro_batch, &with, NULL)) {
		hspmd_plan_destroy(less);
		return;
	}
	double kept = kept_bytes(costs, st, micro_batch, &copies);
	enum hspmd_recompute before = st->recompute;
	st->recompute = HSPMD_RECOMPUTE_NONE;
	double all = kept_bytes(costs, st, micro_batch, &copies);
	if (!hspmd_costs_stage(costs, st, micro_batch, &without, NULL))
		fprintf(f, "; that keeps %.3g GB of a micro-batch instead of %.3g and takes %.3g ms more of its %.3g", kept / 1e9,
		        all / 1e9, 1e3 * (with.backward - without.backward), 1e3 * (with.forward + with.backward));
	do
		before--;
	while (!(kinds & 1u << before));
	st->recompute = before;
	double need = 0, have = 0;
	for (int d = 0; d < st->device_count; d++) {
		const struct hspmd_device_type *type = &costs->cluster->types[costs->cluster->devices[st->devices[d]].type];
		double bytes = hspmd_plan_memory(costs, less, pipeline, stage, d);
		if (bytes * have >= need * (double)type->memory_bytes || !have) {
			need = bytes;
			have = (double)type->memory_bytes;
		}
	}
	if (need > have)
		fprintf(f, "; with less to do again (%s) a device would need %.4g GB of its %.4g", hspmd_recompute_names[before],
		        need / 1e9, have / 1e9);
	hspmd_plan_destroy(less);
}

/* Write which operators run again, where, and why. */
static void write_recompute(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p)
{
	for (int k = HSPMD_RECOMPUTE_SELECTIVE; k < HSPMD_RECOMPUTE_KINDS; k++) {
		int pipeline = 0, stage = 0, count = count_stages(p, (enum hspmd_recompute)k, &pipeline, &stage);
		const json_t *set = hspmd_recompute_set(p->recompute_sets, (enum hspmd_recompute)k);
		char *names = set && count ? hspmd_recompute_set_text(set) : NULL;
		if (!count || (set && !names))
			continue;
		fprintf(f, "Stage %d of pipeline %d", stage, pipeline);
		if (count > 1)
			fprintf(f, " (and %d more)", count - 1);
		fprintf(f, " runs %s again before a block's backward pass, instead of keeping what %s give",
		        names                            ? names
		        : k == HSPMD_RECOMPUTE_SELECTIVE ? "operators that are cheap for the size of their results"
		                                         : "all of a block",
		        k == HSPMD_RECOMPUTE_FULL ? "its operators" : "they");
		write_gain(f, costs, p, pipeline, stage);
		fputs(".\n", f);
		free(names);
	}
}

/* Write what the stage has in its hosts' memory, what that takes, and what its fullest device would need without. */
static void write_host(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p, int pipeline, int stage)
{
	const struct hspmd_cluster *c = costs->cluster;
	struct hspmd_plan *kept = hspmd_plan_copy(p);
	struct hspmd_stage *st = kept ? &kept->pipelines[pipeline].stages[stage] : NULL;
	struct hspmd_stage_cost with = { 0 }, without = { 0 };
	int micro_batch = p->pipelines[pipeline].micro_batch;
	double part = !p->zero_stage ? 1 : hspmd_plan_zero_part(p, pipeline, p->pipelines[pipeline].stages[stage].layers[0]);
	if (!st || hspmd_costs_stage(costs, st, micro_batch, &with, NULL)) {
		hspmd_plan_destroy(kept);
		return;
	}
	const struct hspmd_device_type *type = &c->types[c->devices[st->devices[0]].type];
	fprintf(f, ": %.3g GB of a device, which its update reads and writes over %.4g GB/s",
	        hspmd_plan_host_bytes(costs, p, pipeline, stage, 0).optimizer / 1e9, type->host.gbytes_per_s);
	for (int s = stage; s < kept->pipelines[pipeline].stage_count; s += kept->pipelines[pipeline].stage_count / p->virtual_stages)
		kept->pipelines[pipeline].stages[s].offload = HSPMD_OFFLOAD_NONE;
	if (!hspmd_costs_stage(costs, st, micro_batch, &without, NULL))
		fprintf(f, " in %.3g ms instead of %.3g", 1e3 * part * with.optimizer, 1e3 * part * without.optimizer);
	double need = hspmd_plan_memory(costs, kept, pipeline, stage, 0);
	if (need > (double)type->memory_bytes)
		fprintf(f, "; without, the device would need %.4g GB of its %.4g", need / 1e9, (double)type->memory_bytes / 1e9);
	hspmd_plan_destroy(kept);
}

/* Write how much the stage copies to its hosts' memory, how long that takes beyond computing, and what its fullest device would need
 * without. */
static void write_copies(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p, int pipeline, int stage)
{
	struct hspmd_plan *kept = hspmd_plan_copy(p);
	struct hspmd_stage *st = kept ? &kept->pipelines[pipeline].stages[stage] : NULL;
	struct hspmd_stage_cost with = { 0 }, without = { 0 };
	int micro_batch = p->pipelines[pipeline].micro_batch, ranks = p->pipelines[pipeline].stage_count / p->virtual_stages;
	const struct hspmd_layer_copies copies = hspmd_costs_copies(costs, p, pipeline, stage);
	if (!st || hspmd_costs_stage(costs, st, micro_batch, &with, NULL)) {
		hspmd_plan_destroy(kept);
		return;
	}
	const struct hspmd_device_type *type = &costs->cluster->types[costs->cluster->devices[st->devices[0]].type];
	double each = hspmd_costs_memory(costs, st, 0, micro_batch, false, &copies).offloaded_activations;
	fprintf(f, ": %.3g GB of a device, and %.3g GB of each micro-batch there and back over %.4g GB/s",
	        hspmd_plan_host_bytes(costs, p, pipeline, stage % ranks, 0).activations / 1e9, each / 1e9, type->host.gbytes_per_s);
	st->offload_activations = 0;
	if (!hspmd_costs_stage(costs, st, micro_batch, &without, NULL)) {
		double more = with.forward + with.backward - without.forward - without.backward;
		if (more > 0)
			fprintf(f, ", which takes %.3g ms longer than the %.3g that it computes", 1e3 * more,
			        1e3 * (without.forward + without.backward));
		else
			fputs(", all of it beside computing", f);
	}
	double need = hspmd_plan_memory(costs, kept, pipeline, stage % ranks, 0);
	if (need > (double)type->memory_bytes)
		fprintf(f, "; without, the device would need %.4g GB of its %.4g", need / 1e9, (double)type->memory_bytes / 1e9);
	hspmd_plan_destroy(kept);
}

/* Write which stages have the optimizer's state, or activations, in the host's memory, and why. */
static void write_offload(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p, bool activations)
{
	int pipeline = 0, stage = 0, count = 0;
	for (int i = p->pipeline_count - 1; i >= 0; i--)
		for (int s = p->pipelines[i].stage_count / (activations ? 1 : p->virtual_stages) - 1; s >= 0; s--)
			if (activations ? p->pipelines[i].stages[s].offload_activations : (int)p->pipelines[i].stages[s].offload) {
				count++;
				pipeline = i;
				stage = s;
			}
	if (!count)
		return;
	fprintf(f, "Stage %d of pipeline %d", stage, pipeline);
	if (count > 1)
		fprintf(f, " (and %d more)", count - 1);
	fprintf(f, " keeps %s in the host's memory", activations ? "what forward passes save" : "the optimizer's state");
	(activations ? write_copies : write_host)(f, costs, p, pipeline, stage);
	fputs(".\n", f);
}

/* Write which stages divide activations along the sequence, and what that saves. */
static void write_sequence(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p)
{
	int pipeline = 0, stage = 0, count = 0;
	for (int i = p->pipeline_count - 1; i >= 0; i--)
		for (int s = p->pipelines[i].stage_count - 1; s >= 0; s--)
			if (p->pipelines[i].stages[s].sequence_parallel) {
				count++;
				pipeline = i;
				stage = s;
			}
	if (!count)
		return;
	const struct hspmd_layer_copies copies = hspmd_costs_copies(costs, p, pipeline, stage);
	struct hspmd_stage st = p->pipelines[pipeline].stages[stage];
	struct hspmd_stage_cost with = { 0 }, without = { 0 };
	int micro_batch = p->pipelines[pipeline].micro_batch;
	double kept = kept_bytes(costs, &st, micro_batch, &copies);
	bool known = !hspmd_costs_stage(costs, &st, micro_batch, &with, NULL);
	st.sequence_parallel = false;
	double all = kept_bytes(costs, &st, micro_batch, &copies);
	known = known && !hspmd_costs_stage(costs, &st, micro_batch, &without, NULL);
	fprintf(f, "Stage %d of pipeline %d", stage, pipeline);
	if (count > 1)
		fprintf(f, " (and %d more)", count - 1);
	fprintf(f, " has sequence parallelism: it keeps %.3g GB of a micro-batch, %.3g GB without", kept / 1e9, all / 1e9);
	if (known)
		fprintf(f, ", and takes %.4g ms for one, %.4g ms without", 1e3 * (with.forward + with.backward),
		        1e3 * (without.forward + without.backward));
	fputs(".\n", f);
}

/* Write whether weights are gathered ahead, what that takes, and what it saves. */
static void write_prefetch(FILE *f, struct hspmd_costs *costs, const struct hspmd_plan *p)
{
	struct hspmd_timing with, without;
	struct hspmd_plan *other = p->zero_stage > 2 && p->pipeline_count > 1 ? hspmd_plan_copy(p) : NULL;
	const struct location at = fullest(costs->cluster, p);
	if (!other)
		return;
	other->no_prefetch = !p->no_prefetch;
	const struct hspmd_plan *ahead = p->no_prefetch ? other : p, *late = p->no_prefetch ? p : other;
	double more = hspmd_plan_memory(costs, ahead, at.pipeline, at.stage, at.which),
	       less = hspmd_plan_memory(costs, late, at.pipeline, at.stage, at.which);
	if (!hspmd_timing_compute(costs, ahead, &with, NULL)) {
		if (!hspmd_timing_compute(costs, late, &without, NULL)) {
			fprintf(f,
			        "The weights of a layer are gathered %s: a step of %.4g s instead of %.4g s, and %.4g GB on the fullest "
			        "device instead of %.4g.\n",
			        p->no_prefetch ? "when a pass comes to it, not while the layer before it computes"
			                       : "while the layer before it computes",
			        (p->no_prefetch ? &without : &with)->step_s, (p->no_prefetch ? &with : &without)->step_s,
			        (p->no_prefetch ? less : more) / 1e9, (p->no_prefetch ? more : less) / 1e9);
			hspmd_timing_clear(&without);
		}
		hspmd_timing_clear(&with);
	}
	hspmd_plan_destroy(other);
}

static void write_details(FILE *f, const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                          const struct hspmd_profile *profile, enum hspmd_precision precision, const struct hspmd_plan *plan)
{
	struct hspmd_timing t;
	struct hspmd_costs *c = hspmd_costs_of_plan(cluster, facts, profile, precision, plan, NULL);
	if (c && !hspmd_timing_compute(c, plan, &t, NULL)) {
		write_stage(f, cluster, plan, &t);
		write_sync(f, plan, &t);
		hspmd_timing_clear(&t);
		write_memory(f, c, plan);
		write_parts(f, plan);
		write_prefetch(f, c, plan);
		write_sequence(f, c, plan);
		write_recompute(f, c, plan);
		write_offload(f, c, plan, false);
		write_offload(f, c, plan, true);
	}
	hspmd_costs_destroy(c);
}

/* The cluster with one more node that has one device of this type. Returns NULL if memory runs out. */
static struct hspmd_cluster *with_one_more(const struct hspmd_cluster *c, int type)
{
	struct hspmd_error ignored;
	json_t *json = hspmd_cluster_to_json(c);
	json_t *node = json_pack("{ss,s[{ss,si}]}", "name", "one-more-device", "devices", "type", c->types[type].name, "count", 1);
	struct hspmd_cluster *more = NULL;
	if (json && node && !json_array_append(json_object_get(json, "nodes"), node))
		more = hspmd_cluster_from_json(json, "the cluster with a device more", &ignored);
	json_decref(node);
	json_decref(json);
	return more;
}

/* Number of devices of a type that the plan does not use; *all: number of all devices of the type. */
static int spare(const struct hspmd_cluster *c, const struct hspmd_plan *p, int type, int *all)
{
	int used = 0;
	*all = 0;
	for (int d = 0; d < c->device_count; d++)
		*all += c->devices[d].type == type;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++)
				used += c->devices[p->pipelines[i].stages[s].devices[d]].type == type;
	return *all - used;
}

/* One more device means something else if the plan already has no use for some. */
static void write_one_more(FILE *f, const struct hspmd_cluster *c, const struct hspmd_solve_request *r, const struct hspmd_plan *plan,
                           int type, const struct hspmd_plan *with)
{
	bool limits = hspmd_limits_are_set(&r->limits) || r->limits.type_count > 0,
	     helps = with->predicted.step_s < plan->predicted.step_s * 0.999;
	int all, left = spare(c, plan, type, &all);
	if (left > 0)
		fprintf(f, "%d of the %d %s %s spare%s", left, all, c->types[type].name, left == 1 ? "is" : "are",
		        helps ? "; all the same, one" : ": one");
	else
		fputs("One", f);
	fprintf(f, " more %s would ", c->types[type].name);
	if (helps)
		fprintf(f, "make a step %.1f%% shorter (%.4g s)", 100 * (1 - with->predicted.step_s / plan->predicted.step_s),
		        with->predicted.step_s);
	else
		fputs("bring nothing", f);
	fprintf(f, "%s.\n", limits ? " within the limits" : "");
}

/* What one more device of each type would bring, by a search of its own. */
static void write_more_devices(FILE *f, const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                               const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                               const struct hspmd_plan *plan)
{
	if (cluster->device_count > HSPMD_EXPLAIN_SEARCH_MOST) {
		fprintf(f,
		        "What one more device would bring is not searched for where there are more than %d: searches differ by more than "
		        "that.\n",
		        HSPMD_EXPLAIN_SEARCH_MOST);
		return;
	}
	for (int t = 0; t < cluster->type_count; t++) {
		struct hspmd_error err = { "" };
		struct hspmd_cluster *more = with_one_more(cluster, t);
		struct hspmd_plan *better = more ? hspmd_search_plan(more, facts, profile, request, NULL, NULL, &err) : NULL;
		if (better)
			write_one_more(f, cluster, request, plan, t, better);
		else
			fprintf(f, "What one more %s would bring is unknown: %s.\n", cluster->types[t].name,
			        more ? err.text : "out of memory");
		hspmd_plan_destroy(better);
		hspmd_cluster_destroy(more);
	}
}

char *hspmd_plan_explain(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_solve_request *request, const struct hspmd_plan *plan)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	write_time(f, &plan->predicted);
	if (!plan->synthesis) /* the runtime explains those */
		write_details(f, cluster, facts, profile, precision, plan);
	if (request)
		write_more_devices(f, cluster, facts, profile, request, plan);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
