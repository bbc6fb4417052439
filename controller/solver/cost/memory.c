/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on each device of a stage, as hspmd's programs allocate them (runtime/program/memory_plan.c; tests/unit/test_solver_memory.c
 * compares the two):
 *
 * - state: weights, gradients and optimizer state. Under ZeRO-1 (arXiv 1910.02054) the optimizer state is divided among the copies; the
 *   updated weights are then divided as finely, in addition to the weights in use
 * - in flight: per micro-batch, what its layers save for the backward pass, and the activation sent to the next stage, which stays
 *   allocated until that stage is known to have it
 * - recomputed: under zb-h1, per micro-batch whose weight gradients are deferred, what its backward pass recomputed
 * - fixed: gradients of the current layer and, if it is recomputed, its activations; and the keys and values that context groups have
 *   sent in the current pass and the one before it: their readers may be that far behind
 * - end: at the step's end, when all of this but the state is free again: under ZeRO the sums that each copy received of its part of the
 *   gradients
 *
 * On a GPU, add what the device holds before the program allocates anything. On a CPU, whose memory is the host's, add the image of
 * weights and optimizer state from which a checkpoint is written in the background; each copy holds its part of it. hspmd trains what
 * there is a model of. If there is only a profile, another framework will run the plan: it holds gradients once more, in the buckets in
 * which they are summed (PyTorch's, arXiv 2006.15704, section 4.2), and its allocator leaves gaps. */
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <string.h>

#include "controller/solver/cost/cost_constants.h"

static double of(const struct hspmd_layer_bytes *p, double share)
{
	return p->replicated + p->sharded * share;
}

/* With sequence parallelism the inputs of the sharded parts are gathered whole; the other half, which lies between these parts, is
 * not. */
static double kept_of(const struct hspmd_layer_info *f, const struct hspmd_layer_bytes *p, const struct hspmd_device_share *device)
{
	const struct hspmd_layer_bytes *all = &f->saved[HSPMD_RECOMPUTE_NONE];
	double replicated = p->replicated;
	if (device->sequence_parallel && device->share < 1)
		replicated = fmin(p->replicated, all->replicated / 2) * device->share +
		             (p == &f->saved[HSPMD_RECOMPUTE_FULL] ? 0 : all->replicated / 2);
	double gathered = p == &f->saved[HSPMD_RECOMPUTE_FULL] ? 0 : f->gathered_bytes * device->share * (1 - device->context_share);
	return (replicated + p->sharded * device->share) * device->context_share + gathered;
}

bool hspmd_layer_same_memory(const struct hspmd_layer_info *a, const struct hspmd_layer_info *b)
{
	return !memcmp(a->saved, b->saved, sizeof a->saved) && !memcmp(&a->transient, &b->transient, sizeof a->transient) &&
	       a->gathered_bytes == b->gathered_bytes;
}

double hspmd_layer_saved_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                               const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return kept_of(f, &f->saved[recompute], device);
}

double hspmd_layer_resident_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	double passes = recompute == HSPMD_RECOMPUTE_FULL ? 1.5 : 1; /* forward, recomputation, backward */
	return device->context_share < 1 ? passes * f->gathered_bytes * device->share * (1 + device->context_share) : 0;
}

static double computed_anew(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, const struct hspmd_device_share *device)
{
	return fmax(hspmd_layer_saved_bytes(c, layer, HSPMD_RECOMPUTE_NONE, device) - hspmd_layer_saved_bytes(c, layer, recompute, device),
	            0);
}

double hspmd_layer_transient_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                   const struct hspmd_device_share *device)
{
	return of(&c->layers[layer].transient, device->share) * device->context_share + computed_anew(c, layer, recompute, device);
}

double hspmd_stage_params(const struct hspmd_costs *c, int first, int end)
{
	double params = c->params_sum[end] - c->params_sum[first];
	for (int i = 0; i < c->tied_layer_count; i++) {
		int l = c->tied_layers[i], tied_to = c->layers[l].tied_to;
		if (l >= first && l < end && (tied_to < first || tied_to >= end))
			params += c->layers[l].tied_params;
	}
	return params;
}

double hspmd_state_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	double own = c->param_bytes + c->grad_bytes;
	if (!c->model && copies->pipelines > 1)
		own += c->grad_bytes;
	/* The result of an update is there in addition to the weights in use: in hspmd's programs the master copy and, if weights are
	 * rounded, the rounded weights too. */
	double updated = c->model ? c->master_bytes + c->param_bytes : fmax(c->master_bytes, c->param_bytes);
	if (copies->zero && copies->pipelines > 1)
		return own + (updated + c->moment_bytes) / copies->pipelines;
	return own + c->master_bytes + c->moment_bytes;
}

double hspmd_step_end_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	return copies->zero && copies->pipelines > 1 ? c->grad_bytes / copies->pipelines : 0;
}

double hspmd_image_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, const struct hspmd_layer_copies *copies)
{
	return c->model && type->kind == HSPMD_DEVICE_CPU ? (fmax(c->master_bytes, c->param_bytes) + c->moment_bytes) / copies->pipelines
	                                                  : 0;
}

/* Fraction of a device's memory that can be filled. */
static double usable_fraction(const struct hspmd_costs *c)
{
	return c->model ? 1 : HSPMD_USABLE_MEMORY;
}

double hspmd_usable_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type)
{
	double all = (double)type->memory_bytes;
	return type->kind == HSPMD_DEVICE_CUDA ? (all - HSPMD_CONTEXT_BYTES) * usable_fraction(c) : all;
}

double hspmd_device_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, double used)
{
	return type->kind == HSPMD_DEVICE_CUDA ? used / usable_fraction(c) + HSPMD_CONTEXT_BYTES : used;
}

struct hspmd_memory hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch,
                                       const struct hspmd_layer_copies *copies)
{
	struct hspmd_device_share device = { hspmd_stage_share(s, which), hspmd_stage_context_share(s, which),
		                             s->sequence_parallel || c->sequence_parallel };
	double saved = 0, recomputed = 0, resident = 0, transient = 0;
	for (int l = s->layers[0], end; l < s->layers[1]; l = end) {
		for (end = l + 1; end < s->layers[1] && c->layers[end].same_memory;)
			end++;
		saved += (end - l) * hspmd_layer_saved_bytes(c, l, s->recompute, &device);
		recomputed += (end - l) * computed_anew(c, l, s->recompute, &device);
		resident += (end - l) * hspmd_layer_resident_bytes(c, l, s->recompute, &device);
		transient = fmax(transient, hspmd_layer_transient_bytes(c, l, s->recompute, &device));
	}
	bool last = s->layers[1] == c->layer_count;
	double sent =
	        last ? 0 : c->layers[s->layers[1] - 1].output_bytes * device.context_share * (device.sequence_parallel ? device.share : 1);
	double params = hspmd_stage_params(c, s->layers[0], s->layers[1]) * device.share;
	const struct hspmd_device_type *type = &c->cluster->types[c->cluster->devices[s->devices[which]].type];
	double state = params * (hspmd_state_bytes(c, copies) + hspmd_image_bytes(c, type, copies));
	return (struct hspmd_memory){ .state = state,
		                      .in_flight = micro_batch * (saved + sent),
		                      .recomputed = micro_batch * recomputed,
		                      .fixed = micro_batch * (resident + transient),
		                      .end = params * hspmd_step_end_bytes(c, copies) };
}
