/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers on the CPU device, against sums in double: sizes that take every way through its matrix products. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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

/* An operator on F32: rows x columns, of each input and output, and where its first output comes. */
struct sum {
	enum hspmd_opcode both, first;
	int addend; /* number of the input */
	int64_t in[5][2], out[3][2];
	int inputs, outputs;
};

/* Runs both operators of a pair as one, in place of the addend or not, and the first alone. Its first output plus the addend is that of
 * both, within rounding; the others are alike. */
static void check_sum(struct hspmd_device *dev, const struct sum *s, bool in_place)
{
	static const struct hspmd_op_attr attr;
	struct hspmd_kernel_args both = { .attr = &attr, .input_count = s->inputs, .output_count = s->outputs }, first = both;
	int64_t count = s->out[0][0] * s->out[0][1];
	float *addend;
	first.input_count--;
	for (int k = 0; k < s->inputs; k++)
		both.in[k] = first.in[k] = matrix_view(some_floats(s->in[k][0] * s->in[k][1]), s->in[k][0], s->in[k][1]);
	addend = both.in[s->addend].data;
	float *kept = some_floats(count);
	for (int k = 0; k < s->outputs; k++) {
		both.out[k] = first.out[k] = matrix_view(some_floats(s->out[k][0] * s->out[k][1]), s->out[k][0], s->out[k][1]);
		first.out[k].data = some_floats(s->out[k][0] * s->out[k][1]);
	}
	float *apart = both.out[0].data;
	memset(apart, 0, (size_t)count * sizeof *apart);
	if (in_place)
		both.out[0].data = addend;
	run(dev, s->both, &both);
	run(dev, s->first, &first);
	for (int64_t i = 0; i < count; i++) {
		double want = (double)kept[i] + (double)((float *)first.out[0].data)[i];
		assert_true(fabs((double)((float *)both.out[0].data)[i] - want) < 1e-5);
		assert_true(in_place || addend[i] == kept[i]);
	}
	for (int k = 1; k < s->outputs; k++)
		assert_memory_equal(both.out[k].data, first.out[k].data, (size_t)(s->out[k][0] * s->out[k][1]) * sizeof(float));
	both.out[0].data = apart;
	test_free(kept);
	for (int k = 0; k < s->inputs; k++)
		test_free(both.in[k].data);
	for (int k = 0; k < s->outputs; k++) {
		test_free(both.out[k].data);
		test_free(first.out[k].data);
	}
}

/* Gradients that are added to others as they are computed: rows and columns that no vector or tile divides, and more than one block. */
static void test_sums(void **state)
{
	(void)state;
	static const char *const isas[] = { "generic", "avx2", "avx512" };
	static const struct sum sums[] = {
		{ HSPMD_OP_LINEAR_GRAD_X_ADD, HSPMD_OP_LINEAR_GRAD_X, 2, { { 205, 53 }, { 53, 37 }, { 205, 37 } }, { { 205, 37 } }, 3, 1 },
		{ HSPMD_OP_LINEAR_GRAD_X_ADD, HSPMD_OP_LINEAR_GRAD_X, 2, { { 9, 801 }, { 801, 16 }, { 9, 16 } }, { { 9, 16 } }, 3, 1 },
		{ HSPMD_OP_RMSNORM_GRAD_ADD,
		  HSPMD_OP_RMSNORM_GRAD,
		  4,
		  { { 45, 37 }, { 45, 37 }, { 1, 37 }, { 45, 1 }, { 45, 37 } },
		  { { 45, 37 }, { 1, 37 } },
		  5,
		  2 },
		{ HSPMD_OP_LAYERNORM_GRAD_ADD,
		  HSPMD_OP_LAYERNORM_GRAD,
		  4,
		  { { 45, 37 }, { 45, 37 }, { 1, 37 }, { 45, 2 }, { 45, 37 } },
		  { { 45, 37 }, { 1, 37 }, { 1, 37 } },
		  5,
		  3 },
	};
	for (int i = 0; i < 3 * 2; i++) {
		struct hspmd_device *dev = NULL;
		struct hspmd_error err;
		setenv("HSPMD_CPU_ISA", isas[i % 3], 1);
		if (hspmd_device_find("cpu", &err)->open(&dev, 0, 1 + i / 3, &err))
			continue; /* the machine does not have it */
		for (int k = 0; k < COUNT(sums) * 2; k++)
			check_sum(dev, &sums[k / 2], k % 2);
		dev->ops->close(dev);
	}
	unsetenv("HSPMD_CPU_ISA");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_layers), cmocka_unit_test(test_sums) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
