/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/op/op_internal.h"

const struct hspmd_op_type *const hspmd_op_types[HSPMD_OP_COUNT] = {
#define OP(opcode, name) [HSPMD_OP_##opcode] = &hspmd_op_##name,
#include "runtime/tensor/opcode_list.h"
};
