/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one element and their slopes. The result may be the same buffer as an input. */
#include "runtime/device/cpu/kernel.h"

#define ELEMENTS_PER_ITEM 16384

static inline vec by_libm(vec x, double f(double))
{
	for (int i = 0; i < LANES; i++)
		x[i] = (real)f((double)x[i]);
	return x;
}

static inline vec powers(vec x, double exponent)
{
	for (int i = 0; i < LANES; i++)
		x[i] = (real)pow((double)x[i], exponent);
	return x;
}

static inline vec value(const struct hspmd_op_attr *attr, vec x)
{
	switch ((enum hspmd_unary)attr->kind) {
	case HSPMD_UNARY_RELU:
		return vselect(x > splat(0), x, vselect(x != x, x, splat(0)));
	case HSPMD_UNARY_SIGMOID:
		return vsigmoid(x);
	case HSPMD_UNARY_SILU:
		return x * vsigmoid(x);
	case HSPMD_UNARY_TANH:
		return by_libm(x, tanh);
	case HSPMD_UNARY_EXP:
		return by_libm(x, exp);
	case HSPMD_UNARY_LOG:
		return by_libm(x, log);
	case HSPMD_UNARY_SQRT:
		return vsqrt(x);
	default:
		return powers(x, attr->exponent);
	}
}

/* `at`: the input or the result, as the list of operators says. */
static inline vec slope(const struct hspmd_op_attr *attr, vec at)
{
	switch ((enum hspmd_unary)attr->kind) {
	case HSPMD_UNARY_RELU:
		return vselect(at > splat(0), splat(1), splat(0));
	case HSPMD_UNARY_SIGMOID:
		return at * (splat(1) - at);
	case HSPMD_UNARY_SILU: {
		vec s = vsigmoid(at);
		return s * (splat(1) + at * (splat(1) - s));
	}
	case HSPMD_UNARY_TANH:
		return splat(1) - at * at;
	case HSPMD_UNARY_EXP:
		return at;
	case HSPMD_UNARY_LOG:
		return splat(1) / at;
	case HSPMD_UNARY_SQRT:
		return splat((real)0.5) / at;
	default:
		return splat((real)attr->exponent) * powers(at, attr->exponent - 1);
	}
}

static double ns_of(const struct hspmd_op_attr *attr)
{
	bool libm = attr->kind == HSPMD_UNARY_TANH || attr->kind == HSPMD_UNARY_EXP || attr->kind == HSPMD_UNARY_LOG ||
	            attr->kind == HSPMD_UNARY_POWER;
	return libm ? LIBM_NS : 2 * VEXP_NS;
}

static void item_of(const struct hspmd_kernel_args *args, int64_t item, bool backward)
{
	int64_t count = element_count(&args->in[0]), i = item * ELEMENTS_PER_ITEM;
	int64_t end = i + ELEMENTS_PER_ITEM < count ? i + ELEMENTS_PER_ITEM : count;
	const real *x = args->in[backward].data, *dy = backward ? args->in[0].data : NULL;
	real *y = args->out[0].data;
	for (; i < end; i += LANES) {
		bool whole = i + LANES <= end;
		vec v = whole ? load(x + i) : load_part(x + i, end - i), factor = splat(1);
		if (backward)
			factor = whole ? load(dy + i) : load_part(dy + i, end - i);
		fetch_ahead(x + i);
		fetch_ahead(y + i);
		if (backward)
			fetch_ahead(dy + i);
		v = backward ? factor * slope(args->attr, v) : value(args->attr, v);
		if (whole)
			store(y + i, v);
		else
			store_part(y + i, v, end - i);
	}
}

static void forward_item(void *context, int64_t item, int thread)
{
	(void)thread;
	item_of(context, item, false);
}

static void backward_item(void *context, int64_t item, int thread)
{
	(void)thread;
	item_of(context, item, true);
}

static void run(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, void (*item)(void *, int64_t, int))
{
	hspmd_thread_pool_for(cpu->pool, (element_count(&args->in[0]) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM,
	                      ELEMENTS_PER_ITEM * ns_of(args->attr), item, (void *)args);
}

static void unary(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	run(cpu, args, forward_item);
}

static void unary_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	run(cpu, args, backward_item);
}

const struct hspmd_cpu_kernel LOCAL(unary) = { unary, NULL };
const struct hspmd_cpu_kernel LOCAL(unary_grad) = { unary_grad, NULL };
