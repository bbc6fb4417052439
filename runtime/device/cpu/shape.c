/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that only move elements: other dimensions, another order, a part, several in one, repeated. */
#include "runtime/device/cpu/loop.h"

struct work {
	real *to;         /* buffer 0 */
	const real *from; /* buffer 1 */
	real scale;
	struct loop loop;
};

static void copy_item(void *context, int64_t item, int thread)
{
	const struct work *w = context;
	(void)thread;
	int64_t row, row_end, first, end, at[LOOP_BUFFERS], to_step = w->loop.step[0][w->loop.rank - 1],
	                                                    from_step = w->loop.step[1][w->loop.rank - 1];
	loop_item(&w->loop, item, &row, &row_end, &first, &end);
	for (; row < row_end; row++) {
		loop_row(&w->loop, row, at);
		real *to = w->to + at[0] + first * to_step;
		const real *from = w->from + at[1] + first * from_step;
		if (to_step == 1 && from_step == 1 && w->scale == 1)
			memcpy(to, from, (size_t)(end - first) * sizeof *to);
		else
			for (int64_t i = 0; i < end - first; i++)
				to[i * to_step] = w->scale * from[i * from_step];
	}
}

static void copy(struct hspmd_cpu *cpu, struct work *w)
{
	loop_collapse(&w->loop);
	hspmd_thread_pool_for(cpu->pool, loop_items(&w->loop), loop_item_elements(&w->loop) * 2 * MOVE_NS, copy_item, w);
}

static void reshape(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0];
	struct work w = { args->out[0].data, x->data, 1, loop_over(x, 0) };
	memcpy(w.loop.step[1], w.loop.step[0], sizeof w.loop.step[0]);
	if (args->out[0].data != x->data)
		copy(cpu, &w);
}

static void transpose(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = { args->out[0].data, args->in[0].data, 1, loop_over(&args->out[0], 0) };
	int64_t step[HSPMD_MAX_RANK];
	packed_steps(&args->in[0], step);
	for (int d = 0; d < args->in[0].rank; d++)
		w.loop.step[1][d] = step[args->attr->numbers[d]];
	copy(cpu, &w);
}

/* A box within a larger buffer; dimensions that are not cut may be split. */
static int64_t begin_of(const struct hspmd_view *large, const int64_t *begin, int64_t *step)
{
	int64_t base = 0;
	packed_steps(large, step);
	for (int d = 0; d < large->rank; d++)
		base += begin[d] * step[d];
	return base;
}

static void slice(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = { args->out[0].data, args->in[0].data, 1, loop_over(&args->out[0], 0) };
	w.loop.base[1] = begin_of(&args->in[0], args->attr->numbers, w.loop.step[1]);
	copy(cpu, &w);
}

static void pad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = { args->out[0].data, args->in[0].data, 1, loop_over(&args->in[0], 1) };
	w.loop.base[0] = begin_of(&args->out[0], args->attr->numbers, w.loop.step[0]);
	memset(w.to, 0, (size_t)element_count(&args->out[0]) * sizeof *w.to);
	copy(cpu, &w);
}

static void concat(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	int64_t begin[HSPMD_MAX_RANK] = { 0 }, axis = args->attr->numbers[0];
	for (int i = 0; i < args->input_count; i++) {
		struct work w = { args->out[0].data, args->in[i].data, 1, loop_over(&args->in[i], 1) };
		w.loop.base[0] = begin_of(&args->out[0], begin, w.loop.step[0]);
		begin[axis] += args->in[i].shape[axis];
		copy(cpu, &w);
	}
}

static void broadcast(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0], *y = &args->out[0];
	const struct hspmd_op_attr *attr = args->attr;
	struct work w = { y->data, x->data, (real)attr->scale, loop_over(y, 0) };
	int64_t step[HSPMD_MAX_RANK];
	packed_steps(x, step);
	for (int d = y->rank - 1, own = x->rank - 1; d >= 0; d--) {
		bool repeated = attr->numbers[0] >> d & 1;
		w.loop.step[1][d] = repeated || own < 0 ? 0 : step[own];
		own -= !repeated || attr->numbers[1];
	}
	copy(cpu, &w);
}

const struct hspmd_cpu_kernel LOCAL(reshape) = { reshape, NULL };
const struct hspmd_cpu_kernel LOCAL(reshard) = { reshape, NULL };
const struct hspmd_cpu_kernel LOCAL(transpose) = { transpose, NULL };
const struct hspmd_cpu_kernel LOCAL(slice) = { slice, NULL };
const struct hspmd_cpu_kernel LOCAL(pad) = { pad, NULL };
const struct hspmd_cpu_kernel LOCAL(concat) = { concat, NULL };
const struct hspmd_cpu_kernel LOCAL(broadcast) = { broadcast, NULL };
