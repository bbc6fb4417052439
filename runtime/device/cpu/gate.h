/* SPDX-License-Identifier: Apache-2.0 */
/* The gated activations (enum hspmd_activation), element by element: value and gradients. */
#ifndef HSPMD_CPU_GATE_H
#define HSPMD_CPU_GATE_H

#include "runtime/device/cpu/kernel.h"

/* x Phi(x), where the normal distribution function Phi(x) is nearly sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel,
 * "Gaussian Error Linear Units"). */
#define GELU_SLOPE 1.5957691216057308
#define GELU_CUBE 0.044715
#define CLAMPED_SLOPE 1.702

#if REAL_BITS == 32
/* Phi(x) from Phi(-|x|) = e^(-x^2 / 2) t P(t), t = 1 / (1 + 0.35 |x|). P has degree 8 and interpolates at Chebyshev's nodes for |x| < 14:
 * within 5 units of the last place. */
static inline vec erf_gelu(vec x, bool derivative)
{
	static const float p[] = { 0.13961871f,  0.139912292f,  0.119444914f, 0.107114591f,  -0.0270466078f,
		                   0.165050998f, -0.260961235f, 0.146545827f, -0.0296795219f };
	vec t = splat(1) / (splat(1) + splat(0.35f) * vselect(x < splat(0), -x, x)), bell = vexp(splat(-0.5f) * x * x), sum = splat(p[8]);
	for (int k = 7; k >= 0; k--)
		sum = sum * t + splat(p[k]);
	vec tail = sum * t * bell, phi = vselect(x < splat(0), tail, splat(1) - tail);
	return derivative ? phi + x * bell * splat(0.3989422804f) : x * phi;
}
#else
static inline vec erf_gelu(vec x, bool derivative)
{
	vec y;
	for (int i = 0; i < LANES; i++) {
		double v = x[i], phi = 0.5 * (1 + erf(v * M_SQRT1_2));
		y[i] = (real)(derivative ? phi + v * exp(-0.5 * v * v) * 0.3989422804014327 : v * phi);
	}
	return y;
}
#endif

static inline __attribute__((always_inline)) void tanh_gelus(vec *x, int n)
{
	vec s[TOGETHER];
	EACH(n) s[i] = splat((real)GELU_SLOPE) * (x[i] + splat((real)GELU_CUBE) * x[i] * x[i] * x[i]);
	vsigmoids(s, n);
	EACH(n) x[i] = x[i] * s[i];
}

static inline __attribute__((always_inline)) void tanh_gelu_slopes(vec *x, int n)
{
	vec s[TOGETHER], square[TOGETHER];
	EACH(n) square[i] = splat((real)GELU_CUBE) * x[i] * x[i];
	EACH(n) s[i] = splat((real)GELU_SLOPE) * x[i] * (splat(1) + square[i]);
	vsigmoids(s, n);
	EACH(n) square[i] = splat((real)GELU_SLOPE) * (splat(1) + splat(3) * square[i]);
	EACH(n) x[i] = s[i] + x[i] * s[i] * (splat(1) - s[i]) * square[i];
}

static inline vec tanh_gelu(vec x)
{
	tanh_gelus(&x, 1);
	return x;
}

static inline vec tanh_gelu_slope(vec x)
{
	tanh_gelu_slopes(&x, 1);
	return x;
}

static inline vec vclamp(vec x, vec low, vec high)
{
	return vselect(x < low, low, vselect(x > high, high, x));
}

/* gate sigmoid(gate) up (Shazeer, "GLU Variants Improve Transformer"), and its gradients from that of the product. */
static inline __attribute__((always_inline)) void swiglu_values(const vec *gate, const vec *up, vec *out, int n)
{
	vec s[TOGETHER];
	EACH(n) s[i] = gate[i];
	vsigmoids(s, n);
	EACH(n) out[i] = gate[i] * s[i] * up[i];
}

static inline __attribute__((always_inline)) void swiglu_gradients(const vec *dy, const vec *gate, const vec *up, vec *dgate, vec *dup,
                                                                   int n)
{
	vec s[TOGETHER];
	EACH(n) s[i] = gate[i];
	vsigmoids(s, n);
	EACH(n) dgate[i] = dy[i] * up[i] * s[i] * (splat(1) + gate[i] * (splat(1) - s[i]));
	EACH(n) dup[i] = dy[i] * gate[i] * s[i];
}

static inline vec gate_value(const struct hspmd_op_attr *attr, vec gate, vec up)
{
	vec limit = splat((real)attr->limit);
	switch (attr->activation) {
	case HSPMD_GELU_TANH:
		return tanh_gelu(gate) * up;
	case HSPMD_GELU_ERF:
		return erf_gelu(gate, false) * up;
	case HSPMD_CLAMPED:
		gate = vselect(gate > limit, limit, gate);
		return gate * vsigmoid(splat((real)CLAMPED_SLOPE) * gate) * (vclamp(up, -limit, limit) + splat(1));
	default:
		swiglu_values(&gate, &up, &gate, 1);
		return gate;
	}
}

static inline void clamped_gradients(const struct hspmd_op_attr *attr, vec dy, vec gate, vec up, vec *dgate, vec *dup)
{
	vec limit = splat((real)attr->limit), slope = splat((real)CLAMPED_SLOPE), zero = splat(0);
	vec g = vselect(gate > limit, limit, gate), s = vsigmoid(slope * g);
	*dgate = vselect(gate > limit, zero, dy * (vclamp(up, -limit, limit) + splat(1)) * s * (splat(1) + slope * g * (splat(1) - s)));
	*dup = vselect((up > limit) | (up < -limit), zero, dy * g * s);
}

/* Gradients of f(gate) * up, from that of the product. */
static inline void gate_gradients(const struct hspmd_op_attr *attr, vec dy, vec gate, vec up, vec *dgate, vec *dup)
{
	switch (attr->activation) {
	case HSPMD_GELU_TANH:
		*dgate = dy * up * tanh_gelu_slope(gate);
		*dup = dy * tanh_gelu(gate);
		return;
	case HSPMD_GELU_ERF:
		*dgate = dy * up * erf_gelu(gate, true);
		*dup = dy * erf_gelu(gate, false);
		return;
	case HSPMD_CLAMPED:
		clamped_gradients(attr, dy, gate, up, dgate, dup);
		return;
	default:
		swiglu_gradients(&dy, &gate, &up, dgate, dup, 1);
	}
}

#endif
