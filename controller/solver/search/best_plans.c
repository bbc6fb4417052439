/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of drafts; the list of the best plans. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "common/alloc.h"
#include "controller/solver/search/minmax.h"
#include "controller/solver/search/search_internal.h"

#define UNEVEN 1.01 /* micro-batches are divided anew if that makes the passes of all pipelines shorter by this factor */
#define ROUNDING 1e-9

bool hspmd_search_is_over(struct hspmd_search *s)
{
	struct timespec now;
	if (hspmd_request_is_cancelled(s->request))
		s->timed_out = true;
	if (s->timed_out || !(s->deadline > 0) || !s->best_plans.count)
		return s->timed_out;
	clock_gettime(CLOCK_MONOTONIC, &now);
	s->timed_out = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec > s->deadline;
	return s->timed_out;
}

void hspmd_best_plans_clear(struct hspmd_best_plans *p)
{
	for (int i = 0; i < p->count; i++)
		hspmd_plan_destroy(p->list[i].plan);
	p->count = 0;
}

/* Returns true if two pipelines need the same memory on devices of the same types, so that checking one of them is enough. */
static bool weigh_alike(const struct hspmd_cluster *c, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b, bool interleaved)
{
	if (interleaved &&
	    a->micro_batches != b->micro_batches) /* what is in flight then also depends on micro-batches that do not fill a group */
		return false;
	if (a->stage_count != b->stage_count || a->micro_batch != b->micro_batch || a->micro_batches < b->micro_batches)
		return false;
	for (int s = 0; s < a->stage_count; s++) {
		const struct hspmd_stage *x = &a->stages[s], *y = &b->stages[s];
		if (x->layers[0] != y->layers[0] || x->layers[1] != y->layers[1] || x->device_count != y->device_count ||
		    x->recompute != y->recompute || x->offload != y->offload || x->offload_activations != y->offload_activations ||
		    x->sequence_parallel != y->sequence_parallel)
			return false;
		if (x->shard_ratio || y->shard_ratio)
			return false;
		for (int d = 0; d < x->device_count; d++)
			if (c->devices[x->devices[d]].type != c->devices[y->devices[d]].type)
				return false;
	}
	return true;
}

bool hspmd_stage_fits(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage)
{
	const struct hspmd_stage *st = &p->pipelines[pipeline].stages[stage];
	const struct hspmd_cluster_device *devices = c->cluster->devices;
	int rank = stage % (p->pipelines[pipeline].stage_count / p->virtual_stages); /* the same devices in every chunk */
	for (int d = 0; d < st->device_count; d++) {
		int type = devices[st->devices[d]].type;
		if (d > 0 && !st->shard_ratio && type == devices[st->devices[d - 1]].type)
			continue; /* equal to the previous one */
		if (hspmd_plan_memory(c, p, pipeline, rank, d) > (double)c->cluster->types[type].memory_bytes ||
		    hspmd_plan_host_memory(c, p, pipeline, rank, d) > (double)c->cluster->types[type].host.memory_bytes)
			return false;
	}
	return true;
}

bool hspmd_plan_fits(const struct hspmd_costs *c, const struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++) {
		if (i > 0 && weigh_alike(c->cluster, &p->pipelines[i - 1], &p->pipelines[i], p->virtual_stages > 1))
			continue;
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			if (!hspmd_stage_fits(c, p, i, s))
				return false;
	}
	return true;
}

bool hspmd_search_can_offload(const struct hspmd_search *s)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	for (int d = 0; s->caps.offload && s->costs->facts && d < c->device_count; d++)
		if (s->device_classes->class_of_device[d] >= 0 && c->types[c->devices[d].type].host.memory_bytes)
			return true;
	return false;
}

bool hspmd_stage_can_offload(const struct hspmd_search *s, const struct hspmd_stage *stage)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	for (int d = 0; d < stage->device_count; d++)
		if (!c->types[c->devices[stage->devices[d]].type].host.memory_bytes)
			return false;
	return s->caps.offload && s->costs->facts;
}

void hspmd_stage_set_offload(struct hspmd_plan *p, int pipeline, int stage, enum hspmd_offload offload)
{
	struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	for (int s = stage; s < pipe->stage_count; s += pipe->stage_count / p->virtual_stages)
		pipe->stages[s].offload = offload;
}

/* Stages that fit with their activations on their devices keep them there. */
static void keep_activations(const struct hspmd_search *s, struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++) {
			int *offloads = &p->pipelines[i].stages[k].offload_activations, was = *offloads;
			*offloads = 0;
			if (was && !hspmd_stage_fits(s->costs, p, i, k))
				*offloads = was;
		}
}

void hspmd_plan_offload_least(const struct hspmd_search *s, struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count / p->virtual_stages; k++) {
			if (!p->pipelines[i].stages[k].offload)
				continue;
			hspmd_stage_set_offload(p, i, k, HSPMD_OFFLOAD_NONE);
			if (!hspmd_stage_fits(s->costs, p, i, k))
				hspmd_stage_set_offload(p, i, k, HSPMD_OFFLOAD_OPTIMIZER);
		}
	keep_activations(s, p);
}

double hspmd_objective(const struct hspmd_search *s, const struct hspmd_plan *p, double step_s)
{
	double weight = s->request->limits.cost_weight;
	if (!(weight > 0))
		return step_s;
	double price = hspmd_plan_price(s->costs->cluster, p);
	return price > 0 ? step_s * pow(price, weight) : step_s;
}

double hspmd_plan_price(const struct hspmd_cluster *c, const struct hspmd_plan *p)
{
	double price = 0;
	bool *used = calloc((size_t)c->node_count, sizeof *used);
	if (!used)
		return 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++)
				used[c->devices[p->pipelines[i].stages[s].devices[d]].node] = true;
	for (int n = 0; n < c->node_count; n++)
		price += used[n] ? c->nodes[n].price_per_hour : 0;
	free(used);
	return price;
}

/* Returns true if the plan may be timed, and fits. */
static bool can_run(const struct hspmd_search *s, const struct hspmd_plan *plan)
{
	/* Changes to a plan whose pipelines must be in step mostly put them out of it. */
	return (plan->zero_stage < 2 || hspmd_plan_in_step(plan)) && hspmd_plan_fits(s->costs, plan);
}

double hspmd_best_plans_time(struct hspmd_search *s, const struct hspmd_plan *plan, double *seconds)
{
	struct hspmd_timing t;
	bool timed = can_run(s, plan) && !hspmd_timing_compute_below(s->costs, plan, s->known, INFINITY, &t, NULL);
	double step = timed ? t.step_s : INFINITY;
	s->evaluated += timed;
	if (timed)
		hspmd_timing_clear(&t);
	if (seconds)
		*seconds = step;
	return timed ? hspmd_objective(s, plan, step) : INFINITY;
}

/* Seconds of the passes if micro-batches are divided by how long those of each pipeline take; INFINITY if that is not worth while, because
 * it gains little, or because the step, which takes at least `rest` longer, would not be shorter than the best one. */
static double level_seconds(const struct hspmd_search *s, const struct hspmd_plan *plan, const struct hspmd_timing *t, double rest)
{
	double rates = 0;
	int total = 0;
	for (int i = 0; i < plan->pipeline_count; i++) {
		rates += plan->pipelines[i].micro_batches / t->stages[t->first_stage[i]].end;
		total += plan->pipelines[i].micro_batches;
	}
	double level_s = total / rates;
	return level_s > t->compute_end / UNEVEN || level_s + rest > s->best_s ? INFINITY : level_s;
}

/* Divide the micro-batches anew. Returns 0; 1 if they stay as they are, because that is not worth while or they cannot be divided
 * otherwise; -1 if memory runs out. */
static int level(const struct hspmd_search *s, struct hspmd_plan *plan, const struct hspmd_timing *t)
{
	size_t n = (size_t)plan->pipeline_count;
	int total = 0;
	if (isinf(level_seconds(s, plan, t, t->step_s - t->compute_end)))
		return 1;
	struct hspmd_minmax_worker *workers = hspmd_calloc(n, sizeof *workers);
	int *parts = hspmd_calloc(2 * n, sizeof *parts), *extra = parts + n;
	int rc = workers && parts ? 0 : -1;
	for (size_t i = 0; !rc && i < n; i++) {
		workers[i] = (struct hspmd_minmax_worker){ .each = t->stages[t->first_stage[i]].end / plan->pipelines[i].micro_batches,
			                                   .copies = 1,
			                                   .max_parts = INT_MAX };
		total += plan->pipelines[i].micro_batches;
	}
	rc = rc ? rc : hspmd_minmax_divide(workers, (int)n, total, parts, extra);
	for (size_t i = 0; !rc && i < n; i++)
		plan->pipelines[i].micro_batches = parts[i] + extra[i];
	free(workers);
	free(parts);
	return rc;
}

/* Divide the micro-batches anew if that is worth while, and find the plan's objective and step time: INFINITY if it does not fit, or if
 * the step surely is not shorter than `below`. Returns 0, or -1 if memory runs out. */
static int time_level(struct hspmd_search *s, struct hspmd_plan *plan, double below, double *objective, double *seconds)
{
	struct hspmd_timing t;
	*objective = *seconds = INFINITY;
	if (!can_run(s, plan) || hspmd_timing_passes(s->costs, plan, s->known, &t, NULL))
		return 0;
	s->evaluated++;
	if (t.compute_end + t.optimizer_s >= below && isinf(level_seconds(s, plan, &t, t.optimizer_s * (1 - ROUNDING)))) {
		hspmd_timing_clear(&t);
		return 0;
	}
	if (hspmd_timing_end(s->costs, plan, &t, NULL))
		return 0;
	int rc = level(s, plan, &t);
	*seconds = t.step_s;
	*objective = rc ? hspmd_objective(s, plan, t.step_s) : hspmd_best_plans_time(s, plan, seconds);
	hspmd_timing_clear(&t);
	return rc < 0 ? -1 : 0;
}

int hspmd_best_plans_level(struct hspmd_search *s, struct hspmd_plan *plan, double below, double *objective)
{
	double seconds;
	return time_level(s, plan, below, objective, &seconds);
}

/* Keep a plan of this objective and step time if it is good enough; takes ownership of it. */
static void keep(struct hspmd_search *s, struct hspmd_plan *plan, bool refined, double objective, double seconds)
{
	struct hspmd_best_plans *p = &s->best_plans;
	s->best_s = fmin(s->best_s, seconds);
	int at = p->count;
	while (at > 0 && p->list[at - 1].objective > objective)
		at--;
	bool duplicate = at > 0 && p->list[at - 1].objective == objective && p->list[at - 1].plan->pipeline_count == plan->pipeline_count;
	if (duplicate)
		p->list[at - 1].refined = p->list[at - 1].refined || refined;
	if (isinf(objective) || duplicate || at == p->max_count) {
		hspmd_plan_destroy(plan);
		return;
	}
	if (p->count == p->max_count)
		hspmd_plan_destroy(p->list[--p->count].plan);
	for (int i = p->count++; i > at; i--)
		p->list[i] = p->list[i - 1];
	p->list[at].plan = plan;
	p->list[at].objective = objective;
	p->list[at].refined = refined;
}

static int offer(struct hspmd_search *s, struct hspmd_plan *plan, bool refined, double *seconds)
{
	double step, objective = hspmd_best_plans_time(s, plan, &step);
	if (seconds)
		*seconds = step;
	keep(s, plan, refined, objective, step);
	return 0;
}

int hspmd_best_plans_offer(struct hspmd_search *s, struct hspmd_plan *plan, double *seconds)
{
	return offer(s, plan, false, seconds);
}

int hspmd_best_plans_offer_refined(struct hspmd_search *s, struct hspmd_plan *plan)
{
	return offer(s, plan, true, NULL);
}

/* A plan whose step takes as long is not kept. */
static double worst_kept(const struct hspmd_search *s)
{
	const struct hspmd_best_plans *p = &s->best_plans;
	bool by_step = !(s->request->limits.cost_weight > 0);
	return by_step && p->count == p->max_count ? p->list[p->count - 1].objective : INFINITY;
}

int hspmd_best_plans_try(struct hspmd_search *s, const struct hspmd_submesh_tables *t, struct hspmd_draft *d, bool zero)
{
	int placements = hspmd_draft_pipelines(d) > 1 ? HSPMD_PLACEMENT_COUNT : 1;
	for (int how = 0; how < placements; how++) {
		bool full;
		struct hspmd_plan *plan = hspmd_draft_place(t, d, (enum hspmd_placement)how, zero, &full);
		if (!plan && !full)
			return -1;
		double objective, seconds;
		if (plan && t->offload)
			hspmd_plan_offload_least(s, plan);
		if (plan && time_level(s, plan, worst_kept(s), &objective, &seconds)) {
			hspmd_plan_destroy(plan);
			return -1;
		}
		if (plan)
			keep(s, plan, false, objective, seconds);
	}
	return 0;
}
