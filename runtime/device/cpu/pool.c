/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional pooling; an item is one channel of one sample. */
#include "runtime/device/cpu/kernel.h"

struct pool {
	const struct hspmd_kernel_args *args;
	const struct hspmd_view *x, *y; /* or views of the same shape */
};

/* The part of a window that is within the plane. */
struct window {
	int64_t y0, y1, x0, x1;
};

static struct window window_of(const struct pool *p, int64_t y, int64_t x)
{
	const int64_t *n = p->args->attr->numbers, top = y * n[2] - n[4], left = x * n[3] - n[5];
	struct window w = { top, top + n[0], left, left + n[1] };
	w.y0 = w.y0 > 0 ? w.y0 : 0;
	w.x0 = w.x0 > 0 ? w.x0 : 0;
	w.y1 = w.y1 < p->x->shape[2] ? w.y1 : p->x->shape[2];
	w.x1 = w.x1 < p->x->shape[3] ? w.x1 : p->x->shape[3];
	return w;
}

/* Number of the first of the largest elements. */
static int64_t largest_of(const real *plane, int64_t width, const struct window *w)
{
	int64_t best = w->y0 * width + w->x0;
	for (int64_t y = w->y0; y < w->y1; y++)
		for (int64_t x = w->x0; x < w->x1; x++)
			best = plane[y * width + x] > plane[best] ? y * width + x : best;
	return best;
}

static real pooled(const struct pool *p, const real *plane, int64_t y, int64_t x)
{
	struct window w = window_of(p, y, x);
	int64_t width = p->x->shape[3];
	if (p->args->attr->kind == HSPMD_REDUCE_MAX)
		return plane[largest_of(plane, width, &w)];
	double sum = 0;
	for (int64_t i = w.y0; i < w.y1; i++)
		for (int64_t j = w.x0; j < w.x1; j++)
			sum += (double)plane[i * width + j];
	return (real)(sum / (double)(p->args->attr->numbers[0] * p->args->attr->numbers[1]));
}

static void pool_plane(void *context, int64_t item, int thread)
{
	const struct pool *p = context;
	(void)thread;
	int64_t height = p->y->shape[2], width = p->y->shape[3];
	const real *plane = (const real *)p->x->data + item * p->x->shape[2] * p->x->shape[3];
	real *to = (real *)p->y->data + item * height * width;
	for (int64_t i = 0; i < height * width; i++)
		to[i] = pooled(p, plane, i / width, i % width);
}

static void grad_plane(void *context, int64_t item, int thread)
{
	const struct pool *p = context;
	(void)thread;
	const int64_t *n = p->args->attr->numbers;
	int64_t height = p->y->shape[2], width = p->y->shape[3], x_width = p->x->shape[3], size = p->x->shape[2] * x_width;
	const real *dy = (const real *)p->y->data + item * height * width, *plane = (const real *)p->x->data + item * size;
	real *dx = (real *)p->args->out[0].data + item * size;
	memset(dx, 0, (size_t)size * sizeof *dx);
	for (int64_t i = 0; i < height * width; i++) {
		struct window w = window_of(p, i / width, i % width);
		if (p->args->attr->kind == HSPMD_REDUCE_MAX) {
			dx[largest_of(plane, x_width, &w)] += dy[i];
			continue;
		}
		real share = dy[i] / (real)(n[0] * n[1]);
		for (int64_t y = w.y0; y < w.y1; y++)
			for (int64_t x = w.x0; x < w.x1; x++)
				dx[y * x_width + x] += share;
	}
}

static void run(struct hspmd_cpu *cpu, const struct pool *p, void (*plane)(void *, int64_t, int))
{
	const int64_t *n = p->args->attr->numbers;
	hspmd_thread_pool_for(cpu->pool, p->x->shape[0] * p->x->shape[1],
	                      (double)(p->y->shape[2] * p->y->shape[3] * n[0] * n[1]) * 4 * MOVE_NS, plane, (void *)p);
}

static void pool(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	run(cpu, &(struct pool){ args, &args->in[0], &args->out[0] }, pool_plane);
}

static void pool_grad(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	run(cpu, &(struct pool){ args, &args->in[1], &args->in[0] }, grad_plane);
}

const struct hspmd_cpu_kernel LOCAL(pool) = { pool, NULL };
const struct hspmd_cpu_kernel LOCAL(pool_grad) = { pool_grad, NULL };
