/* SPDX-License-Identifier: Apache-2.0 */
/* A model's weights: their number, which layers share them, and into how many parts they can be divided. */
#include "runtime/facts/facts_internal.h"

/* A part of a weight is several rows, if rows belong together (heads), or a matrix (experts). Finer parts can be divided almost as one
 * likes. */
static void count_parts(struct hspmd_model_facts *f, const struct hspmd_tensor *t)
{
	if (t->split_dim < 0 || (t->split_unit <= 1 && (t->shape.rank < 3 || t->split_dim > 0)))
		return;
	int64_t parts = t->shape.dim[t->split_dim] / (t->split_unit > 1 ? t->split_unit : 1);
	f->parts = (int)hspmd_common_divisor(f->parts, parts);
	if (t->split_unit > 1)
		f->even_parts = (int)hspmd_common_divisor(f->even_parts, parts);
}

void hspmd_facts_count_parameters(struct hspmd_model_facts *f, const struct hspmd_graph *g)
{
	for (size_t i = 0; i < g->tensor_count; i++) {
		const struct hspmd_tensor *t = &g->tensors[i];
		if (t->role != HSPMD_TENSOR_PARAMETER)
			continue;
		double elements = (double)hspmd_shape_elements(&t->shape);
		f->params += elements;
		count_parts(f, t);
	}
	for (int l = 0; l < f->layer_count; l++)
		f->ties[l].owner = -1;
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; !g->ops[i].backward && k < g->ops[i].input_count; k++) {
			const struct hspmd_tensor *t = g->ops[i].in[k] < 0 ? NULL : &g->tensors[g->ops[i].in[k]];
			int layer = g->ops[i].layer;
			if (!t || t->role != HSPMD_TENSOR_PARAMETER || t->layer == layer)
				continue;
			f->ties[layer].owner = t->layer;
			f->ties[layer].params += (double)hspmd_shape_elements(&t->shape);
		}
}

bool hspmd_graph_has_more_parts(const struct hspmd_graph *g, int parts)
{
	struct hspmd_model_facts f = { 0 };
	for (size_t i = 0; i < g->tensor_count; i++)
		if (g->tensors[i].role == HSPMD_TENSOR_PARAMETER)
			count_parts(&f, &g->tensors[i]);
	return f.even_parts > parts;
}
