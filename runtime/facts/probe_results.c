/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators of a model's blocks save, by the names under which a plan lists them for offloading.
 *
 * In the reduced model the first block reads the embedding's result, where all blocks but the first of the whole model read that of the
 * block before: the embedding's result goes by the name of the operator that makes a block's. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/facts/facts_internal.h"
#include "runtime/op/op.h"

#define NAME_BYTES 256

static int last_layer(const struct hspmd_graph *g)
{
	int last = 0;
	for (size_t i = 0; i < g->op_count; i++)
		last = g->ops[i].layer > last ? g->ops[i].layer : last;
	return last;
}

static bool is_read_by(const struct hspmd_graph *g, const struct hspmd_op *op, int layer)
{
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; !g->ops[i].backward && g->ops[i].layer == layer && k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] >= 0 && g->tensors[g->ops[i].in[k]].producer >= 0 &&
			    &g->ops[g->tensors[g->ops[i].in[k]].producer] == op)
				return true;
	return false;
}

/* The operator that makes a block's result; NULL: there is no block. */
static const struct hspmd_op *maker_of_result(const struct hspmd_graph *g, int last)
{
	for (size_t i = 0; last > 1 && i < g->op_count; i++)
		if (!g->ops[i].backward && g->ops[i].layer == last - 1 && is_read_by(g, &g->ops[i], last))
			return &g->ops[i];
	return NULL;
}

static bool is_named(const struct hspmd_saved_results *r, const char *op, const char *weight)
{
	return !strcmp(r->op, op) && (r->weight ? weight && !strcmp(r->weight, weight) : !weight);
}

static int find(const struct hspmd_model_facts *f, const struct hspmd_graph *g, const struct hspmd_op *op, int kind, bool of_block_before)
{
	char name[NAME_BYTES];
	const char *weight = hspmd_graph_op_weight(g, op, name, sizeof name) ? name : NULL;
	for (int i = 0; i < f->result_count; i++)
		if (f->results[i].kind == kind && f->results[i].of_block_before == of_block_before &&
		    is_named(&f->results[i], hspmd_opcode_names[op->opcode], weight))
			return i;
	return -1;
}

static int add(struct hspmd_model_facts *f, size_t *capacity, const struct hspmd_graph *g, const struct hspmd_op *op, int kind,
               bool of_block_before)
{
	char name[NAME_BYTES];
	if (find(f, g, op, kind, of_block_before) >= 0)
		return 0;
	if (hspmd_array_grow(&f->results, capacity, (size_t)f->result_count, sizeof *f->results))
		return -1;
	struct hspmd_saved_results *r = &f->results[f->result_count++];
	bool weighs = hspmd_graph_op_weight(g, op, name, sizeof name);
	*r = (struct hspmd_saved_results){ .kind = kind,
		                           .op = strdup(hspmd_opcode_names[op->opcode]),
		                           .weight = weighs ? strdup(name) : NULL,
		                           .of_block_before = of_block_before };
	return r->op && (!weighs || r->weight) ? 0 : -1;
}

int hspmd_probe_list_results(const struct hspmd_graph *g, struct hspmd_model_facts *facts, struct hspmd_error *err)
{
	int last = last_layer(g);
	size_t capacity = 0;
	for (size_t i = 0; i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		if (op->backward || op->layer < 1 || op->layer >= last || !hspmd_graph_op_repeats(g, op))
			continue;
		int failed = add(facts, &capacity, g, op, op->layer, false);
		for (int kind = 1; !failed && kind < last; kind++)
			failed = add(facts, &capacity, g, op, kind, true);
		if (failed)
			return hspmd_fail_memory(err, "probing a model's memory");
	}
	return 0;
}

/* Returns true if an operator writes the slot, or a sum of what an operator of the first layer computes in parts. */
static bool is_result(const struct hspmd_instruction *made_by, int layer)
{
	if (made_by->kind == HSPMD_INSTRUCTION_RUN)
		return true;
	return !layer && made_by->kind == HSPMD_INSTRUCTION_COMM && made_by->transfer->steps[made_by->step].kind != HSPMD_COMM_ALL_GATHER;
}

int hspmd_probe_result(const struct hspmd_program *p, const struct hspmd_model_facts *facts, size_t slot,
                       const struct hspmd_instruction *made_by, int layer)
{
	const struct hspmd_graph *g = p->graph;
	int tensor = p->slot_types[p->slots[slot].slot_type].tensor, producer = tensor < 0 ? -1 : g->tensors[tensor].producer,
	    last = last_layer(g);
	const struct hspmd_op *op = producer < 0 ? NULL : &g->ops[producer];
	if (!op || !is_result(made_by, op->layer) || layer < 1 || layer >= last)
		return -1;
	bool before = op->layer < layer;
	op = op->layer ? op : maker_of_result(g, last);
	return op ? find(facts, g, op, layer, before) : -1;
}

static bool is_saved(const struct hspmd_saved_results *r)
{
	const struct hspmd_facts_amount *bytes = &r->bytes[0][0][0][0][0];
	for (size_t i = 0; i < sizeof r->bytes / sizeof *bytes; i++)
		if (bytes[i].whole != 0 || bytes[i].by_share != 0 || bytes[i].by_context != 0 || bytes[i].by_both != 0)
			return true;
	return false;
}

void hspmd_probe_drop_results(struct hspmd_model_facts *facts)
{
	int kept = 0;
	for (int i = 0; i < facts->result_count; i++) {
		struct hspmd_saved_results *r = &facts->results[i];
		if (is_saved(r)) {
			facts->results[kept++] = *r;
			continue;
		}
		free(r->op);
		free(r->weight);
	}
	facts->result_count = kept;
}
