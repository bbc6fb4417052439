/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by number, and the sum of gradients into them. */
#include "runtime/device/cpu/kernel.h"

#define COLUMNS 64

struct rows {
	const struct hspmd_kernel_args *args;
	const int32_t *index;
	int64_t batches, chosen, count, first, width; /* per batch: numbers; rows of x that are here, from number `first` on */
	int64_t parts;                                /* of a row */
};

static struct rows rows_of(const struct hspmd_kernel_args *args, const struct hspmd_view *x)
{
	int batch = (int)args->attr->numbers[0];
	struct rows r = { .args = args, .index = args->in[1].data, .batches = 1, .chosen = 1, .width = 1 };
	for (int d = 0; d < batch; d++)
		r.batches *= x->shape[d];
	for (int d = batch; d < args->in[1].rank; d++)
		r.chosen *= args->in[1].shape[d];
	for (int d = batch + 1; d < x->rank; d++)
		r.width *= x->shape[d];
	r.count = x->shape[batch];
	r.first = x->start[batch];
	r.parts = (r.width + COLUMNS - 1) / COLUMNS;
	return r;
}

static void take_row(void *context, int64_t item, int thread)
{
	const struct rows *r = context;
	(void)thread;
	int64_t from = r->index[item] - r->first;
	real *to = (real *)r->args->out[0].data + item * r->width;
	if (from >= 0 && from < r->count)
		memcpy(to, (const real *)r->args->in[0].data + (item / r->chosen * r->count + from) * r->width,
		       (size_t)r->width * sizeof *to);
	else
		memset(to, 0, (size_t)r->width * sizeof *to);
}

static void gather(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct rows r = rows_of(args, &args->in[0]);
	hspmd_thread_pool_for(cpu->pool, r.batches * r.chosen, (double)r.width * MOVE_NS, take_row, &r);
}

/* Some columns of one batch: the numbers in order. */
static void add_columns(void *context, int64_t item, int thread)
{
	const struct rows *r = context;
	(void)thread;
	int64_t batch = item / r->parts, first, end;
	split_range(r->width, r->parts, item % r->parts, &first, &end);
	real *to = (real *)r->args->out[0].data + batch * r->count * r->width;
	for (int64_t n = 0; !r->args->out[0].accumulate && n < r->count; n++)
		memset(to + n * r->width + first, 0, (size_t)(end - first) * sizeof *to);
	for (int64_t k = batch * r->chosen; k < (batch + 1) * r->chosen; k++) {
		const real *from = (const real *)r->args->in[0].data + k * r->width;
		int64_t row = r->index[k] - r->first;
		for (int64_t j = first; row >= 0 && row < r->count && j < end; j++)
			to[row * r->width + j] += from[j];
	}
}

static void gather_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct rows r = rows_of(args, &args->in[2]);
	hspmd_thread_pool_for(cpu->pool, r.batches * r.parts, (double)((r.chosen + r.count) * COLUMNS) * MOVE_NS, add_columns, &r);
}

const struct hspmd_cpu_kernel LOCAL(gather) = { gather, NULL };
const struct hspmd_cpu_kernel LOCAL(gather_grad) = { gather_grad, NULL };
