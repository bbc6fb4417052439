/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors. */
#ifndef HSPMD_TENSOR_DTYPE_H
#define HSPMD_TENSOR_DTYPE_H

#include <stddef.h>

enum hspmd_dtype { HSPMD_F32, HSPMD_BF16, HSPMD_F64, HSPMD_I32, HSPMD_DTYPE_COUNT };
/* Types that are only stored: no device computes in them. They continue the numbers of enum hspmd_dtype, as which they are passed. */
enum hspmd_stored_dtype { HSPMD_F16 = HSPMD_DTYPE_COUNT, HSPMD_I64, HSPMD_I16, HSPMD_I8, HSPMD_U8, HSPMD_BOOL, HSPMD_STORED_DTYPE_COUNT };
extern const char *const hspmd_dtype_names[]; /* "F32", "BF16", ..., as safetensors names them, with the stored types; NULL at the end */

/* Bytes of an element. */
size_t hspmd_dtype_bytes(enum hspmd_dtype dtype);

/* The type for values that must not lose precision: F32 for BF16, else the type itself. */
static inline enum hspmd_dtype hspmd_dtype_master(enum hspmd_dtype of)
{
	return of == HSPMD_BF16 ? HSPMD_F32 : of;
}

#endif
