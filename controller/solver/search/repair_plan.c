/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/repair_plan.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/format/device_speed.h"
#include "common/format/plan_precision.h"
#include "controller/solver/search/search_internal.h"
#include "controller/solver/search/search_plan.h"
#include "controller/solver/sim/predict.h"

static double speed_of(const struct hspmd_cluster *c, int device, enum hspmd_precision precision)
{
	const struct hspmd_cluster_device *d = &c->devices[device];
	return hspmd_device_flops(&c->types[d->type], precision) / c->nodes[d->node].slowdown;
}

/* The speed of the plan's devices, before and of those that are left. */
static void speeds(const struct hspmd_plan *p, const struct hspmd_cluster *of, const struct hspmd_cluster *now,
                   enum hspmd_precision precision, double *before, double *left)
{
	char name[256];
	*before = *left = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				int device = p->pipelines[i].stages[s].devices[d];
				int at = hspmd_cluster_find_device(now, hspmd_cluster_device_address(of, device, name, sizeof name), NULL);
				*before += speed_of(of, device, precision);
				*left += at < 0 ? 0 : speed_of(now, at, precision);
			}
}

/* The step that the current plan takes; 0: unknown. */
static double step_of(const struct hspmd_plan *p, const struct hspmd_cluster *of, const struct hspmd_model_facts *facts,
                      enum hspmd_precision precision)
{
	struct hspmd_error why;
	if (p->predicted.step_s > 0)
		return p->predicted.step_s;
	struct hspmd_plan *copy = hspmd_plan_copy(p);
	double step_s = copy && !hspmd_evaluate(of, facts, NULL, precision, copy, NULL, &why) ? copy->predicted.step_s : 0;
	hspmd_plan_destroy(copy);
	return step_s;
}

static int nodes_of(const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	bool *used = hspmd_calloc((size_t)c->node_count, sizeof *used);
	int count = used ? 0 : c->node_count; /* memory is short */
	for (int i = 0; used && i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				int node = c->devices[p->pipelines[i].stages[s].devices[d]].node;
				count += !used[node];
				used[node] = true;
			}
	free(used);
	return count;
}

static int check_limits(const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_solve_limits *l, int least_nodes,
                        struct hspmd_error *err)
{
	int devices = hspmd_plan_device_count(p), nodes = nodes_of(p, c);
	if (nodes < least_nodes && c->node_count >= least_nodes)
		return hspmd_fail(err, "the repaired plan uses %d nodes, and copies of the state need %d", nodes, least_nodes);
	if (l->max_devices && devices > l->max_devices)
		return hspmd_fail(err, "the repaired plan needs %d devices, and %d are allowed", devices, l->max_devices);
	if (l->max_nodes && nodes > l->max_nodes)
		return hspmd_fail(err, "the repaired plan needs %d nodes, and %d are allowed", nodes, l->max_nodes);
	if (l->max_price_per_hour > 0 && hspmd_plan_price(c, p) > l->max_price_per_hour)
		return hspmd_fail(err, "the repaired plan's nodes cost more than is allowed");
	return 0;
}

static bool can_be_repaired(const struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		if (p->pipelines[i].length_count)
			return false;
	return !p->synthesis && !p->shorter_count;
}

struct hspmd_plan *hspmd_repair_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_solve_request *request, double behind, int nodes, double *slower,
                                     struct hspmd_error *err)
{
	const struct hspmd_plan *current = request->current;
	const struct hspmd_cluster *of = request->current_cluster ? request->current_cluster : cluster;
	struct hspmd_solve_request r = *request;
	double before, left;
	if (!current || !can_be_repaired(current)) {
		hspmd_fail(err, "there is no plan that can be repaired");
		return NULL;
	}
	enum hspmd_precision precision = hspmd_plan_precision(current, of, request->precision);
	r.repair = true;
	r.programs = NULL;
	r.time_limit_s = 0;
	struct hspmd_plan *plan = hspmd_search_plan(cluster, facts, NULL, &r, NULL, NULL, err);
	if (!plan)
		return NULL;
	speeds(current, of, cluster, precision, &before, &left);
	double expected_s = left > 0 ? step_of(current, of, facts, request->precision) * before / left : 0;
	*slower = expected_s > 0 ? behind * plan->predicted.step_s / expected_s : INFINITY;
	if (hspmd_plan_precision(plan, cluster, request->precision) != precision)
		hspmd_fail(err, "the repaired plan computes in another precision");
	else if (*slower > HSPMD_REPAIRED_MOST)
		hspmd_fail(err, "a step of the repaired plan takes %.2f times as long as the lost speed explains", *slower);
	else if (!check_limits(plan, cluster, &request->limits, nodes, err))
		return plan;
	hspmd_plan_destroy(plan);
	return NULL;
}
