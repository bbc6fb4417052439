/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on each device of a stage, as hspmd's programs allocate them (runtime/program/memory_plan.c; tests/unit/test_solver_memory.c
 * compares the two):
 *
 * - state: weights, gradients and optimizer state. Under ZeRO-1 (arXiv 1910.02054) the optimizer state is divided among the copies; the
 *   updated weights are then divided as finely, in addition to the weights in use. Under ZeRO-2 the gradients are divided too, under ZeRO-3
 *   also the weights in use; but not those that two stages share. ZeRO-1 does not divide vectors
 * - in flight: per micro-batch, what its layers save for the backward pass, and the activation sent to the next stage, which stays
 *   allocated until that stage is known to have it
 * - deferred: the same of micro-batches whose weight gradients are still to be computed (zb-h1)
 * - running: of the micro-batch whose pass runs, what it has saved and what the current layer needs; and sources of messages that the pass
 *   before has left behind. Under ZeRO-3 the weights of the current layer until they are read, and those of the next one, unless the plan
 *   gathers nothing ahead; under ZeRO-2 and 3 their gradients
 * - offloaded: optimizer state in the host's memory instead of the device's: the moments and, of rounded weights, those that are not
 *   rounded. Under ZeRO, too, the updated weights that others gather stay on the device
 * - offloaded activations (runtime/program/offload_activations.c): what a layer has saved stays on the device until the next layer's pass
 *   is over, and is there again from the pass before its backward pass on. In between it is in the host's memory. Behind a stage's forward
 *   pass comes a backward pass, so that its last layer's activations of two micro-batches meet. The model's last layer offloads nothing
 * - end: at the step's end, when all of this but the state is free again: under ZeRO-1 the sums that each copy received of its part of the
 *   gradients
 *
 * On a GPU, add what the device holds before the program allocates anything. On a CPU, whose memory is the host's, add the image of
 * weights and optimizer state from which a checkpoint is written in the background; each copy holds its part of it. hspmd trains what
 * there is a model of. If there is only a profile, another framework will run the plan: it holds gradients once more, in the buckets in
 * which they are summed (PyTorch's, arXiv 2006.15704, section 4.2), and its allocator leaves gaps. */
#include "common/format/device_traits.h"
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <string.h>

#include "controller/solver/cost/cost_constants.h"

static const struct hspmd_layer_memory *memory_of(const struct hspmd_costs *c, const struct hspmd_layer_info *f,
                                                  enum hspmd_recompute recompute, const struct hspmd_device_share *device)
{
	bool sequence = device->sequence_parallel && device->share < 1;
	return &f->memory[device->in_parts][device->context_share < 1][sequence][c->kind_of[recompute]];
}

static double at(const struct hspmd_facts_amount *amount, double scale, const struct hspmd_device_share *device)
{
	return scale * hspmd_facts_amount_at(amount, device->share, device->context_share);
}

/* Blocks of the factors of the layer's matrix products. */
static double packed_bytes(const struct hspmd_layer_info *f, int micro_batch, const struct hspmd_device_share *device)
{
	const struct hspmd_layer_products *p = f->products;
	const struct hspmd_product_blocks *b = device->blocks;
	double extent = p && b->depth ? fmax(p->whole, p->sharded * device->share) : 0;
	if (extent <= 0)
		return 0;
	double depth = fmax(extent, p->positions * device->context_share * micro_batch);
	return 4 * fmin(depth, (double)b->depth) * (fmin(extent, (double)b->columns) + (double)b->rows);
}

/* Bytes within operators, of a micro-batch. */
static double workspace_of(const struct hspmd_layer_info *f, int micro_batch, const struct hspmd_device_share *device)
{
	return (f->workspace[device->in_parts] ? micro_batch * at(f->workspace[device->in_parts], 1, device) : 0) +
	       packed_bytes(f, micro_batch, device);
}

bool hspmd_layer_same_memory(const struct hspmd_layer_info *a, const struct hspmd_layer_info *b)
{
	for (int parts = 0; parts < 2; parts++)
		if (a->memory[parts] != b->memory[parts] && memcmp(a->memory[parts], b->memory[parts], 2 * sizeof *a->memory[parts]) != 0)
			return false;
	return a->workspace[0] == b->workspace[0] && a->products == b->products && a->saved_scale == b->saved_scale &&
	       a->memory_scale == b->memory_scale;
}

double hspmd_layer_saved_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                               const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return at(&memory_of(c, f, recompute, device)->saved, f->saved_scale, device);
}

double hspmd_layer_offloaded_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                   const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return at(&memory_of(c, f, recompute, device)->offloads, f->saved_scale, device);
}

double hspmd_layer_deferred_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return at(&memory_of(c, f, recompute, device)->deferred, f->saved_scale, device);
}

double hspmd_layer_resident_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = memory_of(c, f, recompute, device);
	return fmax(at(&m->left_forward, f->memory_scale, device), at(&m->left_backward, f->memory_scale, device));
}

double hspmd_layer_transient_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, bool deferring, int micro_batch,
                                   const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = memory_of(c, f, recompute, device);
	double forward = at(&m->forward, f->memory_scale, device);
	return micro_batch * fmax(forward, at(deferring ? &m->split_backward : &m->backward, f->memory_scale, device)) +
	       workspace_of(f, micro_batch, device);
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

double hspmd_device_params(const struct hspmd_costs *c, int first, int end, double share)
{
	double replicated = c->replicated_sum[end] - c->replicated_sum[first];
	return replicated + (hspmd_stage_params(c, first, end) - replicated) * share;
}

/* The end of the layers from `layer` on, up to `end`, of which every pipeline has all in one stage. */
static int end_of_group(const struct hspmd_plan *p, int layer, int end)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++) {
			int stops = p->pipelines[i].stages[s].layers[1];
			end = stops > layer && stops < end ? stops : end;
		}
	return end;
}

struct hspmd_layer_copies hspmd_costs_copies(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	const struct hspmd_stage *s = &pipe->stages[stage];
	int ranks = pipe->stage_count / p->virtual_stages, turn = (p->virtual_stages - 1 - stage / ranks) * ranks + stage % ranks;
	struct hspmd_layer_copies copies = { p->pipeline_count,
		                             p->zero_stage,
		                             0,
		                             s->offload == HSPMD_OFFLOAD_OPTIMIZER,
		                             pipe->micro_batches > 1,
		                             p->zero_stage > 2 && !p->no_prefetch ? &pipe->stages[turn] : NULL };
	double kept = 0, all = 0;
	if (!p->zero_stage || !p->has_zero_shares)
		return copies;
	for (int l = s->layers[0], end; l < s->layers[1]; l = end) {
		end = end_of_group(p, l, s->layers[1]);
		kept += (c->params_sum[end] - c->params_sum[l]) * hspmd_plan_zero_part(p, pipeline, l);
		all += c->params_sum[end] - c->params_sum[l];
	}
	copies.part = all > 0 ? kept / all : hspmd_plan_zero_part(p, pipeline, s->layers[0]);
	return copies;
}

double hspmd_device_vectors(const struct hspmd_costs *c, int first, int end, double share)
{
	return c->vectors_sum[0][end] - c->vectors_sum[0][first] + share * (c->vectors_sum[1][end] - c->vectors_sum[1][first]);
}

struct hspmd_layer_copies hspmd_vector_copies(const struct hspmd_layer_copies *copies)
{
	return (struct hspmd_layer_copies){ .pipelines = copies->pipelines, .offload = copies->offload };
}

static double part_of(const struct hspmd_layer_copies *copies)
{
	return copies->part > 0 ? copies->part : 1.0 / copies->pipelines;
}

double hspmd_state_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	double own = c->param_bytes + c->grad_bytes;
	if (!c->facts && copies->pipelines > 1)
		own += c->grad_bytes;
	/* The result of an update is there in addition to the weights in use: in hspmd's programs the master copy and, if weights are
	 * rounded, the rounded weights too. */
	double master = copies->offload ? 0 : c->master_bytes, moments = copies->offload ? 0 : c->moment_bytes;
	double updated = c->facts ? master + c->param_bytes : fmax(master, c->param_bytes);
	double part = part_of(copies);
	if (copies->zero < 1 || copies->pipelines < 2)
		return own + master + moments;
	double divided = updated + moments;
	if (copies->zero == 1)
		return own + divided * part;
	return (copies->zero == 2 ? c->param_bytes : 0) + (c->grad_bytes + divided) * part;
}

double hspmd_offloaded_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	double all = copies->offload ? c->master_bytes + c->moment_bytes : 0;
	return copies->zero < 1 || copies->pipelines < 2 ? all : all * part_of(copies);
}

/* Bytes of one sample while a pass of a layer runs, beyond those `saved`, with what ZeRO does not keep of its `weights`: read_bytes of each
 * that is still to be read, and sum_bytes of each gradient. `most`: what the pass needs besides, if that is all at one time. */
static double pass_bytes(const struct hspmd_layer_moments *m, double most, double saved, double scale,
                         const struct hspmd_device_share *device, double weights, double read_bytes, double sum_bytes)
{
	if (!m->count || read_bytes + sum_bytes <= 0)
		return most + weights * (read_bytes + sum_bytes);
	most = 0;
	for (int i = 0; i < m->count; i++)
		most = fmax(most,
		            at(&m->bytes[i], scale, device) - saved + weights * (m->unread[i] * read_bytes + m->summed[i] * sum_bytes));
	return most;
}

/* Bytes of one sample, per weight of a layer. */
struct weight_bytes {
	double read, sum; /* while a pass of the layer runs: of each weight until it is read, and of each gradient */
	double end;       /* at the step's end */
	double part;      /* of each gradient that is summed, while the sum of its part is not added yet */
	double joined;    /* most gradients that are summed at a time */
	double more;      /* weights that the first layer uses beyond its own */
	double held;      /* weights whose gradients the layer after the last one has left behind */
	double ahead;     /* of each weight of the layer whose pass comes next */
	double next[2]; /* weights of the layer to which a forward pass comes behind the last layer, and a backward pass behind the first */
};

/* Bytes of one sample when a backward pass leaves a layer, beyond those that the layer has saved: all gradients of its `weights`, the sums
 * of those parts that this device keeps, not added yet, and the gradient for the layer before. */
static double leaving_bytes(const struct hspmd_costs *c, int layer, double saved, double weights, const struct weight_bytes *of_weight,
                            const struct hspmd_device_share *device)
{
	double returned =
	        layer ? c->layers[layer - 1].output_bytes * device->context_share * (device->sequence_parallel ? device->share : 1) : 0;
	return returned - saved + weights * of_weight->sum + fmin(weights, of_weight->joined) * of_weight->part;
}

static bool has_layer(const struct hspmd_stage *s, int layer)
{
	return layer >= s->layers[0] && layer < s->layers[1];
}

/* Weights of the stage that it shares with another one, which ZeRO-2 and 3 leave whole. */
static double whole_params(const struct hspmd_costs *c, const struct hspmd_stage *s)
{
	double params = 0;
	for (int i = 0; i < c->tied_layer_count; i++) {
		int l = c->tied_layers[i];
		params += has_layer(s, l) != has_layer(s, c->layers[l].tied_to) ? c->layers[l].tied_params : 0;
	}
	return params;
}

/* Weights that a layer uses during its passes beyond those that are counted as its own: of another layer of the stage, or, below 0, its own
 * that another stage shares. */
static double more_weights(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer)
{
	double params = 0;
	for (int i = 0; i < c->tied_layer_count; i++) {
		int l = c->tied_layers[i], other = c->layers[l].tied_to;
		bool both = has_layer(s, l) && has_layer(s, other);
		params += layer == l && both ? c->layers[l].tied_params : layer == other && !both ? -c->layers[l].tied_params : 0;
	}
	return params;
}

/* Weights that are gathered for a pass of the layer. */
static double gathered_weights(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer, double share)
{
	double replicated = c->replicated_sum[layer + 1] - c->replicated_sum[layer];
	return replicated + (c->params_sum[layer + 1] - c->params_sum[layer] - replicated + more_weights(c, s, layer)) * share;
}

double hspmd_weights_ahead(const struct hspmd_costs *c, const struct hspmd_stage *s, const struct hspmd_stage *turn, int l, int end,
                           bool backward, double share)
{
	if (backward)
		return l > s->layers[0] ? gathered_weights(c, s, l - 1, share) : gathered_weights(c, turn, turn->layers[0], share);
	return end < s->layers[1]      ? gathered_weights(c, s, end, share)
	       : end == c->layer_count ? 0
	                               : gathered_weights(c, turn, turn->layers[1] - 1, share);
}

double hspmd_step_end_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	return copies->zero == 1 && copies->pipelines > 1 ? c->grad_bytes * part_of(copies) : 0;
}

double hspmd_image_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, const struct hspmd_layer_copies *copies)
{
	return c->facts && hspmd_device_traits(type->kind)->host_memory
	               ? (fmax(c->master_bytes, c->param_bytes) + c->moment_bytes) * part_of(copies)
	               : 0;
}

/* Fraction of a device's memory that can be filled. */
static double usable_fraction(const struct hspmd_costs *c, const struct hspmd_device_traits *traits)
{
	return c->facts || traits->host_memory ? 1 : HSPMD_USABLE_MEMORY;
}

double hspmd_usable_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type)
{
	const struct hspmd_device_traits *traits = hspmd_device_traits(type->kind);
	return ((double)type->memory_bytes - traits->context_bytes) * usable_fraction(c, traits);
}

double hspmd_device_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, double used)
{
	const struct hspmd_device_traits *traits = hspmd_device_traits(type->kind);
	return used / usable_fraction(c, traits) + traits->context_bytes;
}

/* Lists of operators are predicted as if nothing of them were offloaded. */
static bool offloads_all(const struct hspmd_stage *s)
{
	return s->offload_activations == HSPMD_OFFLOAD_ALL;
}

/* Bytes of a run of layers, all or before the next layer that differs. */
struct stage_memory {
	double saved, deferred;             /* of the layers so far */
	double most_forward, most_backward; /* while one of them runs, with what the layers before it save */
	double left_forward, left_backward; /* by messages */
	double ended;                       /* sums of gradients of the layers so far */
	double most_ending;                 /* while one of them runs backward, without the sums of the layers before it */
	double workspace;                   /* of a micro-batch, most of one of them */
	double offloaded;                   /* of what they save: in the host's memory */
	double offloaded_later;             /* of these: for deferred gradients of weights; ... */
	double most_later;                  /* ... most of two layers */
	double leaving, coming;             /* of the layer before: on their way there, and back */
	double transient;                   /* most that one of them needs while it runs */
};

/* Add `count` equal layers, of which `layer` is the first, to those of stage s. */
static void add_layers(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer, int count, bool deferring, int micro_batch,
                       const struct weight_bytes *of_weight, const struct hspmd_device_share *device, struct stage_memory *sum)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = memory_of(c, f, s->recompute, device);
	double saved = at(&m->saved, f->saved_scale, device), deferred = deferring ? at(&m->deferred, f->saved_scale, device) : 0;
	double backward = at(deferring ? &m->split_backward : &m->backward, f->memory_scale, device);
	double forward = at(&m->forward, f->memory_scale, device);
	double replicated =
	        c->replicated_sum[layer + count] - c->replicated_sum[layer]; /* weights shared with another layer come at the end */
	double weights = replicated + (c->params_sum[layer + count] - c->params_sum[layer] - replicated) * device->share;
	if (of_weight->end > 0) /* ZeRO-1, which does not divide vectors */
		weights -= hspmd_device_vectors(c, layer, layer + count, device->share);
	double used = weights / count + of_weight->more;
	forward = pass_bytes(&m->moments[0], forward, saved, f->memory_scale, device, used, of_weight->read, 0);
	backward = pass_bytes(&m->moments[1], backward, saved, f->memory_scale, device, used, of_weight->read, of_weight->sum);
	if (of_weight->sum > 0)
		backward = fmax(backward, leaving_bytes(c, layer, saved, used, of_weight, device));
	/* A layer that runs has all that its pass needs of what it saves, and what comes and goes of the layers beside it. */
	double offloaded = offloads_all(s) ? at(&m->offloads, f->saved_scale, device) : 0;
	double later = offloads_all(s) && deferring ? at(&m->offloads_later, f->saved_scale, device) : 0, needed = offloaded - later;
	double leaving = count > 1 ? offloaded : sum->leaving, coming = layer > s->layers[0] ? sum->coming : 0;
	bool last_of_stage = layer + count == s->layers[1];
	saved -= offloaded;
	deferred -= later;
	forward += offloaded;
	backward += needed;
	/* While layer l runs backward, there is what the layers up to it have saved and what those after it have deferred: relative to all
	 * deferred, the difference of the sums up to l. It is largest at the first of equal layers, or at the last. */
	double first = sum->saved - sum->deferred + saved - deferred, last = first + (count - 1) * (saved - deferred);
	double like = of_weight->ahead * used, after = of_weight->ahead * of_weight->next[0],
	       before_it = of_weight->ahead * of_weight->next[1];
	double at_first = coming + (last_of_stage && count == 1 ? offloaded : 0),
	       at_last = (count > 1 ? needed : coming) + (last_of_stage ? offloaded : 0);
	sum->most_backward = fmax(sum->most_backward, fmax(first + before_it + at_first, last + of_weight->held * of_weight->sum +
	                                                                                         (count > 1 ? like : before_it) + at_last) +
	                                                      backward);
	double ends = weights * of_weight->end;
	double before = sum->saved - sum->ended + saved;
	sum->most_ending = fmax(sum->most_ending, fmax(before, before + (count - 1) * (saved - ends / count)) + backward);
	sum->ended += ends;
	double in_last = after + leaving + (last_of_stage ? needed : 0),
	       in_first = (count > 1 ? like : after) + sum->leaving - (count - 1) * saved;
	double between = count > 1 ? like - saved + (count > 2 ? offloaded : sum->leaving) : 0;
	sum->most_forward = fmax(sum->most_forward, sum->saved + count * saved + forward + fmax(in_last, fmax(in_first, between)));
	sum->offloaded += count * offloaded;
	sum->offloaded_later += count * later;
	sum->most_later = fmax(sum->most_later, 2 * later);
	sum->leaving = offloaded;
	sum->coming = needed;
	sum->saved += count * saved;
	sum->deferred += count * deferred;
	sum->left_forward += count * at(&m->left_forward, f->memory_scale, device);
	sum->left_backward += count * at(&m->left_backward, f->memory_scale, device);
	sum->workspace = fmax(sum->workspace, workspace_of(f, micro_batch, device));
	sum->transient = fmax(sum->transient, fmax(forward, backward));
}

struct hspmd_memory hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch, bool deferring,
                                       const struct hspmd_layer_copies *copies)
{
	const struct hspmd_device_type *type = &c->cluster->types[c->cluster->devices[s->devices[which]].type];
	struct hspmd_device_share device = hspmd_stage_device(c, s, which);
	/* Bytes are per sample here. */
	bool overlaps = hspmd_device_traits(type->kind)->overlaps && c->facts;
	double end_bytes = overlaps ? hspmd_step_end_bytes(c, copies) / micro_batch : 0;
	bool shared = copies->pipelines > 1;
	struct weight_bytes of_weight = { .read = shared && copies->zero > 2 ? c->param_bytes / micro_batch : 0,
		                          .sum = shared && copies->zero > 1 ? c->grad_bytes / micro_batch : 0,
		                          .end = end_bytes,
		                          .joined = HSPMD_JOINED_BYTES / c->grad_bytes };
	of_weight.part = copies->adds ? of_weight.sum * part_of(copies) : 0;
	of_weight.ahead = copies->turn ? of_weight.read : 0;
	struct stage_memory sum = { 0 };
	sum.leaving = offloads_all(s) ? hspmd_layer_offloaded_bytes(c, s->layers[1] - 1, s->recompute, &device) : 0;
	for (int l = s->layers[0], end; l < s->layers[1]; l = end) {
		for (end = l + 1; end < s->layers[1] && c->layers[end].same_memory;)
			end++;
		of_weight.more = more_weights(c, s, l) * device.share;
		/* Weights of another layer come first in the model and their gradients are summed last, so nothing surely waits for these
		 * before the next layer's. Under ZeRO-3 its weights do. */
		of_weight.held = copies->zero == 2 && end < s->layers[1] ? fmax(0, more_weights(c, s, end)) * device.share : 0;
		for (int backward = 0; of_weight.ahead > 0 && backward < 2; backward++)
			of_weight.next[backward] = hspmd_weights_ahead(c, s, copies->turn, l, end, backward, device.share);
		add_layers(c, s, l, end - l, deferring, micro_batch, &of_weight, &device, &sum);
	}
	bool last = s->layers[1] == c->layer_count;
	double part = device.context_share * (device.sequence_parallel ? device.share : 1);
	double sent = last ? 0 : c->layers[s->layers[1] - 1].output_bytes * part;
	double params = hspmd_device_params(c, s->layers[0], s->layers[1], device.share);
	double in_flight = sum.saved + sent, deferred = deferring ? sum.deferred + sent : 0;
	double running = fmax(fmax(sum.most_forward + sum.left_backward, sum.most_backward + sum.deferred + sum.left_forward),
	                      fmax(in_flight, deferred + sum.most_later));
	if (!c->facts) /* little is known: all of it at the same time */
		running = fmax(in_flight, deferred) + sum.transient;
	/* Weights of two stages have twice as many copies. The sums of the later stage's arrive while its passes still run, if the device
	 * communicates meanwhile. */
	const struct hspmd_layer_copies both = {
		2 * copies->pipelines, copies->zero > 1 ? 1 : copies->zero, copies->part / 2, copies->offload, false, NULL
	};
	double whole = copies->zero > 1 && copies->pipelines > 1 ? whole_params(c, s) * device.share : 0;
	double sums = whole * hspmd_step_end_bytes(c, &both), early = s->layers[0] && overlaps ? sums : 0;
	const struct hspmd_layer_copies undivided = hspmd_vector_copies(copies);
	double vectors = copies->zero == 1 ? hspmd_device_vectors(c, s->layers[0], s->layers[1], device.share) : 0,
	       divided = params - whole - vectors;
	double state = whole * (hspmd_state_bytes(c, &both) + hspmd_image_bytes(c, type, &both)) +
	               vectors * (hspmd_state_bytes(c, &undivided) + hspmd_image_bytes(c, type, &undivided)) +
	               divided * (hspmd_state_bytes(c, copies) + hspmd_image_bytes(c, type, copies));
	double offloaded = whole * hspmd_offloaded_bytes(c, &both) + vectors * hspmd_offloaded_bytes(c, &undivided) +
	                   divided * hspmd_offloaded_bytes(c, copies);
	return (struct hspmd_memory){ .state = state + early,
		                      .offloaded = offloaded,
		                      .offloaded_activations = micro_batch * sum.offloaded,
		                      .offloaded_later = micro_batch * sum.offloaded_later,
		                      .last_offloads = micro_batch * sum.coming,
		                      .in_flight = micro_batch * in_flight,
		                      .deferred = micro_batch * deferred,
		                      .running = micro_batch * running,
		                      .ending = end_bytes > 0 ? micro_batch * (sum.most_ending + sum.ended + sum.left_forward) : 0,
		                      .workspace = sum.workspace,
		                      .end = (params - vectors) * hspmd_step_end_bytes(c, copies) + sums - early,
		                      .sent = micro_batch * sent,
		                      .returned = s->layers[0] ? micro_batch * c->layers[s->layers[0] - 1].output_bytes * part : 0 };
}
