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

double hspmd_stage_params(const struct hspmd_costs *c, const struct hspmd_stage *s)
{
	double params = c->params_sum[s->layers[1]] - c->params_sum[s->layers[0]];
	for (int l = s->layers[0]; l < s->layers[1]; l++)
		if (c->layers[l].borrowed > 0 && (c->layers[l].twin < s->layers[0] || c->layers[l].twin >= s->layers[1]))
			params += c->layers[l].borrowed;
	return params;
}

double hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch, int in_flight, int copies, bool zero)
{
	double share = hspmd_stage_share(s, which), kept = 0, working = 0;
	double params = hspmd_stage_params(c, s) * share;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		const struct hspmd_layer_fact *f = &c->layers[l];
		kept += divided(c, f->kept_bytes[s->recompute], f->whole_bytes, share);
		working = fmax(working, divided(c, f->working_bytes, f->whole_bytes, share));
	}
	double gradients = c->grad_bytes * (copies > 1 ? 2 : 1), optimizer = (c->master_bytes + c->moment_bytes) / (zero ? copies : 1);
	double state = params * (c->param_bytes + gradients + optimizer);
	double bytes = state + micro_batch * (in_flight * kept + working) / s->context;
	if (c->cluster->types[c->cluster->devices[s->devices[which]].type].kind == HSPMD_DEVICE_CUDA)
		bytes = bytes / HSPMD_FILLABLE + HSPMD_CONTEXT_BYTES;
	return bytes;
}
