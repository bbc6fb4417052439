/* SPDX-License-Identifier: Apache-2.0 */
/* The search, in two stages as in H2's HeteroAuto (arXiv 2505.17548, section 4). First pipelines are made, from device classes instead of
 * devices, with layers partitioned as well as possible (candidates.c); then plans are made of them (assemble.c) and timed by the
 * simulator. The best ones are refined (improve.c).
 *
 * Each micro-batch that divides the global batch is searched separately; a micro-batch is skipped if a bound shows that it cannot beat
 * the best plan known, however well its devices work together (submesh.c has the bound). Passes run as 1F1B or ZB-H1 (arXiv 2401.10241),
 * whichever is faster (local_search.c), or interleaved (interleaved_plans.c). */
#include "controller/solver/search/search_plan.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/fnv.h"
#include "common/format/recompute_sets.h"
#include "controller/solver/search/holders.h"
#include "controller/solver/search/search_internal.h"
#include "controller/solver/search/subclusters.h"

#define MICRO_BATCHES_MAX 64
#define BEHIND 1.4 /* a micro-batch whose bound exceeds the least bound by this factor is searched last */

struct hspmd_runtime_caps hspmd_runtime_caps_default(void)
{
	return (struct hspmd_runtime_caps){
		.max_tp = 8,
		.tp_across_nodes = true,
		.mixed_stage = true,
		.unequal_shards = true,
		.unequal_micro_batch = true,
		.sequence_parallel = true,
		.recompute = (1u << HSPMD_RECOMPUTE_KINDS) - 1,
		.schedules = 1u << HSPMD_SCHEDULE_1F1B | 1u << HSPMD_SCHEDULE_ZB_H1 | 1u << HSPMD_SCHEDULE_INTERLEAVED,
		.max_zero_stage = HSPMD_ZERO_MAX,
		.offload = true,
	};
}

/* ---- one micro-batch */

/* Lower bound on the step time of any plan with this micro-batch. The larger of two bounds: all devices work all the time; and one
 * micro-batch runs through the whole model, without the weight gradients if they may be deferred, which are at most half of it. The
 * tables assume that devices wait for the slowest of the whole cluster; those of a plan with few devices wait less. */
static double bound(const struct hspmd_search *s, const struct hspmd_submesh_tables *t)
{
	bool split_backward = s->caps.schedules & 1u << HSPMD_SCHEDULE_ZB_H1;
	double once = INFINITY, waiting = hspmd_variation(s->costs, s->costs->cluster->device_count, 1);
	for (int u = 0; u < t->submesh_count; u++)
		once = fmin(once, t->submeshes[u].work[HSPMD_RECOMPUTE_NONE][t->layers]);
	return fmax(once * t->alike * (split_backward ? 0.5 : 1),
	            s->request->global_batch / t->micro_batch / hspmd_submesh_tables_rate(t, s->available)) /
	       waiting;
}

/* A number that is equal for lists of the same partitions in the same order. */
static uint64_t fingerprint(const struct hspmd_candidates *l)
{
	uint64_t sum = (uint64_t)l->count;
	for (int i = 0; i < l->count; i++) {
		const struct hspmd_pipeline_partition *x = &l->candidates[i].partition;
		size_t stages = (size_t)x->sequence.stages;
		const uint64_t parts[] = { sum, hspmd_fnv1a(x->sequence.submesh, stages), hspmd_fnv1a(x->ends, stages * sizeof *x->ends),
			                   hspmd_fnv1a(x->way, stages), (uint64_t)x->max_micro_batches };
		sum = hspmd_fnv1a(parts, sizeof parts);
	}
	return sum;
}

/* Make candidates, and plans of them; not if *last, the fingerprint of the candidates before, says that they are the same. */
static int search_candidates(struct hspmd_search *s, struct hspmd_submesh_tables *t, int pipelines, bool zero,
                             struct hspmd_partition_memo *memo, uint64_t *last, bool *memory_bound)
{
	struct hspmd_candidates l = { 0 };
	int rc = hspmd_candidates_fill(s, t, pipelines, zero, memo, &l);
	uint64_t now = fingerprint(&l);
	*memory_bound = l.memory_bound;
	s->memory_bound = s->memory_bound || l.memory_bound;
	if (!rc && !(last && *last == now))
		rc = hspmd_assemble(s, t, &l, l.exhaustive && pipelines == 1 ? 1 : INT_MAX, zero);
	if (last)
		*last = now;
	hspmd_candidates_clear(&l);
	return rc;
}

/* With ZeRO-1 a stage needs the less memory the more pipelines there are, until memory excludes nothing any more; what it did not limit
 * for fewer pipelines is the same for more. */
static int search_zero(struct hspmd_search *s, struct hspmd_submesh_tables *t)
{
	int most = s->request->global_batch / t->micro_batch, devices = s->costs->cluster->device_count, rc = 0;
	uint64_t last = 0;
	bool memory_bound = true;
	struct hspmd_partition_memo *memo = hspmd_partition_memo_new();
	if (!memo)
		return -1;
	for (int p = 2; !rc && memory_bound && p <= most && p <= devices; p++)
		rc = search_candidates(s, t, p, true, memo, &last, &memory_bound);
	hspmd_partition_memo_destroy(memo);
	return rc;
}

/* Returns true if the only copy of a layer needs more memory than each of two. */
static bool alone_needs_more(const struct hspmd_costs *c)
{
	const struct hspmd_layer_copies one = { .pipelines = 1 }, two = { .pipelines = 2 };
	for (int t = 0; t < c->cluster->type_count; t++)
		if (hspmd_image_bytes(c, &c->cluster->types[t], &one) > hspmd_image_bytes(c, &c->cluster->types[t], &two))
			return true;
	return false;
}

/* The memory that a stage needs depends on how many copies of it there will be. If there are many candidates, they are made for the
 * number of pipelines that distributing the devices leads to, with ZeRO-1 if it is allowed: ZeRO-1 saves memory and time of the
 * optimizer, and changes only the order of messages. If there are few candidates, they are made for every case. A single copy needs more
 * memory on a CPU, for the image: of many candidates, those for it are made if memory limits the others. */
static int search_copies(struct hspmd_search *s, struct hspmd_submesh_tables *t, bool exhaustive)
{
	bool zero = s->caps.max_zero_stage > 0, memory_bound, alone_bound = false;
	if (!exhaustive) {
		int rc = search_candidates(s, t, 2, zero, NULL, NULL, &memory_bound);
		bool alone = memory_bound && alone_needs_more(s->costs);
		return rc || !alone ? rc : search_candidates(s, t, 1, false, NULL, NULL, &alone_bound);
	}
	if (search_candidates(s, t, 2, false, NULL, NULL, &memory_bound) ||
	    ((memory_bound || alone_needs_more(s->costs)) && search_candidates(s, t, 1, false, NULL, NULL, &alone_bound)))
		return -1;
	return zero && (memory_bound || alone_bound) ? search_zero(s, t) : 0;
}

/* Schedules for which drafts are made. Interleaved plans are made from other plans (interleaved_plans.c). */
static const enum hspmd_schedule drafted[] = { HSPMD_SCHEDULE_1F1B, HSPMD_SCHEDULE_ZB_H1, HSPMD_SCHEDULE_GPIPE };
#define DRAFTED ((int)(sizeof drafted / sizeof *drafted))

/* The best partition depends on the schedule, and so does which sequences do well: ZB-H1 hides slow messages of deep pipelines behind
 * gradients of weights, and its drafts often beat all refinements of those made for 1F1B. Many candidates are made for the first schedule
 * allowed; for the next one only those sequences are tried that did well with it (candidates.c). GPipe needs more memory than 1F1B and is
 * no faster. ZB-H1 also needs more memory, so if nothing fits with 1F1B, nothing fits with ZB-H1. */
static int search_micro_batch(struct hspmd_search *s, struct hspmd_submesh_tables *t)
{
	bool exhaustive = hspmd_candidates_are_exhaustive(s, t), any = false;
	for (int i = 0; i < DRAFTED; i++) {
		bool no_gain = any && (!s->best_plans.count || drafted[i] == HSPMD_SCHEDULE_GPIPE);
		if (!(s->caps.schedules & 1u << drafted[i]) || no_gain || hspmd_search_is_over(s))
			continue;
		any = true;
		t->schedule = drafted[i];
		if (search_copies(s, t, exhaustive))
			return -1;
	}
	return 0;
}

/* ---- all micro-batches */

struct trial {
	struct hspmd_submesh_tables *tables;
	double bound;
};

/* Small micro-batches come first: the sequences that do well with one are tried with the next, and what fits with a small one may not fit
 * with a large one, hardly the other way round. Micro-batches whose bound is much worse come last and will mostly be skipped. */
static void order_trials(struct trial *trials, int count)
{
	double least = INFINITY;
	for (int i = 0; i < count; i++)
		least = fmin(least, trials[i].bound);
	for (int i = 0, at = 0; i < count; i++) {
		struct trial trial = trials[i];
		if (trial.bound > BEHIND * least)
			continue;
		memmove(&trials[at + 1], &trials[at], (size_t)(i - at) * sizeof *trials);
		trials[at++] = trial;
	}
}

/* Move the trial with the smallest micro-batch to the front. */
static void least_first(struct trial *trials, int count)
{
	int least = 0;
	for (int i = 1; i < count; i++)
		least = trials[i].tables->micro_batch < trials[least].tables->micro_batch ? i : least;
	struct trial first = trials[least];
	memmove(trials + 1, trials, (size_t)least * sizeof *trials);
	trials[0] = first;
}

/* No stage needs less memory with a larger micro-batch than with a smaller one: at least as many samples are in flight, and each layer
 * works on more. So if the first micro-batch tried does not fit, the smallest comes next, and if that does not fit, no other does. */
static int search_trials(struct hspmd_search *s, struct trial *trials, int count)
{
	int least = INT_MAX, rc = 0;
	bool hopeless = false;
	for (int i = 0; i < count; i++)
		least = trials[i].tables->micro_batch < least ? trials[i].tables->micro_batch : least;
	for (int i = 0, no_gain = 0; i < count; i++) {
		double before = s->best_s;
		if (i && !s->best_plans.count)
			least_first(trials + i, count - i);
		struct hspmd_submesh_tables *t = trials[i].tables;
		/* Steps get shorter, then longer, as the micro-batch grows: if the search is much work, one trial without a gain is
		 * enough. */
		bool enough = hopeless || (no_gain && !hspmd_candidates_are_exhaustive(s, t));
		if (!rc && !enough && trials[i].bound < s->best_s && !hspmd_search_is_over(s))
			rc = search_micro_batch(s, t);
		hopeless = hopeless || (!s->best_plans.count && !s->request->known_s && t->micro_batch == least);
		no_gain = isinf(s->best_s) || s->best_s < before ? 0 : no_gain + 1;
		hspmd_submesh_tables_destroy(t);
	}
	return rc;
}

/* Search all micro-batches of `least` to `most` samples that are allowed, with plans that offload this. */
static int search_all(struct hspmd_search *s, int least, int most, enum hspmd_draft_offload offload, struct hspmd_error *err)
{
	struct trial trials[MICRO_BATCHES_MAX];
	int count = 0, rc = 0, batch = s->request->global_batch;
	most = most < HSPMD_MICRO_BATCH_MAX ? most : HSPMD_MICRO_BATCH_MAX;
	for (int mb = least; mb <= batch && mb <= most && count < MICRO_BATCHES_MAX && !rc; mb++) {
		if (batch % mb || (s->request->micro_batch && mb != s->request->micro_batch) || batch / mb > HSPMD_PARTS_MAX)
			continue;
		struct hspmd_submesh_tables *t = hspmd_submesh_tables_new(s->costs, s->device_classes, &s->caps, mb, offload, err);
		rc = t ? 0 : -1;
		if (t)
			trials[count++] = (struct trial){ t, bound(s, t) };
	}
	if (!rc && s->request->micro_batch > HSPMD_MICRO_BATCH_MAX)
		rc = hspmd_fail(err, "micro-batches of more than %d samples are not supported", HSPMD_MICRO_BATCH_MAX);
	if (!rc && !count)
		rc = hspmd_fail(err, "a global batch of %d cannot be divided into at most %d micro-batches of at most %d samples", batch,
		                HSPMD_PARTS_MAX, HSPMD_MICRO_BATCH_MAX);
	order_trials(trials, count);
	if (rc)
		for (int i = 0; i < count; i++)
			hspmd_submesh_tables_destroy(trials[i].tables);
	else if (search_trials(s, trials, count))
		rc = hspmd_fail_memory(err, "searching for a plan");
	return rc;
}

/* What offloads needs the longer for its update or its passes, so that such plans are looked for only if memory is short. */
static int search(struct hspmd_search *s, struct hspmd_error *err)
{
	if (s->request->repair)
		return hspmd_repair(s) ? hspmd_fail_memory(err, "repairing a plan") : 0;
	int rc = search_all(s, 1, HSPMD_MICRO_BATCH_MAX, HSPMD_DRAFT_OFFLOADS_NOTHING, err);
	if (!rc && (!s->best_plans.count || s->memory_bound) && hspmd_search_can_offload(s) && !hspmd_search_is_over(s))
		rc = search_all(s, 1, HSPMD_MICRO_BATCH_MAX, HSPMD_DRAFT_OFFLOADS_ALL, err);
	if (!rc && !s->best_plans.count && hspmd_search_can_offload(s) && !hspmd_search_is_over(s)) /* the hosts have too little for all */
		rc = search_all(s, 1, HSPMD_MICRO_BATCH_MAX, HSPMD_DRAFT_OFFLOADS_ACTIVATIONS, err);
	if (!rc && !s->best_plans.count && hspmd_offer_sharded_plans(s))
		rc = hspmd_fail_memory(err, "searching for a plan");
	if (!rc && hspmd_refine_plans(s))
		rc = hspmd_fail_memory(err, "refining a plan");
	if (!rc && hspmd_begin_again(s))
		rc = hspmd_fail_memory(err, "searching for a plan");
	if (!rc && hspmd_reshape_plans(s))
		rc = hspmd_fail_memory(err, "refining a plan");
	if (!rc && s->best_plans.count && s->memory_bound && hspmd_offer_sharded_plans(s))
		rc = hspmd_fail_memory(err, "searching for a plan");
	return rc;
}

/* ---- the request */

/* Fill allowed[]: the device types that the limits allow and that have layer times. Returns the number of devices of these types. */
static int allow_types(struct hspmd_search *s, bool *allowed)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	const struct hspmd_solve_limits *lim = &s->request->limits;
	for (int t = 0; t < c->type_count; t++) {
		struct hspmd_error why = { "" };
		allowed[t] = lim->type_count == 0;
		for (int i = 0; i < lim->type_count; i++)
			allowed[t] = allowed[t] || !strcmp(lim->types[i], c->types[t].name);
		if (allowed[t] && !hspmd_costs_times(s->costs, t, 1.0, false, 1, &why)) {
			hspmd_costs_warn(s->costs, "%s; its devices are left out", why.text);
			allowed[t] = false;
		}
	}
	int usable = 0;
	for (int d = 0; d < c->device_count; d++)
		usable += allowed[c->devices[d].type];
	return usable;
}

/* Warn if prices count and a node has none: it counts as free. */
static void warn_of_prices(struct hspmd_search *s)
{
	const struct hspmd_solve_limits *l = &s->request->limits;
	const struct hspmd_cluster *c = s->costs->cluster;
	for (int n = 0; n < c->node_count && (l->max_price_per_hour > 0 || l->cost_weight > 0); n++)
		if (!(c->nodes[n].price_per_hour > 0)) {
			hspmd_costs_warn(s->costs, "node %s has no price_per_hour: it counts as free (and others may too)",
			                 c->nodes[n].name);
			return;
		}
}

/* Warn of devices without a link between them: they are never put into one plan, and the reason may be a forgotten entry. */
static void warn_of_links(struct hspmd_search *s)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	for (int a = 0; a < s->device_classes->count; a++)
		for (int b = a; b < s->device_classes->count; b++) {
			const struct hspmd_device_class *x = &s->device_classes->list[a], *y = &s->device_classes->list[b];
			char one[256], other[256];
			if (a == b && x->node_count < 2)
				continue;
			int from = hspmd_device_class_device(c, x, 0, 0), to = hspmd_device_class_device(c, y, a == b, 0);
			if (c->devices[from].node != c->devices[to].node && !hspmd_costs_link(s->costs, from, to, 1, 1, NULL))
				hspmd_costs_warn(s->costs, "no link covers %s and %s: no plan puts them, or devices like them, together",
				                 hspmd_cluster_device_address(c, from, one, sizeof one),
				                 hspmd_cluster_device_address(c, to, other, sizeof other));
		}
}

/* Fill err with the reason why no device may be used. */
static void fail_of_types(const struct hspmd_search *s, struct hspmd_error *err)
{
	const struct hspmd_solve_limits *l = &s->request->limits;
	char existing[256] = "", allowed[256] = "";
	for (int i = 0, used = 0; i < s->costs->cluster->type_count && used < (int)sizeof existing; i++)
		used += snprintf(existing + used, sizeof existing - (size_t)used, "%s%s", i ? ", " : "", s->costs->cluster->types[i].name);
	for (int i = 0, used = 0; i < l->type_count && used < (int)sizeof allowed; i++)
		used += snprintf(allowed + used, sizeof allowed - (size_t)used, "%s%s", i ? ", " : "", l->types[i]);
	if (s->costs->warning_count)
		hspmd_fail(err, "no device of the cluster may be used: %s", s->costs->warnings[0]);
	else
		hspmd_fail(err, "no device of the cluster may be used: its types are %s, and those allowed %s", existing, allowed);
}

static int prepare(struct hspmd_search *s, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	bool *allowed = hspmd_calloc((size_t)c->type_count, sizeof *allowed);
	if (!allowed)
		return hspmd_fail_memory(err, "preparing the search");
	if (allow_types(s, allowed))
		s->device_classes = hspmd_device_classes_new(c, allowed, err);
	else
		fail_of_types(s, err);
	free(allowed);
	if (!s->device_classes)
		return -1;
	for (int k = 0; k < s->device_classes->count; k++)
		s->available[k] = s->device_classes->list[k].count;
	warn_of_prices(s);
	warn_of_links(s);
	s->warm_starts = hspmd_calloc((size_t)2 * HSPMD_WARM_STARTS, sizeof *s->warm_starts);
	s->known = hspmd_pipeline_memo_new();
	if (!s->warm_starts || !s->known)
		return hspmd_fail_memory(err, "preparing the search");
	for (int i = 0; i < DRAFTED; i++)
		if (s->caps.schedules & 1u << drafted[i])
			return 0;
	return hspmd_fail(err, "interleaved plans are made from plans of another schedule, and no other schedule is allowed");
}

/* Begin with the current plan: what cannot beat it is then skipped. */
static int start_from_current(struct hspmd_search *s, struct hspmd_error *err)
{
	const struct hspmd_solve_request *r = s->request;
	if (!r->current)
		return 0;
	s->best_plans.max_count = HSPMD_BEST_PLANS_MAX;
	struct hspmd_plan *current = hspmd_plan_copy(r->current);
	if (!current)
		return hspmd_fail_memory(err, "starting from the current plan");
	hspmd_plan_take_recompute_sets(current, hspmd_costs_recompute_sets(s->costs));
	s->migration =
	        hspmd_migration_new(s->costs, s->device_classes, current, r->current_cluster ? r->current_cluster : s->costs->cluster, err);
	hspmd_plan_destroy(current);
	if (!s->migration)
		return -1;
	s->start = hspmd_migration_whole(s->migration, hspmd_migration_current(s->migration), r, &s->caps);
	struct hspmd_plan *copy = s->start ? hspmd_plan_copy(s->start) : NULL;
	return copy && hspmd_best_plans_offer(s, copy, NULL) ? hspmd_fail_memory(err, "starting from the current plan") : 0;
}

/* Spread the holders of each layer over nodes that are not lost together. Returns the plan; NULL if memory runs out. */
static struct hspmd_plan *spread_holders(struct hspmd_search *s, struct hspmd_plan *plan, double *moved)
{
	if (plan && hspmd_holders_spread(s, plan, s->best_plans.list[0].objective * HSPMD_NEAR_ENOUGH, moved)) {
		hspmd_plan_destroy(plan);
		return NULL;
	}
	return plan;
}

/* Of the plans that are good enough, choose the one that moves the fewest bytes; among equal ones the first. The caller destroys it.
 * Returns NULL if memory runs out. */
static struct hspmd_plan *choose(struct hspmd_search *s, double *moved)
{
	double enough = s->best_plans.list[0].objective * (s->migration ? HSPMD_NEAR_ENOUGH : 1);
	struct hspmd_plan *chosen = NULL;
	*moved = NAN;
	if (!s->migration)
		return spread_holders(s, hspmd_plan_copy(s->best_plans.list[0].plan), moved);
	for (int i = 0; i <= s->best_plans.count; i++) {
		bool listed = i < s->best_plans.count;
		struct hspmd_plan *plan = listed ? s->best_plans.list[i].plan : s->start;
		double objective = listed ? s->best_plans.list[i].objective : plan ? hspmd_best_plans_time(s, plan, NULL) : INFINITY;
		double now = objective <= enough ? hspmd_migration_bytes(s->migration, plan) : NAN;
		struct hspmd_plan *remapped = isnan(now) ? NULL : hspmd_plan_copy(plan);
		if (!remapped)
			continue;
		/* The same plan on other devices of the same device classes; not if it turns out slower there. */
		double then = hspmd_migration_assign(s->migration, remapped) ? NAN : hspmd_migration_bytes(s->migration, remapped);
		if (!(then < now) || hspmd_best_plans_time(s, remapped, NULL) > enough) {
			hspmd_plan_destroy(remapped);
			remapped = hspmd_plan_copy(plan);
			then = now;
		}
		if (remapped && (!chosen || then < *moved)) {
			hspmd_plan_destroy(chosen);
			chosen = remapped;
			*moved = then;
		} else {
			hspmd_plan_destroy(remapped);
		}
	}
	return spread_holders(s, chosen, moved);
}

static void clear_search(struct hspmd_search *s)
{
	hspmd_best_plans_clear(&s->best_plans);
	hspmd_plan_destroy(s->start);
	hspmd_migration_destroy(s->migration);
	for (int i = 0; i < s->beginning_count; i++)
		free(s->beginnings[i].starts);
	free(s->warm_starts);
	hspmd_pipeline_memo_destroy(s->known);
	hspmd_beam_grounds_clear(s);
	hspmd_search_workers_destroy(s->workers);
	hspmd_device_classes_destroy(s->device_classes);
	hspmd_costs_destroy(s->costs);
}

/* With one stage per pipeline ZB-H1 equals 1F1B, and the plan is named 1F1B, whichever draft it was made from. */
static void name_schedule(const struct hspmd_search *s, struct hspmd_plan *p)
{
	for (int q = 0; q < p->pipeline_count; q++)
		if (p->pipelines[q].stage_count > 1)
			return;
	if (p->schedule == HSPMD_SCHEDULE_ZB_H1 && (s->caps.schedules & 1u << HSPMD_SCHEDULE_1F1B))
		p->schedule = HSPMD_SCHEDULE_1F1B;
}

static struct hspmd_plan *solve_part(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                     struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err)
{
	double start = hspmd_now();
	struct hspmd_search s = { .request = request,
		                  .best_s = request->known_s > 0 ? request->known_s : INFINITY,
		                  .best_plans.max_count = HSPMD_BEST_PLANS };
	struct hspmd_plan *plan = NULL;
	double moved = NAN;
	s.caps = request->caps ? *request->caps : hspmd_runtime_caps_default();
	s.deadline = request->time_limit_s > 0 ? start + request->time_limit_s : 0;
	s.costs = hspmd_costs_with_elements(cluster, facts, profile, request->precision, request->fp32_elements, request->seq_len, err);
	if (!s.costs)
		return NULL;
	s.widest = s.caps.max_tp;
	s.caps.recompute &= hspmd_recompute_kinds(hspmd_costs_recompute_sets(s.costs));
	if (!prepare(&s, err) && !start_from_current(&s, err) && !search(&s, err)) {
		if (!s.best_plans.count && s.request->repair)
			hspmd_fail(err, "nothing of the current plan can go on without what was lost");
		else if (!s.best_plans.count && s.timed_out)
			hspmd_fail(err, "the search was given up");
		else if (!s.best_plans.count)
			*too_large = hspmd_fail(err, "no plan fits into the memory of the %d devices", cluster->device_count) < 0;
		else if (!(plan = choose(&s, &moved)))
			hspmd_fail_memory(err, "choosing a plan");
	}
	if (plan) {
		name_schedule(&s, plan);
		json_decref(plan->recompute_sets);
		plan->recompute_sets = json_incref(hspmd_costs_recompute_sets(s.costs));
	}
	if (plan && hspmd_predict(s.costs, plan, report, err)) {
		hspmd_plan_destroy(plan);
		plan = NULL;
	}
	if (plan && report) {
		hspmd_report_take_warnings(report, s.costs);
		report->evaluated = s.evaluated;
		report->timed_out = s.timed_out;
		report->elapsed_s = hspmd_now() - start;
		report->moved_bytes = moved;
		report->price_per_hour = hspmd_plan_price(cluster, plan);
	}
	clear_search(&s);
	return plan;
}

double hspmd_objective_of(const struct hspmd_solve_request *r, const struct hspmd_cluster *c, const struct hspmd_plan *p)
{
	struct hspmd_costs costs = { .cluster = c };
	struct hspmd_search s = { .costs = &costs, .request = r };
	return hspmd_objective(&s, p, p->predicted.step_s);
}

/* Search one part of the cluster after another. Returns the best plan, over the whole cluster. *report is that plan's report, with the
 * number of plans evaluated and the time of all parts. */
static struct hspmd_plan *solve_subclusters(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                            const struct hspmd_profile *profile, struct hspmd_solve_request *r,
                                            struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err)
{
	struct hspmd_subclusters *subclusters = hspmd_subclusters_new(cluster, r, err);
	struct hspmd_plan *best = NULL;
	double start = hspmd_now(), limit = r->time_limit_s, best_objective = INFINITY;
	int64_t evaluated = 0;
	int more = subclusters ? 1 : 0;
	while (more > 0) {
		struct hspmd_cluster *part;
		struct hspmd_solve_report own = { 0 };
		double left = limit > 0 ? limit - (hspmd_now() - start) : 0;
		if ((best && limit > 0 && left <= 0) || hspmd_request_is_cancelled(r)) {
			report->timed_out = true;
			break;
		}
		r->time_limit_s = limit > 0 ? fmax(left, 1e-3) : 0;
		more = hspmd_subclusters_next(subclusters, &part, err);
		if (more <= 0)
			break;
		struct hspmd_plan *plan = solve_part(part, facts, profile, r, &own, too_large, err);
		double objective = plan ? hspmd_objective_of(r, part, plan) : INFINITY;
		hspmd_subclusters_report(subclusters, objective);
		evaluated += own.evaluated;
		if (plan && objective < best_objective && !hspmd_plan_rebind(plan, part, cluster, err)) {
			hspmd_plan_destroy(best);
			hspmd_solve_report_clear(report);
			best = plan;
			best_objective = objective;
			*report = own;
		} else {
			hspmd_plan_destroy(plan);
			hspmd_solve_report_clear(&own);
		}
		hspmd_cluster_destroy(part);
	}
	report->evaluated = evaluated;
	report->elapsed_s = hspmd_now() - start;
	hspmd_subclusters_destroy(subclusters);
	return best;
}

struct hspmd_plan *hspmd_search_whole(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                      const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                      struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err)
{
	struct hspmd_solve_request r = *request;
	bool parts = !r.repair && hspmd_limits_bind(&r.limits, cluster);
	return parts ? solve_subclusters(cluster, facts, profile, &r, report, too_large, err)
	             : solve_part(cluster, facts, profile, &r, report, too_large, err);
}
