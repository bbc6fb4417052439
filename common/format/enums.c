/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/enums.h"

#include <stddef.h>

const char *const hspmd_precision_names[] = { "fp32", "tf32", "bf16", "fp16", "fp8", "fp64", NULL };
