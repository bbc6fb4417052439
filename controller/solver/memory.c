/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on each device of a stage: its share of weights, gradients (where there are copies to reduce with, once more in the buckets they travel
 * in, as PyTorch's and most others do, arXiv 2006.15704) and optimizer state (divided among the copies under ZeRO-1, arXiv 1910.02054), the activations of all micro-batches in flight, what the largest layer needs
 * while it runs, and what the device holds before any of it. */
#include "controller/solver/costs.h"

#include <math.h>

#include "controller/solver/physics.h"

/* Of a layer's bytes, what one device has: parts that a group does not divide count whole. */
static double divided(const struct hspmd_costs *c, double bytes, double whole, double share)
{
	whole = fmin(whole, bytes);
	return (c->sequence_parallel ? whole * share : whole) + (bytes - whole) * share;
}

double hspmd_layer_kept(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, double share)
{
	const struct hspmd_layer_fact *f = &c->layers[layer];
	return divided(c, f->kept_bytes[recompute], f->whole_bytes, share);
}

double hspmd_layer_working(const struct hspmd_costs *c, int layer, double share)
{
	const struct hspmd_layer_fact *f = &c->layers[layer];
	return divided(c, f->working_bytes, f->whole_bytes, share);
}

double hspmd_stage_params(const struct hspmd_costs *c, int first, int end)
{
	double params = c->params_sum[end] - c->params_sum[first];
	for (int i = 0; i < c->borrower_count; i++) {
		int l = c->borrowers[i], twin = c->layers[l].twin;
		if (l >= first && l < end && (twin < first || twin >= end))
			params += c->layers[l].borrowed;
	}
	return params;
}

double hspmd_state_bytes(const struct hspmd_costs *c, const struct hspmd_copies *copies)
{
	double gradients = c->grad_bytes * (copies->pipelines > 1 ? 2 : 1);
	return c->param_bytes + gradients + (c->master_bytes + c->moment_bytes) / (copies->zero ? copies->pipelines : 1);
}

double hspmd_fillable_bytes(const struct hspmd_device_type *type)
{
	double all = (double)type->memory_bytes;
	return type->kind == HSPMD_DEVICE_CUDA ? (all - HSPMD_CONTEXT_BYTES) * HSPMD_FILLABLE : all;
}

double hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch, int in_flight,
			  const struct hspmd_copies *copies)
{
	double share = hspmd_stage_share(s, which), kept = 0, working = 0;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		kept += hspmd_layer_kept(c, l, s->recompute, share);
		working = fmax(working, hspmd_layer_working(c, l, share));
	}
	double params = hspmd_stage_params(c, s->layers[0], s->layers[1]) * share;
	double bytes = params * hspmd_state_bytes(c, copies) + micro_batch * (in_flight * kept + working) / s->context;
	if (c->cluster->types[c->cluster->devices[s->devices[which]].type].kind == HSPMD_DEVICE_CUDA)
		bytes = bytes / HSPMD_FILLABLE + HSPMD_CONTEXT_BYTES;
	return bytes;
}
