/* SPDX-License-Identifier: Apache-2.0 */
/* Work and communication of each layer, from the result of the sharding pass: every operator's cost on the local shapes, and every
 * reshard's bytes. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/facts/facts_internal.h"
#include "runtime/op/op.h"

/* The operator as the program's device runs it. Returns false if the device holds no part of one of its tensors. */
static bool local_view(const struct hspmd_program *p, const struct hspmd_spmd_node *n, struct hspmd_op_view *v)
{
	const struct hspmd_op *op = &p->graph->ops[n->op];
	*v = (struct hspmd_op_view){ .attr = &op->attr, .input_count = n->input_count, .output_count = n->output_count };
	for (int k = 0; k < n->input_count + n->output_count; k++) {
		bool out = k >= n->input_count;
		int i = out ? k - n->input_count : k, value = out ? n->out[i] : n->in[i];
		struct hspmd_shape *shape = out ? &v->out[i] : &v->in[i];
		shape->rank = -1;
		if (value < 0)
			continue;
		const struct hspmd_tensor *t = &p->graph->tensors[p->spmd->values[value].tensor];
		struct hspmd_local_shard shard;
		if (!hspmd_annotation_local_shard(p->spmd->values[value].annotation, &t->shape, p->device, &shard))
			return false;
		shape->rank = shard.box.rank;
		for (int d = 0; d < shape->rank; d++)
			shape->dim[d] = shard.box.hi[d] - shard.box.lo[d];
		*(out ? &v->out_dtype[i] : &v->in_dtype[i]) = t->dtype;
	}
	return true;
}

static void add_workspace(const struct hspmd_op_type *type, const struct hspmd_op_view *v, bool at_once, double most[HSPMD_WORKSPACES])
{
	double of[HSPMD_WORKSPACES] = { 0 };
	of[HSPMD_WORKSPACE_WEIGHTS] = type->weights_workspace ? type->weights_workspace(v, at_once) : 0;
	of[type->most_workspace ? HSPMD_WORKSPACE_EACH : HSPMD_WORKSPACE_SAMPLES] =
	        type->workspace ? type->workspace(v, at_once) - of[HSPMD_WORKSPACE_WEIGHTS] : 0;
	of[HSPMD_WORKSPACE_MOST] = type->most_workspace ? type->most_workspace(v, at_once) : 0;
	for (int i = 0; i < HSPMD_WORKSPACES; i++)
		most[i] = fmax(most[i], of[i]);
}

static void add_attention(const struct hspmd_op_type *type, const struct hspmd_op_view *v, struct hspmd_attention_sizes *most)
{
	struct hspmd_attention_sizes a;
	if (!type->attention)
		return;
	type->attention(v, &a);
	if (a.heads * a.queries * a.keys > most->heads * most->queries * most->keys)
		*most = a;
}

static void add_operator(const struct hspmd_program *p, const struct hspmd_spmd_node *n, struct hspmd_probe_pass *pass)
{
	const struct hspmd_op_type *type = hspmd_op_types[p->graph->ops[n->op].opcode];
	struct hspmd_op_view v;
	double flops = 0, bytes = 0;
	if (!type->cost || !local_view(p, n, &v))
		return;
	type->cost(&v, &flops, &bytes);
	pass->flops += flops;
	if (type->fp8 && (!type->fp8_fits || type->fp8_fits(&v))) {
		pass->fp8 += flops;
		pass->fp8_experts += type->rows.choice ? flops : 0;
	}
	pass->bytes += bytes;
	pass->windows += type->windows ? type->windows(&v) : 0;
	pass->kernels++;
	add_attention(type, &v, &pass->attention);
	for (int at_once = 0; at_once < 2; at_once++)
		add_workspace(type, &v, at_once, pass->workspace[at_once]);
}

/* The operator of experts that alone reads a value, of which it needs only rows of its experts; NULL: there is none. All rows may be sent
 * nevertheless, by links on which that is cheaper. */
static const struct hspmd_op *reader_of_rows(const struct hspmd_program *p, int value)
{
	const struct hspmd_op *reader = NULL;
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		for (int k = 0; k < n->input_count; k++) {
			const struct hspmd_op *op = n->op < 0 ? NULL : &p->graph->ops[n->op];
			if (n->in[k] != value)
				continue;
			if (!op || !hspmd_op_types[op->opcode]->rows.choice || !(hspmd_op_types[op->opcode]->rows.in >> k & 1))
				return NULL;
			reader = op;
		}
	}
	return reader;
}

static bool is_local(const struct hspmd_transfer *t)
{
	for (int k = 0; k < t->step_count; k++)
		if (t->steps[k].kind != HSPMD_COMM_COPY && t->steps[k].kind != HSPMD_COMM_ZERO)
			return false;
	return true;
}

/* Returns true if the program's device holds less than all of the value. */
static bool is_part(const struct hspmd_program *p, const struct hspmd_value *v, const struct hspmd_shape *shape)
{
	struct hspmd_local_shard shard;
	return !hspmd_annotation_local_shard(v->annotation, shape, p->device, &shard) ||
	       hspmd_box_elements(&shard.box) < hspmd_shape_elements(shape);
}

/* Returns true if the annotation divides something other than positions, the dimension behind samples: heads, which are divided as weights
 * are. */
static bool divides_heads(const struct hspmd_annotation *a)
{
	for (int g = 0; g < a->hsize; g++)
		for (int i = 0; i < a->groups[g].split_count; i++)
			if (a->groups[g].splits[i].dim > 1)
				return true;
	return false;
}

/* Returns true if the program's devices gather parts of a tensor's sequence. */
static bool gathers(const struct hspmd_program *p, int tensor)
{
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		const struct hspmd_value *from = n->op < 0 ? &p->spmd->values[n->in[0]] : NULL;
		if (from && from->tensor == tensor && !hspmd_annotation_is_partial(from->annotation) && !divides_heads(from->annotation) &&
		    !is_local(n->transfer))
			return true;
	}
	return false;
}

/* Returns true if a device of the program's has only some heads of a tensor. */
static bool is_divided(const struct hspmd_program *p, int tensor)
{
	for (size_t i = 0; i < p->spmd->value_count; i++)
		if (p->spmd->values[i].tensor == tensor && divides_heads(p->spmd->values[i].annotation))
			return true;
	return false;
}

/* Parts of a sum are reduced, parts of a sequence are gathered. types: an equal graph, whose elements count. */
static void add_messages(const struct hspmd_program *p, const struct hspmd_spmd_node *n, const struct hspmd_graph *types,
                         const struct hspmd_probe_others *others, struct hspmd_facts_messages *to)
{
	const struct hspmd_value *from = &p->spmd->values[n->in[0]];
	const struct hspmd_tensor *t = &p->graph->tensors[from->tensor];
	double bytes = (double)hspmd_shape_elements(&t->shape) * (double)hspmd_dtype_bytes(types->tensors[from->tensor].dtype);
	bool sum = hspmd_annotation_is_partial(from->annotation);
	enum hspmd_facts_message kind = !sum                                                 ? HSPMD_FACTS_GATHERED
	                                : is_part(p, &p->spmd->values[n->out[0]], &t->shape) ? HSPMD_FACTS_SCATTERED
	                                                                                     : HSPMD_FACTS_REDUCED;
	const struct hspmd_expert_rows *rows = sum ? from->annotation->rows : NULL;
	const struct hspmd_op *reader = sum ? NULL : reader_of_rows(p, n->out[0]);
	if (is_local(n->transfer))
		return;
	struct hspmd_facts_tensors one = { .kind = kind, .count = 1, .bytes = bytes };
	one.by_share = divides_heads(sum ? p->spmd->values[n->out[0]].annotation : from->annotation);
	one.by_all = others->sequence && !sum && !one.by_share && gathers(others->sequence, from->tensor);
	one.whole = others->heads && !is_divided(others->heads, from->tensor);
	if (rows || reader) {
		one.experts = rows ? (int)rows->count : reader->attr.experts;
		one.per_token = rows ? rows->per_token : reader->attr.experts_per_token;
	}
	hspmd_facts_messages_add(to, &one);
}

/* The layer whose node first computes each value; -1: none does. The caller frees it. NULL and err: memory. */
static int *layers_of_values(const struct hspmd_program *p, struct hspmd_error *err)
{
	int *layer = hspmd_calloc(p->spmd->value_count + 1, sizeof *layer);
	if (!layer) {
		hspmd_fail_memory(err, "probing a model's work");
		return NULL;
	}
	for (size_t v = 0; v < p->spmd->value_count; v++)
		layer[v] = -1;
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		for (int k = 0; k < n->output_count; k++)
			if (n->out[k] >= 0 && layer[n->out[k]] < 0)
				layer[n->out[k]] = n->layer;
	}
	return layer;
}

/* A sum counts for the layer that computes its parts, even if they are put together only for the next one, or are a gradient of the layer
 * before; what is gathered, for the layer that reads it. made_in: by value, layers_of_values. */
static int layer_of_messages(const struct hspmd_program *p, const struct hspmd_spmd_node *n, const int *made_in)
{
	bool sum = hspmd_annotation_is_partial(p->spmd->values[n->in[0]].annotation);
	return sum && made_in[n->in[0]] >= 0 ? made_in[n->in[0]] : n->layer;
}

int hspmd_probe_work(const struct hspmd_program *p, const struct hspmd_probe_others *others, struct hspmd_probe_pass (*passes)[2],
                     struct hspmd_error *err)
{
	int *made_in = layers_of_values(p, err);
	if (!made_in)
		return -1;
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		if (n->op >= 0)
			add_operator(p, n, &passes[n->layer][n->backward]);
		else
			add_messages(p, n, others->types ? others->types : p->graph, others,
			             &passes[layer_of_messages(p, n, made_in)][n->backward].messages);
	}
	free(made_in);
	return 0;
}

/* The operator's products on the program's device. Returns false if there are none. */
static bool product_of(const struct hspmd_program *p, const struct hspmd_spmd_node *n, double *extent, double *rows)
{
	struct hspmd_op_view v;
	const struct hspmd_op_type *type = n->op < 0 ? NULL : hspmd_op_types[p->graph->ops[n->op].opcode];
	if (!type || !type->product || !local_view(p, n, &v))
		return false;
	type->product(&v, extent, rows);
	return true;
}

int hspmd_probe_products(const struct hspmd_program *whole, const struct hspmd_program *divided, struct hspmd_layer_facts *layers,
                         struct hspmd_error *err)
{
	size_t ops = whole->graph->op_count;
	double *half = hspmd_calloc(ops + 1, sizeof *half), extent, rows;
	if (!half)
		return hspmd_fail_memory(err, "probing a model's products");
	bool alike = divided && divided->graph->op_count == ops;
	for (size_t i = 0; alike && i < divided->spmd->node_count; i++)
		if (product_of(divided, &divided->spmd->nodes[i], &extent, &rows))
			half[divided->spmd->nodes[i].op] = extent;
	for (size_t i = 0; i < whole->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &whole->spmd->nodes[i];
		struct hspmd_layer_products *most = &layers[n->layer].products;
		if (!product_of(whole, n, &extent, &rows))
			continue;
		double *of = alike && half[n->op] < extent ? &most->sharded : &most->whole;
		*of = fmax(*of, extent);
		most->positions = fmax(most->positions, rows);
	}
	free(half);
	return 0;
}

/* The graph's operator that an instruction runs, -1: none. */
static int operator_of(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	if (in->kind != HSPMD_INSTRUCTION_RUN || !in->attr)
		return -1;
	for (size_t i = 0; i < p->graph->op_count; i++)
		if (&p->graph->ops[i].attr == in->attr)
			return (int)i;
	return -1;
}

/* The Reshard that the instruction begins; NULL: there is none. */
static const struct hspmd_spmd_node *reshard_begun(const struct hspmd_program *p, size_t instruction)
{
	const struct hspmd_instruction *in = &p->instructions[instruction], *before = instruction ? in - 1 : NULL;
	bool goes_on = before && before->kind == in->kind && before->transfer == in->transfer && before->step < in->step;
	if (in->kind != HSPMD_INSTRUCTION_COMM || goes_on)
		return NULL;
	int tensor = p->slot_types[p->slots[in->in[0] < 0 ? in->out[0] : in->in[0]].slot_type].tensor;
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		if (n->op < 0 && n->transfer == in->transfer && p->spmd->values[n->in[0]].tensor == tensor)
			return n;
	}
	return NULL;
}

int hspmd_probe_again(const struct hspmd_program *p, const struct hspmd_program *recomputed, const struct hspmd_probe_others *others,
                      struct hspmd_probe_pass *passes, struct hspmd_error *err)
{
	int *made_in = layers_of_values(recomputed, err);
	bool *repeated = made_in ? hspmd_calloc(p->graph->op_count + 1, sizeof *repeated) : NULL;
	if (!repeated) {
		free(made_in);
		return hspmd_fail_memory(err, "probing a model's work");
	}
	for (size_t i = 0; i < recomputed->instruction_count; i++) {
		const struct hspmd_instruction *in = &recomputed->instructions[i];
		if (in->micro_batch != 0 || in->backward || in->schedule_index != 1) /* of the first forward pass: entry 0 */
			continue;
		int op = operator_of(recomputed, in);
		const struct hspmd_spmd_node *reshard = op < 0 ? reshard_begun(recomputed, i) : NULL;
		if (op >= 0)
			repeated[op] = true;
		else if (reshard)
			add_messages(recomputed, reshard, p->graph, others,
			             &passes[layer_of_messages(recomputed, reshard, made_in)].messages);
	}
	for (size_t i = 0; i < p->spmd->node_count; i++) {
		const struct hspmd_spmd_node *n = &p->spmd->nodes[i];
		if (n->op >= 0 && !n->backward && repeated[n->op])
			add_operator(p, n, &passes[n->layer]);
	}
	free(made_in);
	free(repeated);
	return 0;
}
