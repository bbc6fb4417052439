/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, section 3.4.2): pairs of elements of a head are rotated by the angle
 * position * frequency (opcode_list.h). Angles are computed in double from a multiple of BLOCK and a remainder,
 * so that a position's sine and cosine do not depend on where a device's part of the sequence begins. */
#include "runtime/device/cpu/kernel.h"

#define BLOCK 64

struct rotation {
	const struct hspmd_kernel_args *args;
	real direction;
	int64_t half, first; /* pairs of a head; position of the first row of the table */
	double *fine;        /* cosine, sine of remainder * frequency: [BLOCK][half][2] */
	real *table;         /* cosines [half], then sines [half], one row per position */
};

static int64_t rotated(const struct hspmd_op_attr *attr)
{
	return attr->rotary ? attr->rotary : attr->head_dim;
}

static double frequency(const struct hspmd_op_attr *attr, int64_t i)
{
	if (attr->frequencies)
		return attr->frequencies[i];
	return pow(attr->theta, -2.0 * (double)i / (double)rotated(attr));
}

static void fine_row(void *context, int64_t item, int thread)
{
	struct rotation *r = context;
	(void)thread;
	double *row = r->fine + item * r->half * 2;
	for (int64_t i = 0; i < r->half; i++)
		sincos((double)item * frequency(r->args->attr, i), &row[2 * i + 1], &row[2 * i]);
}

/* Table rows of one block of positions. */
static void table_block(void *context, int64_t item, int thread)
{
	struct rotation *r = context;
	(void)thread;
	int64_t block = (r->first / BLOCK + item) * BLOCK, end = r->first + r->args->in[0].shape[1];
	double scale = r->args->attr->rotation_scale > 0 ? r->args->attr->rotation_scale : 1;
	for (int64_t i = 0; i < r->half; i++) {
		double c, s;
		sincos((double)block * frequency(r->args->attr, i), &s, &c);
		for (int64_t position = block > r->first ? block : r->first; position < block + BLOCK && position < end; position++) {
			const double *f = r->fine + ((position - block) * r->half + i) * 2;
			real *row = r->table + (position - r->first) * 2 * r->half;
			row[i] = (real)(scale * (c * f[0] - s * f[1]));
			row[r->half + i] = (real)(scale * (s * f[0] + c * f[1]));
		}
	}
}

/* One head: elements i and i + half, for i below half. */
static void rotate_halves(const struct rotation *r, const real *from, real *to, const real *restrict cosine, const real *restrict sine)
{
	for (int64_t i = 0; i < r->half; i++) {
		real a = from[i], b = from[r->half + i], s = r->direction * sine[i];
		to[i] = a * cosine[i] - b * s;
		to[r->half + i] = b * cosine[i] + a * s;
	}
}

/* One head: elements 2 i and 2 i + 1. */
static void rotate_neighbours(const struct rotation *r, const real *from, real *to, const real *restrict cosine, const real *restrict sine)
{
	for (int64_t i = 0; i < r->half; i++) {
		real a = from[2 * i], b = from[2 * i + 1], s = r->direction * sine[i];
		to[2 * i] = a * cosine[i] - b * s;
		to[2 * i + 1] = b * cosine[i] + a * s;
	}
}

static void rotate_rows(void *context, int64_t item, int thread)
{
	const struct rotation *r = context;
	(void)thread;
	const struct hspmd_view *x = &r->args->in[0];
	int64_t width = row_length(x), length = x->shape[1], size = r->args->attr->head_dim, rest = size - 2 * r->half;
	int64_t end = (item + 1) * BLOCK < row_count(x) ? (item + 1) * BLOCK : row_count(x);
	for (int64_t row = item * BLOCK; row < end; row++) {
		const real *cosine = r->table + row % length * 2 * r->half, *sine = cosine + r->half;
		for (int64_t head = 0; head < width; head += size) {
			const real *from = (const real *)x->data + row * width + head;
			real *to = (real *)r->args->out[0].data + row * width + head;
			for (int64_t i = 0; i < size; i += LANES) {
				fetch_ahead(from + i);
				fetch_ahead(to + i);
			}
			if (r->args->attr->interleaved)
				rotate_neighbours(r, from, to, cosine, sine);
			else
				rotate_halves(r, from, to, cosine, sine);
			if (rest && to != from)
				memcpy(to + 2 * r->half, from + 2 * r->half, (size_t)rest * sizeof *to);
		}
	}
}

static void rotate(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args, real direction)
{
	struct rotation r = { .args = args, .direction = direction, .half = rotated(args->attr) / 2, .first = args->in[0].start[1] };
	r.fine = args->workspace;
	r.table = (real *)(r.fine + BLOCK * r.half * 2);
	int64_t length = args->in[0].shape[1];
	double half = (double)r.half, width = (double)row_length(&args->in[0]);
	hspmd_thread_pool_for(cpu->pool, BLOCK, half * 2 * LIBM_NS, fine_row, &r);
	hspmd_thread_pool_for(cpu->pool, (r.first + length + BLOCK - 1) / BLOCK - r.first / BLOCK,
	                      half * (2 * LIBM_NS + BLOCK * 4 * MOVE_NS), table_block, &r);
	hspmd_thread_pool_for(cpu->pool, (row_count(&args->in[0]) + BLOCK - 1) / BLOCK, BLOCK * width * 2 * MOVE_NS, rotate_rows, &r);
}

static void rope(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	rotate(cpu, args, 1);
}

static void rope_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	rotate(cpu, args, -1);
}

static size_t rope_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	(void)cpu;
	return (size_t)(rotated(args->attr) / 2) * 2 * (BLOCK * sizeof(double) + (size_t)args->in[0].shape[1] * sizeof(real));
}

const struct hspmd_cpu_kernel LOCAL(rope) = { rope, rope_workspace };
const struct hspmd_cpu_kernel LOCAL(rope_grad) = { rope_grad, rope_workspace };
