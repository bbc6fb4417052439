/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution as products of matrices: the windows of some output positions are written as columns [channels and window][
 * positions], of which the weight, [outputs][channels and window], is a linear function. Samples and groups are taken in order; if a sample
 * has few positions, several samples are one product, which packs the weight once. */
#include "runtime/device/cpu/kernel.h"

#define POSITIONS 2048 /* output positions per product, so that columns stay small */
#define JOINED 512     /* of several samples; more positions pack the weight hardly less often */

struct conv {
	const struct hspmd_kernel_args *args;
	const struct hspmd_view *x, *w, *y;       /* or views of their gradients */
	int64_t samples, groups, inputs, outputs; /* of one group */
	int64_t height, width, window_height, window_width, out_width;
	int64_t depth, positions, chunk; /* rows of the columns; output positions of a sample, and most per product */
	int64_t most_joined;             /* samples of a product */
	real *columns;
	real *results; /* of several samples, [outputs][positions] */
	void *gemm;
	/* of the product at hand */
	int64_t sample, joined, group, first, count; /* output positions [first, first + count) of each of the samples */
};

static int64_t round_up(int64_t elements)
{
	return (elements + 15) / 16 * 16;
}

static int64_t results_size(const struct conv *c)
{
	return c->most_joined > 1 ? round_up(c->outputs * c->chunk) : 0;
}

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
	c.most_joined = c.positions ? JOINED / c.positions : 1;
	c.most_joined = c.most_joined > c.samples ? c.samples : c.most_joined;
	c.most_joined = c.most_joined > 1 ? c.most_joined : 1;
	c.chunk = c.positions < POSITIONS ? c.positions * c.most_joined : POSITIONS;
	c.columns = args->workspace;
	c.results = c.columns + round_up(c.depth * c.chunk);
	c.gemm = c.results + results_size(&c);
	return c;
}

static size_t workspace_of(const struct hspmd_cpu *cpu, const struct conv *c, int64_t n, int64_t k)
{
	return (size_t)(round_up(c->depth * c->chunk) + results_size(c)) * sizeof(real) +
	       LOCAL(gemm_workspace)(hspmd_thread_pool_threads(cpu->pool), n, k);
}

static real *plane_of(const struct conv *c, int64_t sample, int64_t channel)
{
	return (real *)c->x->data + ((sample * c->groups + c->group) * c->inputs + channel) * c->height * c->width;
}

static const real *weight_of(const struct conv *c)
{
	return (const real *)c->w->data + c->group * c->outputs * c->depth;
}

/* The outputs of a sample and this group, from position `first` on. */
static real *outputs_of(const struct conv *c, int64_t sample)
{
	return (real *)c->y->data + (sample * c->groups + c->group) * c->outputs * c->positions + c->first;
}

/* The outputs as a matrix: where they are, or those of several samples side by side. */
static real *result_of(const struct conv *c)
{
	return c->joined > 1 ? c->results : outputs_of(c, c->sample);
}

static int64_t result_step(const struct conv *c)
{
	return c->joined > 1 ? c->joined * c->count : c->positions;
}

/* Copies a line of positions. A call takes longer than to copy a few elements. */
static inline __attribute__((always_inline)) void copy_line(real *restrict to, const real *restrict from, int64_t count)
{
	if (count >= 16) {
		memcpy(to, from, (size_t)count * sizeof *to);
		return;
	}
#define COPY(n)                                                                                                                            \
	if (count & (n)) {                                                                                                                 \
		memcpy(to, from, (n) * sizeof *to);                                                                                        \
		to += (n);                                                                                                                 \
		from += (n);                                                                                                               \
	}
	COPY(8)
	COPY(4)
	COPY(2)
	COPY(1)
#undef COPY
}

/* Copies inputs, a stride apart, to columns, or (add) adds columns to inputs. */
static inline __attribute__((always_inline)) void move_line(real *restrict columns, real *restrict inputs, int64_t count, int64_t stride,
                                                            bool add)
{
	if (stride == 1 && add)
		for (int64_t i = 0; i < count; i++)
			inputs[i] += columns[i];
	else if (stride == 1)
		copy_line(columns, inputs, count);
	else
		for (int64_t i = 0; i < count; i++)
			if (add)
				inputs[i * stride] += columns[i];
			else
				columns[i] = inputs[i * stride];
}

/* Copies the outputs of several samples between the tensor and the matrix. */
static void move_results(const struct conv *c, bool to_tensor)
{
	for (int64_t s = 0; c->joined > 1 && s < c->joined; s++)
		for (int64_t o = 0; o < c->outputs; o++) {
			real *tensor = outputs_of(c, c->sample + s) + o * c->positions,
			     *matrix = c->results + (o * c->joined + s) * c->count;
			copy_line(to_tensor ? tensor : matrix, to_tensor ? matrix : tensor, c->count);
		}
}

/* The first of the positions [low, high) along one dimension at which the window's element at offset `by` is at or beyond `edge`. */
static int64_t first_beyond(int64_t edge, int64_t by, int64_t stride, int64_t low, int64_t high)
{
	int64_t x = edge > by ? (edge - by + stride - 1) / stride : 0;
	return x < low ? low : x > high ? high : x;
}

/* Row `row` of the columns, one element of the window of one channel, for all positions where that is inside of the channel: copied from
 * the channel or (add) added to it. */
static inline __attribute__((always_inline)) void move_row(const struct conv *c, int64_t row, bool add)
{
	const int64_t *n = c->args->attr->numbers, window = c->window_height * c->window_width, width = c->out_width;
	int64_t dy = row / c->window_width % c->window_height * n[4] - n[2], dx = row % c->window_width * n[5] - n[3];
	int64_t y0 = c->first / width, y1 = (c->first + c->count + width - 1) / width;
	int64_t left = first_beyond(0, dx, n[1], 0, width), right = first_beyond(c->width, dx, n[1], left, width);
	int64_t top = first_beyond(0, dy, n[0], y0, y1), bottom = first_beyond(c->height, dy, n[0], top, y1);
	real *columns = c->columns + row * c->joined * c->count;
	for (int64_t s = 0; s < c->joined; s++, columns += c->count) {
		real *plane = plane_of(c, c->sample + s, row / window);
		for (int64_t y = top; y < bottom; y++) {
			int64_t line = y * width - c->first, from = left > -line ? left : -line;
			int64_t end = right < c->count - line ? right : c->count - line;
			if (end > from)
				move_line(columns + line + from, plane + (y * n[0] + dy) * c->width + from * n[1] + dx, end - from, n[1],
				          add);
		}
	}
}

static void fill_row(void *context, int64_t row, int thread)
{
	const struct conv *c = context;
	(void)thread;
	memset(c->columns + row * c->joined * c->count, 0, (size_t)(c->joined * c->count) * sizeof *c->columns);
	move_row(c, row, false);
}

/* Adds the columns' gradient to that of one channel. */
static void add_channel(void *context, int64_t channel, int thread)
{
	const struct conv *c = context;
	int64_t window = c->window_height * c->window_width;
	(void)thread;
	for (int64_t row = channel * window; row < (channel + 1) * window; row++)
		move_row(c, row, true);
}

static void fill_columns(struct hspmd_cpu *cpu, struct conv *c)
{
	hspmd_thread_pool_for(cpu->pool, c->depth, (double)(c->joined * c->count) * MOVE_NS, fill_row, c);
}

static void each_product(struct hspmd_cpu *cpu, struct conv *c, void (*act)(struct hspmd_cpu *cpu, struct conv *c))
{
	for (c->sample = 0; c->sample < c->samples; c->sample += c->joined) {
		c->joined = c->samples - c->sample < c->most_joined ? c->samples - c->sample : c->most_joined;
		int64_t most = c->chunk < c->positions ? c->chunk : c->positions;
		for (c->group = 0; c->group < c->groups; c->group++)
			for (c->first = 0; c->first < c->positions; c->first += most) {
				c->count = c->positions - c->first < most ? c->positions - c->first : most;
				act(cpu, c);
			}
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
		for (int64_t i = 0; i < c->joined * c->count; i++)
			to[o * result_step(c) + i] = bias[c->group * c->outputs + o];
	fill_columns(cpu, c);
	struct gemm p = { .m = c->outputs, .n = c->joined * c->count, .k = c->depth, .a = { weight_of(c), c->depth, 1 }, .c = to };
	p.b = (struct matrix){ c->columns, p.n, 1 };
	p.ldc = result_step(c);
	p.accumulate = bias != NULL;
	LOCAL(gemm)(cpu->pool, &p, c->gemm);
	move_results(c, true);
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
	struct gemm p = { .m = c->depth, .n = c->joined * c->count, .k = c->outputs, .a = { weight_of(c), 1, c->depth }, .c = c->columns };
	move_results(c, false);
	p.b = (struct matrix){ result_of(c), result_step(c), 1 };
	p.ldc = p.n;
	LOCAL(gemm)(cpu->pool, &p, c->gemm);
	hspmd_thread_pool_for(cpu->pool, c->inputs, (double)(c->window_height * c->window_width * p.n) * MOVE_NS, add_channel, c);
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
	move_results(c, false);
	struct gemm p = { .m = c->outputs, .n = c->depth, .k = c->joined * c->count, .a = { result_of(c), result_step(c), 1 } };
	p.b = (struct matrix){ c->columns, 1, p.k };
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
