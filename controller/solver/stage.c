/* SPDX-License-Identifier: Apache-2.0 */
/* What one stage costs: seconds of a micro-batch and bytes on each device.
 *
 * A group runs at the pace of its slowest device: devices differ in type, share and slowdown. Layers that were measured bring their
 * tensor-parallel communication along; computed ones add two all-reduces forward and two backward a block (Megatron-LM, arXiv 1909.08053).
 *
 * Memory of a device: its share of weights, gradients, optimizer state (divided among the copies under ZeRO-1, arXiv 1910.02054), the activations of all
 * micro-batches in flight, and what the largest layer needs while it runs.
 */
#include "controller/solver/costs.h"

#include <math.h>

#include "controller/solver/physics.h"

double hspmd_stage_share(const struct hspmd_stage *s, int which)
{
	int tp = s->device_count / (s->context > 1 ? s->context : 1);
	return s->shard_ratio ? s->shard_ratio[which % tp] : 1.0 / tp;
}

static int communication(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, double *seconds, struct hspmd_error *err)
{
	double bytes = 0;
	for (int l = s->layers[0]; l < s->layers[1]; l++)
		bytes += c->layers[l].reduced_bytes * micro_batch;
	/* An all-reduce a product pair: each moves half of what a layer moves in all. */
	int blocks = s->layers[1] - s->layers[0];
	double one = hspmd_costs_all_reduce(c, s->devices, s->device_count, bytes / (2 * blocks), err);
	*seconds = one < 0 ? -1 : one * 2 * blocks;
	return one < 0 ? -1 : 0;
}

int hspmd_costs_stage(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_stage_cost *out, struct hspmd_error *err)
{
	bool measured = true;
	*out = (struct hspmd_stage_cost){ 0 };
	int a = s->layers[0], b = s->layers[1];
	for (int i = 0; i < s->device_count; i++) {
		const struct hspmd_device_at *d = &c->cluster->devices[s->devices[i]];
		const struct hspmd_layer_times *t = hspmd_costs_times(c, d->type, hspmd_stage_share(s, i), micro_batch, err);
		if (!t)
			return -1;
		double slow = c->cluster->nodes[d->node].slowdown, part = s->context > 1 ? (s->context_ratio ? s->context_ratio[i / (s->device_count / s->context)] : 1.0 / s->context) : 1;
		out->forward = fmax(out->forward, slow * part * (t->forward[b] - t->forward[a]));
		out->backward = fmax(out->backward, slow * part * (t->backward[b] - t->backward[a] + t->rerun[s->recompute][b] - t->rerun[s->recompute][a]));
		out->optimizer = fmax(out->optimizer, slow * (t->optimizer[b] - t->optimizer[a]));
		measured = measured && t->measured;
	}
	if (s->device_count > 1 && !measured) {
		double seconds;
		if (communication(c, s, micro_batch, &seconds, err))
			return -1;
		out->forward += seconds;
		out->backward += seconds * (s->recompute == HSPMD_RECOMPUTE_FULL ? 2 : 1);
	}
	return 0;
}

double hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch, int in_flight, double copies)
{
	double share = hspmd_stage_share(s, which), part = s->context > 1 ? 1.0 / s->context : 1;
	double params = (c->params_sum[s->layers[1]] - c->params_sum[s->layers[0]]) * share;
	double kept = 0, working = 0;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		const struct hspmd_layer_fact *f = &c->layers[l];
		double whole = fmin(f->whole_bytes, f->kept_bytes[s->recompute]);
		kept += (c->sequence_parallel ? whole * share : whole) + (f->kept_bytes[s->recompute] - whole) * share;
		working = fmax(working, f->working_bytes * share);
	}
	double state = params * (c->param_bytes + c->grad_bytes + (c->master_bytes + c->moment_bytes) / copies);
	return state + micro_batch * part * (in_flight * kept + working);
}
