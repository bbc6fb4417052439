/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of each layer, from the profile, and from the model's shapes if the profile does not have them.
 *
 * Activations that a transformer block saves for its backward pass, per sample of s tokens with e bytes per element, as in hspmd's
 * programs (after Korthikanti et al., "Reducing Activation Recomputation", arXiv 2205.05198, section 4, with fused attention, 2205.14135,
 * and without dropout):
 * - its input, the second residual, the results of both norms: 4 s h e (replicated on every device of a group, unless sequences are
 *   sharded too)
 * - q, k, v and the result of attention: s (2 q + 2 kv) e
 * - the MLP's inner activations: s f e twice, three times if gated; experts save none and are recomputed
 * - statistics of norms and softmax: 4 s (2 or 4 + a)
 *
 * Full recomputation saves only the block's input, s h e; selective recomputation does not save the results of the norms and of the
 * activation function. The head saves its input, the norm's result and the logits, whose gradient overwrites them; three numbers per
 * token stand for the softmax. While a layer runs backward it needs the gradients of its input and its result. A framework whose loss is
 * not fused needs the last layer's result once more, for the softmax, whose gradient overwrites it (Megatron-LM's vocabulary-parallel
 * cross entropy). */
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/plan_model.h"
#include "controller/solver/cost/cost_constants.h"

static bool layers_are_alike(const struct hspmd_model *m, const struct hspmd_profile *p)
{
	return !m || !p || hspmd_model_layers(m) == p->layer_count;
}

static double element_bytes(enum hspmd_precision precision)
{
	static const double bytes[HSPMD_PRECISION_COUNT] = { 4, 4, 2, 2, 1, 8 };
	return bytes[precision];
}

static void block_from_model(struct hspmd_layer_info *f, const struct hspmd_model *m, double s, double e)
{
	double h = m->hidden, q = (double)m->heads * m->head_dim, kv = (double)m->kv_heads * m->head_dim;
	double inner = m->experts ? 0 : s * m->ffn * e;
	double act = inner * (m->gated ? 2 : 1), statistics = 4 * s * (m->gated ? 2 : 4) + s * m->experts * e;
	struct hspmd_layer_bytes none = { 4 * s * h * e + statistics, s * (2 * q + 2 * kv) * e + act + inner + 4 * s * m->heads };
	f->saved[HSPMD_RECOMPUTE_NONE] = none;
	f->saved[HSPMD_RECOMPUTE_SELECTIVE] = (struct hspmd_layer_bytes){ none.replicated / 2, none.sharded - inner };
	f->saved[HSPMD_RECOMPUTE_FULL] = (struct hspmd_layer_bytes){ s * h * e, 0 };
	f->transient = (struct hspmd_layer_bytes){ 2 * s * h * e, 0 };
	if (m->experts) /* all tokens may choose one expert: gathered rows, inner activations, results */
		f->transient = (struct hspmd_layer_bytes){ 4 * s * h * e, s * (3.0 * m->ffn + fmax(m->ffn, h)) * e };
	f->gathered_bytes = s * (m->gated ? 2 * kv : q + 2 * kv) * e;
	/* Bytes read and written with one kernel per operation: norms 2 each, residual sums 3 each, inputs of products as often as they
	 * are read; rotation in place. */
	double routed = m->experts ? m->experts_per_token : 1, wide = routed * m->ffn;
	f->traffic.replicated = s * e * h * (m->gated ? 4 + 6 + 3 + 1 : 4 + 6 + 1 + 1) + s * e * h * routed * (m->gated ? 3 : 2);
	f->traffic.sharded = s * e * (2 * (q + 2 * kv) + 2 * q + (m->gated ? 2 * (q + kv) + 6 * wide : 4 * wide));
	f->reduced_bytes = 2 * s * h * e;
}

static void end_from_model(struct hspmd_layer_info *f, const struct hspmd_model *m, bool head, double s, double e)
{
	double h = m->hidden;
	struct hspmd_layer_bytes saved = { head ? 2 * s * h * e + 24 * s : 8 * s, head ? s * m->vocab * e : 0 };
	for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
		f->saved[k] = saved;
	f->transient = (struct hspmd_layer_bytes){ head ? 0 : s * h * e, 0 };
	f->traffic =
	        head ? (struct hspmd_layer_bytes){ 3 * s * h * e, 2 * s * m->vocab * e } : (struct hspmd_layer_bytes){ 2 * s * h * e, 0 };
	f->reduced_bytes = s * h * e;
}

static void facts_from_model(struct hspmd_costs *c)
{
	const struct hspmd_model *m = c->model;
	double s = c->seq_len, e = element_bytes(c->precision), h = m->hidden;
	for (int l = 0; l < c->layer_count; l++) {
		struct hspmd_layer_info *f = &c->layers[l];
		bool block = l > 0 && l <= m->block_count;
		f->params = hspmd_model_layer_params(m, l);
		f->output_bytes = hspmd_model_layer_output(m, l, c->seq_len) * e;
		/* Neither the first nor the last layer is recomputed: the embedding saves nothing, and the head runs backward at once. */
		f->recomputable = block;
		f->flops = hspmd_model_layer_flops(m, l, c->seq_len);
		if (block)
			block_from_model(f, m, s, e);
		else
			end_from_model(f, m, l > 0, s, e);
	}
	if (m->tied) {
		c->layers[0].tied_to = c->layer_count - 1;
		c->layers[c->layer_count - 1].tied_to = 0;
		c->layers[c->layer_count - 1].tied_params = (double)m->vocab * h;
	}
}

/* Two operations per weight and token. The first layer looks up words. A layer without weights of its own whose output is larger than its
 * input projects with another layer's weights. */
static double profile_flops(const struct hspmd_profile *p, int l, double seq_len)
{
	double in = l ? p->layers[l - 1].output_elems : 0, out = p->layers[l].output_elems;
	if (l == 0)
		return 0;
	if (p->layers[l].params == 0 && out > in)
		return 2 * out * in / seq_len;
	return 2 * p->layers[l].params * seq_len;
}

/* A layer without weights of its own whose output has more elements than its input multiplies with another layer's weights: with the
 * first layer's, if it has enough weights. */
static void find_tied(struct hspmd_costs *c)
{
	const struct hspmd_profile *p = c->profile;
	double tokens = c->seq_len;
	for (int l = 1; l < c->layer_count; l++) {
		double in = p->layers[l - 1].output_elems / tokens, out = p->layers[l].output_elems / tokens;
		if (p->layers[l].params > 0 || out <= in || c->layers[0].params < in * out)
			continue;
		c->layers[0].tied_to = l;
		c->layers[l].tied_to = 0;
		c->layers[l].tied_params = in * out;
		hspmd_costs_warn(c, "layer %s has no weights to project with: assumed to share those of %s", p->layers[l].name,
		                 p->layers[0].name);
		return;
	}
}

/* Bytes that a layer saves, if the profile has them: in the model's proportions if there is a model. */
static void set_saved(struct hspmd_layer_info *f, double saved, double input, bool inner, bool modelled)
{
	const struct hspmd_layer_bytes *none = &f->saved[HSPMD_RECOMPUTE_NONE];
	double all = none->replicated + none->sharded;
	if (modelled && all > 0) {
		for (int k = HSPMD_RECOMPUTE_KINDS - 1; k >= 0; k--)
			f->saved[k] = (struct hspmd_layer_bytes){ f->saved[k].replicated * saved / all, f->saved[k].sharded * saved / all };
		return;
	}
	double replicated = inner ? fmin(4 * input, saved) : 0, least = inner ? fmin(input, saved) : saved;
	f->saved[HSPMD_RECOMPUTE_NONE] = f->saved[HSPMD_RECOMPUTE_SELECTIVE] = (struct hspmd_layer_bytes){ replicated, saved - replicated };
	f->saved[HSPMD_RECOMPUTE_FULL] = inner ? (struct hspmd_layer_bytes){ least, 0 } : f->saved[HSPMD_RECOMPUTE_NONE];
}

static void facts_from_profile(struct hspmd_costs *c)
{
	const struct hspmd_profile *p = c->profile;
	bool guessed = false;
	for (int l = 0; l < c->layer_count; l++) {
		struct hspmd_layer_info *f = &c->layers[l];
		const struct hspmd_profile_layer *pl = &p->layers[l];
		f->params = pl->params;
		f->output_bytes = pl->output_elems * p->activation_bytes;
		double input = l ? p->layers[l - 1].output_elems * p->activation_bytes : 0, saved = pl->activation_bytes;
		bool inner = l > 0 && l < c->layer_count - 1;
		if (isnan(saved)) {
			/* The paper's 34 s h bytes at 2 bytes per element, 17 elements per token: no more is known about a layer without
			 * shapes. */
			saved = c->model ? f->saved[HSPMD_RECOMPUTE_NONE].replicated + f->saved[HSPMD_RECOMPUTE_NONE].sharded
			                 : 17 * f->output_bytes;
			guessed = true;
		}
		set_saved(f, saved, input, inner, c->model);
		if (!c->model) {
			f->transient = inner ? (struct hspmd_layer_bytes){ 2 * input, 0 }
			                     : (struct hspmd_layer_bytes){ 0, l ? f->output_bytes : 0 };
			f->flops = profile_flops(p, l, c->seq_len);
			const struct hspmd_layer_bytes *all = &f->saved[HSPMD_RECOMPUTE_NONE];
			f->traffic = (struct hspmd_layer_bytes){ HSPMD_TRAFFIC * all->replicated, HSPMD_TRAFFIC * all->sharded };
			f->reduced_bytes = 2 * input;
			f->recomputable = inner;
		}
	}
	if (!p->tied_count && !c->model)
		find_tied(c);
	for (int i = 0; i < p->tied_count; i++) {
		/* Weights that are listed with both layers are the same weights; if they are listed with one layer, the other has to hold
		 * a copy of them. */
		struct hspmd_layer_info *a = &c->layers[p->tied[i][0]], *b = &c->layers[p->tied[i][1]];
		struct hspmd_layer_info *owner = a->params >= b->params ? a : b, *other = owner == a ? b : a;
		a->tied_to = p->tied[i][1];
		b->tied_to = p->tied[i][0];
		owner->tied_params = 0;
		other->tied_params = other->params > 0 ? other->params : owner->params;
		other->params -= fmin(other->params, other->tied_params);
	}
	if (guessed)
		hspmd_costs_warn(c, "the profile does not say activation_bytes of every layer: modelled");
}

static int check_input(struct hspmd_costs *c, struct hspmd_error *err)
{
	if (!c->model && !c->profile)
		return hspmd_fail(err, "neither a model nor a profile is given: nothing is known about the layers");
	if (!layers_are_alike(c->model, c->profile))
		return hspmd_fail(err, "the profile has %d layers, the model %d", c->profile->layer_count, hspmd_model_layers(c->model));
	if (c->profile && c->seq_len != c->profile->seq_len)
		return hspmd_fail(err, "the profile was measured at sequence length %ld, not at %d", (long)c->profile->seq_len, c->seq_len);
	if (c->seq_len < 1)
		return hspmd_fail(err, "the sequence length is %d", c->seq_len);
	if (c->model && c->model->learnt_positions && c->seq_len > c->model->max_positions)
		return hspmd_fail(err, "sequence length %d is beyond the model's %ld positions", c->seq_len, (long)c->model->max_positions);
	return 0;
}

struct hspmd_costs *hspmd_costs_new(const struct hspmd_cluster *cluster, const struct hspmd_model *model,
                                    const struct hspmd_profile *profile, enum hspmd_precision precision, int seq_len,
                                    struct hspmd_error *err)
{
	struct hspmd_costs *c = hspmd_calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "preparing the cost model");
		return NULL;
	}
	c->cluster = cluster;
	c->model = model;
	c->profile = profile;
	c->precision = precision;
	c->seq_len = seq_len ? seq_len : profile ? (int)profile->seq_len : model ? (int)model->max_positions : 0;
	if (check_input(c, err))
		goto fail;
	c->layer_count = profile ? profile->layer_count : hspmd_model_layers(model);
	c->layers = hspmd_calloc((size_t)c->layer_count, sizeof *c->layers);
	c->params_sum = hspmd_calloc((size_t)c->layer_count + 1, sizeof *c->params_sum);
	c->tied_layers = hspmd_calloc((size_t)c->layer_count, sizeof *c->tied_layers);
	if (!c->layers || !c->params_sum || !c->tied_layers) {
		hspmd_fail_memory(err, "preparing the cost model");
		goto fail;
	}
	for (int l = 0; l < c->layer_count; l++)
		c->layers[l].tied_to = -1;
	/* Mixed precision keeps a master copy in fp32 in addition to Adam's two moments (arXiv 1710.03740). */
	c->param_bytes = profile ? profile->params_bytes : element_bytes(precision);
	/* hspmd sums gradients in fp32 in any precision of the computation (hspmd_dtype_master), and sends the sums. */
	c->grad_bytes = profile ? profile->grads_bytes : fmax(element_bytes(precision), 4);
	c->master_bytes = c->param_bytes < 4 ? 4 : 0;
	c->moment_bytes = 8;
	if (model)
		facts_from_model(c);
	if (profile)
		facts_from_profile(c);
	for (int l = 0; l < c->layer_count; l++) {
		c->params_sum[l + 1] = c->params_sum[l] + c->layers[l].params;
		if (c->layers[l].tied_params > 0)
			c->tied_layers[c->tied_layer_count++] = l;
		c->layers[l].same_memory = l && hspmd_layer_same_memory(&c->layers[l - 1], &c->layers[l]);
	}
	return c;
fail:
	hspmd_costs_destroy(c);
	return NULL;
}

struct hspmd_costs *hspmd_costs_of_plan(const struct hspmd_cluster *cluster, const struct hspmd_model *model,
                                        const struct hspmd_profile *profile, enum hspmd_precision asked, const struct hspmd_plan *plan,
                                        struct hspmd_error *err)
{
	enum hspmd_precision precision = model ? hspmd_plan_precision(plan, cluster, asked) : asked;
	return hspmd_costs_new(cluster, model, profile, precision, plan->seq_len, err);
}

void hspmd_costs_destroy(struct hspmd_costs *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->times_size; i++)
		hspmd_layer_times_destroy(c->times[i]);
	for (int i = 0; i < c->warning_count; i++)
		free(c->warnings[i]);
	free(c->warnings);
	free(c->times);
	free(c->params_sum);
	free(c->tied_layers);
	free(c->layers);
	free(c);
}
