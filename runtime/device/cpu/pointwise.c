/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators: activations and sums. An output may be the same buffer as an input. */
#include "runtime/device/cpu/gate.h"

#define ELEMENTS_PER_ITEM 16384

/* `n` <= TOGETHER vectors of each input, in[k][i], to those of outputs. */
typedef void map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n);

/* Applies `f`, which the compiler inlines, to the item's elements. */
static inline __attribute__((always_inline)) void apply(const struct hspmd_kernel_args *args, int64_t item, int inputs, int outputs, map *f)
{
	int64_t count = element_count(&args->in[0]), at = item * ELEMENTS_PER_ITEM, end = at + ELEMENTS_PER_ITEM;
	const struct hspmd_op_attr *attr = args->attr;
	const real *from[3] = { args->in[0].data, args->in[1].data, args->in[2].data };
	real *to[2] = { args->out[0].data, args->out[1].data };
	vec in[3][TOGETHER], out[2][TOGETHER];
	end = end < count ? end : count;
	for (; at + TOGETHER * LANES <= end; at += TOGETHER * LANES) {
		for (int k = 0; k < inputs; k++)
			EACH(TOGETHER)
			{
				in[k][i] = load(from[k] + at + i * LANES);
				fetch_ahead(from[k] + at + i * LANES);
			}
		f(attr, in, out, TOGETHER);
		for (int k = 0; k < outputs; k++)
			EACH(to[k] ? TOGETHER : 0)
			{
				store(to[k] + at + i * LANES, out[k][i]);
				fetch_ahead(to[k] + at + i * LANES);
			}
	}
	for (int64_t width; at < end; at += width) {
		width = end - at < LANES ? end - at : LANES;
		for (int k = 0; k < inputs; k++)
			in[k][0] = load_part(from[k] + at, width);
		f(attr, in, out, 1);
		for (int k = 0; k < outputs; k++)
			if (to[k])
				store_part(to[k] + at, out[k][0], width);
	}
}

static inline void gelu_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	EACH(n) out[0][i] = attr->exact ? erf_gelu(in[0][i], false) : in[0][i];
	if (!attr->exact)
		tanh_gelus(out[0], n);
}

static inline void gelu_grad_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	EACH(n) out[0][i] = attr->exact ? erf_gelu(in[1][i], true) : in[1][i];
	if (!attr->exact)
		tanh_gelu_slopes(out[0], n);
	EACH(n) out[0][i] = in[0][i] * out[0][i];
}

static inline void swiglu_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	if (attr->activation == HSPMD_SILU)
		swiglu_values(in[0], in[1], out[0], n);
	else
		EACH(n) out[0][i] = gate_value(attr, in[0][i], in[1][i]);
}

static inline void swiglu_grad_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	if (attr->activation == HSPMD_SILU)
		swiglu_gradients(in[0], in[1], in[2], out[0], out[1], n);
	else
		EACH(n) gate_gradients(attr, in[0][i], in[1][i], in[2][i], &out[0][i], &out[1][i]);
}

static inline void add_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	(void)attr;
	EACH(n) out[0][i] = in[0][i] + in[1][i];
}

static inline void scale_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	EACH(n) out[0][i] = splat((real)attr->scale) * in[0][i];
}

static inline void softcap_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	EACH(n) out[0][i] = vsoftcap(in[0][i], (real)attr->softcap);
}

static inline void softcap_grad_map(const struct hspmd_op_attr *attr, vec in[][TOGETHER], vec out[][TOGETHER], int n)
{
	EACH(n)
	{
		vec t = in[1][i] / splat((real)attr->softcap);
		out[0][i] = in[0][i] * (splat(1) - t * t);
	}
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

POINTWISE(gelu, 1, 1, args->attr->exact ? 3 * VEXP_NS : 2 * VEXP_NS);
POINTWISE(gelu_grad, 2, 1, args->attr->exact ? 3 * VEXP_NS : 2 * VEXP_NS);
POINTWISE(swiglu, 2, 1, 2 * VEXP_NS);
POINTWISE(swiglu_grad, 3, 2, 2 * VEXP_NS);
POINTWISE(add, 2, 1, MOVE_NS);
POINTWISE(scale, 1, 1, MOVE_NS);
POINTWISE(softcap, 1, 1, LIBM_NS);
POINTWISE(softcap_grad, 2, 1, MOVE_NS);
