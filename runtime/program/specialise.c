/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches' part of a program: progressive specialisation of the pipeline's nodes to the instructions of one device (HSPMD,
 * arXiv 2504.20490, section 6), unrolled over the schedule's entries. Recomputation (arXiv 1604.06174; selective: arXiv 2205.05198,
 * section 5; of the operators that a plan lists) runs forward nodes of a block again, into new slots, right before the block's backward
 * pass; the slots of the first run are then free early, because nothing reads them any more.
 */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/schedule.h"
#include "runtime/op/op.h"
#include "runtime/program/walk.h"

/* The index of the schedule entry that runs a pass of this stage on its pipeline rank. */
static int *index_of(const struct hspmd_walk *w, bool backward, int stage, int micro_batch)
{
	const struct hspmd_program *p = w->p;
	int rank = stage % p->pipeline_ranks, chunk = stage / p->pipeline_ranks;
	return &w->index_of[((rank * 2 + backward) * p->chunks + chunk) * p->micro_batches + micro_batch];
}

/* Returns true if the node computes in a block: not in the embedding, nor in the head. */
static bool is_in_block(const struct hspmd_walk *w, const struct hspmd_spmd_node *n)
{
	const struct hspmd_pipeline *pipeline = &w->plan->pipelines[w->p->pipeline];
	return n->layer >= 1 && n->layer < pipeline->stages[pipeline->stage_count - 1].layers[1] - 1;
}

/* Does the plan offload this result of the node? What runs again is saved for no other pass. All activations include the embedding's
 * result, which the first block saves as other blocks save that of the block before. */
static void mark_offloaded(struct hspmd_walk *w, const struct hspmd_spmd_node *n, int slot)
{
	struct hspmd_slot *s = slot < 0 ? NULL : &w->p->slots[slot];
	int what = w->plan->pipelines[w->p->pipeline].stages[n->stage].offload_activations;
	if (!s || !what || s->memory != HSPMD_ARENA_TRANSIENT || n->backward || w->recomputed ||
	    (!is_in_block(w, n) && !(what == HSPMD_OFFLOAD_ALL && !n->layer)))
		return;
	s->offloads = what == HSPMD_OFFLOAD_ALL || (n->op >= 0 && w->offloaded[n->op] >> (what - HSPMD_OFFLOAD_SET) & 1);
}

static int run_reshard(struct hspmd_walk *w, size_t number, int micro_batch)
{
	const struct hspmd_spmd_node *n = &w->p->spmd->nodes[number];
	int from = w->p->spmd->values[n->in[0]].stage, ranks = w->p->pipeline_ranks;
	struct hspmd_transfer_binding route = {
		.tensor = w->p->spmd->values[n->in[0]].tensor,
		.dtype = w->p->graph->tensors[w->p->spmd->values[n->in[0]].tensor].dtype,
		.micro_batch = micro_batch,
		.layer = n->layer,
		.backward = n->backward,
		.recomputed = w->recomputed,
		.number = number,
		.choice = n->input_count > 1 ? hspmd_walk_old_slot(w, n->in[1], micro_batch) : -1,
		.peer_pipeline_rank = -1,
	};
	if (from % ranks != n->stage % ranks) {
		route.sends = hspmd_program_in_stage(w->p, from);
		route.peer_pipeline_rank = (route.sends ? n->stage : from) % ranks;
		route.peer_schedule_index = *index_of(w, n->backward, route.sends ? n->stage : from, micro_batch);
	}
	route.in = hspmd_walk_old_slot(w, n->in[0], micro_batch);
	route.out = hspmd_layout_find(&n->transfer->layout[n->transfer->value_count - 1], w->p->device) < 0
	                    ? -1
	                    : hspmd_walk_new_slot(w, n->out[0], micro_batch);
	if (route.in == -2 || route.out == -2 || route.choice == -2)
		return -1;
	mark_offloaded(w, n, route.out);
	return hspmd_program_add_transfer(w->p, n->transfer, &route, w->err);
}

/* Returns true if another operator of the layer has added to a gradient of which only parts are kept. */
static bool adds_again(const struct hspmd_walk *w, int value, int micro_batch)
{
	return hspmd_walk_is_first(w->p, value) && !hspmd_walk_is_fixed(w, value) && *hspmd_walk_slot(w, value, micro_batch) >= 0;
}

static int run_op(struct hspmd_walk *w, const struct hspmd_spmd_node *n, int micro_batch)
{
	struct hspmd_program *p = w->p;
	const struct hspmd_op *op = &p->graph->ops[n->op];
	struct hspmd_instruction made = { .opcode = op->opcode, .input_count = n->input_count, .output_count = n->output_count };
	for (int k = 0; k < n->input_count; k++) {
		made.in[k] = n->in[k] < 0 ? -1 : hspmd_walk_old_slot(w, n->in[k], micro_batch);
		if (made.in[k] == -2)
			return -1;
		if (n->in[k] >= 0 && made.in[k] < 0)
			return hspmd_fail(w->err, "operator %s: input %d (%s) is not on device %d", hspmd_opcode_names[op->opcode], k,
			                  p->graph->tensors[op->in[k]].name, p->device);
	}
	for (int k = 0; k < n->output_count; k++) {
		bool there = (n->accumulate >> k & 1) || (n->out[k] >= 0 && adds_again(w, n->out[k], micro_batch));
		made.out[k] = n->out[k] < 0 ? -1
		              : there       ? hspmd_walk_old_slot(w, n->out[k], micro_batch)
		                            : hspmd_walk_new_slot(w, n->out[k], micro_batch);
		made.accumulate |= (unsigned)there << k;
		if (made.out[k] == -2)
			return -1;
		mark_offloaded(w, n, made.out[k]);
		if (made.out[k] >= 0 && p->slots[made.out[k]].memory == HSPMD_ARENA_FIXED) {
			bool *written = &w->written[p->spmd->values[n->out[k]].tensor];
			made.accumulate |= (unsigned)*written << k;
			*written = true;
		}
	}
	struct hspmd_instruction *i = hspmd_program_add_instruction(p, HSPMD_INSTRUCTION_RUN, w->err);
	if (!i)
		return -1;
	made.kind = i->kind;
	made.schedule_index = i->schedule_index;
	made.micro_batch = micro_batch;
	made.layer = n->layer;
	made.backward = n->backward;
	made.attr = &op->attr;
	*i = made;
	return 0;
}

static bool is_skipped(const struct hspmd_walk *w, const struct hspmd_spmd_node *n)
{
	const struct hspmd_stage *stage = &w->plan->pipelines[w->p->pipeline].stages[n->stage];
	for (int d = 0; d < n->skip_devices; d++)
		if (stage->devices[d] == w->p->device)
			return true;
	return false;
}

/* Run a node in one stage's schedule entry. A transfer is received in an entry of the destination stage and sent in an entry of the
 * source stage. */
static int run_node(struct hspmd_walk *w, size_t number, int stage, int micro_batch)
{
	const struct hspmd_spmd_node *n = &w->p->spmd->nodes[number];
	if (n->op >= 0)
		return n->stage == stage && !is_skipped(w, n) ? run_op(w, n, micro_batch) : 0;
	bool receives = hspmd_layout_find(&n->transfer->layout[n->transfer->value_count - 1], w->p->device) >= 0;
	bool sends = hspmd_layout_find(&n->transfer->layout[0], w->p->device) >= 0;
	int in = receives ? n->stage : sends ? w->p->spmd->values[n->in[0]].stage : -1;
	return in == stage ? run_reshard(w, number, micro_batch) : 0;
}

/* ---- recomputation */

/* An operator's name in one of the plan's lists. */
struct listed {
	const char *name;
	size_t set;
	bool found;
};

/* Add the operator to the sets that list it, by its own name or by that of its weight. */
static void find_op(const struct hspmd_graph *g, const struct hspmd_op *op, struct listed *names, size_t count, unsigned char *sets)
{
	char weight[256];
	bool has_weight = hspmd_graph_op_weight(g, op, weight, sizeof weight);
	for (size_t i = 0; i < count; i++)
		if (!strcmp(names[i].name, hspmd_opcode_names[op->opcode]) || (has_weight && !strcmp(names[i].name, weight))) {
			*sets |= (unsigned char)(1u << names[i].set);
			names[i].found = true;
		}
}

/* The names by which operators could be listed, for an error. */
static void list_names(const struct hspmd_graph *g, char *text, size_t size)
{
	size_t used = 0;
	text[0] = '\0';
	for (int code = 0; code < HSPMD_OP_COUNT; code++)
		for (size_t i = 0; i < g->op_count && used < size; i++)
			if ((int)g->ops[i].opcode == code && hspmd_graph_op_repeats(g, &g->ops[i])) {
				used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", hspmd_opcode_names[code]);
				break;
			}
}

/* Find which operators the plan's lists under this key have. Each name must be that of some forward operator. *out: the sets of each
 * operator; NULL: there are none. The caller frees it. */
static int find_sets(struct hspmd_walk *w, const char *key, const json_t *sets, unsigned char **out)
{
	const struct hspmd_graph *g = w->p->graph;
	size_t count = 0, at = 0;
	int status = 0;
	for (size_t s = 0; s < json_array_size(sets); s++)
		count += json_array_size(json_array_get(sets, s));
	if (!json_array_size(sets))
		return 0;
	struct listed *names = hspmd_calloc(count + 1, sizeof *names);
	*out = hspmd_calloc(g->op_count + 1, sizeof **out);
	if (!names || !*out)
		status = hspmd_fail_memory(w->err, "specialising");
	for (size_t s = 0; !status && s < json_array_size(sets); s++)
		for (size_t n = 0; n < json_array_size(json_array_get(sets, s)); n++)
			names[at++] = (struct listed){ json_string_value(json_array_get(json_array_get(sets, s), n)), s, false };
	for (size_t i = 0; !status && i < g->op_count; i++)
		if (hspmd_graph_op_repeats(g, &g->ops[i]))
			find_op(g, &g->ops[i], names, count, &(*out)[i]);
	for (size_t i = 0; !status && i < count; i++) {
		char there[400];
		if (names[i].found)
			continue;
		list_names(g, there, sizeof there);
		status = hspmd_fail(w->err,
		                    "%s: the model has no operator \"%s\" that a stage can list; it has %s, and those named after "
		                    "the weight of a block that they multiply with",
		                    key, names[i].name, there);
	}
	free(names);
	return status;
}

/* Returns true if this forward node may run again: only in blocks, and only if no other stage takes part and nothing accumulates. */
static bool can_rerun(const struct hspmd_walk *w, const struct hspmd_spmd_node *n)
{
	const struct hspmd_program *p = w->p;
	const struct hspmd_pipeline *pipeline = &w->plan->pipelines[p->pipeline];
	enum hspmd_recompute recompute = pipeline->stages[n->stage].recompute;
	if (n->backward || !hspmd_program_in_stage(p, n->stage) || !is_in_block(w, n) || recompute == HSPMD_RECOMPUTE_NONE)
		return false;
	if (n->op < 0)
		return recompute == HSPMD_RECOMPUTE_FULL && p->spmd->values[hspmd_walk_root(p->spmd, n->in[0])].stage == n->stage;
	const struct hspmd_op *op = &p->graph->ops[n->op];
	if (!hspmd_graph_op_repeats(p->graph, op))
		return false;
	if (recompute == HSPMD_RECOMPUTE_SELECTIVE)
		return hspmd_op_types[op->opcode]->cheap;
	return recompute == HSPMD_RECOMPUTE_FULL || (w->in_sets && w->in_sets[n->op] >> (recompute - HSPMD_RECOMPUTE_SET) & 1);
}

/* Mark the forward nodes of a block whose results its backward pass needs, directly or indirectly. */
static void mark_wanted(struct hspmd_walk *w, int layer, bool *needed)
{
	const struct hspmd_spmd *s = w->p->spmd;
	memset(needed, 0, s->value_count * sizeof *needed);
	for (size_t i = 0; i < s->node_count; i++)
		for (int k = 0; s->nodes[i].backward && s->nodes[i].layer == layer && k < s->nodes[i].input_count; k++)
			if (s->nodes[i].in[k] >= 0)
				needed[hspmd_walk_root(s, s->nodes[i].in[k])] = true;
	for (size_t i = s->node_count; i-- > 0;) {
		const struct hspmd_spmd_node *n = &s->nodes[i];
		if (n->layer != layer || n->backward)
			continue;
		w->wanted[i] = false;
		for (int k = 0; can_rerun(w, n) && k < n->output_count; k++)
			w->wanted[i] |= n->out[k] >= 0 && needed[n->out[k]];
		for (int k = 0; w->wanted[i] && k < n->input_count; k++)
			if (n->in[k] >= 0)
				needed[hspmd_walk_root(s, n->in[k])] = true;
	}
}

static int rerun(struct hspmd_walk *w, int stage, int layer, int micro_batch)
{
	const struct hspmd_spmd *s = w->p->spmd;
	w->recomputed = true;
	for (size_t i = 0; i < s->node_count; i++)
		if (s->nodes[i].layer == layer && !s->nodes[i].backward && w->wanted[i] && run_node(w, i, stage, micro_batch))
			return -1;
	w->recomputed = false;
	return 0;
}

/* ---- schedule entries */

/* Mark nodes that only add to gradients of parameters, which are not read before the step's end. */
static int mark_weights(struct hspmd_walk *w)
{
	const struct hspmd_spmd *s = w->p->spmd;
	bool *read = hspmd_calloc(s->value_count, sizeof *read);
	if (!read)
		return hspmd_fail_memory(w->err, "specialising");
	for (size_t i = 0; i < s->node_count; i++)
		for (int k = 0; k < s->nodes[i].input_count; k++)
			if (s->nodes[i].in[k] >= 0)
				read[hspmd_walk_root(s, s->nodes[i].in[k])] = true;
	for (size_t i = 0; i < s->node_count; i++) {
		const struct hspmd_spmd_node *n = &s->nodes[i];
		w->weights[i] = n->op >= 0 && n->backward;
		for (int k = 0; w->weights[i] && k < n->output_count; k++)
			w->weights[i] = n->out[k] < 0 || (hspmd_walk_is_first(w->p, n->out[k]) && !read[n->out[k]]);
	}
	free(read);
	return 0;
}

static int run_entry(struct hspmd_walk *w, const struct hspmd_schedule_entry *entry)
{
	const struct hspmd_spmd *s = w->p->spmd;
	int layer = -1, stage = w->p->stage + entry->chunk * w->p->pipeline_ranks;
	for (size_t i = 0; i < s->node_count; i++) {
		const struct hspmd_spmd_node *n = &s->nodes[i];
		if (!hspmd_walk_has_node(w, entry, i))
			continue;
		if (w->sharded_count && n->stage == stage && n->layer != w->layer &&
		    hspmd_walk_enter_layer(w, n->layer, entry->micro_batch, n->backward))
			return -1;
		if (entry->backward && n->stage == stage && n->layer != layer) {
			layer = n->layer;
			if (rerun(w, stage, layer, entry->micro_batch))
				return -1;
		}
		if (run_node(w, i, stage, entry->micro_batch))
			return -1;
	}
	if (hspmd_walk_enter_layer(w, -1, entry->micro_batch, entry->backward))
		return -1;
	w->p->schedule_index++;
	return 0;
}

/* Find the parts of the loss that this device counts. */
static int find_losses(struct hspmd_walk *w)
{
	struct hspmd_program *p = w->p;
	for (size_t t = 0; t < p->graph->tensor_count; t++) {
		int value = p->fixed_of_tensor[t] >= 0 ? p->spmd->first_value[t] : -1; /* a loss is computed in one stage */
		struct hspmd_local_shard shard;
		if (value < 0 || p->graph->tensors[t].role != HSPMD_TENSOR_LOSS ||
		    !hspmd_annotation_local_shard(p->spmd->values[value].annotation, &p->graph->tensors[t].shape, p->device, &shard) ||
		    shard.replica)
			continue;
		if (p->loss_count == HSPMD_PROGRAM_MAX_LOSSES)
			return hspmd_fail(w->err, "more than %d parts of the loss in one stage", HSPMD_PROGRAM_MAX_LOSSES);
		p->loss[p->loss_count++] = p->fixed_of_tensor[t];
	}
	return 0;
}

/* Index the schedule entries of all ranks by the pass that they run; leaves this device's own in `entries`. */
static void index_entries(struct hspmd_walk *w, struct hspmd_schedule_entry *entries)
{
	const struct hspmd_program *p = w->p;
	for (int i = 0; i < p->pipeline_ranks; i++) {
		int rank_number = (p->stage + 1 + i) % p->pipeline_ranks; /* own rank last, so that its entries stay in `entries` */
		struct hspmd_pipeline_rank rank = { rank_number, p->pipeline_ranks, p->chunks, p->micro_batches };
		hspmd_schedule(w->plan->schedule, &rank, entries);
		for (int t = 0; t < hspmd_schedule_length(w->plan->schedule, &rank); t++)
			if (!entries[t].weights)
				*index_of(w, entries[t].backward, rank_number + entries[t].chunk * p->pipeline_ranks,
				          entries[t].micro_batch) = t;
	}
}

static int walk_entries(struct hspmd_walk *w)
{
	struct hspmd_program *p = w->p;
	const struct hspmd_pipeline *pipeline = &w->plan->pipelines[p->pipeline];
	struct hspmd_pipeline_rank rank = { p->stage, p->pipeline_ranks, p->chunks, p->micro_batches };
	int entry_count = hspmd_schedule_length(w->plan->schedule, &rank), status = 0;
	w->index_of = hspmd_calloc(2 * (size_t)(p->micro_batches * p->chunks) * (size_t)p->pipeline_ranks, sizeof *w->index_of);
	struct hspmd_schedule_entry *entries = hspmd_calloc((size_t)entry_count, sizeof *entries);
	bool *needed = hspmd_calloc(p->spmd->value_count, sizeof *needed);
	if (!entries || !needed || !w->index_of)
		status = hspmd_fail_memory(w->err, "specialising");
	for (int s = p->stage; !status && s < pipeline->stage_count; s += p->pipeline_ranks)
		for (int l = pipeline->stages[s].layers[0];
		     pipeline->stages[s].recompute != HSPMD_RECOMPUTE_NONE && l < pipeline->stages[s].layers[1]; l++)
			mark_wanted(w, l, needed);
	if (!status && w->plan->schedule == HSPMD_SCHEDULE_ZB_H1)
		status = mark_weights(w);
	if (!status) {
		index_entries(w, entries);
		status = hspmd_walk_find_visits(w, entries, entry_count);
	}
	for (int t = 0; !status && t < entry_count; t++)
		status = run_entry(w, &entries[t]);
	free(entries);
	free(needed);
	return status ? status : find_losses(w);
}

int hspmd_program_specialise(struct hspmd_program *p, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	if (p->spmd->node_count >= HSPMD_PROGRAM_STEP_TRANSFERS || p->graph->tensor_count >= HSPMD_PROGRAM_STEP_TRANSFERS / 2)
		return hspmd_fail(err, "the graph has more than %d operators", (int)HSPMD_PROGRAM_STEP_TRANSFERS);
	size_t values = p->spmd->value_count, cells = values * (size_t)p->micro_batches, tensors = p->graph->tensor_count;
	struct hspmd_walk w = {
		.p = p,
		.plan = plan,
		.err = err,
		.layer = -1,
		.slot_of = malloc((cells + 1) * sizeof(int)),
		.slot_type_of = malloc((values + 1) * sizeof(int)),
		.written = hspmd_calloc(tensors, sizeof(bool)),
		.in_parts = hspmd_calloc(tensors, sizeof(bool)),
		.wanted = hspmd_calloc(p->spmd->node_count, sizeof(bool)),
		.weights = hspmd_calloc(p->spmd->node_count, sizeof(bool)),
	};
	p->fixed_of_tensor = malloc((tensors + 1) * sizeof(int));
	int status = -1;
	if (!w.slot_of || !w.slot_type_of || !w.written || !w.in_parts || !w.wanted || !w.weights || !p->fixed_of_tensor) {
		hspmd_fail_memory(err, "specialising");
	} else {
		memset(w.slot_of, -1, cells * sizeof(int));
		memset(w.slot_type_of, -1, values * sizeof(int));
		memset(p->fixed_of_tensor, -1, tensors * sizeof(int));
		status = find_sets(&w, "recompute", plan->recompute_sets, &w.in_sets) ||
		                         find_sets(&w, "offload_activations", plan->offload_sets, &w.offloaded) ||
		                         (p->stage >= 0 && (hspmd_walk_find_sharded(&w) || walk_entries(&w)))
		                 ? -1
		                 : 0;
	}
	free(w.slot_of);
	free(w.slot_type_of);
	free(w.written);
	free(w.in_parts);
	free(w.wanted);
	free(w.weights);
	free(w.index_of);
	free(w.in_sets);
	free(w.offloaded);
	free(w.sharded);
	free(w.visits);
	free(w.joined);
	return status;
}
