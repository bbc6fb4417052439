/* SPDX-License-Identifier: Apache-2.0 */
/* The step time and memory of a plan whose operators are divided by a search of their own, from what the search says of its program, under
 * the same constants as other plans: launches, the variation between devices, and the update at the step's end. Nothing overlaps. */
#include <math.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/evaluate.h"
#include "controller/solver/sim/predict.h"

static double launches(const struct hspmd_cluster *c, const struct hspmd_stage *stage, double operators)
{
	double slowest = 0;
	for (int d = 0; d < stage->device_count; d++)
		slowest = fmax(slowest, hspmd_device_traits(c->types[c->devices[stage->devices[d]].type].kind)->launch_s);
	return slowest * operators;
}

/* Seconds of the slowest device's update. */
static double update(const struct hspmd_costs *costs, const struct hspmd_stage *stage, const struct hspmd_program_cost *cost)
{
	const struct hspmd_cluster *c = costs->cluster;
	double slowest = 0;
	for (int d = 0; d < stage->device_count; d++) {
		const struct hspmd_cluster_device *device = &c->devices[stage->devices[d]];
		slowest = fmax(slowest, c->nodes[device->node].slowdown * hspmd_costs_update(costs, device->type, cost->parameters[d]));
	}
	return slowest;
}

static int fill_memory(const struct hspmd_costs *costs, struct hspmd_plan *p, const struct hspmd_program_cost *cost,
                       struct hspmd_solve_report *report, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = costs->cluster;
	const struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	const struct hspmd_layer_copies copies = { .pipelines = 1 };
	if (hspmd_predicted_resize(&p->predicted, stage->device_count, err))
		return -1;
	for (int d = 0; d < stage->device_count; d++) {
		const struct hspmd_device_type *type = &c->types[c->devices[stage->devices[d]].type];
		double image = hspmd_image_bytes(costs, type, &copies) * cost->parameters[d], have = (double)type->memory_bytes;
		p->predicted.devices[d] = stage->devices[d];
		p->predicted.memory_bytes[d] = hspmd_device_bytes(costs, type, cost->bytes[d] + image);
		const struct hspmd_shortage of = { .device = stage->devices[d],
			                           .need_bytes = p->predicted.memory_bytes[d],
			                           .have_bytes = have };
		if (report && of.need_bytes > have && hspmd_report_shortage(report, &of, err))
			return -1;
	}
	return 0;
}

/* Fills plan->predicted, with shortages in the report (may be NULL). */
static int predict(struct hspmd_costs *costs, struct hspmd_plan *p, const struct hspmd_program_cost *cost,
                   struct hspmd_solve_report *report, struct hspmd_error *err)
{
	const struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	struct hspmd_predicted *out = &p->predicted;
	double vary = hspmd_variation(costs, stage->device_count, 1), m = p->pipelines[0].micro_batches;
	out->compute_s = vary * m * (cost->operators_s + launches(costs->cluster, stage, cost->operators)) + update(costs, stage, cost);
	out->communication_s = m * cost->messages_s;
	out->sync_s = cost->sync_s;
	out->bubble_s = 0;
	out->step_s = out->compute_s + out->communication_s + out->sync_s;
	return fill_memory(costs, p, cost, report, err);
}

int hspmd_evaluate_program(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                           const struct hspmd_program_search *programs, enum hspmd_precision precision, struct hspmd_plan *plan,
                           double limit_s, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	struct hspmd_program_cost cost = { 0 };
	struct hspmd_costs *costs = hspmd_costs_of_plan(cluster, facts, NULL, precision, plan, err);
	int status = costs ? programs->find(programs->context, cluster, plan, limit_s, &cost, err) : -1;
	if (!status)
		status = predict(costs, plan, &cost, report, err);
	if (!status && report)
		hspmd_report_precision(report, cluster, plan, precision);
	hspmd_program_cost_clear(&cost);
	hspmd_costs_destroy(costs);
	return status;
}
