/* SPDX-License-Identifier: Apache-2.0 */
/* The search, in two stages as in H2's HeteroAuto (arXiv 2505.17548, section 4): first pipelines, from kinds of devices rather than devices, with layers
 * split as well as can be (library.c), then plans made of them (assemble.c), timed by the simulator; the best are refined (refine.c).
 *
 * Each micro-batch that divides the global batch is searched by itself; one that could not beat what is known, however well its devices worked
 * together, is left out (units.c has the bound).
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "controller/solver/limits.h"
#include "controller/solver/search.h"

#define MICRO_BATCH_MAX 128
#define MICRO_BATCHES_MAX 64
#define BEHIND 1.4 /* bound over the least one from which on a micro-batch comes last */

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

struct lookup {
	bool tight, complete;
};

static int search_columns(struct hspmd_search *s, struct hspmd_tables *t, int pipelines, bool zero, struct lookup *found)
{
	struct hspmd_library l = { 0 };
	int rc = hspmd_library_fill(s, t, pipelines, zero, &l);
	found->tight = found->tight || l.tight;
	found->complete = l.complete;
	if (!rc)
		rc = hspmd_assemble(s, t, &l, l.complete && pipelines == 1 ? 1 : INT_MAX, zero);
	hspmd_library_clear(&l);
	return rc;
}

/* How much memory a stage needs depends on how many copies of it there will be. Many columns are made for the number of pipelines that their deal
 * leads to, ZeRO-1 where it is allowed: it saves memory and the optimizer's time, and costs nothing but the order of messages. Few columns are
 * made for every case. */
static int search_micro_batch(struct hspmd_search *s, struct hspmd_tables *t)
{
	struct lookup found = { 0 };
	int most = s->request->global_batch / t->micro_batch;
	bool zero = s->exec.max_zero_stage > 0;
	if (!hspmd_library_is_complete(s, t))
		return search_columns(s, t, 2, zero, &found);
	if (search_columns(s, t, 2, false, &found) || (found.tight && search_columns(s, t, 1, false, &found)))
		return -1;
	for (int p = 2; zero && found.tight && p <= most && p <= s->costs->cluster->device_count; p++)
		if (search_columns(s, t, p, true, &found))
			return -1;
	return 0;
}

/* ---- all micro-batches */

struct turn {
	struct hspmd_tables *tables;
	double bound;
};

/* Small ones first: the rows that do well with one are what is tried with the next, and what fits with a small one may not with a large one, hardly
 * the other way round. Those that work much less well on these devices come last and will mostly be left out. */
static void order_turns(struct turn *turns, int count)
{
	double least = INFINITY;
	for (int i = 0; i < count; i++)
		least = fmin(least, turns[i].bound);
	for (int i = 0, at = 0; i < count; i++) {
		struct turn turn = turns[i];
		if (turn.bound > BEHIND * least)
			continue;
		memmove(&turns[at + 1], &turns[at], (size_t)(i - at) * sizeof *turns);
		turns[at++] = turn;
	}
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
	order_turns(turns, count);
	for (int i = 0, vain = 0; i < count; i++) {
		double before = s->best_s;
		/* Steps get shorter with the micro-batch, then longer: where work is much, two that did not help are enough. */
		bool enough = vain >= 2 && !hspmd_library_is_complete(s, turns[i].tables);
		if (!rc && !enough && turns[i].bound < s->best_s && !hspmd_search_is_over(s) && search_micro_batch(s, turns[i].tables))
			rc = hspmd_fail_memory(err, "searching for a plan");
		vain = isinf(s->best_s) || s->best_s < before ? 0 : vain + 1;
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
	s->favourites = hspmd_calloc(HSPMD_FAVOURITES, sizeof *s->favourites);
	return s->favourites ? 0 : hspmd_fail_memory(err, "preparing the search");
}

static struct hspmd_plan *solve_all(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
				    const struct hspmd_solve_request *request, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	double start = now_s();
	struct hspmd_search s = { .request = request, .best_s = INFINITY };
	struct hspmd_plan *plan = NULL;
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
	free(s.favourites);
	hspmd_kinds_destroy(s.kinds);
	hspmd_costs_destroy(s.costs);
	return plan;
}

struct hspmd_plan *hspmd_solve(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
			       const struct hspmd_solve_request *request, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	struct hspmd_cluster *part = NULL;
	if (check_request(cluster, request, err) || hspmd_limits_part(cluster, &request->limits, &part, err))
		return NULL;
	struct hspmd_plan *plan = solve_all(part ? part : cluster, model, profile, request, report, err);
	if (plan && part && hspmd_limits_rebind(plan, part, cluster, err)) {
		hspmd_plan_destroy(plan);
		plan = NULL;
	}
	hspmd_cluster_destroy(part);
	return plan;
}
