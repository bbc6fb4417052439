/* SPDX-License-Identifier: Apache-2.0 */
/* Plans under ZeRO-2 and 3 (arXiv 1910.02054), tried if no other plan fits into memory; or after the others if memory excluded some, as
 * those that just fit may be slow. Every device is a pipeline of one stage, and all have as many micro-batches, of samples in proportion to
 * their speed, as they wait for one another in every layer. If equal parts do not fit, they are divided by what devices have free; then
 * also under ZeRO-1. */
#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "controller/solver/search/search_internal.h"

#define MAX_TRIALS 8 /* numbers of micro-batches */
#define ROUNDS 4     /* of unequal parts until they fit */
#define FILLED 0.999 /* of a device's memory: parts are whole rows of weights */
#define LEAST_PART 0.1 /* of an even part: a smaller one would have no row of some weights, which then stay whole */
#define GAIN 0.995   /* a plan must be faster than the others by this factor: it sends weights in every layer */

/* The devices that may be used, and what they do per second. */
struct copies {
	int count;
	int *devices;
	double *speed; /* samples per second */
	int *samples;  /* of a micro-batch */
};

static int find_copies(struct hspmd_search *s, struct copies *all)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	size_t n = (size_t)c->device_count;
	all->devices = hspmd_calloc(n, sizeof *all->devices);
	all->speed = hspmd_calloc(n, sizeof *all->speed);
	all->samples = hspmd_calloc(n, sizeof *all->samples);
	if (!all->devices || !all->speed || !all->samples)
		return -1;
	for (int d = 0; d < c->device_count; d++) {
		if (s->device_classes->class_of_device[d] < 0)
			continue;
		const struct hspmd_layer_times *t = hspmd_costs_times(s->costs, c->devices[d].type, 1, false, 1, NULL);
		double seconds = t ? t->forward[s->costs->layer_count] + t->backward[s->costs->layer_count] : 0;
		if (!(seconds > 0))
			continue;
		all->devices[all->count] = d;
		all->speed[all->count++] = 1 / (seconds * c->nodes[c->devices[d].node].slowdown);
	}
	return 0;
}

/* Divides `samples` among the copies in proportion to their speed; each gets one at least. */
static void divide(struct copies *all, int samples)
{
	double sum = 0;
	int left = samples;
	for (int i = 0; i < all->count; i++)
		sum += all->speed[i];
	for (int i = 0; i < all->count; i++) {
		all->samples[i] = (int)fmax(1, floor(samples * all->speed[i] / sum));
		left -= all->samples[i];
	}
	for (; left != 0; left += left < 0 ? 1 : -1) {
		int best = -1, by = left < 0 ? -1 : 1;
		for (int i = 0; i < all->count; i++) {
			if (by < 0 && all->samples[i] < 2)
				continue;
			/* The copy that is done first with one more, or of which one fewer helps most. */
			double now = (all->samples[i] + (by > 0)) / all->speed[i],
			       least = best < 0 ? 0 : (all->samples[best] + (by > 0)) / all->speed[best];
			if (best < 0 || (by > 0 ? now < least : now > least))
				best = i;
		}
		all->samples[best] += by;
	}
}

/* What plans of the same copies differ in. */
struct variant {
	int micro_batches, zero;
	enum hspmd_recompute recompute;
	bool offload, activations, no_prefetch; /* activations: they are offloaded */
};

/* NULL: memory. */
static struct hspmd_plan *make_plan(const struct hspmd_search *s, const struct copies *all, const struct variant *v)
{
	struct hspmd_plan *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	*p = (struct hspmd_plan){ .global_batch = s->request->global_batch,
		                  .micro_batch = all->samples[0],
		                  .seq_len = s->costs->seq_len,
		                  .virtual_stages = 1,
		                  .zero_stage = v->zero,
		                  .no_prefetch = v->no_prefetch };
	p->pipelines = hspmd_calloc((size_t)all->count, sizeof *p->pipelines);
	for (int i = 0; p->pipelines && i < all->count; i++) {
		struct hspmd_stage *stage = hspmd_calloc(1, sizeof *stage);
		int *device = stage ? malloc(sizeof *device) : NULL;
		p->pipeline_count++;
		p->pipelines[i] = (struct hspmd_pipeline){
			.micro_batches = v->micro_batches, .micro_batch = all->samples[i], .stage_count = stage != NULL, .stages = stage
		};
		if (!device) {
			hspmd_plan_destroy(p);
			return NULL;
		}
		*device = all->devices[i];
		*stage = (struct hspmd_stage){ .layers = { 0, s->costs->layer_count },
			                       .device_count = 1,
			                       .devices = device,
			                       .context = 1,
			                       .recompute = v->recompute };
		if (v->offload && hspmd_stage_can_offload(s, stage))
			stage->offload = HSPMD_OFFLOAD_OPTIMIZER;
		if (v->activations && hspmd_stage_can_offload(s, stage))
			stage->offload_activations = HSPMD_OFFLOAD_ALL;
	}
	if (p->pipelines)
		return p;
	hspmd_plan_destroy(p);
	return NULL;
}

/* The level up to which all parts are filled, but none beyond its limit, so that they add up to 1. */
static double level_of(const double *limits, int count)
{
	double low = 0, high = 1;
	for (int n = 0; n < 60; n++) {
		double level = (low + high) / 2, sum = 0;
		for (int i = 0; i < count; i++)
			sum += fmin(level, limits[i]);
		*(sum < 1 ? &low : &high) = level;
	}
	return high;
}

/* Returns true if the i-th pipeline needs as much memory as the one before it: most do, and what one needs depends on the parts of all. */
static bool weighs_as_before(const struct hspmd_cluster *c, const struct hspmd_plan *p, int i)
{
	const struct hspmd_pipeline *x = &p->pipelines[i], *before = i ? x - 1 : x;
	return i && x->micro_batch == before->micro_batch && x->micro_batches == before->micro_batches &&
	       c->devices[x->stages[0].devices[0]].type == c->devices[before->stages[0].devices[0]].type;
}

/* Divide what ZeRO divides by what the devices have free, as evenly as fits. Returns 1 if the plan then fits, 0 if it does not, -1 if
 * memory runs out. */
static int divide_by_memory(const struct hspmd_search *s, struct hspmd_plan *p)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	int n = p->pipeline_count;
	double *part = hspmd_calloc(3 * (size_t)n, sizeof *part), *slope = part + n, *limit = part + 2 * n;
	bool fits = false, possible = part != NULL;
	if (!part)
		return -1;
	p->has_zero_shares = true;
	for (int i = 0; i < n; i++) { /* bytes that a device needs for each fraction of the whole */
		part[i] = 1.0 / n;
		if (weighs_as_before(c, p, i)) {
			slope[i] = slope[i - 1];
			continue;
		}
		double even = hspmd_plan_memory(s->costs, p, i, 0, 0);
		p->pipelines[i].stages[0].zero_share = 0.5;
		slope[i] = (even - hspmd_plan_memory(s->costs, p, i, 0, 0)) / (1.0 / n - hspmd_plan_zero_part(p, i, 0));
		p->pipelines[i].stages[0].zero_share = 0;
	}
	for (int round = 0; possible && !fits && round < ROUNDS; round++) { /* memory is not quite a straight line */
		double sum = 0;
		for (int i = 0; i < n; i++) {
			const struct hspmd_stage *st = &p->pipelines[i].stages[0];
			double have = FILLED * (double)c->types[c->devices[st->devices[0]].type].memory_bytes;
			limit[i] = weighs_as_before(c, p, i) ? limit[i - 1]
			                                     : part[i] + (have - hspmd_plan_memory(s->costs, p, i, 0, 0)) / slope[i];
			possible = possible && slope[i] > 0 && limit[i] * n >= LEAST_PART;
			sum += limit[i];
		}
		possible = possible && sum >= 1;
		double level = possible ? level_of(limit, n) : 0;
		for (int i = 0; possible && i < n; i++) {
			part[i] = fmin(level, limit[i]);
			p->pipelines[i].stages[0].zero_share = part[i] * n;
		}
		fits = possible && hspmd_plan_fits(s->costs, p);
	}
	free(part);
	return fits;
}

/* The part of the cluster that is searched is within all limits (subclusters.h). */
static bool is_possible(const struct hspmd_search *s)
{
	return s->caps.max_zero_stage > 1 && s->caps.unequal_micro_batch && s->costs->facts && !s->request->micro_batch &&
	       (s->caps.schedules & 1u << HSPMD_SCHEDULE_1F1B);
}

/* Offers the plan, which is taken over, if it is better enough than the best of the others. 0 or -1. */
static int offer(struct hspmd_search *s, struct hspmd_plan *p, double others)
{
	if (hspmd_best_plans_time(s, p, NULL) < GAIN * others)
		return hspmd_best_plans_offer(s, p, NULL);
	hspmd_plan_destroy(p);
	return 0;
}

/* Offers a plan of this kind if it fits, or with unequal parts. 1: it fits, 0: it does not, -1: memory. */
static int try_plan(struct hspmd_search *s, const struct copies *all, const struct variant *v, double others)
{
	struct hspmd_plan *p = make_plan(s, all, v);
	bool even = p && hspmd_plan_fits(s->costs, p);
	int fits = !p ? -1 : even ? 1 : divide_by_memory(s, p);
	if (fits > 0 && !(even && v->zero < 2)) { /* others have tried ZeRO-1 with equal parts */
		if (v->offload || v->activations)
			hspmd_plan_offload_least(s, p);
		return offer(s, p, others) ? -1 : 1;
	}
	hspmd_plan_destroy(p);
	return fits;
}

/* The same; where there is no room for the weights of two layers, without gathering any ahead. */
static int try_with_less(struct hspmd_search *s, const struct copies *all, struct variant v, double others)
{
	int fits = try_plan(s, all, &v, others);
	v.no_prefetch = true;
	return !fits && v.zero > 2 ? try_plan(s, all, &v, others) : fits;
}

/* The same; if it does not fit, with the optimizer's state or activations in the host's memory, and if neither is enough, with both. 0 or
 * -1. */
static int try_with_host(struct hspmd_search *s, const struct copies *all, struct variant v, double others)
{
	int fits = try_with_less(s, all, v, others), either = 0;
	if (fits || !hspmd_search_can_offload(s))
		return fits < 0 ? -1 : 0;
	for (int what = 1; what <= 3 && fits >= 0 && !(either && what == 3); what++) {
		v.offload = what & 1;
		v.activations = what & 2;
		fits = try_with_less(s, all, v, others);
		either |= fits;
	}
	return fits < 0 ? -1 : 0;
}

int hspmd_offer_sharded_plans(struct hspmd_search *s)
{
	struct copies all = { 0 };
	double before = s->best_plans.count ? s->best_plans.list[0].objective : INFINITY;
	int batch = s->request->global_batch, tried = 0, status = is_possible(s) ? find_copies(s, &all) : 0;
	for (int m = 1; !status && all.count > 1 && tried < MAX_TRIALS && m * all.count <= batch && !hspmd_search_is_over(s); m++) {
		if (batch % m)
			continue;
		divide(&all, batch / m);
		tried++;
		for (int zero = 1; !status && zero <= s->caps.max_zero_stage; zero++)
			for (int r = 0; !status && r < HSPMD_RECOMPUTE_KINDS; r++) {
				if (!(s->caps.recompute & 1u << r))
					continue;
				struct variant v = { .micro_batches = m, .zero = zero, .recompute = (enum hspmd_recompute)r };
				status = try_with_host(s, &all, v, before);
			}
	}
	free(all.devices);
	free(all.speed);
	free(all.samples);
	return status;
}
