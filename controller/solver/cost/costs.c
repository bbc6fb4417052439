/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of each layer: from the model's, which the runtime makes from its graph (runtime/facts), or from the profile.
 *
 * Of a layer that only a profile describes, little is known. A transformer block saves its input, the second residual and the results of
 * both norms on every device of a tensor-parallel group (Korthikanti et al., "Reducing Activation Recomputation", arXiv 2205.05198,
 * section 4). Full recomputation saves only the block's input. While a layer runs backward it needs the gradients of its input and its
 * result. A framework whose loss is not fused needs the last layer's result once more, for the softmax, whose gradient overwrites it
 * (Megatron-LM's vocabulary-parallel cross entropy). */
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "common/format/plan_precision.h"
#include "common/format/recompute_sets.h"
#include "controller/solver/cost/cost_constants.h"

static bool layers_are_alike(const struct hspmd_model_facts *f, const struct hspmd_profile *p)
{
	return !f || !p || f->layer_count == p->layer_count;
}

static double element_bytes(enum hspmd_precision precision)
{
	static const double bytes[HSPMD_PRECISION_COUNT] = { 4, 4, 2, 2, 1, 8 };
	return bytes[precision];
}

static void scale_work(struct hspmd_facts_work *w, double factor)
{
	w->replicated *= factor;
	w->sharded *= factor;
}

/* `narrow`: ratio of the precision's bytes per element to those of the width that the facts are for. */
static struct hspmd_layer_pass pass_in_precision(const struct hspmd_layer_pass *pass, double narrow)
{
	struct hspmd_layer_pass p = *pass;
	scale_work(&p.bytes, narrow);
	scale_work(&p.parted_bytes, narrow);
	scale_work(&p.weights, narrow);
	struct hspmd_facts_messages *const messages[] = { &p.messages[0], &p.messages[1], &p.context };
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < messages[k]->count; i++)
			messages[k]->of[i].bytes *= narrow;
	return p;
}

static void facts_from_model(struct hspmd_costs *c)
{
	double e = element_bytes(c->precision);
	enum hspmd_facts_width width = e > 2 ? HSPMD_FACTS_FP32 : HSPMD_FACTS_BF16;
	enum hspmd_facts_form gathered = e > 2 ? HSPMD_FACTS_GATHERED_FP32 : HSPMD_FACTS_GATHERED_BF16;
	double narrow = e / (e > 2 ? 4 : 2);
	c->forms[0] = gathered;
	c->forms[1] = e > 2 ? HSPMD_FACTS_PARTS_FP32 : gathered;
	for (int l = 0; l < c->layer_count; l++) {
		struct hspmd_layer_info *f = &c->layers[l];
		const struct hspmd_layer_facts *facts = hspmd_model_layer_facts(c->facts, l);
		f->replicated_params = facts->params.replicated;
		f->params = facts->params.replicated + facts->params.sharded;
		f->partial_params = facts->partial_params;
		f->output_bytes = facts->output_elements * e;
		f->recomputable = facts->recomputable;
		f->forward = pass_in_precision(&facts->forward[width], narrow);
		f->backward = pass_in_precision(&facts->backward[width], narrow);
		for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
			f->again[k] = pass_in_precision(&facts->again[c->kind_of[k]][width], narrow);
		f->memory[0] = facts->memory[c->forms[0]];
		f->memory[1] = facts->memory[c->forms[1]];
		f->workspace[0] = facts->workspace[gathered];
		f->workspace[1] = facts->workspace[HSPMD_FACTS_PARTS_FP32];
		f->attention = width == HSPMD_FACTS_BF16 && facts->attention.heads ? &facts->attention : NULL;
		f->products = &facts->products;
		f->saved_scale = f->memory_scale = narrow;
		const struct hspmd_layer_tie *tie = &c->facts->ties[l];
		if (tie->owner < 0)
			continue;
		f->tied_to = tie->owner;
		f->tied_params = tie->params;
		c->layers[tie->owner].tied_to = l;
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

static struct hspmd_facts_amount shared(double replicated, double sharded)
{
	return (struct hspmd_facts_amount){ .by_context = replicated, .by_both = sharded };
}

/* What a layer needs whose shapes are unknown. `inner`: it is neither the first layer nor the last. With sequence parallelism the inputs of
 * the sharded parts are gathered whole; the other half, which lies between these parts, is not. */
static void guess_memory(struct hspmd_layer_memory (*memory)[HSPMD_RECOMPUTE_KINDS], double saved, double input, double output, bool inner,
                         bool first)
{
	double replicated = inner ? fmin(4 * input, saved) : 0, sharded = saved - replicated, least = inner ? fmin(input, saved) : saved;
	struct hspmd_facts_amount transient = inner ? shared(2 * input, 0) : shared(0, first ? 0 : output);
	for (int division = 0; division < HSPMD_FACTS_DIVISIONS; division++)
		for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++) {
			struct hspmd_layer_memory *m = &memory[division][k];
			bool sequence = division == HSPMD_FACTS_SEQUENCE;
			double split = sequence ? replicated / 2 : 0;
			struct hspmd_facts_amount all = shared(replicated - split, sharded + split);
			m->deferred = all;
			m->saved = all;
			m->backward = transient;
			if (k != HSPMD_RECOMPUTE_FULL || !inner)
				continue;
			m->saved = sequence ? shared(0, least) : shared(least, 0);
			m->backward.by_context += all.by_context - m->saved.by_context; /* computed again */
			m->backward.by_both += all.by_both - m->saved.by_both;
		}
	for (int division = 0; division < HSPMD_FACTS_DIVISIONS; division++)
		for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
			memory[division][k].split_backward = memory[division][k].backward;
}

/* Work and memory of a layer that only the profile describes. */
static void facts_without_model(struct hspmd_costs *c, int l, double saved)
{
	const struct hspmd_profile *p = c->profile;
	struct hspmd_layer_info *f = &c->layers[l];
	double input = l ? p->layers[l - 1].output_elems * p->activation_bytes : 0;
	bool inner = l > 0 && l < c->layer_count - 1;
	double replicated = inner ? fmin(4 * input, saved) : 0;
	const struct hspmd_facts_messages sums = { 1, { { HSPMD_FACTS_REDUCED, .count = 2, .bytes = input } } }, halves = {
		2, { { HSPMD_FACTS_SCATTERED, .count = 2, .bytes = input }, { HSPMD_FACTS_GATHERED, .count = 2, .bytes = input } }
	};
	f->recomputable = inner;
	f->forward = (struct hspmd_layer_pass){ .flops = { 0, profile_flops(p, l, c->seq_len) },
		                                .bytes = { HSPMD_TRAFFIC * replicated, HSPMD_TRAFFIC * (saved - replicated) },
		                                .kernels = HSPMD_BLOCK_KERNELS,
		                                .messages = { sums, halves } };
	f->forward.parted_flops = f->forward.flops;
	f->forward.parted_bytes = f->forward.bytes;
	f->backward = f->forward;
	scale_work(&f->backward.parted_flops, 2);
	scale_work(&f->backward.parted_bytes, 2);
	scale_work(&f->backward.flops, 2);
	scale_work(&f->backward.bytes, 2);
	f->again[HSPMD_RECOMPUTE_FULL] = f->forward;
	for (int context = 0; context < 2; context++)
		guess_memory(c->own_memory[l][context], saved, input, f->output_bytes, inner, l == 0);
	f->memory[0] = f->memory[1] = c->own_memory[l];
	f->saved_scale = f->memory_scale = 1;
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
		double saved = pl->activation_bytes;
		const struct hspmd_device_share whole = { .share = 1, .context_share = 1 };
		double modelled = c->facts ? hspmd_layer_saved_bytes(c, l, HSPMD_RECOMPUTE_NONE, &whole) : 0;
		if (isnan(saved)) {
			/* The paper's 34 s h bytes at 2 bytes per element, 17 elements per token: no more is known about a layer without
			 * shapes. */
			saved = c->facts ? modelled : 17 * f->output_bytes;
			guessed = true;
		}
		if (!c->facts)
			facts_without_model(c, l, saved);
		else if (modelled > 0)
			f->saved_scale *= saved / modelled;
	}
	if (!p->tied_count && !c->facts)
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
	if (!c->facts && !c->profile)
		return hspmd_fail(err, "neither a model nor a profile is given: nothing is known about the layers");
	if (!layers_are_alike(c->facts, c->profile))
		return hspmd_fail(err, "the profile has %d layers, the model %d", c->profile->layer_count, c->facts->layer_count);
	if (c->profile && c->seq_len != c->profile->seq_len)
		return hspmd_fail(err, "the profile was measured at sequence length %ld, not at %d", (long)c->profile->seq_len, c->seq_len);
	if (c->seq_len < 1)
		return hspmd_fail(err, "the sequence length is %d", c->seq_len);
	if (c->facts && c->seq_len != c->facts->seq_len)
		return hspmd_fail(err, "what is known of the model is for sequence length %d, not %d", c->facts->seq_len, c->seq_len);
	return 0;
}

json_t *hspmd_costs_recompute_sets(const struct hspmd_costs *c)
{
	return c->facts ? c->facts->recompute_sets : NULL;
}

/* The plan may list operators that the facts do not know. NULL: a plan of the search. */
static void match_recompute(struct hspmd_costs *c, const struct hspmd_plan *plan)
{
	bool inexact = false;
	json_t *known = hspmd_costs_recompute_sets(c);
	hspmd_recompute_sets_match(plan ? plan->recompute_sets : known, known, c->kind_of, &inexact);
	if (inexact)
		hspmd_costs_warn(c,
		                 "the plan recomputes operators that hspmd would not choose: memory and time are predicted as if it were "
		                 "only those of them that it would");
}

static bool is_listed(const json_t *list, const struct hspmd_saved_results *r)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const char *name = json_string_value(json_array_get(list, i));
		if (name && (!strcmp(name, r->op) || (r->weight && !strcmp(name, r->weight))))
			return true;
	}
	return false;
}

/* Find what the plan's lists of offloaded operators name. */
static int match_offload(struct hspmd_costs *c, const struct hspmd_plan *plan)
{
	int lists = plan && c->facts ? (int)json_array_size(plan->offload_sets) : 0;
	if (lists && !(c->listed = hspmd_calloc((size_t)c->facts->result_count + 1, sizeof *c->listed)))
		return -1;
	for (int list = 0; list < lists; list++)
		for (int i = 0; i < c->facts->result_count; i++)
			if (is_listed(json_array_get(plan->offload_sets, (size_t)list), &c->facts->results[i]))
				c->listed[i] |= (unsigned char)(1u << list);
	return 0;
}

/* fp8: products of FP8 operands besides elements of `precision`. */
static struct hspmd_costs *costs_new(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_profile *profile, enum hspmd_precision precision, bool fp8, int seq_len,
                                     const struct hspmd_plan *plan, struct hspmd_error *err)
{
	struct hspmd_costs *c = hspmd_calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "preparing the cost model");
		return NULL;
	}
	c->cluster = cluster;
	c->facts = facts;
	c->profile = profile;
	c->precision = precision;
	c->fp8 = fp8;
	match_recompute(c, plan);
	c->seq_len = seq_len ? seq_len : profile ? (int)profile->seq_len : facts ? facts->seq_len : 0;
	if (check_input(c, err))
		goto fail;
	c->layer_count = profile ? profile->layer_count : facts->layer_count;
	c->layers = hspmd_calloc((size_t)c->layer_count, sizeof *c->layers);
	c->params_sum = hspmd_calloc((size_t)c->layer_count + 1, sizeof *c->params_sum);
	c->replicated_sum = hspmd_calloc((size_t)c->layer_count + 1, sizeof *c->replicated_sum);
	c->vectors_sum[0] = hspmd_calloc(2 * ((size_t)c->layer_count + 1), sizeof **c->vectors_sum);
	c->tied_layers = hspmd_calloc((size_t)c->layer_count, sizeof *c->tied_layers);
	c->own_memory = hspmd_calloc(facts ? 1 : (size_t)c->layer_count, sizeof *c->own_memory);
	bool for_types = !hspmd_cluster_names_nodes(cluster);
	c->transfers = for_types ? hspmd_calloc(HSPMD_KNOWN_TRANSFERS, sizeof *c->transfers) : NULL;
	if ((for_types && !c->transfers) || !c->layers || !c->params_sum || !c->replicated_sum || !c->vectors_sum[0] || !c->tied_layers ||
	    !c->own_memory || match_offload(c, plan)) {
		hspmd_fail_memory(err, "preparing the cost model");
		goto fail;
	}
	c->vectors_sum[1] = c->vectors_sum[0] + c->layer_count + 1;
	for (int l = 0; l < c->layer_count; l++)
		c->layers[l].tied_to = -1;
	/* Mixed precision keeps a master copy in fp32 in addition to the optimizer's moments (arXiv 1710.03740). */
	c->param_bytes = profile ? profile->params_bytes : element_bytes(precision);
	/* hspmd sums gradients in fp32 in any precision of the computation (hspmd_dtype_master), and sends the sums. */
	c->grad_bytes = profile ? profile->grads_bytes : fmax(element_bytes(precision), 4);
	c->master_bytes = c->param_bytes < 4 ? 4 : 0;
	c->moment_bytes = 4 * (facts ? facts->moments : 2);
	if (facts)
		facts_from_model(c);
	if (profile)
		facts_from_profile(c);
	for (int l = 0; l < c->layer_count; l++) {
		c->params_sum[l + 1] = c->params_sum[l] + c->layers[l].params;
		c->replicated_sum[l + 1] = c->replicated_sum[l] + fmin(c->layers[l].replicated_params, c->layers[l].params);
		struct hspmd_facts_work vectors = facts ? hspmd_model_layer_facts(facts, l)->vectors : (struct hspmd_facts_work){ 0 };
		c->vectors_sum[0][l + 1] = c->vectors_sum[0][l] + vectors.replicated;
		c->vectors_sum[1][l + 1] = c->vectors_sum[1][l] + vectors.sharded;
		if (c->layers[l].tied_params > 0)
			c->tied_layers[c->tied_layer_count++] = l;
		c->layers[l].same_memory = l && hspmd_layer_same_memory(&c->layers[l - 1], &c->layers[l]);
	}
	return c;
fail:
	hspmd_costs_destroy(c);
	return NULL;
}

static bool all_compute_in_bf16(const struct hspmd_cluster *c)
{
	for (int d = 0; d < c->device_count; d++)
		if (!hspmd_device_kind_computes(c->types[c->devices[d].type].kind, HSPMD_PRECISION_BF16))
			return false;
	return true;
}

struct hspmd_costs *hspmd_costs_with_elements(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                              const struct hspmd_profile *profile, enum hspmd_precision precision, bool fp32_elements,
                                              int seq_len, struct hspmd_error *err)
{
	bool fp8 = facts && precision == HSPMD_PRECISION_FP8;
	enum hspmd_precision elements = !fp8 ? precision : fp32_elements ? HSPMD_PRECISION_FP32 : HSPMD_PRECISION_BF16;
	return costs_new(cluster, facts, profile, elements, fp8, seq_len, NULL, err);
}

struct hspmd_costs *hspmd_costs_new(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                    const struct hspmd_profile *profile, enum hspmd_precision precision, int seq_len,
                                    struct hspmd_error *err)
{
	return hspmd_costs_with_elements(cluster, facts, profile, precision, !all_compute_in_bf16(cluster), seq_len, err);
}

struct hspmd_costs *hspmd_costs_of_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                        const struct hspmd_profile *profile, enum hspmd_precision asked, const struct hspmd_plan *plan,
                                        struct hspmd_error *err)
{
	bool fp8 = facts && asked == HSPMD_PRECISION_FP8;
	enum hspmd_precision precision = facts ? hspmd_plan_precision(plan, cluster, asked) : asked;
	if (fp8)
		precision = hspmd_plan_is_bf16(plan, cluster, asked) ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
	if (fp8 && hspmd_plan_check_precision(plan, cluster, asked, err))
		return NULL;
	return costs_new(cluster, hspmd_model_facts_of_plan(facts, plan), profile, precision, fp8, plan->seq_len, plan, err);
}

struct hspmd_costs *hspmd_costs_view(const struct hspmd_costs *base)
{
	struct hspmd_costs *c = hspmd_calloc(1, sizeof *c);
	if (!c)
		return NULL;
	*c = *base;
	c->base = base;
	c->times = NULL;
	c->times_size = c->times_count = 0;
	c->costed_stages = NULL;
	c->warnings = NULL;
	c->warning_count = 0;
	c->transfers = base->transfers ? hspmd_calloc(HSPMD_KNOWN_TRANSFERS, sizeof *c->transfers) : NULL;
	if (base->transfers && !c->transfers) {
		hspmd_costs_destroy(c);
		return NULL;
	}
	return c;
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
	free(c->costed_stages);
	free(c->transfers);
	if (!c->base) {
		free(c->params_sum);
		free(c->replicated_sum);
		free(c->vectors_sum[0]);
		free(c->own_memory);
		free(c->listed);
		free(c->tied_layers);
		free(c->layers);
	}
	free(c);
}
