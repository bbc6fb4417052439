/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of this floating type and instruction set, by opcode. */
#include "runtime/device/cpu/kernel.h"

#define OP_GRAPH(opcode, name) extern const struct hspmd_cpu_kernel LOCAL(name);
#define OP_STATE OP_GRAPH
#define OP_FUSED_SUM OP_GRAPH
#define OP_CAST(opcode, name) extern const struct hspmd_cpu_kernel hspmd_cpu_##name; /* of any two types */
#include "runtime/tensor/opcode_list.h"

const struct hspmd_cpu_kernel *const LOCAL(kernels)[HSPMD_OP_COUNT] = {
#define OP_GRAPH(opcode, name) [HSPMD_OP_##opcode] = &LOCAL(name),
#define OP_STATE OP_GRAPH
#define OP_FUSED_SUM OP_GRAPH
#define OP_CAST(opcode, name) [HSPMD_OP_##opcode] = &hspmd_cpu_##name,
#include "runtime/tensor/opcode_list.h"
};
