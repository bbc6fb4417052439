/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of device that hspmd has, a line each: its name in upper case, its name, and what it can (struct hspmd_device_traits). The code
 * of a kind is in runtime/device/NAME, and `hspmd_device_NAME` returns its table of functions. */
#ifndef HSPMD_FORMAT_DEVICE_LIST_H
#define HSPMD_FORMAT_DEVICE_LIST_H

#include "common/format/product_memory.h"

/* Seconds between two kernels that a host program launches one after the other on a GPU: a kernel of 2.9 us takes 3.8 us (NVIDIA, "Getting
 * Started with CUDA Graphs", at second hand). From a GPU's choice of rows to the first kernel that depends on it: a copy to the host, which
 * waits, one back, and two kernels; assumed, not measured. Memory of a CUDA device that is in use before the program allocates any: context
 * and kernels (Hugging Face Transformers' documentation, "Model training anatomy": 1343 MB after PyTorch has put one element there). */
#define HSPMD_DEVICE_KINDS(KIND)                                                                                                           \
	KIND(CPU, cpu, .origin = HSPMD_ORIGIN_CORES, .host_memory = true, .fp8 = true, .takes_parts = true, .overlaps = true,              \
	     .fused_sums = true, .dispatches = true)                                                                                       \
	KIND(CUDA, cuda, .origin = HSPMD_ORIGIN_NVIDIA, .bf16 = true, .tf32 = true, .fp8 = true, .fused = true, .beside = true,            \
	     .row_bytes = 128, .rings = true, .dispatches = true, .choice_s = 30e-6, .launch_s = 0.9e-6,                                   \
	     .product_bytes = HSPMD_PRODUCT_WORKSPACE, .context_bytes = 1343.0 * 1024 * 1024)

#endif
