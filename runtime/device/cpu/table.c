/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of this floating type and instruction set, by opcode. */
#include "runtime/device/cpu/kernel.h"
#include "runtime/tensor/opcode_list.h"

#define DECLARE(opcode, name) extern const struct hspmd_cpu_kernel LOCAL(name);
HSPMD_OPS_TYPED(DECLARE)
extern const struct hspmd_cpu_kernel hspmd_cpu_cast;

#define ENTRY(opcode, name) [HSPMD_OP_##opcode] = &LOCAL(name),
const struct hspmd_cpu_kernel *const LOCAL(kernels)[HSPMD_OP_COUNT] = { HSPMD_OPS_TYPED(ENTRY)[HSPMD_OP_CAST] = &hspmd_cpu_cast };
