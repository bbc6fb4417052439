/* SPDX-License-Identifier: Apache-2.0 */
/* An executor's calls of its device's kernels, and of its engines. */
#include "common/clock.h"
#include "runtime/exec/execute_internal.h"
#include "runtime/op/op.h"

void hspmd_executor_set_args(const struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                             struct hspmd_kernel_args *args)
{
	hspmd_program_kernel_args(ex->p, in, ex->bases, args);
	if (attr)
		args->attr = attr;
	if (in->kind == HSPMD_INSTRUCTION_NORM) {
		args->out[0].data = ex->scalar;
		args->out[0].accumulate = true;
	}
	args->workspace = in->beside ? (char *)ex->workspace + hspmd_program_workspace(ex->p) - ex->p->beside_bytes : ex->workspace;
	args->workspace_bytes = in->beside ? ex->p->beside_bytes : ex->p->workspace_bytes;
	if (ex->inputs.host)
		args->values = in->kind == HSPMD_INSTRUCTION_UPDATE ? ex->inputs.update
		               : hspmd_replay_is_loss(in)           ? ex->inputs.passes
		                                                    : NULL;
	args->prepared = ex->now && ex->now->calls ? ex->now->calls[in - ex->p->instructions] : NULL;
}

int hspmd_executor_run_kernel(struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                              struct hspmd_error *err)
{
	struct hspmd_kernel_args args;
	struct hspmd_op_attr scaled;
	if (!ex->inputs.host && ex->loss_factor != 1 && hspmd_replay_is_loss(in)) {
		scaled = *in->attr;
		scaled.scale *= ex->loss_factor;
		attr = &scaled;
	}
	hspmd_executor_set_args(ex, in, attr, &args);
	const struct hspmd_device_ops *ops = ex->o.device->ops;
	bool apart = in->beside && ops->run_apart && !ex->o.seconds;
	if ((apart ? ops->run_apart : ops->run)(ex->o.device, in->opcode, &args, err))
		return hspmd_error_prefix(err, "operator %s, layer %d", hspmd_opcode_names[in->opcode], in->layer);
	return 0;
}

struct hspmd_engine_job hspmd_executor_job(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	const struct hspmd_program *p = ex->p;
	const struct hspmd_slot_type *slot_type = &p->slot_types[p->slots[in->in[0] >= 0 ? in->in[0] : in->out[0]].slot_type];
	const struct hspmd_slot_type *choice = in->input_count > 1 ? &p->slot_types[p->slots[in->in[1]].slot_type] : NULL;
	return (struct hspmd_engine_job){
		.transfer = in->transfer,
		.step = &in->transfer->steps[in->step],
		.dtype = slot_type->dtype,
		.in = hspmd_running_slot(ex, in->in[0]),
		.out = hspmd_running_slot(ex, in->out[0]),
		.in_bytes = hspmd_running_slot_bytes(ex, in->in[0]),
		.out_bytes = hspmd_running_slot_bytes(ex, in->out[0]),
		.choice = { choice ? hspmd_running_slot(ex, in->in[1]) : NULL, choice ? choice->box : (struct hspmd_box){ 0 } },
		.tag = in->tag,
		.tensor = p->graph->tensors[slot_type->tensor].name,
		.micro_batch = in->micro_batch,
		.number = (int)(in - p->instructions),
	};
}

int hspmd_executor_record_time(struct hspmd_executor *ex, size_t i, double *then, struct hspmd_error *err)
{
	const struct hspmd_instruction *in = &ex->p->instructions[i], *next = in + 1;
	if (!ex->o.seconds)
		return 0;
	bool last = i + 1 == ex->p->instruction_count || next->layer != in->layer || next->backward != in->backward ||
	            next->micro_batch != in->micro_batch || next->kind != in->kind;
	if (last && ex->o.device->ops->synchronise(ex->o.device, err))
		return -1;
	double now = hspmd_now();
	ex->o.seconds[i] = now - *then;
	*then = now;
	return 0;
}
