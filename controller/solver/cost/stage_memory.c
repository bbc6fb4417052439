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
 * - within operators: of the one that needs most. On a GPU that is mostly the gradient of attention, whose gradients of scores lie in
 *   memory (common/format/attention_memory.h); else products (common/format/product_memory.h), of which those that run beside other
 *   operators have a workspace of their own
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
#include <math.h>

#include "common/format/device_traits.h"
#include "controller/solver/cost/cost_constants.h"
#include "controller/solver/cost/memory_internal.h"

/* Weights of layers [first, end) that a device has, without those that it shares with layers outside of them. */
static double layers_params(const struct hspmd_costs *c, int first, int end, double share)
{
	double replicated = c->replicated_sum[end] - c->replicated_sum[first];
	return replicated + (c->params_sum[end] - c->params_sum[first] - replicated) * share;
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
		most = fmax(most, hspmd_bytes_at(&m->bytes[i], scale, device) - saved +
		                          weights * (m->unread[i] * read_bytes + m->summed[i] * sum_bytes));
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

/* Returns true if layer l, not the stage's first, takes as much memory as the one before it. */
static bool is_as_before(const struct hspmd_costs *c, const struct hspmd_stage *s, int l)
{
	bool lists = s->offload_activations >= HSPMD_OFFLOAD_SET && c->facts;
	return c->layers[l].same_memory &&
	       !(lists && (hspmd_is_first_block(s, l - 1) || c->facts->kind_of_layer[l] != c->facts->kind_of_layer[l - 1]));
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

/* A run of equal layers of a stage, and bytes of one of them. */
struct layer_run {
	int count;
	bool ends_stage;
	double saved, deferred;    /* of what a pass saves: on the device */
	double offloaded, later;   /* in the host's memory; later: of these, what deferred gradients of weights need */
	double forward, backward;  /* needed while a pass runs, beyond what is saved */
	double weights;            /* that its passes use */
	double ends;               /* sums of gradients, at the step's end */
	double left[2];            /* by messages of a pass: forward, backward */
	double leaving, coming;    /* of the layer before the run: on their way to the host's memory, and back */
	double ahead[2];           /* weights of the layer behind the run in a forward pass, and in a backward pass */
	double ahead_within, held; /* weights of the next layer of the run; gradients that the layer after the run has left behind */
};

/* What a backward pass needs of what was offloaded. */
static double needed(const struct layer_run *r)
{
	return r->offloaded - r->later;
}

/* Bytes while a pass of a layer runs, beyond those that it saves. */
static void find_passes(const struct hspmd_costs *c, int layer, bool deferring, const struct weight_bytes *of_weight,
                        const struct hspmd_layer_memory *m, const struct hspmd_device_share *device, struct layer_run *r)
{
	double scale = c->layers[layer].memory_scale, saved = r->saved;
	double forward = hspmd_bytes_at(&m->forward, scale, device),
	       backward = hspmd_bytes_at(deferring ? &m->split_backward : &m->backward, scale, device);
	r->forward = pass_bytes(&m->moments[0], forward, saved, scale, device, r->weights, of_weight->read, 0);
	r->backward = pass_bytes(&m->moments[1], backward, saved, scale, device, r->weights, of_weight->read, of_weight->sum);
	if (of_weight->sum > 0)
		r->backward = fmax(r->backward, leaving_bytes(c, layer, saved, r->weights, of_weight, device));
	r->left[0] = hspmd_bytes_at(&m->left_forward, scale, device);
	r->left[1] = hspmd_bytes_at(&m->left_backward, scale, device);
}

/* Move from the device to the host's memory what the stage offloads of a layer. One that runs has all that its pass needs of it. */
static void offload_run(struct hspmd_offloaded of, bool deferring, struct layer_run *r)
{
	r->offloaded = of.all;
	r->later = deferring ? of.later : 0;
	r->saved -= r->offloaded;
	r->deferred -= r->later;
	r->forward += r->offloaded;
	r->backward += needed(r);
}

/* The run of `count` equal layers of stage s from `layer` on; `before`: the layers before it. */
static struct layer_run run_of(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer, int count, bool deferring,
                               const struct weight_bytes *of_weight, const struct hspmd_device_share *device,
                               const struct stage_memory *before)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = hspmd_memory_of(c, f, s->recompute, device);
	struct layer_run r = { .count = count,
		               .ends_stage = layer + count == s->layers[1],
		               .saved = hspmd_bytes_at(&m->saved, f->saved_scale, device),
		               .deferred = deferring ? hspmd_bytes_at(&m->deferred, f->saved_scale, device) : 0,
		               .leaving = before->leaving,
		               .coming = layer > s->layers[0] ? before->coming : 0 };
	double weights = layers_params(c, layer, layer + count, device->share);
	if (of_weight->end > 0) /* ZeRO-1, which does not divide vectors */
		weights -= hspmd_device_vectors(c, layer, layer + count, device->share);
	r.ends = weights / count * of_weight->end;
	r.weights = weights / count + of_weight->more;
	r.ahead_within = of_weight->ahead * r.weights;
	r.ahead[0] = of_weight->ahead * of_weight->next[0];
	r.ahead[1] = of_weight->ahead * of_weight->next[1];
	r.held = of_weight->held * of_weight->sum;
	find_passes(c, layer, deferring, of_weight, m, device, &r);
	offload_run(hspmd_stage_offloaded(c, s, layer, device), deferring, &r);
	return r;
}

/* Bytes while layer `i` of the run runs forward, with what the layers up to it save. The one before it still goes to the host's memory; a
 * stage's last one is followed by a backward pass, for which its activations of another micro-batch come back. */
static double forward_bytes(const struct stage_memory *before, const struct layer_run *r, int i)
{
	bool last = i == r->count - 1;
	return before->saved + (i + 1) * r->saved + r->forward + (last ? r->ahead[0] : r->ahead_within) +
	       (i > 0 ? r->offloaded : r->leaving) + (last && r->ends_stage ? needed(r) : 0);
}

/* The same backward, relative to what all layers have deferred: there is what the layers up to it have saved, and what those after it have
 * deferred. The one before it comes back already. */
static double backward_bytes(const struct stage_memory *before, const struct layer_run *r, int i)
{
	bool last = i == r->count - 1;
	return before->saved - before->deferred + (i + 1) * (r->saved - r->deferred) + r->backward +
	       (i > 0 ? r->ahead_within : r->ahead[1]) + (i > 0 ? needed(r) : r->coming) + (last ? r->held : 0) +
	       (last && r->ends_stage ? r->offloaded : 0);
}

/* The same backward in the last micro-batch, relative to the sums of gradients of all layers, of which those after it are there. */
static double ending_bytes(const struct stage_memory *before, const struct layer_run *r, int i)
{
	return before->saved - before->ended + r->saved + i * (r->saved - r->ends) + r->backward;
}

/* Add a run of layers to those before it. Bytes change evenly along a run, but for what its neighbours add. */
static void add_run(const struct layer_run *r, struct stage_memory *sum)
{
	const int n = r->count, ends[] = { 0, n > 1 ? n - 2 : 0, n - 1 };
	const struct stage_memory before = *sum;
	for (int k = 0; k < 3; k++) {
		sum->most_forward = fmax(sum->most_forward, forward_bytes(&before, r, ends[k]));
		sum->most_backward = fmax(sum->most_backward, backward_bytes(&before, r, ends[k]));
		sum->most_ending = fmax(sum->most_ending, ending_bytes(&before, r, ends[k]));
	}
	sum->most_later = fmax(sum->most_later, 2 * r->later);
	sum->transient = fmax(sum->transient, fmax(r->forward, r->backward));
	sum->saved += n * r->saved;
	sum->deferred += n * r->deferred;
	sum->ended += n * r->ends;
	sum->offloaded += n * r->offloaded;
	sum->offloaded_later += n * r->later;
	sum->left_forward += n * r->left[0];
	sum->left_backward += n * r->left[1];
	sum->leaving = r->offloaded;
	sum->coming = needed(r);
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
	of_weight.part = copies->adds ? of_weight.sum * hspmd_part_of(copies) : 0;
	of_weight.ahead = copies->turn ? of_weight.read : 0;
	struct stage_memory sum = { 0 };
	sum.leaving = hspmd_stage_offloaded(c, s, s->layers[1] - 1, &device).all;
	for (int l = s->layers[0], end; l < s->layers[1]; l = end) {
		for (end = l + 1; end < s->layers[1] && is_as_before(c, s, end);)
			end++;
		of_weight.more = more_weights(c, s, l) * device.share;
		/* Weights of another layer come first in the model and their gradients are summed last, so nothing surely waits for these
		 * before the next layer's. Under ZeRO-3 its weights do. */
		of_weight.held = copies->zero == 2 && end < s->layers[1] ? fmax(0, more_weights(c, s, end)) * device.share : 0;
		for (int backward = 0; of_weight.ahead > 0 && backward < 2; backward++)
			of_weight.next[backward] = hspmd_weights_ahead(c, s, copies->turn, l, end, backward, device.share);
		struct layer_run run = run_of(c, s, l, end - l, deferring, &of_weight, &device, &sum);
		add_run(&run, &sum);
		sum.workspace = fmax(sum.workspace, hspmd_layer_workspace(&c->layers[l], micro_batch, &device));
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
