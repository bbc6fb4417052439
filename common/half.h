/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floating-point numbers. */
#ifndef HSPMD_COMMON_HALF_H
#define HSPMD_COMMON_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float hspmd_bf16_to_float(uint16_t v)
{
	uint32_t bits = (uint32_t)v << 16;
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t hspmd_bf16_from_float(float f)
{
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* IEEE binary16. */
static inline float hspmd_f16_to_float(uint16_t v)
{
	int exponent = v >> 10 & 0x1f, fraction = v & 0x3ff;
	float f;
	if (exponent == 0x1f)
		f = fraction ? NAN : INFINITY;
	else if (exponent)
		f = ldexpf((float)(fraction | 0x400), exponent - 25);
	else
		f = ldexpf((float)fraction, -24);
	return v & 0x8000 ? -f : f;
}

#endif
