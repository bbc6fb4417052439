/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over dimensions. One item has some results and sums each of them in the order of the elements, so that the bits do not depend on
 * the threads. Sums are made in double. */
#include "runtime/device/cpu/loop.h"

#define COLUMNS 128 /* results that are summed at once, if rows of x are rows of results */

/* The dimensions of x that remain, and those that are reduced; steps of buffer 0: in the result, of buffer 1: in x. */
struct work {
	const struct hspmd_kernel_args *args;
	struct loop kept, reduced;
	bool rows; /* of x are rows of results, or parts of them */
	int64_t columns;
};

static void append(struct loop *l, int64_t size, int64_t step)
{
	l->shape[l->rank] = size;
	l->step[1][l->rank++] = step;
}

static struct work work_of(const struct hspmd_kernel_args *args, const struct hspmd_view *x)
{
	struct work w = { .args = args };
	int64_t step[HSPMD_MAX_RANK], next = 1;
	packed_steps(x, step);
	for (int d = 0; d < x->rank; d++)
		append(args->attr->numbers[0] >> d & 1 ? &w.reduced : &w.kept, x->shape[d], step[d]);
	for (int d = w.kept.rank - 1; d >= 0; d--) {
		w.kept.step[0][d] = next;
		next *= w.kept.shape[d];
	}
	if (!w.kept.rank)
		append(&w.kept, 1, 0);
	if (!w.reduced.rank)
		append(&w.reduced, 1, 0);
	loop_collapse(&w.kept);
	loop_collapse(&w.reduced);
	w.rows = w.kept.step[1][w.kept.rank - 1] == 1;
	w.columns = w.rows ? (loop_row_length(&w.kept) + COLUMNS - 1) / COLUMNS : 1;
	return w;
}

/* ---- rows of results */

static void reduce_rows(const struct work *w, int64_t item, bool largest)
{
	double sums[COLUMNS];
	int64_t at[LOOP_BUFFERS], from[LOOP_BUFFERS], first, end, count = loop_row_length(&w->reduced),
	                                                          step = w->reduced.step[1][w->reduced.rank - 1];
	loop_row(&w->kept, item / w->columns, at);
	split_range(loop_row_length(&w->kept), w->columns, item % w->columns, &first, &end);
	for (int64_t j = 0; j < end - first; j++)
		sums[j] = largest ? -INFINITY : 0;
	for (int64_t r = 0; r < loop_rows(&w->reduced); r++) {
		loop_row(&w->reduced, r, from);
		for (int64_t i = 0; i < count; i++) {
			const real *x = (const real *)w->args->in[0].data + at[1] + from[1] + i * step + first;
			if (largest)
				for (int64_t j = 0; j < end - first; j++)
					sums[j] = (double)x[j] > sums[j] ? (double)x[j] : sums[j];
			else
				for (int64_t j = 0; j < end - first; j++)
					sums[j] += (double)x[j];
		}
	}
	real *to = (real *)w->args->out[0].data + at[0] + first;
	for (int64_t j = 0; j < end - first; j++)
		to[j] = (real)(largest ? sums[j] : w->args->attr->scale * sums[j]);
}

/* ---- results of rows */

static double sum_of(const real *x, int64_t count, int64_t step)
{
	double lane[8] = { 0 };
	int64_t i = 0;
	for (; step == 1 && i + 8 <= count; i += 8)
		for (int k = 0; k < 8; k++)
			lane[k] += (double)x[i + k];
	for (; i < count; i++)
		lane[0] += (double)x[i * step];
	return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static double largest_of(const real *x, int64_t count, int64_t step, double most)
{
	for (int64_t i = 0; i < count; i++)
		most = (double)x[i * step] > most ? (double)x[i * step] : most;
	return most;
}

static void reduce_results(const struct work *w, int64_t row, bool largest)
{
	int64_t at[LOOP_BUFFERS], from[LOOP_BUFFERS], count = loop_row_length(&w->reduced), last = w->kept.rank - 1,
	                                              step = w->reduced.step[1][w->reduced.rank - 1];
	loop_row(&w->kept, row, at);
	for (int64_t i = 0; i < loop_row_length(&w->kept); i++) {
		double sum = largest ? -INFINITY : 0;
		for (int64_t r = 0; r < loop_rows(&w->reduced); r++) {
			loop_row(&w->reduced, r, from);
			const real *x = (const real *)w->args->in[0].data + at[1] + i * w->kept.step[1][last] + from[1];
			sum = largest ? largest_of(x, count, step, sum) : sum + sum_of(x, count, step);
		}
		((real *)w->args->out[0].data)[at[0] + i * w->kept.step[0][last]] = (real)(largest ? sum : w->args->attr->scale * sum);
	}
}

static void reduce_item(void *context, int64_t item, int thread)
{
	const struct work *w = context;
	bool largest = w->args->attr->kind == HSPMD_REDUCE_MAX;
	(void)thread;
	if (w->rows)
		reduce_rows(w, item, largest);
	else
		reduce_results(w, item, largest);
}

static void reduce(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = work_of(args, &args->in[0]);
	int64_t items = loop_rows(&w.kept) * w.columns;
	hspmd_thread_pool_for(cpu->pool, items, (double)element_count(&args->in[0]) / (double)(items ? items : 1) * 2 * MOVE_NS,
	                      reduce_item, &w);
}

/* ---- the gradient of the largest */

static void max_grad_item(void *context, int64_t row, int thread)
{
	const struct work *w = context;
	(void)thread;
	const real *dy = w->args->in[0].data, *y = w->args->in[1].data, *x = w->args->in[2].data;
	real *dx = w->args->out[0].data;
	int64_t at[LOOP_BUFFERS], from[LOOP_BUFFERS], count = loop_row_length(&w->reduced), last = w->kept.rank - 1,
	                                              step = w->reduced.step[1][w->reduced.rank - 1];
	loop_row(&w->kept, row, at);
	for (int64_t i = 0; i < loop_row_length(&w->kept); i++) {
		int64_t to = at[0] + i * w->kept.step[0][last], equal = 0;
		for (int pass = 0; pass < 2; pass++)
			for (int64_t r = 0; r < loop_rows(&w->reduced); r++) {
				loop_row(&w->reduced, r, from);
				int64_t k = at[1] + i * w->kept.step[1][last] + from[1];
				for (int64_t j = 0; j < count; j++, k += step)
					if (pass)
						dx[k] = x[k] == y[to] ? dy[to] / (real)equal : 0;
					else
						equal += x[k] == y[to];
			}
	}
}

static void max_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct work w = work_of(args, &args->in[2]);
	int64_t items = loop_rows(&w.kept);
	hspmd_thread_pool_for(cpu->pool, items, (double)element_count(&args->in[2]) / (double)(items ? items : 1) * 4 * MOVE_NS,
	                      max_grad_item, &w);
}

const struct hspmd_cpu_kernel LOCAL(reduce) = { reduce, NULL };
const struct hspmd_cpu_kernel LOCAL(max_grad) = { max_grad, NULL };
