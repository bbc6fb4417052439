/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators: activations and sums. An output may be the same buffer as an input. */
#include "runtime/device/cpu/gate.h"

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
		for (int k = 0; k < inputs; k++) {
			in[k] = load((const real *)args->in[k].data + i);
			fetch_ahead((const real *)args->in[k].data + i);
		}
		f(args->attr, in, out);
		for (int k = 0; k < outputs; k++)
			if (args->out[k].data) {
				store((real *)args->out[k].data + i, out[k]);
				fetch_ahead((const real *)args->out[k].data + i);
			}
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

static inline void gelu_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	out[0] = attr->exact ? erf_gelu(in[0], false) : tanh_gelu(in[0]);
}

static inline void gelu_grad_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	out[0] = in[0] * (attr->exact ? erf_gelu(in[1], true) : tanh_gelu_slope(in[1]));
}

static inline void swiglu_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	out[0] = gate_value(attr, in[0], in[1]);
}

static inline void swiglu_grad_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	gate_gradients(attr, in[0], in[1], in[2], &out[0], &out[1]);
}

static inline void add_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	(void)attr;
	out[0] = in[0] + in[1];
}

static inline void scale_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	out[0] = splat((real)attr->scale) * in[0];
}

static inline void softcap_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	out[0] = vsoftcap(in[0], (real)attr->softcap);
}

static inline void softcap_grad_map(const struct hspmd_op_attr *attr, const vec *in, vec *out)
{
	vec t = in[1] / splat((real)attr->softcap);
	out[0] = in[0] * (splat(1) - t * t);
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
