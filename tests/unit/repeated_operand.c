/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/repeated_operand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/half.h"
#include "runtime/device/random.h"
#include "runtime/tensor/fp8.h"

#define ROWS 16
#define WIDTH 32
#define OUT 48

/* One layer on a device. A test writes over the tensors that calls read, to see what they read. */
struct layer {
	struct hspmd_device *dev;
	enum hspmd_dtype type;
	struct hspmd_op_attr attr;
	struct hspmd_view x, w, dy, history, weight_history, y, dx, dw;
	char *workspace;
	size_t workspace_bytes;
};

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static struct hspmd_view tensor(struct layer *l, int64_t rows, int64_t columns, enum hspmd_dtype type)
{
	struct hspmd_error err;
	struct hspmd_view v = { .dtype = type, .rank = 2, .shape = { rows, columns }, .full = { rows, columns } };
	v.data = l->dev->ops->allocate(l->dev, (size_t)(rows * columns) * sizeof(float), &err);
	assert_non_null(v.data);
	return v;
}

static void write_values(const struct layer *l, const struct hspmd_view *v, const float *values)
{
	struct hspmd_error err;
	size_t count = (size_t)(v->shape[0] * v->shape[1]), each = hspmd_dtype_bytes(v->dtype);
	char *host = malloc(count * each);
	assert_non_null(host);
	for (size_t i = 0; i < count; i++) {
		uint16_t half = hspmd_bf16_from_float(values[i]);
		memcpy(host + i * each, v->dtype == HSPMD_BF16 ? (const void *)&half : &values[i], each);
	}
	must(l->dev->ops->to_device(l->dev, v->data, host, count * each, &err), &err);
	must(l->dev->ops->synchronise(l->dev, &err), &err);
	free(host);
}

/* Normal numbers; another `which`, others. */
static void draw(const struct layer *l, const struct hspmd_view *v, unsigned which)
{
	static float values[ROWS * OUT + WIDTH * OUT];
	for (int64_t i = 0; i < v->shape[0] * v->shape[1]; i++)
		values[i] = (float)hspmd_random_normal(3, which, (uint64_t)i);
	write_values(l, v, values);
}

static void set_levels(const struct layer *l, const struct hspmd_view *history, int level)
{
	float values[2 * HSPMD_AMAX_BINS];
	for (int i = 0; i < 2 * HSPMD_AMAX_BINS; i++)
		values[i] = i % HSPMD_AMAX_BINS < level ? HSPMD_AMAX_WINDOW : 0;
	write_values(l, history, values);
}

static struct layer open_layer(struct hspmd_device *dev, enum hspmd_dtype type, bool transposed)
{
	struct hspmd_error err;
	struct layer l = { .dev = dev, .type = type, .attr = { .scale = 1.0 / 64, .transposed = transposed }, .workspace_bytes = 1 << 20 };
	int64_t rows = transposed ? WIDTH : OUT, columns = transposed ? OUT : WIDTH;
	l.x = tensor(&l, ROWS, WIDTH, type);
	l.w = tensor(&l, rows, columns, type);
	l.dy = tensor(&l, ROWS, OUT, type);
	l.history = tensor(&l, 2, HSPMD_AMAX_BINS, type);
	l.weight_history = tensor(&l, 1, HSPMD_AMAX_BINS, type);
	l.y = tensor(&l, ROWS, OUT, type);
	l.dx = tensor(&l, ROWS, WIDTH, type);
	l.dw = tensor(&l, rows, columns, HSPMD_F32);
	l.workspace = dev->ops->allocate(dev, l.workspace_bytes, &err);
	assert_non_null(l.workspace);
	set_levels(&l, &l.weight_history, 34);
	return l;
}

static void close_layer(const struct layer *l)
{
	const struct hspmd_view *all[] = { &l->x, &l->w, &l->dy, &l->history, &l->weight_history, &l->y, &l->dx, &l->dw };
	for (int i = 0; i < 8; i++)
		l->dev->ops->release(l->dev, all[i]->data);
	l->dev->ops->release(l->dev, l->workspace);
}

/* Runs one of the layer's operators. Returns its first output, malloc'd. */
static void *run(const struct layer *l, enum hspmd_opcode op, bool repeats)
{
	static const struct hspmd_view none = { .rank = -1 };
	struct hspmd_error err;
	struct hspmd_kernel_args args = { .attr = &l->attr,
		                          .output_count = 1,
		                          .workspace = l->workspace,
		                          .workspace_bytes = l->workspace_bytes,
		                          .repeats_first = repeats };
	const struct hspmd_view *in[3][5] = { { &l->x, &l->w, &none, &l->history, &l->weight_history },
		                              { &l->dy, &l->w, &l->history, &l->weight_history },
		                              { &l->dy, &l->x, &l->history } };
	int which = op == HSPMD_OP_LINEAR_FP8 ? 0 : op == HSPMD_OP_LINEAR_FP8_GRAD_X ? 1 : 2;
	args.input_count = 5 - which;
	args.out[0] = which == 0 ? l->y : which == 1 ? l->dx : l->dw;
	for (int k = 0; k < args.input_count; k++)
		args.in[k] = *in[which][k];
	assert_true(l->dev->ops->workspace(l->dev, op, &args) <= l->workspace_bytes);
	must(l->dev->ops->run(l->dev, op, &args, &err), &err);
	size_t bytes = (size_t)(args.out[0].shape[0] * args.out[0].shape[1]) * hspmd_dtype_bytes(args.out[0].dtype);
	void *host = malloc(bytes);
	assert_non_null(host);
	must(l->dev->ops->to_host(l->dev, host, args.out[0].data, bytes, &err), &err);
	return host;
}

/* Takes both results; `bytes` are compared. */
static bool same(void *a, void *b, size_t bytes)
{
	bool result = !memcmp(a, b, bytes);
	free(a);
	free(b);
	return result;
}

void check_repeated_operand(struct hspmd_device *dev, enum hspmd_dtype type, bool transposed, bool shares_gradient)
{
	struct layer l = open_layer(dev, type, transposed);
	size_t y_bytes = ROWS * OUT * hspmd_dtype_bytes(type), dx_bytes = ROWS * WIDTH * hspmd_dtype_bytes(type);
	/* Two layers: x is another one when the second runs, and its history in the second round. */
	for (int other = 0; other < 2; other++) {
		draw(&l, &l.w, 2);
		draw(&l, &l.x, other ? 1 : 0);
		set_levels(&l, &l.history, other ? 30 : 34);
		void *want = run(&l, HSPMD_OP_LINEAR_FP8, false);
		draw(&l, &l.w, 3);
		draw(&l, &l.x, 0);
		set_levels(&l, &l.history, 34);
		free(run(&l, HSPMD_OP_LINEAR_FP8, false));
		draw(&l, &l.w, 2);
		draw(&l, &l.x, 1);
		set_levels(&l, &l.history, other ? 30 : 34);
		assert_true(same(run(&l, HSPMD_OP_LINEAR_FP8, true), want, y_bytes));
	}
	draw(&l, &l.dy, shares_gradient ? 4 : 5);
	void *want = run(&l, HSPMD_OP_LINEAR_FP8_GRAD_X, false);
	draw(&l, &l.dy, 4);
	free(run(&l, HSPMD_OP_LINEAR_FP8_GRAD_W, false));
	draw(&l, &l.dy, 5);
	assert_true(same(run(&l, HSPMD_OP_LINEAR_FP8_GRAD_X, true), want, dx_bytes));
	/* Not what a forward pass left, which is rounded otherwise. */
	draw(&l, &l.dy, 5);
	want = run(&l, HSPMD_OP_LINEAR_FP8_GRAD_X, false);
	free(run(&l, HSPMD_OP_LINEAR_FP8, false));
	assert_true(same(run(&l, HSPMD_OP_LINEAR_FP8_GRAD_X, true), want, dx_bytes));
	close_layer(&l);
}
