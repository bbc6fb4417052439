/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on each device of a stage, as hspmd's programs lay them out (runtime/train/place.c; tests/unit/test_solver_memory.c holds both together):
 *
 *   state       weights, gradients, and the optimizer's (divided among the copies under ZeRO-1, arXiv 1910.02054; the updated weights are then
 *               cut as finely, beside those that are used)
 *   in flight   of each micro-batch what its layers keep for the backward pass, and what was sent to the next stage, which stays until that
 *               stage is known to have it
 *   again       under zb-h1 of each micro-batch whose gradients of weights are still to come, what its backward pass computed anew
 *   once        gradients of the layer at hand and, recomputed, its activations; and the keys and values that context groups have sent in the
 *               pass at hand and the one before it: whoever reads them may be that far behind
 *   or, when those are gone, the step's end: under ZeRO the sums that each copy got of its part of the gradients
 *
 * and on a GPU what the device holds before any of it; on a CPU, whose memory is the host's, also the image of weights and optimizer that a checkpoint is written
 * from behind the program's back, of which each copy takes its part. hspmd trains what it has a model of. Where there is but a profile some other framework is going to:
 * it keeps gradients once more, in the buckets they are summed in (PyTorch's, arXiv 2006.15704, section 4.2), and its allocator leaves gaps.
 */
#include "controller/solver/costs.h"

#include <math.h>
#include <string.h>

#include "controller/solver/physics.h"

static double of(const struct hspmd_part *p, double share)
{
	return p->whole + p->split * share;
}

/* Sharded along the sequence, inputs of the divided parts are gathered whole; what lies between the parts, half of it, is not. */
static double kept_of(const struct hspmd_layer_fact *f, const struct hspmd_part *p, const struct hspmd_cut *cut)
{
	const struct hspmd_part *all = &f->kept[HSPMD_RECOMPUTE_NONE];
	double whole = p->whole;
	if (cut->sequence_parallel && cut->share < 1)
		whole = fmin(p->whole, all->whole / 2) * cut->share + (p == &f->kept[HSPMD_RECOMPUTE_FULL] ? 0 : all->whole / 2);
	double gathered = p == &f->kept[HSPMD_RECOMPUTE_FULL] ? 0 : f->gathered_bytes * cut->share * (1 - cut->part);
	return (whole + p->split * cut->share) * cut->part + gathered;
}

bool hspmd_layer_fills_alike(const struct hspmd_layer_fact *a, const struct hspmd_layer_fact *b)
{
	return !memcmp(a->kept, b->kept, sizeof a->kept) && !memcmp(&a->working, &b->working, sizeof a->working) && a->gathered_bytes == b->gathered_bytes;
}

double hspmd_layer_kept(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, const struct hspmd_cut *cut)
{
	const struct hspmd_layer_fact *f = &c->layers[layer];
	return kept_of(f, &f->kept[recompute], cut);
}

double hspmd_layer_lasting(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, const struct hspmd_cut *cut)
{
	const struct hspmd_layer_fact *f = &c->layers[layer];
	double passes = recompute == HSPMD_RECOMPUTE_FULL ? 1.5 : 1; /* there, again, back */
	return cut->part < 1 ? passes * f->gathered_bytes * cut->share * (1 + cut->part) : 0;
}

static double computed_anew(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, const struct hspmd_cut *cut)
{
	return fmax(hspmd_layer_kept(c, layer, HSPMD_RECOMPUTE_NONE, cut) - hspmd_layer_kept(c, layer, recompute, cut), 0);
}

double hspmd_layer_working(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, const struct hspmd_cut *cut)
{
	return of(&c->layers[layer].working, cut->share) * cut->part + computed_anew(c, layer, recompute, cut);
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
	double own = c->param_bytes + c->grad_bytes;
	if (!c->model && copies->pipelines > 1)
		own += c->grad_bytes;
	/* What an update makes is there beside what is used: of hspmd's programs the master copy and, where it is rounded, that too. */
	double updated = c->model ? c->master_bytes + c->param_bytes : fmax(c->master_bytes, c->param_bytes);
	if (copies->zero && copies->pipelines > 1)
		return own + (updated + c->moment_bytes) / copies->pipelines;
	return own + c->master_bytes + c->moment_bytes;
}

double hspmd_end_bytes(const struct hspmd_costs *c, const struct hspmd_copies *copies)
{
	return copies->zero && copies->pipelines > 1 ? c->grad_bytes / copies->pipelines : 0;
}

double hspmd_image_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, const struct hspmd_copies *copies)
{
	return c->model && type->kind == HSPMD_DEVICE_CPU ? (fmax(c->master_bytes, c->param_bytes) + c->moment_bytes) / copies->pipelines : 0;
}

/* Part of a device's memory that can be filled. */
static double fillable(const struct hspmd_costs *c)
{
	return c->model ? 1 : HSPMD_FILLABLE;
}

double hspmd_fillable_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type)
{
	double all = (double)type->memory_bytes;
	return type->kind == HSPMD_DEVICE_CUDA ? (all - HSPMD_CONTEXT_BYTES) * fillable(c) : all;
}

double hspmd_device_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, double used)
{
	return type->kind == HSPMD_DEVICE_CUDA ? used / fillable(c) + HSPMD_CONTEXT_BYTES : used;
}

struct hspmd_memory hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch, const struct hspmd_copies *copies)
{
	struct hspmd_cut cut = { hspmd_stage_share(s, which), hspmd_stage_part(s, which), s->sequence_parallel || c->sequence_parallel };
	double kept = 0, again = 0, lasting = 0, working = 0;
	for (int l = s->layers[0], end; l < s->layers[1]; l = end) {
		for (end = l + 1; end < s->layers[1] && c->layers[end].fills_alike;)
			end++;
		kept += (end - l) * hspmd_layer_kept(c, l, s->recompute, &cut);
		again += (end - l) * computed_anew(c, l, s->recompute, &cut);
		lasting += (end - l) * hspmd_layer_lasting(c, l, s->recompute, &cut);
		working = fmax(working, hspmd_layer_working(c, l, s->recompute, &cut));
	}
	bool last = s->layers[1] == c->layer_count;
	double sent = last ? 0 : c->layers[s->layers[1] - 1].output_bytes * cut.part * (cut.sequence_parallel ? cut.share : 1);
	double params = hspmd_stage_params(c, s->layers[0], s->layers[1]) * cut.share;
	const struct hspmd_device_type *type = &c->cluster->types[c->cluster->devices[s->devices[which]].type];
	double state = params * (hspmd_state_bytes(c, copies) + hspmd_image_bytes(c, type, copies));
	return (struct hspmd_memory){ .state = state,
				      .in_flight = micro_batch * (kept + sent),
				      .again = micro_batch * again,
				      .once = micro_batch * (lasting + working),
				      .end = params * hspmd_end_bytes(c, copies) };
}
