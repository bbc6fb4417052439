/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of two tensors, either of which may be repeated. */
#include "runtime/device/cpu/loop.h"

struct work {
	const struct hspmd_kernel_args *args;
	struct loop loop; /* buffer 0: the result */
};

/* f of the rows' elements; a step is 1, or 0 for a repeated element. */
#define ROW(name, expression)                                                                                                              \
	static void name(real *y, const real *a, int64_t a_step, const real *b, int64_t b_step, int64_t count)                             \
	{                                                                                                                                  \
		if (a_step && b_step)                                                                                                      \
			for (int64_t i = 0; i < count; i++) {                                                                              \
				real p = a[i], q = b[i];                                                                                   \
				y[i] = expression;                                                                                         \
			}                                                                                                                  \
		else                                                                                                                       \
			for (int64_t i = 0; i < count; i++) {                                                                              \
				real p = a[i * a_step], q = b[i * b_step];                                                                 \
				y[i] = expression;                                                                                         \
			}                                                                                                                  \
	}

ROW(add_row, p + q)
ROW(sub_row, p - q)
ROW(mul_row, p *q)
ROW(div_row, p / q)

static void item_of(void *context, int64_t item, int thread)
{
	static void (*const rows[])(real *, const real *, int64_t, const real *, int64_t, int64_t) = {
		[HSPMD_BINARY_ADD] = add_row, [HSPMD_BINARY_SUB] = sub_row, [HSPMD_BINARY_MUL] = mul_row, [HSPMD_BINARY_DIV] = div_row
	};
	const struct work *w = context;
	const struct hspmd_kernel_args *args = w->args;
	(void)thread;
	int64_t row, row_end, first, end, at[LOOP_BUFFERS], a_step = w->loop.step[1][w->loop.rank - 1],
	                                                    b_step = w->loop.step[2][w->loop.rank - 1];
	loop_item(&w->loop, item, &row, &row_end, &first, &end);
	for (; row < row_end; row++) {
		loop_row(&w->loop, row, at);
		rows[args->attr->kind]((real *)args->out[0].data + at[0] + first, (const real *)args->in[0].data + at[1] + first * a_step,
		                       a_step, (const real *)args->in[1].data + at[2] + first * b_step, b_step, end - first);
	}
}

static void binary(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = { args, loop_over(&args->out[0], 0) };
	loop_repeat(&w.loop, 1, &args->in[0]);
	loop_repeat(&w.loop, 2, &args->in[1]);
	loop_collapse(&w.loop);
	hspmd_thread_pool_for(cpu->pool, loop_items(&w.loop), loop_item_elements(&w.loop) * MOVE_NS, item_of, &w);
}

const struct hspmd_cpu_kernel LOCAL(binary) = { binary, NULL };
