/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tensor/dtype.h"

const char *const hspmd_dtype_names[] = { "F32", "BF16", "F64", "I32", NULL };

size_t hspmd_dtype_bytes(enum hspmd_dtype dtype)
{
	static const size_t bytes[HSPMD_DTYPE_COUNT] = { [HSPMD_F32] = 4, [HSPMD_BF16] = 2, [HSPMD_F64] = 8, [HSPMD_I32] = 4 };
	return bytes[dtype];
}
