/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution as products of matrices: the windows of some output positions are written as columns [channels and window][
 * positions], of which the weight, [outputs][channels and window], is a linear function. Samples and groups are taken in order. */
#include "runtime/device/cpu/kernel.h"

#define POSITIONS 2048 /* output positions per product, so that columns stay small */

struct conv {
	const struct hspmd_kernel_args *args;
	const struct hspmd_view *x, *w, *y;       /* or views of their gradients */
	int64_t samples, groups, inputs, outputs; /* of one group */
	int64_t height, width, window_height, window_width, out_width;
	int64_t depth, positions, chunk; /* rows of the columns; output positions, and most per product */
	real *columns;
	void *gemm;
	/* of the product at hand */
	int64_t sample, group, first, count; /* output positions [first, first + count) */
};

static struct conv conv_of(const struct hspmd_kernel_args *args, const struct hspmd_view *x, const struct hspmd_view *w,
                           const struct hspmd_view *y)
{
	struct conv c = { .args = args, .x = x, .w = w, .y = y, .samples = x->shape[0] };
	c.inputs = args->attr->groups > 1 ? w->shape[1] : x->shape[1];
	c.groups = args->attr->groups > 1 ? x->shape[1] / c.inputs : 1;
	c.outputs = w->shape[0] / c.groups;
	c.height = x->shape[2];
	c.width = x->shape[3];
	c.window_height = w->shape[2];
	c.window_width = w->shape[3];
	c.out_width = y->shape[3];
	c.depth = c.inputs * c.window_height * c.window_width;
	c.positions = y->shape[2] * y->shape[3];
	c.chunk = c.positions < POSITIONS ? c.positions : POSITIONS;
	c.columns = args->workspace;
	c.gemm = c.columns + (c.depth * c.chunk + 15) / 16 * 16;
	return c;
}

static size_t workspace_of(const struct hspmd_cpu *cpu, const struct conv *c, int64_t n, int64_t k)
{
	return (size_t)((c->depth * c->chunk + 15) / 16 * 16) * sizeof(real) +
	       LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), n, k);
}

static const real *plane_of(const struct conv *c, int64_t channel)
{
	return (const real *)c->x->data + ((c->sample * c->groups + c->group) * c->inputs + channel) * c->height * c->width;
}

static const real *weight_of(const struct conv *c)
{
	return (const real *)c->w->data + c->group * c->outputs * c->depth;
}

/* The outputs of this sample and group, from position `first` on. */
static real *result_of(const struct conv *c)
{
	return (real *)c->y->data + (c->sample * c->groups + c->group) * c->outputs * c->positions + c->first;
}

/* Row `row` of the columns: one element of the window of one channel, for all positions. */
static void row_of(const struct conv *c, int64_t row, int64_t *channel, int64_t *dy, int64_t *dx)
{
	const int64_t *n = c->args->attr->numbers;
	*channel = row / (c->window_height * c->window_width);
	*dy = row / c->window_width % c->window_height * n[4] - n[2];
	*dx = row % c->window_width * n[5] - n[3];
}

static void fill_row(void *context, int64_t row, int thread)
{
	const struct conv *c = context;
	const int64_t *n = c->args->attr->numbers;
	(void)thread;
	int64_t channel, dy, dx;
	row_of(c, row, &channel, &dy, &dx);
	const real *plane = plane_of(c, channel);
	real *to = c->columns + row * c->count;
	int64_t y = c->first / c->out_width, x = c->first % c->out_width;
	for (int64_t i = 0; i < c->count; i++) {
		int64_t from_y = y * n[0] + dy, from_x = x * n[1] + dx;
		to[i] = from_y >= 0 && from_y < c->height && from_x >= 0 && from_x < c->width ? plane[from_y * c->width + from_x] : 0;
		if (++x == c->out_width) {
			x = 0;
			y++;
		}
	}
}

/* Adds the columns' gradient to that of one channel. */
static void add_channel(void *context, int64_t channel, int thread)
{
	const struct conv *c = context;
	const int64_t *n = c->args->attr->numbers;
	(void)thread;
	real *plane = (real *)plane_of(c, channel);
	int64_t window = c->window_height * c->window_width;
	for (int64_t row = channel * window; row < (channel + 1) * window; row++) {
		int64_t ignored, dy, dx, y = c->first / c->out_width, x = c->first % c->out_width;
		const real *from = c->columns + row * c->count;
		row_of(c, row, &ignored, &dy, &dx);
		for (int64_t i = 0; i < c->count; i++) {
			int64_t to_y = y * n[0] + dy, to_x = x * n[1] + dx;
			if (to_y >= 0 && to_y < c->height && to_x >= 0 && to_x < c->width)
				plane[to_y * c->width + to_x] += from[i];
			if (++x == c->out_width) {
				x = 0;
				y++;
			}
		}
	}
}

static void fill_columns(struct hspmd_cpu *cpu, struct conv *c)
{
	hspmd_thread_pool_for(cpu->pool, c->depth, (double)c->count * 4 * MOVE_NS, fill_row, c);
}

static void each_product(struct hspmd_cpu *cpu, struct conv *c, void (*act)(struct hspmd_cpu *cpu, struct conv *c))
{
	for (c->sample = 0; c->sample < c->samples; c->sample++)
		for (c->group = 0; c->group < c->groups; c->group++)
			for (c->first = 0; c->first < c->positions; c->first += c->chunk) {
				c->count = c->positions - c->first < c->chunk ? c->positions - c->first : c->chunk;
				act(cpu, c);
			}
}

/* ---- forward */

static void forward_product(struct hspmd_cpu *cpu, struct conv *c)
{
	const struct hspmd_view *x = c->x;
	/* if input channels are split, the part that starts at 0 adds the bias */
	const real *bias = c->args->input_count > 2 && (c->args->attr->groups > 1 || x->start[1] == 0) ? c->args->in[2].data : NULL;
	real *to = result_of(c);
	for (int64_t o = 0; bias && o < c->outputs; o++)
		for (int64_t i = 0; i < c->count; i++)
			to[o * c->positions + i] = bias[c->group * c->outputs + o];
	fill_columns(cpu, c);
	struct gemm p = { .m = c->outputs, .n = c->count, .k = c->depth, .a = { weight_of(c), c->depth, 1 }, .c = to };
	p.b = (struct matrix){ c->columns, c->count, 1 };
	p.ldc = c->positions;
	p.accumulate = bias != NULL;
	LOCAL(gemm)(cpu->pool, &p, c->gemm);
}

static void conv(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct conv c = conv_of(args, &args->in[0], &args->in[1], &args->out[0]);
	each_product(cpu, &c, forward_product);
}

static size_t conv_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct conv c = conv_of(args, &args->in[0], &args->in[1], &args->out[0]);
	return workspace_of(cpu, &c, c.chunk, c.depth);
}

/* ---- the gradient of the input */

static void grad_x_product(struct hspmd_cpu *cpu, struct conv *c)
{
	struct gemm p = { .m = c->depth, .n = c->count, .k = c->outputs, .a = { weight_of(c), 1, c->depth }, .c = c->columns };
	p.b = (struct matrix){ result_of(c), c->positions, 1 };
	p.ldc = c->count;
	LOCAL(gemm)(cpu->pool, &p, c->gemm);
	hspmd_thread_pool_for(cpu->pool, c->inputs, (double)(c->window_height * c->window_width * c->count) * 4 * MOVE_NS, add_channel, c);
}

static void conv_grad_x(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct conv c = conv_of(args, &args->out[0], &args->in[1], &args->in[0]);
	memset(args->out[0].data, 0, (size_t)element_count(&args->out[0]) * sizeof(real));
	each_product(cpu, &c, grad_x_product);
}

static size_t conv_grad_x_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct conv c = conv_of(args, &args->out[0], &args->in[1], &args->in[0]);
	return workspace_of(cpu, &c, c.chunk, c.outputs);
}

/* ---- the gradients of weight and bias */

static void grad_w_product(struct hspmd_cpu *cpu, struct conv *c)
{
	fill_columns(cpu, c);
	struct gemm p = { .m = c->outputs, .n = c->depth, .k = c->count, .a = { result_of(c), c->positions, 1 } };
	p.b = (struct matrix){ c->columns, 1, c->count };
	p.c = (real *)weight_of(c);
	p.ldc = c->depth;
	p.accumulate = c->w->accumulate || c->sample || c->first;
	LOCAL(gemm)(cpu->pool, &p, c->gemm);
}

static void bias_output(void *context, int64_t o, int thread)
{
	const struct conv *c = context;
	const struct hspmd_view *bias = &c->args->out[1];
	(void)thread;
	int64_t outputs = c->y->shape[1];
	double sum = 0;
	for (int64_t b = 0; b < c->samples; b++)
		for (int64_t i = 0; i < c->positions; i++)
			sum += (double)((const real *)c->y->data)[(b * outputs + o) * c->positions + i];
	real *to = (real *)bias->data + o;
	*to = (real)sum + (bias->accumulate ? *to : 0);
}

/* The weight's shape if its gradient is not wanted. */
static struct hspmd_view weight_view(const struct hspmd_kernel_args *args)
{
	return args->out[0].rank == 4 ? args->out[0] : (struct hspmd_view){ .rank = 4, .shape = { args->in[0].shape[1], 1, 1, 1 } };
}

static void conv_grad_w(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct hspmd_view w = weight_view(args);
	struct conv c = conv_of(args, &args->in[1], &w, &args->in[0]);
	if (w.data)
		each_product(cpu, &c, grad_w_product);
	if (args->output_count > 1 && args->out[1].data)
		hspmd_thread_pool_for(cpu->pool, args->in[0].shape[1], (double)(c.samples * c.positions) * MOVE_NS, bias_output, &c);
}

static size_t conv_grad_w_workspace(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args)
{
	struct hspmd_view w = weight_view(args);
	struct conv c = conv_of(args, &args->in[1], &w, &args->in[0]);
	return workspace_of(cpu, &c, c.depth, c.chunk);
}

const struct hspmd_cpu_kernel LOCAL(conv) = { conv, conv_workspace };
const struct hspmd_cpu_kernel LOCAL(conv_grad_x) = { conv_grad_x, conv_grad_x_workspace };
const struct hspmd_cpu_kernel LOCAL(conv_grad_w) = { conv_grad_w, conv_grad_w_workspace };
