/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device's convolutions and their gradients against sums over windows: several samples in one product and parts of one sample,
 * strides, padding, dilation, groups. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device/device.h"
#include "runtime/tensor/opcode.h"
#include "tests/unit/draw.h"

/* numbers: stride, padding and dilation, each for rows and columns. */
struct conv_case {
	int64_t samples, groups, inputs, outputs, height, width, window[2], numbers[6]; /* inputs and outputs of a group */
};

static int64_t out_size(const struct conv_case *c, int d)
{
	int64_t room = (d ? c->width : c->height) + 2 * c->numbers[2 + d] - c->numbers[4 + d] * (c->window[d] - 1) - 1;
	return room < 0 ? 0 : room / c->numbers[d] + 1;
}

struct tensors {
	struct hspmd_view x, w, bias, y;
};

static struct hspmd_view new_view(int rank, const int64_t *shape, unsigned *seed)
{
	struct hspmd_view v = { .dtype = HSPMD_F64, .rank = rank };
	size_t n = 1;
	for (int d = 0; d < rank; d++) {
		v.shape[d] = v.full[d] = shape[d];
		n *= (size_t)shape[d];
	}
	double *data = malloc(n * sizeof *data);
	assert_non_null(data);
	for (size_t i = 0; i < n; i++)
		data[i] = rand_r(seed) / (double)RAND_MAX - 0.5;
	v.data = data;
	return v;
}

static struct tensors new_tensors(const struct conv_case *c, unsigned *seed)
{
	int64_t x[] = { c->samples, c->groups * c->inputs, c->height, c->width },
	        w[] = { c->groups * c->outputs, c->inputs, c->window[0], c->window[1] },
	        y[] = { c->samples, c->groups * c->outputs, out_size(c, 0), out_size(c, 1) };
	return (struct tensors){ new_view(4, x, seed), new_view(4, w, seed), new_view(1, w, seed), new_view(4, y, seed) };
}

static void free_tensors(struct tensors *t)
{
	free(t->x.data);
	free(t->w.data);
	free(t->bias.data);
	free(t->y.data);
}

/* Calls `add` for every product of an input and a weight that an output is a sum of. */
static void each_term(const struct conv_case *c, const struct tensors *t,
                      void (*add)(const struct tensors *t, int64_t x, int64_t w, int64_t y))
{
	const int64_t *n = c->numbers, *y = t->y.shape;
	for (int64_t at = 0; at < y[0] * y[1] * y[2] * y[3]; at++) {
		int64_t column = at % y[3], row = at / y[3] % y[2], output = at / y[3] / y[2] % y[1], sample = at / y[3] / y[2] / y[1];
		for (int64_t k = 0; k < c->inputs * c->window[0] * c->window[1]; k++) {
			int64_t input = k / c->window[1] / c->window[0];
			int64_t from_row = row * n[0] - n[2] + k / c->window[1] % c->window[0] * n[4];
			int64_t from_column = column * n[1] - n[3] + k % c->window[1] * n[5];
			int64_t channel = output / c->outputs * c->inputs + input;
			if (from_row < 0 || from_row >= c->height || from_column < 0 || from_column >= c->width)
				continue;
			add(t, ((sample * t->x.shape[1] + channel) * c->height + from_row) * c->width + from_column,
			    output * c->inputs * c->window[0] * c->window[1] + k, at);
		}
	}
}

static double *data_of(const struct hspmd_view *v)
{
	return v->data;
}

static void subtract_y(const struct tensors *t, int64_t x, int64_t w, int64_t y)
{
	data_of(&t->y)[y] -= data_of(&t->x)[x] * data_of(&t->w)[w];
}

static void subtract_x(const struct tensors *t, int64_t x, int64_t w, int64_t y)
{
	data_of(&t->x)[x] -= data_of(&t->y)[y] * data_of(&t->w)[w];
}

static void subtract_w(const struct tensors *t, int64_t x, int64_t w, int64_t y)
{
	data_of(&t->w)[w] -= data_of(&t->x)[x] * data_of(&t->y)[y];
}

static void expect_zeros(const struct hspmd_view *v)
{
	int64_t n = 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->shape[d];
	for (int64_t i = 0; i < n; i++)
		assert_true(fabs(data_of(v)[i]) < 1e-10);
}

static void run(struct hspmd_device *dev, enum hspmd_opcode op, struct hspmd_kernel_args args)
{
	struct hspmd_error err;
	args.workspace_bytes = dev->ops->workspace(dev, op, &args);
	assert_non_null(args.workspace = dev->ops->allocate(dev, args.workspace_bytes, &err));
	if (dev->ops->run(dev, op, &args, &err))
		fail_msg("%s", err.text);
	dev->ops->release(dev, args.workspace);
}

static void try_case(struct hspmd_device *dev, const struct conv_case *c, unsigned seed)
{
	struct hspmd_op_attr attr = { .groups = (int)c->groups };
	memcpy(attr.numbers, c->numbers, sizeof c->numbers);
	struct tensors t = new_tensors(c, &seed);
	int64_t outputs = t.y.shape[1], positions = t.y.shape[2] * t.y.shape[3];
	run(dev, HSPMD_OP_CONV,
	    (struct hspmd_kernel_args){ .attr = &attr, .input_count = 3, .output_count = 1, .in = { t.x, t.w, t.bias }, .out = { t.y } });
	for (int64_t i = 0; i < c->samples * outputs * positions; i++)
		data_of(&t.y)[i] -= data_of(&t.bias)[i / positions % outputs];
	each_term(c, &t, subtract_y);
	expect_zeros(&t.y);
	free_tensors(&t);

	t = new_tensors(c, &seed);
	run(dev, HSPMD_OP_CONV_GRAD_X,
	    (struct hspmd_kernel_args){ .attr = &attr, .input_count = 2, .output_count = 1, .in = { t.y, t.w }, .out = { t.x } });
	each_term(c, &t, subtract_x);
	expect_zeros(&t.x);
	free_tensors(&t);

	t = new_tensors(c, &seed);
	run(dev, HSPMD_OP_CONV_GRAD_W,
	    (struct hspmd_kernel_args){ .attr = &attr, .input_count = 2, .output_count = 2, .in = { t.y, t.x }, .out = { t.w, t.bias } });
	for (int64_t i = 0; i < c->samples * outputs * positions; i++)
		data_of(&t.bias)[i / positions % outputs] -= data_of(&t.y)[i];
	each_term(c, &t, subtract_w);
	expect_zeros(&t.w);
	expect_zeros(&t.bias);
	free_tensors(&t);
}

static struct hspmd_device *open_device(int threads)
{
	struct hspmd_error err;
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	if (!ops || ops->open(&dev, 0, threads, &err))
		fail_msg("%s", err.text);
	return dev;
}

static void test_shapes(void **state)
{
	static const struct conv_case cases[] = {
		{ 40, 1, 3, 5, 4, 4, { 3, 3 }, { 1, 1, 1, 1, 1, 1 } },   /* two products of several samples */
		{ 7, 1, 2, 13, 16, 20, { 3, 3 }, { 1, 1, 1, 1, 1, 1 } }, /* of one sample each */
		{ 2, 1, 2, 3, 47, 50, { 3, 3 }, { 1, 1, 1, 1, 1, 1 } },  /* two parts of a sample, of which one ends within a line */
		{ 3, 2, 2, 3, 93, 95, { 2, 3 }, { 2, 2, 0, 3, 1, 1 } },
		{ 5, 1, 2, 2, 1, 2, { 3, 3 }, { 1, 1, 1, 1, 1, 1 } }, /* windows larger than the input */
	};
	struct hspmd_device *dev = open_device(1);
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		try_case(dev, &cases[i], (unsigned)i);
	dev->ops->close(dev);
}

static int64_t draw(unsigned *seed, int64_t low, int64_t high)
{
	return low + rand_r(seed) % (high - low + 1);
}

static void test_drawn(void **state)
{
	struct hspmd_device *dev = open_device(2);
	(void)state;
	unsigned all = 2000, count = draw_count(60, all), first = draw_first(count, all);
	for (unsigned i = first; i < first + count; i++) {
		unsigned seed = i;
		struct conv_case c = { .samples = draw(&seed, 1, 20), .groups = draw(&seed, 1, 3), .inputs = draw(&seed, 1, 3) };
		c.outputs = draw(&seed, 1, 14);
		c.height = draw(&seed, 1, 24);
		c.width = draw(&seed, 1, 24);
		for (int k = 0; k < 6; k++)
			c.numbers[k] = draw(&seed, k / 2 != 1, 3);
		for (int d = 0; d < 2; d++)
			c.window[d] = draw(&seed, 1, 4);
		if (out_size(&c, 0) && out_size(&c, 1))
			try_case(dev, &c, seed);
	}
	dev->ops->close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_shapes), cmocka_unit_test(test_drawn) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
