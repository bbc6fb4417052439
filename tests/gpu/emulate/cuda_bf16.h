/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-in: see cuda_runtime.h. */
#ifndef EMULATE_CUDA_BF16_H
#define EMULATE_CUDA_BF16_H

#include "common/half.h"

struct __nv_bfloat16 {
	uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
	return hspmd_bf16_to_float(x.bits);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
	__nv_bfloat16 half = { hspmd_bf16_from_float(x) };
	return half;
}

#endif
