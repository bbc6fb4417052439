/* SPDX-License-Identifier: Apache-2.0 */
/* A request, as one or several searches: in the precision in which the devices compute, and for plans whose tensor-parallel groups have
 * more devices than there are heads of keys and values. */
#include "controller/solver/search/search_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/format/device_traits.h"
#include "controller/solver/search/program_plans.h"
#include "controller/solver/search/search_internal.h"

static int check_request(const struct hspmd_cluster *c, const struct hspmd_solve_request *r, struct hspmd_error *err)
{
	if (c->device_count < 1)
		return hspmd_fail(err, "the cluster has no devices");
	if (r->global_batch < 1)
		return hspmd_fail(err, "the global batch is %d: at least 1 is needed", r->global_batch);
	if (!(r->limits.cost_weight >= 0 && r->limits.cost_weight <= 1))
		return hspmd_fail(err, "the weight of cost is %g: expected 0 (speed alone) to 1 (cost alone)", r->limits.cost_weight);
	if (r->micro_batch < 0 || (r->micro_batch && r->global_batch % r->micro_batch))
		return hspmd_fail(err, "a global batch of %d cannot be divided into micro-batches of %d", r->global_batch, r->micro_batch);
	return 0;
}

/* ---- precision */

static bool is_allowed(const struct hspmd_solve_limits *limits, const char *type)
{
	for (int i = 0; i < limits->type_count; i++)
		if (!strcmp(limits->types[i], type))
			return true;
	return limits->type_count == 0;
}

/* Fill names with the names of the types that are allowed and compute in both precisions; returns their number. *left: number of devices
 * of the other allowed types. */
static int types_that_compute(const struct hspmd_cluster *c, const struct hspmd_solve_limits *limits, enum hspmd_precision one,
                              enum hspmd_precision other, const char **names, int *left)
{
	int n = 0;
	*left = 0;
	for (int t = 0; t < c->type_count; t++)
		if (is_allowed(limits, c->types[t].name) && hspmd_device_kind_computes(c->types[t].kind, one) &&
		    hspmd_device_kind_computes(c->types[t].kind, other))
			names[n++] = c->types[t].name;
	for (int d = 0; d < c->device_count; d++) {
		const struct hspmd_device_type *t = &c->types[c->devices[d].type];
		*left += is_allowed(limits, t->name) &&
		         !(hspmd_device_kind_computes(t->kind, one) && hspmd_device_kind_computes(t->kind, other));
	}
	return n;
}

/* What every search is given. */
struct question {
	const struct hspmd_cluster *cluster;
	const struct hspmd_model_facts *facts;
	const struct hspmd_profile *profile;
	struct hspmd_solve_report *report;
	bool *too_large;
	struct hspmd_error *err;
};

/* A plan of devices of these types alone; `left` others are left out, which cannot compute in `precision`. */
static struct hspmd_plan *solve_among(const struct question *q, const struct hspmd_solve_request *request, const char *const *types,
                                      int type_count, int left, enum hspmd_precision precision)
{
	struct hspmd_solve_request r = *request;
	char text[200];
	if (!type_count)
		return NULL;
	if (left) {
		r.limits.types = types;
		r.limits.type_count = type_count;
	}
	struct hspmd_plan *plan = hspmd_search_whole(q->cluster, q->facts, q->profile, &r, q->report, q->too_large, q->err);
	if (plan && left) {
		snprintf(text, sizeof text, "%d device%s left out, which cannot compute in %s", left, left == 1 ? " is" : "s are",
		         hspmd_precision_names[precision]);
		hspmd_report_warn(q->report, text);
	}
	return plan;
}

static struct hspmd_plan *solve_left(const struct question *q, const struct hspmd_solve_request *request, const char **types,
                                     int type_count, int left)
{
	struct hspmd_solve_request r = *request;
	double start = hspmd_now();
	bool fp8 = request->precision == HSPMD_PRECISION_FP8;
	struct hspmd_plan *plan = solve_among(q, &r, types, type_count, left, HSPMD_PRECISION_BF16);
	if (plan)
		return plan;
	hspmd_solve_report_clear(q->report);
	if (r.time_limit_s > 0)
		r.time_limit_s = fmax(r.time_limit_s - (hspmd_now() - start), 1e-3);
	if (fp8) {
		r.fp32_elements = true;
		type_count = types_that_compute(q->cluster, &r.limits, HSPMD_PRECISION_FP8, HSPMD_PRECISION_FP32, types, &left);
		if (!type_count)
			hspmd_fail(q->err, "none of the devices can compute in fp8");
		return solve_among(q, &r, types, type_count, left, HSPMD_PRECISION_FP8);
	}
	r.precision = HSPMD_PRECISION_FP32;
	plan = hspmd_search_whole(q->cluster, q->facts, q->profile, &r, q->report, q->too_large, q->err);
	if (plan)
		hspmd_report_precision(q->report, q->cluster, plan, request->precision);
	return plan;
}

/* A plan computes in bf16 if all its devices can (hspmd_plan_precision), and in fp8 its elements are bf16 then. So the search uses these
 * devices first; if there are none or too few, it uses all devices (of those that compute in fp8), in fp32. Cost and memory are thus always
 * predicted for the precision that will run. This is known only of hspmd's own runtime: with a profile alone, the precision stays as
 * requested. */
static struct hspmd_plan *solve_in_precision(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                             const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                             struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err)
{
	if (!facts || (request->precision != HSPMD_PRECISION_BF16 && request->precision != HSPMD_PRECISION_FP8))
		return hspmd_search_whole(cluster, facts, profile, request, report, too_large, err);
	const struct question q = { cluster, facts, profile, report, too_large, err };
	const char **names = hspmd_calloc((size_t)cluster->type_count, sizeof *names);
	struct hspmd_plan *plan = NULL;
	int left = 0, count = names ? types_that_compute(cluster, &request->limits, request->precision, HSPMD_PRECISION_BF16, names, &left)
	                            : hspmd_fail_memory(err, "choosing a precision");
	if (count >= 0)
		plan = left ? solve_left(&q, request, names, count, left)
		            : hspmd_search_whole(cluster, facts, profile, request, report, too_large, err);
	free(names);
	return plan;
}

/* Returns true if a tensor-parallel group may have more devices than the facts divide evenly. */
static bool may_be_wide(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                        const struct hspmd_solve_request *request)
{
	struct hspmd_runtime_caps caps = request->caps ? *request->caps : hspmd_runtime_caps_default();
	int most = 0;
	for (int n = 0; n < cluster->node_count; n++)
		most = cluster->nodes[n].device_count > most ? cluster->nodes[n].device_count : most;
	most = caps.tp_across_nodes ? cluster->device_count : most;
	return facts && facts->wide && facts->even_parts < most && facts->even_parts < caps.max_tp;
}

/* Returns true if the second plan is to be taken instead of the first one, which may be NULL: of plans that are about as fast, the one that
 * moves less. */
static bool is_better(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *r, const struct hspmd_plan *first,
                      const struct hspmd_solve_report *report, const struct hspmd_plan *second,
                      const struct hspmd_solve_report *second_report)
{
	double a = first ? hspmd_objective_of(r, cluster, first) : INFINITY, b = hspmd_objective_of(r, cluster, second);
	bool about_equal = r->current && a <= b * HSPMD_NEAR_ENOUGH && b <= a * HSPMD_NEAR_ENOUGH;
	return about_equal && second_report->moved_bytes != report->moved_bytes ? second_report->moved_bytes < report->moved_bytes : b < a;
}

/* If a plan has a group with more devices than there are heads of keys and values, these are replicated in all of its stages, so such plans
 * are searched after the others, with facts of their own. */
static struct hspmd_plan *solve_wide(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                     struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err)
{
	struct hspmd_solve_request r = *request;
	struct hspmd_solve_report own = { 0 };
	struct hspmd_error why;
	double start = hspmd_now();
	r.time_limit_s /= 2;
	struct hspmd_plan *plan = solve_in_precision(cluster, facts, profile, &r, report, too_large, err);
	if (request->time_limit_s > 0)
		r.time_limit_s = fmax(request->time_limit_s - (hspmd_now() - start), 1e-3);
	if (plan && !request->current && !request->limits.cost_weight)
		r.known_s = plan->predicted.step_s;
	struct hspmd_plan *wide = solve_in_precision(cluster, facts->wide, profile, &r, &own, too_large, &why);
	int64_t evaluated = report->evaluated + own.evaluated;
	if (wide && hspmd_model_facts_of_plan(facts, wide) == facts->wide && is_better(cluster, request, plan, report, wide, &own)) {
		struct hspmd_plan *swap = plan;
		struct hspmd_solve_report swap_report = *report;
		plan = wide;
		*report = own;
		wide = swap;
		own = swap_report;
	}
	report->timed_out = report->timed_out || own.timed_out;
	report->evaluated = evaluated;
	report->elapsed_s = hspmd_now() - start;
	hspmd_plan_destroy(wide);
	hspmd_solve_report_clear(&own);
	return plan;
}

struct hspmd_plan *hspmd_search_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                                     struct hspmd_solve_report *report, bool *too_large, struct hspmd_error *err)
{
	struct hspmd_solve_request r = *request;
	struct hspmd_solve_report unread = { 0 };
	bool no_memory = false;
	struct hspmd_plan *plan = NULL;
	if (r.current && !r.current_cluster)
		r.current_cluster = cluster;
	if (r.current && r.current->synthesis)
		r.current = NULL; /* how its state lies is not known here */
	if (!check_request(cluster, request, err))
		plan = (may_be_wide(cluster, facts, &r) ? solve_wide : solve_in_precision)(cluster, facts, profile, &r,
		                                                                           report ? report : &unread, &no_memory, err);
	double program_s = 0;
	struct hspmd_plan *other = plan && request->programs && facts && !profile
	                                   ? hspmd_search_program_plan(cluster, facts, request, plan, &program_s)
	                                   : NULL;
	if (report)
		report->program_s = program_s;
	if (other && report) {
		report->whole_s = plan->predicted.step_s;
		report->moved_bytes = NAN;
	}
	if (other) {
		hspmd_plan_destroy(plan);
		plan = other;
	}
	hspmd_solve_report_clear(&unread);
	if (too_large)
		*too_large = !plan && no_memory;
	return plan;
}
