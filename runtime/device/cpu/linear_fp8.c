/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers of FP8 operands, as a reference: operands become the floats that their FP8 numbers are, and these are multiplied like any
 * others. Scales are powers of two, so that a product of scaled operands, scaled back, would have the same bits. Several calls may follow
 * one another that read the same operand: it is rounded once (`repeats_first`). */
#include "runtime/device/cpu/fp8_operand.h"

extern const struct hspmd_cpu_kernel LOCAL(linear), LOCAL(linear_grad_x), LOCAL(linear_grad_w);

static void round_tensor(struct hspmd_cpu *cpu, const struct hspmd_view *x, int scale, enum hspmd_fp8_operand operand, real *to)
{
	round_elements(cpu->pool, x->data, element_count(x), scale, operand, to);
}

static void note_tensor(const struct hspmd_view *x, int unit, const struct hspmd_view *to, int row)
{
	note_amax(amax_of(x->data, element_count(x)), unit, to, row);
}

/* The workspace: how input 0 was rounded, the rounded inputs 0 and 1, then that of the operator on floats. */
#define ROUNDED 16 /* the first two: what kind of operand, -1 none; the exponent of the scale */

static int64_t padded(int64_t elements)
{
	return (elements + 15) / 16 * 16;
}

static int64_t operand_elements(const struct hspmd_kernel_args *args)
{
	return ROUNDED + padded(element_count(&args->in[0])) + padded(element_count(&args->in[1]));
}

static size_t with_operands(const struct hspmd_kernel_args *args, size_t bytes)
{
	return (size_t)operand_elements(args) * sizeof(real) + bytes;
}

/* Rounds input 0 to where on_floats has it, unless that is there. history_row: of its history, which is input number `history`. */
static void round_first(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, int history, int history_row,
                        enum hspmd_fp8_operand operand)
{
	real *rounded = args->workspace;
	int scale = scale_of(args, &args->in[history], history_row, operand);
	if (args->repeats_first && rounded[0] == (real)operand && rounded[1] == (real)scale)
		return;
	round_tensor(cpu, &args->in[0], scale, operand, rounded + ROUNDED);
	rounded[0] = (real)operand;
	rounded[1] = (real)scale;
}

/* Nothing is rounded: the next call may not use what is there. */
static void round_nothing(const struct hspmd_kernel_args *args)
{
	if (!args->repeats_first)
		((real *)args->workspace)[0] = -1;
}

/* The same call with the rounded inputs 0 and 1. */
static struct hspmd_kernel_args on_floats(const struct hspmd_kernel_args *args, int inputs, int outputs)
{
	struct hspmd_kernel_args own = *args;
	own.input_count = inputs;
	own.output_count = outputs;
	own.in[0].data = (real *)args->workspace + ROUNDED;
	own.in[1].data = (real *)own.in[0].data + padded(element_count(&args->in[0]));
	own.workspace = (real *)args->workspace + operand_elements(args);
	return own;
}

static void linear_fp8(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	bool has_bias = args->in[2].rank >= 0;
	struct hspmd_kernel_args own = on_floats(args, has_bias ? 3 : 2, 1);
	round_first(cpu, args, 3, 0, HSPMD_FP8_ACTIVATION);
	round_tensor(cpu, &args->in[1], scale_of(args, &args->in[4], 0, HSPMD_FP8_WEIGHT), HSPMD_FP8_WEIGHT, own.in[1].data);
	LOCAL(linear).run(cpu, &own);
}

static size_t linear_fp8_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	return with_operands(args, LOCAL(linear).workspace(cpu, args));
}

static void linear_fp8_grad_x(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct hspmd_kernel_args own = on_floats(args, 2, 1);
	if (args->out[0].data) {
		round_first(cpu, args, 2, 1, HSPMD_FP8_GRADIENT);
		round_tensor(cpu, &args->in[1], scale_of(args, &args->in[3], 0, HSPMD_FP8_WEIGHT), HSPMD_FP8_WEIGHT, own.in[1].data);
		LOCAL(linear_grad_x).run(cpu, &own);
	} else {
		round_nothing(args);
	}
	if (args->output_count > 1 && args->out[1].data)
		note_tensor(&args->in[1], 0, &args->out[1], 0);
}

static size_t linear_fp8_grad_x_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	return with_operands(args, args->out[0].rank > 0 ? LOCAL(linear_grad_x).workspace(cpu, args) : 0);
}

static void linear_fp8_grad_w(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct hspmd_kernel_args own = on_floats(args, 2, 1), sums = *args;
	sums.workspace = own.workspace;
	sums.output_count = 2;
	sums.out[0].data = NULL; /* the bias alone, from dy itself */
	if (args->out[1].data)
		LOCAL(linear_grad_w).run(cpu, &sums);
	if (args->out[0].data) {
		round_first(cpu, args, 2, 1, HSPMD_FP8_GRADIENT);
		round_tensor(cpu, &args->in[1], scale_of(args, &args->in[2], 0, HSPMD_FP8_ACTIVATION), HSPMD_FP8_ACTIVATION,
		             own.in[1].data);
		LOCAL(linear_grad_w).run(cpu, &own);
	} else {
		round_nothing(args);
	}
	if (args->output_count > 2 && args->out[2].data) {
		note_tensor(&args->in[1], 0, &args->out[2], 0);
		note_tensor(&args->in[0], hspmd_amax_unit(args->attr->scale), &args->out[2], 1);
	}
}

static size_t linear_fp8_grad_w_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	return with_operands(args, LOCAL(linear_grad_w).workspace(cpu, args));
}

const struct hspmd_cpu_kernel LOCAL(linear_fp8) = { linear_fp8, linear_fp8_workspace };
const struct hspmd_cpu_kernel LOCAL(linear_fp8_grad_x) = { linear_fp8_grad_x, linear_fp8_grad_x_workspace };
const struct hspmd_cpu_kernel LOCAL(linear_fp8_grad_w) = { linear_fp8_grad_w, linear_fp8_grad_w_workspace };
