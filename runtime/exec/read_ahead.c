/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/read_ahead.h"

#include <stdlib.h>

#include "runtime/exec/execute_internal.h"

int hspmd_executor_read_input(const struct hspmd_executor *ex, const struct hspmd_program *p, const struct hspmd_instruction *in,
                              int64_t step, char *to, struct hspmd_error *err)
{
	const struct hspmd_slot_type *slot_type = &p->slot_types[p->slots[in->out[0]].slot_type];
	const char *name = p->graph->tensors[slot_type->tensor].name;
	int64_t start = slot_type->box.rank > 1 ? slot_type->box.lo[1] : 0,
	        count = slot_type->box.rank > 1 ? slot_type->box.hi[1] - start : 1;
	size_t sample = slot_type->bytes / (size_t)(slot_type->box.hi[0] - slot_type->box.lo[0]);
	for (int64_t b = slot_type->box.lo[0]; b < slot_type->box.hi[0]; b++, to += sample) {
		int64_t index = hspmd_program_sample(p, in->micro_batch, b),
		        number = index < 0 ? -1 : step * ex->o.job->global_batch + index;
		if (ex->o.samples.read(ex->o.samples.context, name, number, start, count, to, err))
			return -1;
	}
	return 0;
}

size_t hspmd_program_read_size(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_READ ? p->slot_types[p->slots[in->out[0]].slot_type].bytes : 0;
}

static bool make_room(struct hspmd_read_ahead *a, const struct hspmd_program *p)
{
	size_t bytes = 0;
	for (size_t i = 0; i < p->vote; i++)
		bytes += hspmd_program_read_size(p, &p->instructions[i]);
	if (bytes > a->capacity) {
		char *larger = realloc(a->bytes, bytes);
		if (!larger)
			return false;
		a->bytes = larger;
		a->capacity = bytes;
	}
	return bytes > 0;
}

static double factor_of(const struct hspmd_executor *ex, int64_t step)
{
	return ex->o.samples.loss_factor ? ex->o.samples.loss_factor(ex->o.samples.context, step) : 1;
}

void hspmd_executor_read_ahead(struct hspmd_executor *ex)
{
	struct hspmd_read_ahead *a = &ex->ahead;
	int64_t step = ex->step + 1;
	a->whole = false;
	if (ex->o.device->ops->host_memory || ex->o.seconds || step >= ex->o.job->steps)
		return;
	const struct hspmd_program *p = ex->o.program_of_step ? ex->o.program_of_step(ex->o.program_context, step) : ex->p;
	bool whole = p && make_room(a, p);
	char *to = a->bytes;
	for (size_t i = 0; whole && i < p->vote; i++) {
		struct hspmd_error ignored; /* the step that asks for it will tell */
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind == HSPMD_INSTRUCTION_READ)
			whole = !hspmd_executor_read_input(ex, p, in, step, to, &ignored);
		to += hspmd_program_read_size(p, in);
	}
	a->whole = whole;
	a->program = p;
	a->step = step;
	a->loss_factor = whole ? factor_of(ex, step) : 1;
}

void hspmd_executor_begin_reading(struct hspmd_executor *ex)
{
	struct hspmd_read_ahead *a = &ex->ahead;
	a->whole &= a->step == ex->step && a->program == ex->p;
	a->taken = 0;
	ex->loss_factor = a->whole ? a->loss_factor : factor_of(ex, ex->step);
}

const char *hspmd_executor_take_input(struct hspmd_executor *ex, size_t bytes)
{
	struct hspmd_read_ahead *a = &ex->ahead;
	a->taken += bytes;
	return a->whole ? a->bytes + a->taken - bytes : NULL;
}

void hspmd_executor_forget_samples(struct hspmd_executor *ex)
{
	ex->ahead.whole = false;
}
