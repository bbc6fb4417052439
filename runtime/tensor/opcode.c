/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tensor/opcode.h"

const char *const hspmd_opcode_names[HSPMD_OP_COUNT] = {
#define OP(opcode, name) [HSPMD_OP_##opcode] = #name,
#include "runtime/tensor/opcode_list.h"
};
