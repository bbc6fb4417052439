/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tensor/dtype.h"

const char *const hspmd_dtype_names[] = { "F32", "BF16", "F64", "I32", "F16", "I64", "I16", "I8", "U8", "BOOL", NULL };

size_t hspmd_dtype_bytes(enum hspmd_dtype dtype)
{
	static const size_t bytes[HSPMD_STORED_DTYPE_COUNT] = {
		[HSPMD_F32] = 4, [HSPMD_BF16] = 2, [HSPMD_F64] = 8, [HSPMD_I32] = 4, [HSPMD_F16] = 2,
		[HSPMD_I64] = 8, [HSPMD_I16] = 2,  [HSPMD_I8] = 1,  [HSPMD_U8] = 1,  [HSPMD_BOOL] = 1
	};
	return bytes[dtype];
}
