/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tensor/opcode.h"

#include "runtime/tensor/opcode_list.h"

#define NAME(opcode, name) [HSPMD_OP_##opcode] = #name,
const char *const hspmd_opcode_names[HSPMD_OP_COUNT] = { HSPMD_OPS(NAME) };
