/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of layers and of weights (stage_memory.c says which there are). */
#include "controller/solver/cost/memory_internal.h"

#include <math.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "controller/solver/cost/cost_constants.h"

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

/* Whole heads: those that a device has, and those of keys and values that they read. */
static double attention_bytes(const struct hspmd_layer_info *f, int micro_batch, const struct hspmd_device_share *device)
{
	if (!f->attention || !(device->wgmma || device->dnn))
		return 0;
	struct hspmd_attention_sizes a = *f->attention;
	a.batches = micro_batch;
	a.queries = (int64_t)ceil((double)a.queries * device->context_share);
	a.heads = (int64_t)fmax(1, round((double)a.heads * device->share));
	a.kv_heads = (a.heads + a.group - 1) / a.group;
	return (double)hspmd_attention_workspace(&a, device->wgmma, device->dnn);
}

/* Convolutions, and products whose operands are rounded, have a product's workspace beside their own; experts multiply without cuBLASLt. */
double hspmd_layer_workspace(const struct hspmd_layer_info *f, int micro_batch, const struct hspmd_device_share *device)
{
	const struct hspmd_facts_amount *of = f->workspace[device->in_parts];
	bool multiplies = f->products && fmax(f->products->whole, f->products->sharded) > 0;
	double bytes = packed_bytes(f, micro_batch, device), product = multiplies ? device->product_bytes : 0, within = product;
	if (of) {
		double few = fmin(micro_batch * hspmd_bytes_at(&of[HSPMD_WORKSPACE_EACH], 1, device),
		                  hspmd_bytes_at(&of[HSPMD_WORKSPACE_MOST], 1, device));
		double samples = micro_batch * hspmd_bytes_at(&of[HSPMD_WORKSPACE_SAMPLES], 1, device),
		       rounded = hspmd_bytes_at(&of[HSPMD_WORKSPACE_WEIGHTS], 1, device);
		within = fmax(few + product, samples + (rounded > 0 ? product : 0)) + rounded;
	}
	return fmax(bytes + within, attention_bytes(f, micro_batch, device)) + (multiplies ? device->beside_bytes : 0);
}

bool hspmd_layer_same_memory(const struct hspmd_layer_info *a, const struct hspmd_layer_info *b)
{
	for (int parts = 0; parts < 2; parts++)
		if (a->memory[parts] != b->memory[parts] && memcmp(a->memory[parts], b->memory[parts], 2 * sizeof *a->memory[parts]) != 0)
			return false;
	return a->workspace[0] == b->workspace[0] && a->attention == b->attention && a->products == b->products &&
	       a->saved_scale == b->saved_scale && a->memory_scale == b->memory_scale;
}

double hspmd_layer_saved_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                               const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return hspmd_bytes_at(&hspmd_memory_of(c, f, recompute, device)->saved, f->saved_scale, device);
}

double hspmd_layer_offloaded_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                   const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return hspmd_bytes_at(&hspmd_memory_of(c, f, recompute, device)->offloads, f->saved_scale, device);
}

/* A block is a stage's first if its layer before is the embedding, or of another stage. */
static struct hspmd_offloaded listed_bytes(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer,
                                           const struct hspmd_device_share *device)
{
	bool context = device->context_share < 1, first = hspmd_is_first_block(s, layer);
	int list = s->offload_activations - HSPMD_OFFLOAD_SET;
	struct hspmd_offloaded sum = { 0, 0 };
	for (int i = 0; c->listed && i < c->facts->result_count; i++) {
		const struct hspmd_saved_results *r = &c->facts->results[i];
		if (r->kind != c->facts->kind_of_layer[layer] || !(c->listed[i] >> list & 1) || (first && r->of_block_before))
			continue;
		const struct hspmd_facts_amount *of =
		        r->bytes[c->forms[device->in_parts]][context][hspmd_division_of(device)][c->kind_of[s->recompute]];
		sum.all += hspmd_bytes_at(&of[0], c->layers[layer].saved_scale, device);
		sum.later += hspmd_bytes_at(&of[1], c->layers[layer].saved_scale, device);
	}
	return sum;
}

struct hspmd_offloaded hspmd_stage_offloaded(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer,
                                             const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = hspmd_memory_of(c, f, s->recompute, device);
	if (s->offload_activations >= HSPMD_OFFLOAD_SET)
		return listed_bytes(c, s, layer, device);
	if (!s->offload_activations)
		return (struct hspmd_offloaded){ 0, 0 };
	return (struct hspmd_offloaded){ hspmd_bytes_at(&m->offloads, f->saved_scale, device),
		                         hspmd_bytes_at(&m->offloads_later, f->saved_scale, device) };
}

double hspmd_layer_deferred_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	return hspmd_bytes_at(&hspmd_memory_of(c, f, recompute, device)->deferred, f->saved_scale, device);
}

double hspmd_layer_resident_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = hspmd_memory_of(c, f, recompute, device);
	return fmax(hspmd_bytes_at(&m->left_forward, f->memory_scale, device), hspmd_bytes_at(&m->left_backward, f->memory_scale, device));
}

double hspmd_layer_transient_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, bool deferring,
                                   const struct hspmd_device_share *device)
{
	const struct hspmd_layer_info *f = &c->layers[layer];
	const struct hspmd_layer_memory *m = hspmd_memory_of(c, f, recompute, device);
	double forward = hspmd_bytes_at(&m->forward, f->memory_scale, device);
	return fmax(forward, hspmd_bytes_at(deferring ? &m->split_backward : &m->backward, f->memory_scale, device));
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

double hspmd_state_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	double own = c->param_bytes + c->grad_bytes;
	if (!c->facts && copies->pipelines > 1)
		own += c->grad_bytes;
	/* The result of an update is there in addition to the weights in use: in hspmd's programs the master copy and, if weights are
	 * rounded, the rounded weights too. */
	double master = copies->offload ? 0 : c->master_bytes, moments = copies->offload ? 0 : c->moment_bytes;
	double updated = c->facts ? master + c->param_bytes : fmax(master, c->param_bytes);
	double part = hspmd_part_of(copies);
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
	return copies->zero < 1 || copies->pipelines < 2 ? all : all * hspmd_part_of(copies);
}

double hspmd_step_end_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies)
{
	return copies->zero == 1 && copies->pipelines > 1 ? c->grad_bytes * hspmd_part_of(copies) : 0;
}

double hspmd_image_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, const struct hspmd_layer_copies *copies)
{
	return c->facts && hspmd_device_traits(type->kind)->host_memory
	               ? (fmax(c->master_bytes, c->param_bytes) + c->moment_bytes) * hspmd_part_of(copies)
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
