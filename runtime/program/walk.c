/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a walk's values. */
#include "runtime/program/walk.h"

static int value_slot_type(struct hspmd_walk *w, int value)
{
	struct hspmd_program *p = w->p;
	if (w->slot_type_of[value] >= 0)
		return w->slot_type_of[value];
	const struct hspmd_value *v = &p->spmd->values[value];
	const struct hspmd_tensor *t = &p->graph->tensors[v->tensor];
	struct hspmd_local_shard shard;
	if (!hspmd_annotation_local_shard(v->annotation, &t->shape, p->device, &shard))
		return -1;
	struct hspmd_slot_type slot_type = {
		.tensor = v->tensor, .dtype = t->dtype, .box = shard.box, .full = t->shape, .annotation = v->annotation
	};
	return w->slot_type_of[value] = hspmd_program_add_slot_type(p, &slot_type, w->err);
}

bool hspmd_walk_is_first(const struct hspmd_program *p, int value)
{
	const struct hspmd_value *v = &p->spmd->values[value];
	enum hspmd_tensor_role role = p->graph->tensors[v->tensor].role;
	return (role == HSPMD_TENSOR_PARAMETER || role == HSPMD_TENSOR_PARAMETER_GRADIENT || role == HSPMD_TENSOR_LOSS) &&
	       hspmd_spmd_value(p->spmd, v->tensor, v->stage) == value;
}

bool hspmd_walk_is_fixed(const struct hspmd_walk *w, int value)
{
	return hspmd_walk_is_first(w->p, value) && !w->in_parts[w->p->spmd->values[value].tensor];
}

int hspmd_walk_root(const struct hspmd_spmd *s, int value)
{
	while (s->values[value].same_as >= 0)
		value = s->values[value].same_as;
	return value;
}

int hspmd_walk_new_slot(struct hspmd_walk *w, int value, int micro_batch)
{
	struct hspmd_program *p = w->p;
	int slot_type = value_slot_type(w, value);
	if (slot_type < 0)
		return hspmd_annotation_local_shard(p->spmd->values[value].annotation,
		                                    &p->graph->tensors[p->spmd->values[value].tensor].shape, p->device,
		                                    &(struct hspmd_local_shard){ 0 })
		               ? -2
		               : -1;
	int tensor = p->spmd->values[value].tensor;
	if (hspmd_walk_is_fixed(w, value)) {
		if (p->fixed_of_tensor[tensor] < 0)
			p->fixed_of_tensor[tensor] = hspmd_program_add_slot(p, slot_type, HSPMD_ARENA_FIXED, -1, w->err);
		return p->fixed_of_tensor[tensor] < 0 ? -2 : p->fixed_of_tensor[tensor];
	}
	int slot = hspmd_program_add_slot(p, slot_type, HSPMD_ARENA_TRANSIENT, micro_batch, w->err);
	if (slot < 0)
		return -2;
	w->slot_of[(size_t)micro_batch * p->spmd->value_count + (size_t)value] = slot;
	return slot;
}

/* Tokens and targets are read when they are first used. */
static int read_input(struct hspmd_walk *w, int value, int micro_batch)
{
	int slot = hspmd_walk_new_slot(w, value, micro_batch);
	struct hspmd_instruction *i = slot < 0 ? NULL : hspmd_program_add_instruction(w->p, HSPMD_INSTRUCTION_READ, w->err);
	if (!i)
		return -2;
	i->micro_batch = micro_batch;
	i->layer = w->p->graph->tensors[w->p->spmd->values[value].tensor].layer;
	i->output_count = 1;
	i->out[0] = slot;
	return slot;
}

int hspmd_walk_old_slot(struct hspmd_walk *w, int value, int micro_batch)
{
	struct hspmd_program *p = w->p;
	value = hspmd_walk_root(p->spmd, value);
	const struct hspmd_tensor *t = &p->graph->tensors[p->spmd->values[value].tensor];
	if (hspmd_walk_is_fixed(w, value))
		return hspmd_walk_new_slot(w, value, micro_batch);
	int slot = w->slot_of[(size_t)micro_batch * p->spmd->value_count + (size_t)value];
	if (slot < 0 && t->role == HSPMD_TENSOR_INPUT)
		return read_input(w, value, micro_batch);
	return slot;
}

bool hspmd_walk_has_node(const struct hspmd_walk *w, const struct hspmd_schedule_entry *entry, size_t node)
{
	return w->p->spmd->nodes[node].backward == (entry->backward || entry->weights) && w->weights[node] == entry->weights;
}

int *hspmd_walk_slot(const struct hspmd_walk *w, int value, int micro_batch)
{
	return &w->slot_of[(size_t)micro_batch * w->p->spmd->value_count + (size_t)value];
}
