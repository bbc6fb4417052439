/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "common/alloc.h"
#include "common/format/device_speed.h"
#include "runtime/synthesis/synthesis_internal.h"

int hspmd_synthesis_rates(const struct hspmd_synthesis_stage *stage, double *rate, double *memory_rate, struct hspmd_error *err)
{
	for (int d = 0; d < stage->device_count; d++) {
		const struct hspmd_cluster_device *device = &stage->cluster->devices[stage->devices[d]];
		const struct hspmd_device_type *type = &stage->cluster->types[device->type];
		double slowdown = stage->cluster->nodes[device->node].slowdown;
		rate[d] = hspmd_device_flops(type, stage->precision) / slowdown;
		memory_rate[d] = hspmd_device_memory_rate(type) / slowdown;
		if (!(rate[d] > 0))
			return hspmd_fail(err, "device type %s: its speed is not known", type->name);
	}
	return 0;
}

/* Sets a shape to the part that a device holds of it. Returns false if it holds none. */
static bool cut(struct hspmd_shape *shape, const struct hspmd_annotation *a, int device)
{
	struct hspmd_local_shard shard;
	if (!a || !hspmd_annotation_local_shard(a, shape, device, &shard))
		return false;
	for (int d = 0; d < shape->rank; d++)
		shape->dim[d] = shard.box.hi[d] - shard.box.lo[d];
	return true;
}

/* What devices that share work have together. */
struct shared_work {
	double flops, bytes, rates, memory_rates;
	double sum, memory_sum; /* of their seconds, times their rates */
	double ratio[2];        /* least and most operations while one moves a byte */
	bool more_ratios;       /* than these */
};

static void add_device(struct shared_work *w, double flops, double bytes, double rate, double memory_rate, double seconds)
{
	double ratio = memory_rate > 0 ? rate / memory_rate : 0, least = w->ratio[0], most = w->ratio[1];
	bool first = w->rates <= 0;
	w->flops += flops;
	w->bytes += memory_rate > 0 ? bytes : 0;
	w->rates += rate;
	w->memory_rates += memory_rate;
	w->sum += rate * seconds;
	w->memory_sum += memory_rate * seconds;
	w->more_ratios |= least < most && ratio != least && ratio != most;
	w->ratio[0] = first ? ratio : fmin(least, ratio);
	w->ratio[1] = first ? ratio : fmax(most, ratio);
}

/* At least the seconds of the slowest device, however they share the work. With work moved from one to another, its mean over the rates
 * grows where the other computes more while it moves a byte, and its mean over the memories' rates falls: between devices of two such
 * ratios the lesser mean is no more than any division takes. Among more, every byte counts as on the device where it counts least. */
static double least_seconds(const struct shared_work *w)
{
	double least = (w->flops + w->bytes * w->ratio[0]) / w->rates;
	if (w->memory_rates <= 0)
		return w->sum / w->rates;
	if (w->ratio[1] > 0)
		least = fmax(least, (w->bytes + w->flops / w->ratio[1]) / w->memory_rates);
	return w->more_ratios ? least : fmin(w->sum / w->rates, w->memory_sum / w->memory_rates);
}

double hspmd_synthesis_op_seconds(const struct hspmd_synthesis_stage *stage, const double *rate, const double *memory_rate,
                                  const struct hspmd_op_view *view, const struct hspmd_op_type *type,
                                  const struct hspmd_annotation *const *in, const struct hspmd_annotation *const *out, double *each,
                                  double *least)
{
	double slowest = 0;
	struct shared_work shared = { 0 };
	for (int d = 0; d < stage->device_count; d++) {
		struct hspmd_op_view local = *view;
		bool all = true;
		for (int i = 0; i < view->input_count; i++)
			all &= view->in[i].rank < 0 || cut(&local.in[i], in[i], stage->devices[d]);
		for (int o = 0; o < view->output_count; o++)
			all &= view->out[o].rank < 0 || cut(&local.out[o], out[o], stage->devices[d]);
		double flops = 0, bytes = 0;
		if (all && type->cost)
			type->cost(&local, &flops, &bytes);
		const struct hspmd_cluster_device *device = &stage->cluster->devices[stage->devices[d]];
		const struct hspmd_device_type *kind = &stage->cluster->types[device->type];
		double slowdown = stage->cluster->nodes[device->node].slowdown;
		bool codes = type->fp8 && (!type->fp8_fits || type->fp8_fits(&local));
		double speed = codes ? hspmd_device_fp8_flops(kind, stage->precision, type->rows.choice) / slowdown : rate[d];
		bytes += all && type->windows ? hspmd_device_window_traffic(kind, type->windows(&local)) : 0;
		double seconds = flops / speed + (memory_rate[d] > 0 ? bytes / memory_rate[d] : 0);
		add_device(&shared, flops, bytes, speed, memory_rate[d], seconds);
		slowest = fmax(slowest, seconds);
		if (each)
			each[d] = seconds;
	}
	if (least)
		*least = least_seconds(&shared);
	return slowest;
}

/* What evaluates a program. */
struct pricing {
	const struct hspmd_spmd *spmd;
	const struct hspmd_synthesis_stage *stage;
	double *rate, *memory_rate, *each; /* per device */
};

static void add_operator(const struct pricing *p, const struct hspmd_spmd_node *n, struct hspmd_synthesis_seconds *parts)
{
	const struct hspmd_spmd *spmd = p->spmd;
	const struct hspmd_op *op = &spmd->graph->ops[n->op];
	const struct hspmd_annotation *in[HSPMD_OP_MAX_IO], *out[HSPMD_OP_MAX_IO];
	struct hspmd_op_view view;
	hspmd_op_view_of(spmd->graph, op, &view);
	for (int i = 0; i < n->input_count; i++)
		in[i] = n->in[i] < 0 ? NULL : spmd->values[n->in[i]].annotation;
	for (int o = 0; o < n->output_count; o++)
		out[o] = n->out[o] < 0 ? NULL : spmd->values[n->out[o]].annotation;
	parts->operators +=
	        hspmd_synthesis_op_seconds(p->stage, p->rate, p->memory_rate, &view, hspmd_op_types[op->opcode], in, out, p->each, NULL);
	parts->operator_count++;
	for (int d = 0; parts->busy && d < p->stage->device_count; d++)
		parts->busy[d] += p->each[d];
}

/* Seconds per step to bring the sums of gradients to where the parameters are kept. */
static double sync_seconds(const struct hspmd_spmd *spmd, const struct hspmd_link_cost *cost, struct hspmd_error *err)
{
	double total = 0;
	for (size_t t = 0; t < spmd->graph->tensor_count; t++) {
		const struct hspmd_tensor *what = &spmd->graph->tensors[t];
		int kept = what->role == HSPMD_TENSOR_PARAMETER ? spmd->first_value[t] : -1;
		int sum = kept >= 0 && what->grad >= 0 ? spmd->first_value[what->grad] : -1;
		if (sum < 0)
			continue;
		struct hspmd_transfer *transfer = hspmd_resolve(&what->shape, hspmd_dtype_bytes(spmd->graph->tensors[what->grad].dtype),
		                                                spmd->values[sum].annotation, spmd->values[kept].annotation, cost, err);
		if (!transfer)
			return -1;
		total += transfer->seconds;
		hspmd_transfer_destroy(transfer);
	}
	return total;
}

double hspmd_synthesis_cost(const struct hspmd_spmd *spmd, const struct hspmd_synthesis_stage *stage, const struct hspmd_link_cost *cost,
                            struct hspmd_synthesis_seconds *parts, struct hspmd_error *err)
{
	size_t n = (size_t)stage->device_count;
	double *rates = hspmd_calloc(3 * n, sizeof *rates);
	const struct pricing p = { spmd, stage, rates, rates + n, rates + 2 * n };
	struct hspmd_synthesis_seconds sum = { .busy = parts ? parts->busy : NULL };
	if (!rates)
		return hspmd_fail_memory(err, "predicting a program");
	if (hspmd_synthesis_rates(stage, p.rate, p.memory_rate, err)) {
		free(rates);
		return -1;
	}
	for (size_t i = 0; i < spmd->node_count; i++) {
		if (spmd->nodes[i].op < 0)
			sum.messages += spmd->nodes[i].transfer->seconds;
		else
			add_operator(&p, &spmd->nodes[i], &sum);
	}
	free(rates);
	sum.sync = sync_seconds(spmd, cost, err);
	if (parts)
		*parts = sum;
	return sum.sync < 0 ? -1 : sum.operators + sum.messages + sum.sync / stage->micro_batches;
}
