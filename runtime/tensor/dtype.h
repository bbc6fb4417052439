/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors. */
#ifndef HSPMD_TENSOR_DTYPE_H
#define HSPMD_TENSOR_DTYPE_H

#include <stddef.h>

enum hspmd_dtype { HSPMD_F32, HSPMD_BF16, HSPMD_F64, HSPMD_I32, HSPMD_DTYPE_COUNT };
extern const char *const hspmd_dtype_names[]; /* "F32", "BF16", "F64", "I32", as safetensors names them; NULL at the end */

size_t hspmd_dtype_bytes(enum hspmd_dtype dtype);

/* The type for values that must not lose precision: F32 for BF16, else the type itself. */
static inline enum hspmd_dtype hspmd_dtype_master(enum hspmd_dtype of)
{
	return of == HSPMD_BF16 ? HSPMD_F32 : of;
}

#endif
