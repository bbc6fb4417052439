/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators: activations and sums. An output may be the same buffer as an input. */
#include "runtime/device/cpu/kernel.h"

#define ELEMENTS_PER_ITEM 16384

/* One vector of inputs in[] to outputs out[]. */
typedef void map(const struct hspmd_op_attr *attr, const vec *in, vec *out);

/* Applies `f`, which the compiler inlines, to the item's elements. */
static inline __attribute__((always_inline)) void apply(const struct hspmd_kernel_args *args, int64_t item, int inputs, int outputs, map *f)
{
	int64_t count = element_count(&args->in[0]), i = item * ELEMENTS_PER_ITEM, end = i + ELEMENTS_PER_ITEM;
	vec in[3], out[2];
	end = end < count ? end : count;
	for (; i + LANES <= end; i += LANES) {
		for (int k = 0; k < inputs; k++)
			in[k] = load((const real *)args->in[k].data + i);
		f(args->attr, in, out);
		for (int k = 0; k < outputs; k++)
			if (args->out[k].data)
				store((real *)args->out[k].data + i, out[k]);
	}
	if (i == end)
		return;
	for (int k = 0; k < inputs; k++)
		in[k] = load_part((const real *)args->in[k].data + i, end - i);
	f(args->attr, in, out);
	for (int k = 0; k < outputs; k++)
		if (args->out[k].data)
			store_part((real *)args->out[k].data + i, out[k], end - i);
}

/* x Phi(x), where the normal distribution function Phi(x) is nearly sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel,
 * "Gaussian Error Linear Units"). */
#define TANH_SLOPE 1.5957691216057308
#define TANH_CUBE 0.044715

static vec erf_gelu(vec x, bool derivative)
{
	vec y;
	for (int i = 0; i < LANES; i++) {
		double v = x[i], phi = 0.5 * (1 + erf(v * M_SQRT1_2));
		y[i] = (real)(derivative ? phi + v * exp(-0.5 * v * v) * 0.3989422804014327 : v * phi);
	}
	return y;
}

static inline void gelu_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	vec x = in[0];
	if (attr->exact)
		out[0] = erf_gelu(x, false);
	else
		out[0] = x * vsigmoid(splat((real)TANH_SLOPE) * (x + splat((real)TANH_CUBE) * x * x * x));
}

static inline void gelu_grad_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	vec dy = in[0], x = in[1];
	if (attr->exact) {
		out[0] = dy * erf_gelu(x, true);
		return;
	}
	vec square = splat((real)TANH_CUBE) * x * x;
	vec s = vsigmoid(splat((real)TANH_SLOPE) * x * (splat(1) + square));
	vec slope = splat((real)TANH_SLOPE) * (splat(1) + splat(3) * square);
	out[0] = dy * (s + x * s * (splat(1) - s) * slope);
}

static inline void swiglu_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	(void)attr;
	out[0] = in[0] * vsigmoid(in[0]) * in[1];
}

static inline void swiglu_grad_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	(void)attr;
	vec dy = in[0], gate = in[1], up = in[2], s = vsigmoid(gate);
	out[0] = dy * up * s * (splat(1) + gate * (splat(1) - s));
	out[1] = dy * gate * s;
}

static inline void add_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	(void)attr;
	out[0] = in[0] + in[1];
}

#define POINTWISE(name, inputs, outputs, ns)                                                                                               \
	static void name##_item(void *context, int64_t item, int thread)                                                                   \
	{                                                                                                                                  \
		(void)thread;                                                                                                              \
		apply(context, item, inputs, outputs, name##_map);                                                                         \
	}                                                                                                                                  \
	static void name(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)                                                      \
	{                                                                                                                                  \
		hspmd_thread_pool_for(cpu->pool, (element_count(&args->in[0]) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM,                \
		                      ELEMENTS_PER_ITEM * (ns), name##_item, (void *)args);                                                \
	}                                                                                                                                  \
	const struct hspmd_cpu_kernel LOCAL(name) = { name, NULL }

POINTWISE(gelu, 1, 1, args->attr->exact ? 2 * LIBM_NS : 2 * VEXP_NS);
POINTWISE(gelu_grad, 2, 1, args->attr->exact ? 3 * LIBM_NS : 2 * VEXP_NS);
POINTWISE(swiglu, 2, 1, 2 * VEXP_NS);
POINTWISE(swiglu_grad, 3, 2, 2 * VEXP_NS);
POINTWISE(add, 2, 1, MOVE_NS);
