/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of each layer, from a profile where there is one and from the model's shapes where the profile says nothing.
 *
 * Activations a transformer block keeps for its backward pass, per sample of s tokens, e bytes an element (after Korthikanti et al.,
 * "Reducing Activation Recomputation", arXiv 2205.05198, section 4, without dropout masks, which hspmd's models do not have):
 *   norm, q/k/v and MLP inputs and the residuals   4 s h e   (whole on every device of a group unless sequences are sharded too)
 *   q, k, v and the attention's result             s (2 q + 2 kv) e
 *   the MLP's inner activations                    s f e     twice, three times when gated
 *   attention's softmax                            a s^2 e   where it is materialised (cpu); a fused kernel keeps 4 s a bytes instead (2205.14135)
 * Full recomputation keeps the block's input alone, s h e; selective drops what the softmax holds.
 * The head keeps its input and the logits, once in e and once in 4 bytes (the loss is computed in fp32).
 */
#include "controller/solver/costs.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

static bool layers_are_alike(const struct hspmd_model *m, const struct hspmd_profile *p)
{
	return !m || !p || hspmd_model_layers(m) == p->layer_count;
}

static double element_bytes(enum hspmd_precision precision)
{
	static const double bytes[HSPMD_PRECISION_COUNT] = { 4, 4, 2, 2, 1, 8 };
	return bytes[precision];
}

/* Softmax results are kept where attention is not one fused kernel: on cpu devices. */
static bool attention_is_fused(const struct hspmd_cluster *c)
{
	for (int t = 0; t < c->type_count; t++)
		if (c->types[t].kind == HSPMD_DEVICE_CPU)
			return false;
	return true;
}

static void block_from_model(struct hspmd_layer_fact *f, const struct hspmd_model *m, double s, double e, bool fused)
{
	double h = m->hidden, q = (double)m->heads * m->head_dim, kv = (double)m->kv_heads * m->head_dim;
	double experts = m->experts ? m->experts_per_token : 1, inner = (m->gated ? 3 : 2) * (double)m->ffn * experts;
	double scores = fused ? 4 * s * m->heads : (double)m->heads * s * s * e;
	f->whole_bytes = 4 * s * h * e;
	double kept = f->whole_bytes + s * (2 * q + 2 * kv) * e + s * inner * e;
	f->kept_bytes[HSPMD_RECOMPUTE_NONE] = kept + scores;
	f->kept_bytes[HSPMD_RECOMPUTE_SELECTIVE] = kept;
	f->kept_bytes[HSPMD_RECOMPUTE_FULL] = s * h * e;
	f->working_bytes = kept + scores;
	double attention = 2 * s * s * q; /* scores and their product with v, causal: half of 4 s^2 q */
	f->flops = hspmd_model_layer_flops(m, 1, (int64_t)s);
	f->rerun[HSPMD_RECOMPUTE_SELECTIVE] = f->flops > 0 ? attention / f->flops : 0;
	f->moved_bytes = kept + scores;
	f->reduced_bytes = 2 * s * h * e;
}

static void facts_from_model(struct hspmd_costs *c)
{
	const struct hspmd_model *m = c->model;
	double s = c->seq_len, e = element_bytes(c->precision), h = m->hidden;
	bool fused = attention_is_fused(c->cluster);
	for (int l = 0; l < c->layer_count; l++) {
		struct hspmd_layer_fact *f = &c->layers[l];
		f->params = hspmd_model_layer_params(m, l);
		f->output_bytes = hspmd_model_layer_output(m, l, c->seq_len) * e;
		f->rerun[HSPMD_RECOMPUTE_FULL] = 1;
		if (l > 0 && l <= m->block_count) {
			block_from_model(f, m, s, e, fused);
			continue;
		}
		f->flops = hspmd_model_layer_flops(m, l, c->seq_len);
		double kept = l == 0 ? 8 * s : 2 * s * h * e + s * m->vocab * (e + 4);
		f->whole_bytes = l == 0 ? 8 * s : 2 * s * h * e;
		for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
			f->kept_bytes[k] = kept;
		f->rerun[HSPMD_RECOMPUTE_FULL] = 0; /* neither end is recomputed: the embedding keeps nothing, the head runs backward at once */
		f->working_bytes = l == 0 ? s * h * e : s * m->vocab * 4;
		f->moved_bytes = l == 0 ? s * h * e : kept;
		f->reduced_bytes = s * h * e;
	}
	if (m->tied) {
		c->layers[0].twin = c->layer_count - 1;
		c->layers[c->layer_count - 1].twin = 0;
		c->layers[c->layer_count - 1].borrowed = (double)m->vocab * h;
	}
}

/* Two operations a weight and token. The first layer looks words up. A layer without weights of its own that hands on more than it gets projects
 * with another's. */
static double profile_flops(const struct hspmd_profile *p, int l, double seq_len)
{
	double in = l ? p->layers[l - 1].output_elems : 0, out = p->layers[l].output_elems;
	if (l == 0)
		return 0;
	if (p->layers[l].params == 0 && out > in)
		return 2 * out * in / seq_len;
	return 2 * p->layers[l].params * seq_len;
}

static void facts_from_profile(struct hspmd_costs *c)
{
	const struct hspmd_profile *p = c->profile;
	bool guessed = false;
	for (int l = 0; l < c->layer_count; l++) {
		struct hspmd_layer_fact *f = &c->layers[l];
		const struct hspmd_profile_layer *pl = &p->layers[l];
		double from_model[HSPMD_RECOMPUTE_KINDS];
		memcpy(from_model, f->kept_bytes, sizeof from_model);
		f->params = pl->params;
		f->output_bytes = pl->output_elems * p->activation_bytes;
		double input = l ? p->layers[l - 1].output_elems * p->activation_bytes : 0;
		bool inner = l > 0 && l < c->layer_count - 1;
		double kept = pl->activation_bytes;
		if (isnan(kept)) {
			/* The paper's 34 s h bytes at 2 bytes an element, 17 elements a token: no more is known about a layer without shapes. */
			kept = c->model ? from_model[HSPMD_RECOMPUTE_NONE] : 17 * f->output_bytes;
			guessed = true;
		}
		f->kept_bytes[HSPMD_RECOMPUTE_NONE] = kept;
		f->kept_bytes[HSPMD_RECOMPUTE_FULL] = inner ? fmin(input, kept) : kept;
		f->kept_bytes[HSPMD_RECOMPUTE_SELECTIVE] = c->model && from_model[HSPMD_RECOMPUTE_NONE] > 0
			? kept * from_model[HSPMD_RECOMPUTE_SELECTIVE] / from_model[HSPMD_RECOMPUTE_NONE] : kept;
		if (!c->model) {
			f->whole_bytes = inner ? fmin(4 * input, kept) : 0;
			f->working_bytes = kept + f->output_bytes; /* gradients of its inside and of its result */
			f->flops = profile_flops(p, l, c->seq_len);
			f->moved_bytes = kept;
			f->reduced_bytes = 2 * input;
			f->rerun[HSPMD_RECOMPUTE_FULL] = inner ? 1 : 0;
		}
		f->whole_bytes = fmin(f->whole_bytes, kept);
	}
	for (int i = 0; i < p->tied_count; i++) {
		/* Weights listed with both are one and the same; listed with one, the other has to borrow them. */
		struct hspmd_layer_fact *a = &c->layers[p->tied[i][0]], *b = &c->layers[p->tied[i][1]];
		struct hspmd_layer_fact *owner = a->params >= b->params ? a : b, *other = owner == a ? b : a;
		a->twin = p->tied[i][1];
		b->twin = p->tied[i][0];
		owner->borrowed = 0;
		other->borrowed = other->params > 0 ? other->params : owner->params;
		other->params -= fmin(other->params, other->borrowed);
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
	if (c->model && c->model->max_positions > 0 && c->seq_len > c->model->max_positions && c->model->rope_theta == 0)
		return hspmd_fail(err, "sequence length %d is beyond the model's %ld positions", c->seq_len, (long)c->model->max_positions);
	return 0;
}

struct hspmd_costs *hspmd_costs_new(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
				    enum hspmd_precision precision, int seq_len, struct hspmd_error *err)
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
	c->borrowers = hspmd_calloc((size_t)c->layer_count, sizeof *c->borrowers);
	if (!c->layers || !c->params_sum || !c->borrowers) {
		hspmd_fail_memory(err, "preparing the cost model");
		goto fail;
	}
	for (int l = 0; l < c->layer_count; l++)
		c->layers[l].twin = -1;
	/* Mixed precision keeps a master copy in fp32 beside Adam's two moments (arXiv 1710.03740). */
	c->param_bytes = profile ? profile->params_bytes : element_bytes(precision);
	c->grad_bytes = profile ? profile->grads_bytes : element_bytes(precision);
	c->master_bytes = c->param_bytes < 4 ? 4 : 0;
	c->moment_bytes = 8;
	if (model)
		facts_from_model(c);
	if (profile)
		facts_from_profile(c);
	for (int l = 0; l < c->layer_count; l++) {
		c->params_sum[l + 1] = c->params_sum[l] + c->layers[l].params;
		if (c->layers[l].borrowed > 0)
			c->borrowers[c->borrower_count++] = l;
	}
	return c;
fail:
	hspmd_costs_destroy(c);
	return NULL;
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
	free(c->borrowers);
	free(c->layers);
	free(c);
}

void hspmd_costs_warn(struct hspmd_costs *c, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	for (int i = 0; i < c->warning_count; i++)
		if (!strcmp(c->warnings[i], text))
			return;
	char **grown = realloc(c->warnings, ((size_t)c->warning_count + 1) * sizeof *grown);
	if (!grown)
		return;
	c->warnings = grown;
	grown[c->warning_count] = strdup(text);
	if (grown[c->warning_count])
		c->warning_count++;
}
