/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds and bytes of a device are nearly linear in its share, so the linear program of minmax.c (HAP's, with a memory constraint) gives
 * the division. Deviations from the lines (measured degrees need not be on one) are then corrected by moving single parts away from the
 * slowest device. */
#include "controller/solver/search/shard_ratio.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/minmax.h"

struct sharding {
	struct hspmd_costs *c;
	struct hspmd_plan *p;
	int pipeline, stage, granules;
	struct hspmd_stage *s;
};

/* Seconds of a micro-batch on device `which` with a share; INFINITY: unknown. */
static double seconds(const struct sharding *x, int which, double share)
{
	const struct hspmd_cluster_device *d = &x->c->cluster->devices[x->s->devices[which]];
	const struct hspmd_layer_times *t =
	        hspmd_costs_times(x->c, d->type, share, x->s->sequence_parallel, x->p->pipelines[x->pipeline].micro_batch, NULL);
	int a = x->s->layers[0], b = x->s->layers[1];
	if (!t)
		return INFINITY;
	const double *recompute_s = t->recompute_s[x->s->recompute];
	return x->c->cluster->nodes[d->node].slowdown *
	       (t->forward[b] - t->forward[a] + t->backward[b] - t->backward[a] + recompute_s[b] - recompute_s[a]);
}

/* Returns true if the share is smaller than any that was measured on this type. Times between measured shares can be interpolated; beyond
 * them they are a guess. */
static bool is_guess(const struct sharding *x, int which, double share)
{
	const struct hspmd_cluster_device *d = &x->c->cluster->devices[x->s->devices[which]];
	const struct hspmd_layer_times *t =
	        hspmd_costs_times(x->c, d->type, share, x->s->sequence_parallel, x->p->pipelines[x->pipeline].micro_batch, NULL);
	return !t || (t->origins & HSPMD_TIME_TP_EXTRAPOLATED);
}

static double bytes(const struct sharding *x, int which, double share)
{
	int others = x->s->device_count - 1;
	for (int i = 0; i <= others; i++)
		x->s->shard_ratio[i] = i == which ? share : (1 - share) / others; /* a ratio is of a whole */
	return hspmd_plan_memory(x->c, x->p, x->pipeline, x->stage, which);
}

static double memory_of(const struct sharding *x, int which)
{
	return (double)x->c->cluster->types[x->c->cluster->devices[x->s->devices[which]].type].memory_bytes;
}

/* Device `which` as a worker: straight lines through half and one and a half times the even share. */
static struct hspmd_minmax_worker line(const struct sharding *x, int which)
{
	double low = 0.5 / x->s->device_count, high = fmin(1, 3 * low), span = (high - low) * x->granules;
	double each = (seconds(x, which, high) - seconds(x, which, low)) / span;
	double more = (bytes(x, which, high) - bytes(x, which, low)) / span, none = bytes(x, which, low) - more * low * x->granules;
	double max_parts = more > 0 ? floor((memory_of(x, which) - none) / more * (1 + 1e-12)) : INT_MAX;
	struct hspmd_minmax_worker t = { .fixed = seconds(x, which, low) - each * low * x->granules,
		                         .each = fmax(each, 1e-15),
		                         .copies = 1 };
	t.max_parts = max_parts >= x->granules ? x->granules : max_parts > 0 ? (int)max_parts : 0;
	return t;
}

/* Move parts away from the slowest device one by one as long as that makes the slowest faster. */
static void even_out(const struct sharding *x, const struct hspmd_minmax_worker *workers, int *parts)
{
	int n = x->s->device_count;
	for (int round = 0; round < 2 * x->granules; round++) {
		int slowest = 0, to = -1;
		double worst = 0, best;
		for (int i = 0; i < n; i++) {
			double s = seconds(x, i, (double)parts[i] / x->granules);
			slowest = s > worst ? i : slowest;
			worst = fmax(worst, s);
		}
		best = worst;
		for (int i = 0; i < n && parts[slowest] > 1; i++) {
			double s =
			        i == slowest || parts[i] >= workers[i].max_parts ? INFINITY : seconds(x, i, (parts[i] + 1.0) / x->granules);
			if (s < best) {
				best = s;
				to = i;
			}
		}
		if (to < 0)
			return;
		parts[slowest]--;
		parts[to]++;
	}
}

static int divide(const struct sharding *x, int *parts, int *extra, struct hspmd_minmax_worker *workers)
{
	int n = x->s->device_count;
	for (int i = 0; i < n; i++) {
		workers[i] = line(x, i);
		if (workers[i].max_parts < 1 || !isfinite(workers[i].fixed) || !isfinite(workers[i].each))
			return 1;
	}
	int rc = hspmd_minmax_divide(workers, n, x->granules, parts, extra);
	if (!rc)
		even_out(x, workers, parts);
	for (int i = 0; !rc && i < n; i++)
		rc = is_guess(x, i, (double)parts[i] / x->granules) ? 1 : 0;
	return rc;
}

/* Number of parts that every layer can be divided into: heads that share keys and values, and experts, stay whole. */
static int granules(const struct hspmd_model_facts *f)
{
	return f && f->parts > 0 ? f->parts : HSPMD_GRANULES;
}

int hspmd_choose_shard_ratio(struct hspmd_costs *c, struct hspmd_plan *p, int pipeline, int stage)
{
	struct hspmd_stage *s = &p->pipelines[pipeline].stages[stage];
	struct sharding x = { c, p, pipeline, stage, granules(c->facts), s };
	size_t n = (size_t)s->device_count;
	double *was = s->shard_ratio;
	s->sequence_parallel = false; /* it divides the sequence evenly */
	if (s->context != 1 || x.granules < s->device_count)
		return 1;
	int *parts = hspmd_calloc(2 * n, sizeof *parts), rc = -1;
	struct hspmd_minmax_worker *workers = hspmd_calloc(n, sizeof *workers);
	s->shard_ratio = hspmd_calloc(n, sizeof *s->shard_ratio);
	if (parts && workers && s->shard_ratio)
		rc = divide(&x, parts, parts + n, workers);
	bool even = true;
	for (size_t i = 0; !rc && i < n; i++) {
		s->shard_ratio[i] = (double)parts[i] / x.granules;
		even = even && parts[i] == parts[0];
	}
	free(parts);
	free(workers);
	if (rc || even)
		free(s->shard_ratio);
	if (rc)
		s->shard_ratio = was;
	else if (even)
		s->shard_ratio = NULL;
	if (!rc)
		free(was);
	return rc;
}
