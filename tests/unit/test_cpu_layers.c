/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers on the CPU device, against sums in double: sizes that take every way through its matrix products. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/device/device.h"

struct layer {
	int64_t rows, in, out;
	bool transposed; /* w is [in][out] */
	float *x, *w, *bias, *dy;
	float *y, *dx, *dw, *dbias;
};

static float *some_floats(int64_t n)
{
	float *x = test_malloc((size_t)n * sizeof *x);
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)((i * 7919 + n) % 1009) / 1009 - 0.5f;
	return x;
}

static struct layer layer_of(int64_t rows, int64_t in, int64_t out, bool transposed)
{
	return (struct layer){ rows,
		               in,
		               out,
		               transposed,
		               some_floats(rows * in),
		               some_floats(in * out),
		               some_floats(out),
		               some_floats(rows * out),
		               some_floats(rows * out),
		               some_floats(rows * in),
		               some_floats(in * out),
		               some_floats(out) };
}

static void free_layer(struct layer *l)
{
	float *all[] = { l->x, l->w, l->bias, l->dy, l->y, l->dx, l->dw, l->dbias };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		test_free(all[i]);
}

static struct hspmd_view matrix_view(float *data, int64_t rows, int64_t columns)
{
	return (struct hspmd_view){ .data = data, .dtype = HSPMD_F32, .rank = 2, .shape = { rows, columns }, .full = { rows, columns } };
}

static void run(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *given)
{
	struct hspmd_error err;
	struct hspmd_kernel_args args = *given;
	args.workspace_bytes = dev->ops->workspace(dev, op, &args);
	args.workspace = dev->ops->allocate(dev, args.workspace_bytes, &err);
	assert_non_null(args.workspace);
	if (dev->ops->run(dev, op, &args, &err))
		fail_msg("%s", err.text);
	dev->ops->release(dev, args.workspace);
}

/* dx and dbias are added to what is there, dw is not. */
static void run_layer(struct hspmd_device *dev, struct layer *l)
{
	struct hspmd_op_attr attr = { .transposed = l->transposed };
	struct hspmd_view x = matrix_view(l->x, l->rows, l->in), y = matrix_view(l->y, l->rows, l->out), dy = y, dx = x;
	struct hspmd_view w = matrix_view(l->w, l->transposed ? l->in : l->out, l->transposed ? l->out : l->in), dw = w;
	struct hspmd_view bias = { .data = l->bias, .dtype = HSPMD_F32, .rank = 1, .shape = { l->out }, .full = { l->out } }, dbias = bias;
	dy.data = l->dy, dx.data = l->dx, dw.data = l->dw, dbias.data = l->dbias;
	dx.accumulate = dbias.accumulate = true;
	run(dev, HSPMD_OP_LINEAR,
	    &(struct hspmd_kernel_args){ .attr = &attr, .input_count = 3, .output_count = 1, .in = { x, w, bias }, .out = { y } });
	run(dev, HSPMD_OP_LINEAR_GRAD_X,
	    &(struct hspmd_kernel_args){ .attr = &attr, .input_count = 2, .output_count = 1, .in = { dy, w }, .out = { dx } });
	run(dev, HSPMD_OP_LINEAR_GRAD_W,
	    &(struct hspmd_kernel_args){ .attr = &attr, .input_count = 2, .output_count = 2, .in = { dy, x }, .out = { dw, dbias } });
}

/* Element of w from input i to output o. */
static int64_t weight_at(const struct layer *l, int64_t i, int64_t o)
{
	return l->transposed ? i * l->out + o : o * l->in + i;
}

/* `before`: the same layer before it ran. */
static void check_layer(const struct layer *l, const struct layer *before)
{
	for (int64_t r = 0; r < l->rows; r++)
		for (int64_t o = 0; o < l->out; o++) {
			double sum = (double)l->bias[o];
			for (int64_t i = 0; i < l->in; i++)
				sum += (double)l->x[r * l->in + i] * (double)l->w[weight_at(l, i, o)];
			assert_true(fabs((double)l->y[r * l->out + o] - sum) < 2e-4);
		}
	for (int64_t i = 0; i < l->in; i++) {
		for (int64_t r = 0; r < l->rows; r++) {
			double sum = (double)before->dx[r * l->in + i];
			for (int64_t o = 0; o < l->out; o++)
				sum += (double)l->dy[r * l->out + o] * (double)l->w[weight_at(l, i, o)];
			assert_true(fabs((double)l->dx[r * l->in + i] - sum) < 2e-4);
		}
		for (int64_t o = 0; o < l->out; o++) {
			double sum = 0;
			for (int64_t r = 0; r < l->rows; r++)
				sum += (double)l->x[r * l->in + i] * (double)l->dy[r * l->out + o];
			assert_true(fabs((double)l->dw[weight_at(l, i, o)] - sum) < 2e-4);
		}
	}
	for (int64_t o = 0; o < l->out; o++) {
		double sum = (double)before->dbias[o];
		for (int64_t r = 0; r < l->rows; r++)
			sum += (double)l->dy[r * l->out + o];
		assert_true(fabs((double)l->dbias[o] - sum) < 2e-4);
	}
}

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Sums longer than a block is deep, parts of panels, so many rows that the last blocks are small, and rows that are read where they are or,
 * 8 KiB apart, are not. */
static void test_layers(void **state)
{
	(void)state;
	static const char *const isas[] = { "generic", "avx2", "avx512" };
	static const int64_t sizes[][3] = { { 805, 23, 141 }, { 20, 790, 37 }, { 20, 37, 790 }, { 13, 2048, 5 }, { 1301, 19, 70 } };
	for (int i = 0; i < 3 * COUNT(sizes) * 2; i++) {
		struct hspmd_device *dev = NULL;
		struct hspmd_error err;
		const int64_t *size = sizes[i / 3 % COUNT(sizes)];
		bool transposed = i / 3 / COUNT(sizes);
		struct layer before = layer_of(size[0], size[1], size[2], transposed),
		             one = layer_of(size[0], size[1], size[2], transposed), three = layer_of(size[0], size[1], size[2], transposed),
		             *layers[] = { &one, &three };
		setenv("HSPMD_CPU_ISA", isas[i % 3], 1);
		for (int k = 0; k < 2; k++) {
			if (hspmd_device_find("cpu", &err)->open(&dev, 0, 1 + 2 * k, &err))
				continue; /* the machine does not have it */
			run_layer(dev, layers[k]);
			check_layer(layers[k], &before);
			dev->ops->close(dev);
		}
		assert_memory_equal(one.y, three.y, (size_t)(size[0] * size[2]) * sizeof(float));
		assert_memory_equal(one.dx, three.dx, (size_t)(size[0] * size[1]) * sizeof(float));
		assert_memory_equal(one.dw, three.dw, (size_t)(size[1] * size[2]) * sizeof(float));
		assert_memory_equal(one.dbias, three.dbias, (size_t)size[2] * sizeof(float));
		free_layer(&before);
		free_layer(&one);
		free_layer(&three);
	}
	unsetenv("HSPMD_CPU_ISA");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_layers) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
