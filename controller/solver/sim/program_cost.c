/* SPDX-License-Identifier: Apache-2.0 */
/* The step time and memory of a plan whose operators are divided by a search of their own, from what the search says of its program, under
 * the same constants as other plans: launches, the variation between devices, and the update at the step's end. Nothing overlaps. */
#include <math.h>

#include "common/alloc.h"
#include "common/format/device_speed.h"
#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/evaluate.h"
#include "controller/solver/sim/predict.h"

static double launches(const struct hspmd_cluster *c, const struct hspmd_stage *stage, double operators)
{
	double slowest = 0;
	for (int d = 0; d < stage->device_count; d++)
		slowest = fmax(slowest, hspmd_device_operator_seconds(&c->types[c->devices[stage->devices[d]].type]));
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

/* That products need while they run, which the search does not know of. */
static double product_bytes(const struct hspmd_device_type *type)
{
	const struct hspmd_device_share device = hspmd_device_share_of(type, 1, 1, false);
	return device.product_bytes + device.beside_bytes;
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
		p->predicted.memory_bytes[d] = hspmd_device_bytes(costs, type, cost->bytes[d] + image + product_bytes(type));
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

/* What operators of all layers do: per sample, and (weights' bytes) per micro-batch. */
struct model_work {
	double flops, fp8[2], bytes, weight_bytes, kernels; /* fp8: [1] of experts */
};

static void add_pass(struct model_work *w, const struct hspmd_layer_pass *p)
{
	w->flops += p->flops.replicated + p->flops.sharded - p->fp8.replicated - p->fp8.sharded;
	double experts = p->fp8_experts.replicated + p->fp8_experts.sharded;
	w->fp8[0] += p->fp8.replicated + p->fp8.sharded - experts;
	w->fp8[1] += experts;
	w->bytes += p->bytes.replicated + p->bytes.sharded;
	w->weight_bytes += p->weights.replicated + p->weights.sharded;
	w->kernels += p->kernels;
}

/* Seconds of a step's operators at least: they share all of their work as well as no program can, and repeat nothing. */
static double least_operators(const struct hspmd_costs *costs, const struct hspmd_plan *p, const struct model_work *w)
{
	const struct hspmd_cluster *c = costs->cluster;
	const struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	double rates = 0, fp8_rates[2] = { 0, 0 }, flops_per_byte = HUGE_VAL, samples = p->global_batch, m = p->pipelines[0].micro_batches;
	for (int d = 0; d < stage->device_count; d++) {
		const struct hspmd_cluster_device *device = &c->devices[stage->devices[d]];
		const struct hspmd_device_type *type = &c->types[device->type];
		double slowdown = c->nodes[device->node].slowdown, memory_rate = hspmd_device_memory_rate(type) / slowdown;
		double rate = hspmd_device_flops(type, costs->precision) / slowdown;
		rates += rate;
		for (int experts = 0; experts < 2; experts++)
			fp8_rates[experts] += hspmd_device_fp8_flops(type, costs->precision, experts) / slowdown;
		flops_per_byte = memory_rate > 0 ? fmin(flops_per_byte, rate / memory_rate) : 0;
	}
	double bytes = samples * w->bytes + m * w->weight_bytes;
	if (rates <= 0)
		return 0;
	return (samples * w->flops + bytes * flops_per_byte) / rates + samples * (w->fp8[0] / fp8_rates[0] + w->fp8[1] / fp8_rates[1]);
}

/* Returns step_s without what a program cannot change: what is left of it for operators, messages and sums. 0 or less: nothing. */
static double left_for_program(struct hspmd_costs *costs, const struct hspmd_plan *p, double step_s)
{
	const struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	struct model_work w = { 0 };
	for (int l = 0; l < costs->layer_count; l++) {
		add_pass(&w, &costs->layers[l].forward);
		add_pass(&w, &costs->layers[l].backward);
	}
	double vary = hspmd_variation(costs, stage->device_count, 1), least = least_operators(costs, p, &w);
	double left = step_s - (vary - 1) * least - vary * p->pipelines[0].micro_batches * launches(costs->cluster, stage, w.kernels);
	return left > least ? left : 0;
}

int hspmd_evaluate_program(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                           const struct hspmd_program_search *programs, enum hspmd_precision precision, struct hspmd_plan *plan,
                           const struct hspmd_program_limits *limits, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	struct hspmd_program_cost cost = { 0 };
	struct hspmd_program_limits left = *limits;
	struct hspmd_costs *costs = hspmd_costs_of_plan(cluster, facts, NULL, precision, plan, err);
	if (costs && limits->step_s > 0 && !plan->program)
		left.step_s = left_for_program(costs, plan, limits->step_s);
	int status = !costs                                   ? -1
	             : limits->step_s > 0 && left.step_s <= 0 ? 1
	                                                      : programs->find(programs->context, cluster, plan, &left, &cost, err);
	if (!status)
		status = predict(costs, plan, &cost, report, err);
	if (!status && report)
		hspmd_report_precision(report, cluster, plan, precision);
	hspmd_program_cost_clear(&cost);
	hspmd_costs_destroy(costs);
	return status;
}
