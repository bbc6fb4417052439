/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that update parameters: norm of the gradients, and the optimizers. */
#include "runtime/device/cpu/kernel.h"

#include "runtime/tensor/fp8.h"

#define HSPMD_UPDATE_FUNCTION static inline
#define HSPMD_UPDATE_REAL real
#define HSPMD_UPDATE_SQRT(x) ((real)(REAL_BITS == 32 ? sqrtf((float)(x)) : sqrt(x)))
#include "common/optimizer/rules.h"

#define ELEMENTS_PER_ITEM 16384

static int64_t items_of(const struct hspmd_view *x)
{
	return (element_count(x) + ELEMENTS_PER_ITEM - 1) / ELEMENTS_PER_ITEM;
}

/* Sums in double, per lane: eight sums cover the latency of the addition. */
static void squares_item(void *context, int64_t item, int thread)
{
	const struct hspmd_kernel_args *args = context;
	(void)thread;
	int64_t count = element_count(&args->in[0]), i = item * ELEMENTS_PER_ITEM, end = i + ELEMENTS_PER_ITEM;
	end = end < count ? end : count;
	const real *x = args->in[0].data;
	double sum[16] = { 0 };
	for (; i + 16 <= end; i += 16)
		for (int j = 0; j < 16; j++)
			sum[j] += (double)x[i + j] * (double)x[i + j];
	for (; i < end; i++)
		sum[0] += (double)x[i] * (double)x[i];
	for (int n = 8; n; n /= 2)
		for (int j = 0; j < n; j++)
			sum[j] += sum[j + n];
	((double *)args->workspace)[item] = sum[0];
}

static void sum_squares(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t items = items_of(&args->in[0]);
	hspmd_thread_pool_for(cpu->pool, items, ELEMENTS_PER_ITEM * MOVE_NS, squares_item, (void *)args);
	double *out = args->out[0].data, total = 0;
	for (int64_t i = 0; i < items; i++)
		total += ((const double *)args->workspace)[i];
	*out = args->out[0].accumulate ? *out + total : total;
}

static size_t sum_squares_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	return (size_t)items_of(&args->in[0]) * sizeof(double);
}

#define FETCHED_AT_ONCE 64 /* elements */

/* The update of one item's elements by optimizer NAME; the compiler unrolls the loops over moments. */
#define UPDATE_ITEM(NAME, name)                                                                                                            \
	static void name##_item(void *context, int64_t item, int thread)                                                                   \
	{                                                                                                                                  \
		const struct hspmd_kernel_args *args = context;                                                                            \
		(void)thread;                                                                                                              \
		const struct hspmd_op_attr *attr = args->attr;                                                                             \
		int64_t count = element_count(&args->in[0]), i = item * ELEMENTS_PER_ITEM, end = i + ELEMENTS_PER_ITEM;                    \
		end = end < count ? end : count;                                                                                           \
		const real *restrict gradient = args->in[0].data;                                                                          \
		real *restrict parameter = args->out[0].data, *restrict first = args->out[1].data, *restrict second = args->out[2].data;   \
		real scale = (real)attr->scale, keep = (real)attr->update.keep, rates[HSPMD_OPTIMIZER_RATES];                              \
		for (int k = 0; k < HSPMD_OPTIMIZER_RATES; k++)                                                                            \
			rates[k] = (real)attr->update.rates[k];                                                                            \
		for (int64_t stop; i < end;) {                                                                                             \
			stop = i + FETCHED_AT_ONCE < end ? i + FETCHED_AT_ONCE : end;                                                      \
			for (int64_t k = i; k < stop; k += LANES) {                                                                        \
				fetch_ahead(gradient + k);                                                                                 \
				fetch_ahead(parameter + k);                                                                                \
				fetch_ahead(first + k);                                                                                    \
				if (name##_MOMENTS > 1)                                                                                    \
					fetch_ahead(second + k);                                                                           \
			}                                                                                                                  \
			for (; i < stop; i++) {                                                                                            \
				real moments[HSPMD_OPTIMIZER_MOMENTS] = { first[i], name##_MOMENTS > 1 ? second[i] : 0 };                  \
				parameter[i] = name##_update(rates, keep, gradient[i] * scale, parameter[i], moments);                     \
				first[i] = moments[0];                                                                                     \
				if (name##_MOMENTS > 1)                                                                                    \
					second[i] = moments[1];                                                                            \
			}                                                                                                                  \
		}                                                                                                                          \
	}
HSPMD_OPTIMIZERS(UPDATE_ITEM)

#define ITEM_OF(NAME, name) [HSPMD_OPTIMIZER_##NAME] = name##_item,
static void (*const items[HSPMD_OPTIMIZER_COUNT])(void *context, int64_t item, int thread) = { HSPMD_OPTIMIZERS(ITEM_OF) };

static void update_history(const struct hspmd_kernel_args *args)
{
	const real *set = args->in[0].data;
	real *history = args->out[0].data;
	for (int64_t i = 0; i < element_count(&args->in[0]); i++)
		history[i] = (real)hspmd_amax_next((float)history[i], (float)set[i]);
}

static void update(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	if (args->attr->history) {
		update_history(args);
		return;
	}
	hspmd_thread_pool_for(cpu->pool, items_of(&args->in[0]), ELEMENTS_PER_ITEM * 10 * MOVE_NS, items[args->attr->update.optimizer],
	                      (void *)args);
}

const struct hspmd_cpu_kernel LOCAL(sum_squares) = { sum_squares, sum_squares_workspace };
const struct hspmd_cpu_kernel LOCAL(update) = { update, NULL };
