/* SPDX-License-Identifier: Apache-2.0 */
/* The rotation of a pair of elements, which all kernels that rotate share. */
#ifndef HSPMD_CUDA_ROTATE_H
#define HSPMD_CUDA_ROTATE_H

#include "runtime/device/cuda/kernel.h"

/* Turns the pair by an angle with cosine c and sine s. Every product is rounded, which keeps the compiler from contracting products and
 * sums as each kernel's code suggests: the bits are the same in all of them. */
static __device__ __forceinline__ void rotate_pair(float *a, float *b, float c, float s)
{
	float first = __fsub_rn(__fmul_rn(*a, c), __fmul_rn(*b, s));
	*b = __fadd_rn(__fmul_rn(*b, c), __fmul_rn(*a, s));
	*a = first;
}

#endif
