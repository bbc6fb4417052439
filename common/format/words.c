/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/words.h"

#include <stddef.h>

const char *const hspmd_precision_words[] = { "fp32", "tf32", "bf16", "fp16", "fp8", "fp64", NULL };
const char *const hspmd_device_kind_words[] = { "cpu", "cuda", NULL };
