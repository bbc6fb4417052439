/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/program.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/comm/comm.h"
#include "runtime/op/op.h"
#include "runtime/program/parameter_layout.h"

size_t hspmd_program_slot_type_bytes(const struct hspmd_slot_type *t)
{
	int64_t elements = hspmd_box_elements(&t->box);
	int last = t->box.rank - 1;
	if (t->row_stride)
		elements = elements / (t->box.hi[last] - t->box.lo[last]) * t->row_stride;
	return (size_t)elements * hspmd_dtype_bytes(t->dtype);
}

bool hspmd_instruction_uses(const struct hspmd_instruction *in, int slot)
{
	for (int k = 0; k < in->input_count; k++)
		if (in->in[k] == slot)
			return true;
	for (int k = 0; k < in->output_count; k++)
		if (in->out[k] == slot)
			return true;
	return false;
}

bool hspmd_program_runs_along(const struct hspmd_program *p, size_t at)
{
	return p->instructions[at].joins || (at && p->instructions[at - 1].beside);
}

size_t hspmd_program_runs_until(const struct hspmd_program *p, size_t at)
{
	while (at + 1 < p->instruction_count && hspmd_program_runs_along(p, at + 1))
		at++;
	return at;
}

bool hspmd_instruction_computes(const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_RUN || in->kind == HSPMD_INSTRUCTION_NORM || in->kind == HSPMD_INSTRUCTION_UPDATE;
}

int hspmd_program_add_slot_type(struct hspmd_program *p, const struct hspmd_slot_type *slot_type, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->slot_types, &p->slot_type_capacity, p->slot_type_count, sizeof *p->slot_types))
		return hspmd_fail_memory(err, "specialising");
	p->slot_types[p->slot_type_count] = *slot_type;
	p->slot_types[p->slot_type_count].bytes = hspmd_program_slot_type_bytes(slot_type);
	return (int)p->slot_type_count++;
}

int hspmd_program_add_slot(struct hspmd_program *p, int slot_type, enum hspmd_arena_kind memory, int micro_batch, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->slots, &p->slot_capacity, p->slot_count, sizeof *p->slots))
		return hspmd_fail_memory(err, "specialising");
	p->slots[p->slot_count] = (struct hspmd_slot){
		.slot_type = slot_type, .memory = memory, .micro_batch = micro_batch, .adjacent_to = -1, .aliases = -1
	};
	return (int)p->slot_count++;
}

struct hspmd_instruction *hspmd_program_add_instruction(struct hspmd_program *p, enum hspmd_instruction_kind kind, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->instructions, &p->instruction_capacity, p->instruction_count, sizeof *p->instructions)) {
		hspmd_fail_memory(err, "specialising");
		return NULL;
	}
	struct hspmd_instruction *i = &p->instructions[p->instruction_count++];
	*i = (struct hspmd_instruction){
		.kind = kind, .micro_batch = -1, .layer = -1, .schedule_index = p->schedule_index, .peer_pipeline_rank = -1
	};
	return i;
}

/* ---- where a graph comes from */

static struct hspmd_graph *build_model(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	return hspmd_model_graph(context, how, err);
}

struct hspmd_graph_source hspmd_graph_source_model(const struct hspmd_model *m)
{
	return (struct hspmd_graph_source){ .build = build_model, .context = (void *)m, .layers = hspmd_model_layers(m) };
}

struct hspmd_graph_source hspmd_graph_source_job(const struct hspmd_model *m, const struct hspmd_job *job)
{
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	source.precision = job->precision;
	source.any_order = job->any_order;
	source.documents = job->documents;
	source.reset_positions = job->reset_positions;
	source.optimizer = job->optimizer.type;
	return source;
}

/* ---- reading a program */

bool hspmd_program_in_stage(const struct hspmd_program *p, int stage)
{
	return p->stage >= 0 && stage % p->pipeline_ranks == p->stage;
}

struct hspmd_view hspmd_program_slot_view(const struct hspmd_program *p, int slot, char *const *bases)
{
	const struct hspmd_slot_type *slot_type = &p->slot_types[p->slots[slot].slot_type];
	struct hspmd_view v = { .dtype = slot_type->dtype, .rank = slot_type->box.rank };
	for (int d = 0; d < v.rank; d++) {
		v.shape[d] = slot_type->box.hi[d] - slot_type->box.lo[d];
		v.start[d] = slot_type->box.lo[d];
		v.full[d] = slot_type->full.dim[d];
	}
	v.row_stride = slot_type->row_stride;
	if (bases)
		v.data = bases[p->slots[slot].memory] + p->slots[slot].offset;
	return v;
}

/* Experts round rows of it, and others. */
static bool rounds_first(const struct hspmd_instruction *in)
{
	const struct hspmd_op_type *type = hspmd_op_types[in->opcode];
	return type->fp8 && !type->rows.choice;
}

bool hspmd_program_repeats_first(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	const struct hspmd_instruction *before = in - 1;
	if (in == p->instructions || in->kind != HSPMD_INSTRUCTION_RUN || before->kind != HSPMD_INSTRUCTION_RUN || !rounds_first(in) ||
	    !rounds_first(before))
		return false;
	for (int k = 0; k < before->output_count; k++)
		if (before->out[k] == in->in[0])
			return false;
	return in->in[0] == before->in[0];
}

struct hspmd_devcomm_use *hspmd_program_devcomm_uses(const struct hspmd_program *p, struct hspmd_program *const *more, int more_count,
                                                     int lane, size_t *count)
{
	size_t most = p->instruction_count + 1;
	for (int i = 0; more && i < more_count; i++)
		most += more[i]->instruction_count;
	struct hspmd_devcomm_use *uses = hspmd_calloc(most, sizeof *uses);
	*count = 0;
	for (int i = -1; uses && i < (more ? more_count : 0); i++) {
		const struct hspmd_program *one = i < 0 ? p : more[i];
		for (size_t k = 0; k < one->instruction_count; k++) {
			const struct hspmd_instruction *in = &one->instructions[k];
			if (in->kind == HSPMD_INSTRUCTION_COMM && !in->joins && (in->micro_batch < 0) == (lane == 1))
				uses[(*count)++] = (struct hspmd_devcomm_use){ &in->transfer->steps[in->step], in->tag };
		}
	}
	return uses;
}

int64_t hspmd_program_sample(const struct hspmd_program *p, int micro_batch, int64_t sample)
{
	if (!p->batches)
		return p->first_sample + (int64_t)micro_batch * p->micro_batch + sample;
	int first = p->batches[micro_batch].first;
	return first < 0 ? -1 : p->order[first + sample];
}

#define PAGE ((size_t)4096)

size_t hspmd_program_arena_offset(const struct hspmd_program *p)
{
	return (p->fixed_bytes + HSPMD_PROGRAM_ALIGN + PAGE - 1) / PAGE * PAGE;
}

size_t hspmd_program_memory(const struct hspmd_program *p)
{
	size_t arenas = p->shared_bytes ? p->shared_bytes : p->fixed_bytes + p->arena_bytes;
	return arenas + hspmd_program_workspace(p) + p->message_bytes;
}

void hspmd_program_destroy(struct hspmd_program *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->transfer_count; i++)
		hspmd_transfer_destroy(p->transfers[i]);
	free(p->transfers);
	free(p->states);
	free(p->fixed_of_tensor);
	free(p->instructions);
	free(p->slots);
	free(p->slot_types);
	free(p->batches);
	free(p->order);
	free(p->attrs);
	hspmd_parameter_layouts_destroy(p->layouts);
	if (!p->borrows) {
		hspmd_spmd_destroy(p->spmd);
		hspmd_graph_destroy(p->graph);
	}
	free(p);
}
