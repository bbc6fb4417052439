/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products as the floats that their FP8 numbers are (runtime/tensor/fp8.h). */
#ifndef HSPMD_CPU_FP8_OPERAND_H
#define HSPMD_CPU_FP8_OPERAND_H

#include "runtime/device/cpu/kernel.h"

#include "runtime/tensor/fp8.h"

#define ROUND_ELEMENTS 16384 /* per item */

/* Before a loop that may compute in vectors, because each turn writes at most what it alone has read. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* The amax history of one tensor, and what it says. */
static inline int level_of(const struct hspmd_view *history, int row)
{
	const real *values = (const real *)history->data + row * HSPMD_AMAX_BINS;
	int level = 0;
	for (int b = 0; b < HSPMD_AMAX_BINS; b++)
		level += values[b] > 0;
	return level;
}

/* The exponent of the scale that the history gives. */
static inline int scale_of(const struct hspmd_kernel_args *args, const struct hspmd_view *history, int row, enum hspmd_fp8_operand operand)
{
	return hspmd_fp8_scale(level_of(history, row), operand == HSPMD_FP8_GRADIENT ? hspmd_amax_unit(args->attr->scale) : 0, operand);
}

static inline real fp8_value(real x, float scale, float back, bool gradient)
{
	return (real)((gradient ? hspmd_e5m2_round((float)x * scale) : hspmd_e4m3_round((float)x * scale)) * back);
}

struct rounding {
	const real *from;
	real *to; /* may be from */
	int64_t count;
	float scale, back;
	bool gradient;
};

static inline void round_item(void *context, int64_t item, int thread)
{
	const struct rounding *r = context;
	(void)thread;
	int64_t first, end, items = (r->count + ROUND_ELEMENTS - 1) / ROUND_ELEMENTS;
	split_range(r->count, items, item, &first, &end);
	const real *from = r->from;
	real *to = r->to;
	float scale = r->scale, back = r->back;
	if (r->gradient)
		INDEPENDENT
	        for (int64_t i = first; i < end; i++)
			to[i] = fp8_value(from[i], scale, back, true);
	        else INDEPENDENT for (int64_t i = first; i < end; i++) to[i] = fp8_value(from[i], scale, back, false);
}

/* Rounds elements with a scale, given as its exponent; `to` may be `from`. */
static inline void round_elements(struct hspmd_thread_pool *pool, const real *from, int64_t count, int scale,
                                  enum hspmd_fp8_operand operand, real *to)
{
	struct rounding r = { .from = from,
		              .to = to,
		              .count = count,
		              .scale = hspmd_power_of_two(scale),
		              .back = hspmd_power_of_two(-scale),
		              .gradient = operand == HSPMD_FP8_GRADIENT };
	hspmd_thread_pool_for(pool, (count + ROUND_ELEMENTS - 1) / ROUND_ELEMENTS, ROUND_ELEMENTS * 4 * MOVE_NS, round_item, &r);
}

/* The largest magnitude. */
static inline real amax_of(const real *values, int64_t count)
{
	vec most = splat(0);
	for (int64_t i = 0; i < count; i += LANES) {
		vec v = i + LANES <= count ? load(values + i) : load_part(values + i, count - i);
		most = vmax(vmax(v, -v), most); /* which ignores NaN */
	}
	return reduce_max(most);
}

/* Adds the thermometer of an amax to a row of a history's gradient, or writes it. */
static inline void note_amax(real amax, int unit, const struct hspmd_view *to, int row)
{
	real *sums = (real *)to->data + row * HSPMD_AMAX_BINS;
	int level = hspmd_amax_level((float)amax, unit);
	for (int b = 0; b < HSPMD_AMAX_BINS; b++)
		sums[b] = (to->accumulate ? sums[b] : 0) + (b < level ? 1 : 0);
}

#endif
