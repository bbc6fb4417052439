/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/op/op.h"
#include "runtime/tensor/opcode_list.h"

#define DECLARE(opcode, name) extern const struct hspmd_op_type hspmd_op_##name;
HSPMD_OPS(DECLARE)

#define ENTRY(opcode, name) [HSPMD_OP_##opcode] = &hspmd_op_##name,
const struct hspmd_op_type *const hspmd_op_types[HSPMD_OP_COUNT] = { HSPMD_OPS(ENTRY) };
