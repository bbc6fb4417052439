/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/enums.h"

#include <stddef.h>

const char *const hspmd_precision_names[] = { "fp32", "tf32", "bf16", "fp16", "fp8", "fp64", NULL };
const char *const hspmd_device_kind_names[] = { "cpu", "cuda", NULL };

bool hspmd_device_kind_computes(enum hspmd_device_kind kind, enum hspmd_precision precision)
{
	return precision == HSPMD_PRECISION_FP32 || (precision == HSPMD_PRECISION_BF16 && kind == HSPMD_DEVICE_CUDA);
}
