/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/model_facts.h"

#include <math.h>
#include <stdlib.h>

static bool are_alike(const struct hspmd_facts_tensors *a, const struct hspmd_facts_tensors *b)
{
	return a->kind == b->kind && a->by_share == b->by_share && a->by_all == b->by_all && a->whole == b->whole &&
	       a->experts == b->experts && a->per_token == b->per_token;
}

/* How many times larger the one is than the other; INFINITY: they are of other kinds, or divided otherwise, or one has rows of experts and
 * one has not. */
static double size_ratio(const struct hspmd_facts_tensors *a, const struct hspmd_facts_tensors *b)
{
	double least = fmin(a->bytes, b->bytes), most = fmax(a->bytes, b->bytes);
	if (a->kind != b->kind || a->by_share != b->by_share || a->by_all != b->by_all || a->whole != b->whole ||
	    !a->experts != !b->experts)
		return INFINITY;
	return least > 0 ? most / least : most > 0 ? HUGE_VALF : 1;
}

/* Make room for one more: there are fewer kinds than places, so two are of one kind. */
static void join_nearest(struct hspmd_facts_messages *m)
{
	int to = 0, from = 1;
	for (int i = 0; i < m->count; i++)
		for (int k = i + 1; k < m->count; k++)
			if (size_ratio(&m->of[i], &m->of[k]) < size_ratio(&m->of[to], &m->of[from])) {
				to = i;
				from = k;
			}
	struct hspmd_facts_tensors *a = &m->of[to], *b = &m->of[from];
	a->bytes = (a->count * a->bytes + b->count * b->bytes) / (a->count + b->count);
	a->count += b->count;
	*b = m->of[--m->count];
}

void hspmd_facts_messages_add(struct hspmd_facts_messages *m, const struct hspmd_facts_tensors *tensors)
{
	int i = 0;
	while (i < m->count && !(are_alike(&m->of[i], tensors) && m->of[i].bytes == tensors->bytes))
		i++;
	if (i < m->count) {
		m->of[i].count += tensors->count;
		return;
	}
	if (m->count == HSPMD_FACTS_SIZES)
		join_nearest(m);
	m->of[m->count++] = *tensors;
}

bool hspmd_facts_messages_equal(const struct hspmd_facts_messages *a, const struct hspmd_facts_messages *b)
{
	bool equal = a->count == b->count;
	for (int i = 0; equal && i < a->count; i++)
		equal = are_alike(&a->of[i], &b->of[i]) && a->of[i].count == b->of[i].count && a->of[i].bytes == b->of[i].bytes;
	return equal;
}

double hspmd_facts_messages_bytes(const struct hspmd_facts_messages *m, enum hspmd_facts_message kind)
{
	double bytes = 0;
	for (int i = 0; i < m->count; i++)
		bytes += m->of[i].kind == kind ? m->of[i].count * m->of[i].bytes : 0;
	return bytes;
}

void hspmd_model_facts_destroy(struct hspmd_model_facts *f)
{
	if (!f)
		return;
	hspmd_model_facts_destroy(f->wide);
	for (int i = 0; i < f->result_count; i++) {
		free(f->results[i].op);
		free(f->results[i].weight);
	}
	free(f->results);
	free(f->name);
	free(f->kind_of_layer);
	free(f->kinds);
	free(f->ties);
	json_decref(f->recompute_sets);
	free(f);
}

const struct hspmd_layer_facts *hspmd_model_layer_facts(const struct hspmd_model_facts *f, int layer)
{
	return &f->kinds[f->kind_of_layer[layer]];
}

bool hspmd_model_divides(const struct hspmd_model_facts *f, int tp)
{
	return tp == 1 || f->even_parts == 0 || f->even_parts % tp == 0;
}

const struct hspmd_model_facts *hspmd_model_facts_of_plan(const struct hspmd_model_facts *f, const struct hspmd_plan *plan)
{
	return f && f->wide && !plan->synthesis && hspmd_plan_widest_group(plan) > f->even_parts ? f->wide : f;
}

double hspmd_facts_amount_at(const struct hspmd_facts_amount *a, double share, double context)
{
	return fmax(0, a->whole + a->by_share * share + context * (a->by_context + a->by_both * share));
}
