/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels get of a program's instructions, and the memory that they need besides. */
#include "runtime/program/program.h"

void hspmd_program_kernel_args(const struct hspmd_program *p, const struct hspmd_instruction *in, char *const *bases,
                               struct hspmd_kernel_args *args)
{
	*args = (struct hspmd_kernel_args){ .attr = in->attr,
		                            .input_count = in->input_count,
		                            .output_count = in->output_count,
		                            .repeats_first = hspmd_program_repeats_first(p, in),
		                            .tf32 = p->tf32,
		                            .any_order = p->any_order,
		                            .workspace_most = p->workspace_most,
		                            .bytes_beside = hspmd_program_bytes_beside(p, in) };
	for (int k = 0; k < in->input_count; k++)
		args->in[k] = in->in[k] >= 0 ? hspmd_program_slot_view(p, in->in[k], bases) : (struct hspmd_view){ .rank = -1 };
	for (int k = 0; k < in->output_count; k++)
		if (in->out[k] >= 0) {
			args->out[k] = hspmd_program_slot_view(p, in->out[k], bases);
			args->out[k].accumulate = in->accumulate >> k & 1;
		}
	if (in->kind == HSPMD_INSTRUCTION_NORM) {
		args->output_count = 1;
		args->out[0] = (struct hspmd_view){ .dtype = HSPMD_F64, .rank = 1, .shape = { 1 }, .full = { 1 } };
	}
}

void hspmd_program_query_workspace(struct hspmd_program *p, struct hspmd_device *dev)
{
	static const struct hspmd_op_attr none;
	p->workspace_bytes = p->beside_bytes = 0;
	for (size_t i = 0; dev && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		struct hspmd_kernel_args args;
		if (!hspmd_instruction_computes(in))
			continue;
		hspmd_program_kernel_args(p, in, NULL, &args);
		if (!args.attr)
			args.attr = &none;
		size_t bytes = dev->ops->workspace(dev, in->opcode, &args), *most = in->beside ? &p->beside_bytes : &p->workspace_bytes;
		*most = bytes > *most ? bytes : *most;
	}
}
