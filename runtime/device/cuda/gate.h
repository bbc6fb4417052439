/* SPDX-License-Identifier: Apache-2.0 */
/* The gated activations (enum hspmd_activation) of one element: value and gradients. */
#ifndef HSPMD_CUDA_GATE_H
#define HSPMD_CUDA_GATE_H

#include "runtime/device/cuda/kernel.h"

/* x Phi(x). The normal distribution function Phi(x) is approximated by sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel,
 * "Gaussian Error Linear Units"), or computed by erf. */
#define GELU_SLOPE 1.5957691216057308f
#define GELU_CUBE 0.044715f
#define CLAMPED_SLOPE 1.702f

static __device__ __forceinline__ float sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float tanh_gelu_value(float x)
{
	return x * sigmoid(GELU_SLOPE * (x + GELU_CUBE * x * x * x));
}

static __device__ __forceinline__ float tanh_gelu_slope(float x)
{
	float square = GELU_CUBE * x * x, s = sigmoid(GELU_SLOPE * x * (1.0f + square));
	return s + x * s * (1.0f - s) * GELU_SLOPE * (1.0f + 3.0f * square);
}

static __device__ __forceinline__ float erf_gelu_value(float x)
{
	return x * 0.5f * (1.0f + erff(x * 0.70710678f));
}

static __device__ __forceinline__ float erf_gelu_slope(float x)
{
	return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * expf(-0.5f * x * x) * 0.39894228f;
}

/* The gate as a value of its own: gate_function(g) * up, but for HSPMD_CLAMPED. */
static __device__ __forceinline__ float gate_function(int activation, float g)
{
	return activation == HSPMD_GELU_TANH ? tanh_gelu_value(g) : activation == HSPMD_GELU_ERF ? erf_gelu_value(g) : g * sigmoid(g);
}

static __device__ __forceinline__ float gate_slope(int activation, float g)
{
	float s = sigmoid(g);
	return activation == HSPMD_GELU_TANH  ? tanh_gelu_slope(g)
	       : activation == HSPMD_GELU_ERF ? erf_gelu_slope(g)
	                                      : s * (1.0f + g * (1.0f - s));
}

static __device__ __forceinline__ float gate_value(int activation, float limit, float gate, float up)
{
	if (activation != HSPMD_CLAMPED)
		return gate_function(activation, gate) * up;
	gate = fminf(gate, limit);
	return gate * sigmoid(CLAMPED_SLOPE * gate) * (fminf(fmaxf(up, -limit), limit) + 1.0f);
}

static __device__ __forceinline__ void gate_gradients(int activation, float limit, float dy, float gate, float up, float *dgate, float *dup)
{
	if (activation != HSPMD_CLAMPED) {
		*dgate = dy * up * gate_slope(activation, gate);
		*dup = dy * gate_function(activation, gate);
		return;
	}
	float g = fminf(gate, limit), s = sigmoid(CLAMPED_SLOPE * g);
	*dgate = gate > limit ? 0.0f : dy * (fminf(fmaxf(up, -limit), limit) + 1.0f) * s * (1.0f + CLAMPED_SLOPE * g * (1.0f - s));
	*dup = up > limit || up < -limit ? 0.0f : dy * g * s;
}

#endif
