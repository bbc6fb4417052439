/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/model_facts.h"

#include <math.h>
#include <stdlib.h>

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
