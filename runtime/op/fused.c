/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of operators that a device may run as one kernel, so that the value between them is not written and read again. Pairs are formed
 * after specialisation, so annotations and deduction need not know them. */
#include "runtime/op/op_internal.h"

#define PAIR(opcode_1, opcode_2, what)                                                                                                     \
	.pair = {                                                                                                                          \
		.is_pair = true, .first = HSPMD_OP_##opcode_1, .second = HSPMD_OP_##opcode_2, .intermediate = HSPMD_OP_INTERMEDIATE_##what \
	}

const struct hspmd_op_type hspmd_op_add_layernorm = {
	.min_inputs = 3,
	.max_inputs = 4,
	.output_count = 3,
	PAIR(ADD, LAYERNORM, KEPT),
};
const struct hspmd_op_type hspmd_op_add_rmsnorm = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 3,
	PAIR(ADD, RMSNORM, KEPT),
};
const struct hspmd_op_type hspmd_op_layernorm_grad_add = {
	.min_inputs = 5,
	.max_inputs = 5,
	.output_count = 3,
	.in_place = { 5 },
	PAIR(LAYERNORM_GRAD, ADD, GONE),
	.streams = true,
};
const struct hspmd_op_type hspmd_op_rmsnorm_grad_add = {
	.min_inputs = 5,
	.max_inputs = 5,
	.output_count = 2,
	.in_place = { 5 },
	PAIR(RMSNORM_GRAD, ADD, GONE),
	.streams = true,
};
const struct hspmd_op_type hspmd_op_linear_add = {
	.min_inputs = 4,
	.max_inputs = 4,
	.output_count = 1,
	.in_place = { 4 },
	PAIR(LINEAR, ADD, GONE),
};
const struct hspmd_op_type hspmd_op_linear_grad_x_add = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 1,
	.in_place = { 3 },
	PAIR(LINEAR_GRAD_X, ADD, GONE),
};
const struct hspmd_op_type hspmd_op_linear_gelu = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 2,
	PAIR(LINEAR, GELU, WANTED),
};
const struct hspmd_op_type hspmd_op_linear_grad_x_gelu = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 1,
	PAIR(LINEAR_GRAD_X, GELU_GRAD, GONE),
};
const struct hspmd_op_type hspmd_op_attention_grad_rope = {
	.min_inputs = HSPMD_ATTENTION_GRAD_ANGLES + 1,
	.max_inputs = HSPMD_ATTENTION_GRAD_ANGLES + 1,
	.output_count = 3,
	PAIR(ATTENTION_GRAD, ROPE_GRAD, TWO),
};
