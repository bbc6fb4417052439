/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/prepared_program.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/exec/execute_internal.h"

static void destroy(struct hspmd_device *dev, struct hspmd_prepared_program *r)
{
	if (!r)
		return;
	hspmd_replay_destroy(r->replay);
	hspmd_update_groups_destroy(r->updates);
	for (size_t i = 0; r->calls && i < r->program->instruction_count; i++)
		dev->ops->prepared_free(dev, r->calls[i]);
	free(r->calls);
	free(r->input_at);
	free(r->joined);
	free(r->joined_at);
	free(r);
}

static int prepare_calls(struct hspmd_executor *ex, struct hspmd_prepared_program *r, struct hspmd_error *err)
{
	static const struct hspmd_op_attr none;
	struct hspmd_device *dev = ex->o.device;
	if (!dev->ops->prepare)
		return 0;
	if (!(r->calls = hspmd_calloc(r->program->instruction_count + 1, sizeof(*r->calls))))
		return hspmd_fail_memory(err, "preparing a program");
	for (size_t i = 0; i < r->program->instruction_count; i++) {
		const struct hspmd_instruction *in = &r->program->instructions[i];
		struct hspmd_kernel_args args;
		if (!hspmd_instruction_computes(in))
			continue;
		hspmd_executor_set_args(ex, in, in->attr ? NULL : &none, &args);
		if (dev->ops->prepare(dev, in->opcode, &args, &r->calls[i], err))
			return hspmd_error_prefix(err, "operator %s, layer %d", hspmd_opcode_names[in->opcode], in->layer);
	}
	return 0;
}

/* The jobs of instructions that run with others, which must stay while these are under way. */
static int prepare_joined(struct hspmd_executor *ex, struct hspmd_prepared_program *r, struct hspmd_error *err)
{
	const struct hspmd_program *p = r->program;
	size_t count = 0;
	for (size_t i = 0; i < p->instruction_count; i++)
		count += p->instructions[i].joins;
	if (!count)
		return 0;
	r->joined = hspmd_calloc(count, sizeof *r->joined);
	r->joined_at = hspmd_calloc(p->instruction_count, sizeof *r->joined_at);
	if (!r->joined || !r->joined_at)
		return hspmd_fail_memory(err, "preparing a program");
	count = 0;
	for (size_t i = 0; i < p->instruction_count; i++) {
		r->joined_at[i] = count;
		if (p->instructions[i].joins)
			r->joined[count++] = hspmd_executor_job(ex, &p->instructions[i]);
	}
	return 0;
}

void hspmd_executor_forget_captured(struct hspmd_executor *ex)
{
	for (size_t i = 0; i < ex->prepared_count; i++)
		hspmd_replay_forget(ex->prepared[i]->replay);
}

int hspmd_executor_prepare(struct hspmd_executor *ex, struct hspmd_error *err)
{
	const struct hspmd_job *job = ex->o.job;
	for (size_t i = 0; i < ex->prepared_count; i++)
		if (ex->prepared[i]->program == ex->p) {
			ex->now = ex->prepared[i];
			return 0;
		}
	bool moved;
	struct hspmd_prepared_program *r = calloc(1, sizeof *r);
	if (!r || hspmd_array_grow(&ex->prepared, &ex->prepared_capacity, ex->prepared_count, sizeof(*ex->prepared))) {
		free(r);
		return hspmd_fail_memory(err, "preparing a program");
	}
	ex->now = NULL;
	r->program = ex->p;
	if (prepare_calls(ex, r, err) || prepare_joined(ex, r, err) || hspmd_executor_make_input_room(ex, r, &moved, err)) {
		destroy(ex->o.device, r);
		return -1;
	}
	if (moved)
		hspmd_executor_forget_captured(ex);
	if (!ex->o.seconds)
		r->replay = hspmd_replay_create(ex->p, ex->o.device, ex->inputs.host, job->mask || job->valid_batches < 0);
	if (ex->all && !ex->o.persistent)
		r->updates = hspmd_update_groups_build(ex->p, ex->o.device);
	ex->prepared[ex->prepared_count++] = ex->now = r;
	return 0;
}

void hspmd_executor_forget_program(struct hspmd_executor *ex, const struct hspmd_program *p)
{
	size_t kept = 0;
	for (size_t i = 0; i < ex->prepared_count; i++)
		if (ex->prepared[i]->program == p)
			destroy(ex->o.device, ex->prepared[i]);
		else
			ex->prepared[kept++] = ex->prepared[i];
	ex->prepared_count = kept;
	ex->now = NULL;
}

void hspmd_executor_forget_prepared(struct hspmd_executor *ex)
{
	for (size_t i = 0; i < ex->prepared_count; i++)
		destroy(ex->o.device, ex->prepared[i]);
	free(ex->prepared);
	ex->prepared = NULL;
	ex->prepared_count = ex->prepared_capacity = 0;
	ex->now = NULL;
}
