/* SPDX-License-Identifier: Apache-2.0 */
/* The search, in two stages as in H2's HeteroAuto (arXiv 2505.17548, section 4): first pipelines, from kinds of devices rather than devices, with layers
 * split as well as can be (library.c), then plans made of them (assemble.c), timed by the simulator; the best are refined (refine.c).
 *
 * Each micro-batch that divides the global batch is searched by itself, the one that could be fastest first; one that could not beat what is
 * known, however well its devices worked together, is left out (units.c has the bound).
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "controller/solver/search.h"

#define MICRO_BATCH_MAX 128
#define MICRO_BATCHES_MAX 64

struct hspmd_execution hspmd_execution_default(void)
{
	return (struct hspmd_execution){
		.max_tp = 8,
		.unequal_micro_batch = true,
		.recompute = 1u << HSPMD_RECOMPUTE_NONE | 1u << HSPMD_RECOMPUTE_SELECTIVE | 1u << HSPMD_RECOMPUTE_FULL,
		.schedules = 1u << HSPMD_SCHEDULE_1F1B,
		.max_zero_stage = 1,
	};
}

static double now_s(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- one micro-batch */

/* Seconds that no plan with this micro-batch can beat: all devices at work all the time; one micro-batch through the whole model. */
static double bound(const struct hspmd_search *s, const struct hspmd_tables *t)
{
	double once = INFINITY;
	for (int u = 0; u < t->unit_count; u++)
		once = fmin(once, t->units[u].work[HSPMD_RECOMPUTE_NONE][t->layers]);
	return fmax(once * t->alike, s->request->global_batch / t->micro_batch / hspmd_tables_rate(t, s->available));
}

static int search_columns(struct hspmd_search *s, struct hspmd_tables *t, int pipelines, bool zero, bool *tight, bool *complete)
{
	struct hspmd_library l = { 0 };
	int rc = hspmd_library_fill(s, t, pipelines, zero, &l);
	*tight = *tight || l.tight;
	*complete = l.complete;
	if (!rc)
		rc = hspmd_assemble(s, t, &l, l.complete && pipelines == 1 ? 1 : INT_MAX, zero);
	hspmd_library_clear(&l);
	return rc;
}

/* How much memory a stage needs depends on how many copies of it there will be: few columns are made for each case, many for the number of pipelines
 * that their deal leads to. */
static int search_micro_batch(struct hspmd_search *s, struct hspmd_tables *t)
{
	bool tight = false, complete;
	int most = s->request->global_batch / t->micro_batch;
	if (search_columns(s, t, 2, false, &tight, &complete))
		return -1;
	if (complete && tight && search_columns(s, t, 1, false, &tight, &complete))
		return -1;
	if (!tight || s->exec.max_zero_stage < 1)
		return 0;
	if (!complete)
		return search_columns(s, t, 2, true, &tight, &complete);
	for (int p = 2; p <= most && p <= s->costs->cluster->device_count; p++)
		if (search_columns(s, t, p, true, &tight, &complete))
			return -1;
	return 0;
}

/* ---- all micro-batches */

struct turn {
	struct hspmd_tables *tables;
	double bound;
};

static int by_bound(const void *a, const void *b)
{
	const struct turn *x = a, *y = b;
	if (x->bound != y->bound)
		return x->bound < y->bound ? -1 : 1;
	return x->tables->micro_batch - y->tables->micro_batch;
}

static int search(struct hspmd_search *s, struct hspmd_error *err)
{
	struct turn turns[MICRO_BATCHES_MAX];
	int count = 0, rc = 0, batch = s->request->global_batch;
	for (int mb = 1; mb <= batch && mb <= MICRO_BATCH_MAX && count < MICRO_BATCHES_MAX && !rc; mb++) {
		if (batch % mb || (s->request->micro_batch && mb != s->request->micro_batch))
			continue;
		struct hspmd_tables *t = hspmd_tables_new(s->costs, s->kinds, &s->exec, mb, err);
		rc = t ? 0 : -1;
		if (t)
			turns[count++] = (struct turn){ t, bound(s, t) };
	}
	if (!rc && s->request->micro_batch > MICRO_BATCH_MAX)
		rc = hspmd_fail(err, "micro-batches of more than %d samples are not supported", MICRO_BATCH_MAX);
	qsort(turns, (size_t)count, sizeof *turns, by_bound);
	for (int i = 0; i < count; i++) {
		if (!rc && turns[i].bound < s->best_s && !hspmd_search_is_over(s) && search_micro_batch(s, turns[i].tables))
			rc = hspmd_fail_memory(err, "searching for a plan");
		hspmd_tables_destroy(turns[i].tables);
	}
	if (!rc && hspmd_refine(s))
		rc = hspmd_fail_memory(err, "refining a plan");
	return rc;
}

/* ---- the request */

static int check_request(const struct hspmd_cluster *c, const struct hspmd_solve_request *r, struct hspmd_error *err)
{
	if (c->device_count < 1)
		return hspmd_fail(err, "the cluster has no devices");
	if (r->global_batch < 1)
		return hspmd_fail(err, "the global batch is %d: at least 1 is needed", r->global_batch);
	if (r->micro_batch < 0 || (r->micro_batch && r->global_batch % r->micro_batch))
		return hspmd_fail(err, "a global batch of %d cannot be divided into micro-batches of %d", r->global_batch, r->micro_batch);
	return 0;
}

/* Which device types may be used: allowed by the limits, with memory and with layer times. */
static int allow_types(struct hspmd_search *s, bool *allowed)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	const struct hspmd_solve_limits *lim = &s->request->limits;
	int usable = 0;
	for (int t = 0; t < c->type_count; t++) {
		struct hspmd_error why = { "" };
		allowed[t] = lim->type_count == 0;
		for (int i = 0; i < lim->type_count; i++)
			allowed[t] = allowed[t] || !strcmp(lim->types[i], c->types[t].name);
		if (allowed[t] && !hspmd_costs_times(s->costs, t, 1.0, 1, &why)) {
			hspmd_costs_warn(s->costs, "%s; its devices are left out", why.text);
			allowed[t] = false;
		}
		usable += allowed[t];
	}
	return usable;
}

static int prepare(struct hspmd_search *s, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	bool *allowed = hspmd_calloc((size_t)c->type_count, sizeof *allowed);
	if (!allowed)
		return hspmd_fail_memory(err, "preparing the search");
	if (allow_types(s, allowed))
		s->kinds = hspmd_kinds_new(c, allowed, err);
	else
		hspmd_fail(err, "no device type of the cluster may be used%s%s", s->costs->warning_count ? ": " : "",
			   s->costs->warning_count ? s->costs->warnings[0] : "");
	free(allowed);
	if (!s->kinds)
		return -1;
	for (int k = 0; k < s->kinds->count; k++)
		s->available[k] = s->kinds->kinds[k].count;
	return 0;
}

struct hspmd_plan *hspmd_solve(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
			       const struct hspmd_solve_request *request, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	double start = now_s();
	struct hspmd_search s = { .request = request, .best_s = INFINITY };
	struct hspmd_plan *plan = NULL;
	if (check_request(cluster, request, err))
		return NULL;
	s.exec = request->exec ? *request->exec : hspmd_execution_default();
	s.deadline = request->time_limit_s > 0 ? start + request->time_limit_s : 0;
	s.costs = hspmd_costs_new(cluster, model, profile, request->precision, request->seq_len, err);
	if (!s.costs)
		return NULL;
	s.costs->sequence_parallel = s.exec.sequence_parallel;
	if (!prepare(&s, err) && !search(&s, err)) {
		if (s.pool.count)
			plan = hspmd_plan_copy(s.pool.best[0].plan);
		else
			hspmd_fail(err, "no plan fits into the memory of the %d devices", cluster->device_count);
	}
	if (plan && hspmd_predict(s.costs, plan, report, err)) {
		hspmd_plan_destroy(plan);
		plan = NULL;
	}
	if (plan && report) {
		hspmd_report_take_warnings(report, s.costs);
		report->evaluated = s.evaluated;
		report->timed_out = s.timed_out;
		report->elapsed_s = now_s() - start;
		report->moved_bytes = NAN;
		report->price_per_hour = hspmd_plan_price(cluster, plan);
	}
	hspmd_pool_clear(&s.pool);
	hspmd_kinds_destroy(s.kinds);
	hspmd_costs_destroy(s.costs);
	return plan;
}
