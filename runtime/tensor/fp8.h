/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of eight bits: E4M3 (4 bits of exponent, 3 of fraction; no infinity, one NaN, at most 448) and E5M2 (5 and 2; at most 57344), and
 * the scales with which tensors become such numbers (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, sections 3 and
 * 4). Values round to the nearest, ties to even; what is too large, infinity included, becomes the largest finite number, as with CUDA's
 * __NV_SATFINITE.
 *
 * A tensor is multiplied by a power of two before it is rounded, so that only the range of the numbers depends on the scale, and not their
 * fractions. The scale comes from the largest magnitudes ("amax") of the last HSPMD_AMAX_WINDOW steps, which are part of the training
 * state. Of an amax only the exponent matters. It is written as a thermometer: HSPMD_AMAX_BINS values, of which the first are set, as many
 * as the exponent says. Those of parts of a tensor, of micro-batches and of devices are added up like gradients: a value of the sum is
 * positive if any addend's is, so that the sum is the thermometer of the largest, in any order and for any division into parts. What is
 * kept (an "amax history") is for each value the number of steps for which it stays set, and every value is updated by itself. */
#ifndef HSPMD_TENSOR_FP8_H
#define HSPMD_TENSOR_FP8_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HSPMD_FP8 static __host__ __device__ inline
#else
#define HSPMD_FP8 static inline
#endif

/* Products of experts' codes by warp-groups read rows of whole so many codes. */
#define HSPMD_FP8_ROW 16

#define HSPMD_AMAX_WINDOW 16 /* steps */
#define HSPMD_AMAX_BINS 64   /* one for each power of two */
#define HSPMD_AMAX_LEAST -32 /* exponent of the first bin, whose values are below twice that power; the last bin has all large ones */

/* Names of amax histories after those of their weights, of which ".weight" is left out. Of a linear layer [2, HSPMD_AMAX_BINS]: of the
 * activation, and of the gradient of the result; of experts [HSPMD_EXPERTS_OPERANDS, HSPMD_AMAX_BINS]. */
#define HSPMD_AMAX_HISTORY ".amax_history"
#define HSPMD_WEIGHT_AMAX_HISTORY ".weight_amax_history" /* [1, HSPMD_AMAX_BINS] */

HSPMD_FP8 uint32_t hspmd_fp8_bits(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

HSPMD_FP8 float hspmd_fp8_float(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* The nearest number with `fraction` bits of fraction, whose smallest normal number is 2^least; at most `most` in magnitude. NaN stays. */
HSPMD_FP8 float hspmd_fp8_round(float x, int fraction, int least, float most)
{
	uint32_t sign = hspmd_fp8_bits(x) & 0x80000000u, size = hspmd_fp8_bits(x) & 0x7fffffffu;
	int dropped = 23 - fraction;
	uint32_t normal = (size + ((1u << (dropped - 1)) - 1) + (size >> dropped & 1)) >> dropped << dropped;
	/* Below 2^least numbers are multiples of 2^(least - fraction): so are float's numbers from 2^(least - fraction + 23) on. */
	float step = hspmd_fp8_float((uint32_t)(127 + least - fraction + 23) << 23);
	float small = (hspmd_fp8_float(size) + step) - step, result = hspmd_fp8_float(normal);
	result = size < (uint32_t)(127 + least) << 23 ? small : result;
	result = size > 0x7f800000u ? hspmd_fp8_float(size) : result > most ? most : result;
	return hspmd_fp8_float(hspmd_fp8_bits(result) | sign);
}

#define HSPMD_E4M3_MOST 448.0f
#define HSPMD_E5M2_MOST 57344.0f

/* The value of the nearest E4M3 or E5M2 number. */
HSPMD_FP8 float hspmd_e4m3_round(float x)
{
	return hspmd_fp8_round(x, 3, -6, HSPMD_E4M3_MOST);
}

HSPMD_FP8 float hspmd_e5m2_round(float x)
{
	return hspmd_fp8_round(x, 2, -14, HSPMD_E5M2_MOST);
}

/* The bits of a number that the format has. A NaN gives all ones but for the sign. */
HSPMD_FP8 uint8_t hspmd_fp8_encode(float x, int fraction, int least)
{
	uint32_t bits = hspmd_fp8_bits(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
	if (size > 0x7f800000u)
		return (uint8_t)(sign | 0x7fu);
	if (size < (uint32_t)(127 + least) << 23)
		return (uint8_t)(sign | (uint32_t)(hspmd_fp8_float(size) * hspmd_fp8_float((uint32_t)(127 + fraction - least) << 23)));
	return (uint8_t)(sign | (size - ((uint32_t)(126 + least) << 23)) >> (23 - fraction));
}

HSPMD_FP8 uint8_t hspmd_e4m3_bits(float x)
{
	return hspmd_fp8_encode(hspmd_e4m3_round(x), 3, -6);
}

HSPMD_FP8 uint8_t hspmd_e5m2_bits(float x)
{
	return hspmd_fp8_encode(hspmd_e5m2_round(x), 2, -14);
}

/* The number with these bits. */
HSPMD_FP8 float hspmd_e4m3_value(uint8_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x80u) << 24, size = bits & 0x7fu;
	float x = size == 0x7fu ? hspmd_fp8_float(0x7fc00000u)
	          : size < 8    ? (float)size / 512.0f
	                        : hspmd_fp8_float((size << 20) + ((uint32_t)(127 - 7) << 23));
	return hspmd_fp8_float(hspmd_fp8_bits(x) | sign);
}

HSPMD_FP8 float hspmd_e5m2_value(uint8_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x80u) << 24, size = bits & 0x7fu;
	float x = size > 0x7cu    ? hspmd_fp8_float(0x7fc00000u)
	          : size == 0x7cu ? hspmd_fp8_float(0x7f800000u)
	          : size < 4      ? (float)size / 65536.0f
	                          : hspmd_fp8_float((size << 21) + ((uint32_t)(127 - 15) << 23));
	return hspmd_fp8_float(hspmd_fp8_bits(x) | sign);
}

/* ---- scales */

HSPMD_FP8 float hspmd_power_of_two(int exponent) /* a normal number's */
{
	return hspmd_fp8_float((uint32_t)(127 + exponent) << 23);
}

/* The unit, as an exponent, in which gradients are measured whose loss has this factor, 1 / tokens of the step. Others have unit 0. */
HSPMD_FP8 int hspmd_amax_unit(double loss_scale)
{
	int unit = loss_scale > 0 ? (int)(hspmd_fp8_bits((float)loss_scale) >> 23) - 127 : 0;
	return unit < -60 ? -60 : unit > 0 ? 0 : unit;
}

/* Returns how many values of a tensor's thermometer are set: 0 if all of it is 0. */
HSPMD_FP8 int hspmd_amax_level(float amax, int unit)
{
	int level = (int)(hspmd_fp8_bits(amax) >> 23) - 127 - unit - HSPMD_AMAX_LEAST + 1;
	return !(amax > 0) ? 0 : level < 1 ? 1 : level > HSPMD_AMAX_BINS ? HSPMD_AMAX_BINS : level;
}

/* What a tensor is to its product: E4M3 numbers forward, E5M2 numbers backward, where the range matters more. */
enum hspmd_fp8_operand { HSPMD_FP8_ACTIVATION, HSPMD_FP8_WEIGHT, HSPMD_FP8_GRADIENT };

/* What is rounded for the products of a mixture's experts, as rows of their amax history: x, the matrices, the first layer's result and
 * that times the token's weight, and gradients of the result, gate and up. A row is for the tensors of all experts. */
enum hspmd_experts_operand {
	HSPMD_EXPERTS_X,
	HSPMD_EXPERTS_GATE,
	HSPMD_EXPERTS_UP,
	HSPMD_EXPERTS_DOWN,
	HSPMD_EXPERTS_ACT,
	HSPMD_EXPERTS_WEIGHTED_ACT,
	HSPMD_EXPERTS_DY,
	HSPMD_EXPERTS_DGATE,
	HSPMD_EXPERTS_DUP,
	HSPMD_EXPERTS_OPERANDS
};

/* GPUs that multiply codes turn those of experts' rows for gradients of matrices; those of each expert then begin on a multiple of so many
 * rows. */
#define HSPMD_TURNED_ROWS 128

HSPMD_FP8 enum hspmd_fp8_operand hspmd_experts_operand_kind(int row)
{
	return row >= HSPMD_EXPERTS_DY                                  ? HSPMD_FP8_GRADIENT
	       : row >= HSPMD_EXPERTS_GATE && row <= HSPMD_EXPERTS_DOWN ? HSPMD_FP8_WEIGHT
	                                                                : HSPMD_FP8_ACTIVATION;
}

/* The exponent of the scale for a tensor whose history has `level` values that are set. Its amax is below the power of two with exponent
 * level + HSPMD_AMAX_LEAST + unit, and may become nearly twice that before the largest numbers are too large. If nothing is known yet,
 * activations up to 112, weights up to 7, and gradients up to 3584 units are not too large. */
HSPMD_FP8 int hspmd_fp8_scale(int level, int unit, enum hspmd_fp8_operand operand)
{
	const int known = operand == HSPMD_FP8_GRADIENT ? 15 : 8;
	const int first = operand == HSPMD_FP8_GRADIENT ? 4 : operand == HSPMD_FP8_WEIGHT ? 6 : 2;
	return (level ? known - level - HSPMD_AMAX_LEAST : first) - unit;
}

/* A value of the history after a step, in which the sum of thermometers was `set`. */
HSPMD_FP8 float hspmd_amax_next(float value, float set)
{
	return set > 0 ? (float)HSPMD_AMAX_WINDOW : value > 1 ? value - 1 : 0;
}

#endif
