/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device except its operators' gradients (test_op_gradient): threads, copies, optimizer, random numbers, errors. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REAL_BITS 32
#define ISA generic
#include "common/format/cluster.h"
#include "common/half.h"
#include "runtime/device/cpu/gate.h"
#include "runtime/device/random.h"

static struct hspmd_device *open_device(int threads)
{
	struct hspmd_error err;
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	if (!ops || ops->open(&dev, 0, threads, &err))
		fail_msg("%s", err.text);
	return dev;
}

static struct hspmd_view vector(void *data, enum hspmd_dtype type, int64_t n)
{
	return (struct hspmd_view){ .data = data, .dtype = type, .rank = 1, .shape = { n }, .full = { n } };
}

static void run(struct hspmd_device *dev, enum hspmd_opcode op, struct hspmd_kernel_args *args)
{
	struct hspmd_error err;
	size_t bytes = dev->ops->workspace(dev, op, args);
	args->workspace = dev->ops->allocate(dev, bytes, &err);
	args->workspace_bytes = bytes;
	assert_non_null(args->workspace);
	if (dev->ops->run(dev, op, args, &err))
		fail_msg("%s", err.text);
	dev->ops->release(dev, args->workspace);
}

static void count_item(void *context, int64_t item, int thread)
{
	(void)thread;
	atomic_fetch_add(&((atomic_int *)context)[item], 1);
}

static void test_pool(void **state)
{
	(void)state;
	for (int threads = 1; threads <= 7; threads += 2) {
		struct hspmd_thread_pool *pool = hspmd_thread_pool_create(threads, NULL);
		assert_non_null(pool);
		assert_int_equal(hspmd_thread_pool_threads(pool), threads);
		hspmd_thread_pool_share_all(pool);
		for (int64_t count = 0; count < 300; count++) {
			atomic_int seen[300] = { 0 };
			hspmd_thread_pool_for(pool, count, 1, count_item, seen);
			for (int64_t i = 0; i < 300; i++)
				assert_int_equal(atomic_load(&seen[i]), i < count);
		}
		hspmd_thread_pool_destroy(pool);
	}
	hspmd_thread_pool_destroy(NULL);
}

static void note_thread(void *context, int64_t item, int thread)
{
	(void)item;
	if (thread)
		atomic_store((atomic_bool *)context, true);
}

static struct hspmd_thread_pool_counts counts_of(const struct hspmd_thread_pool *pool)
{
	struct hspmd_thread_pool_counts c;
	hspmd_thread_pool_count(pool, &c);
	return c;
}

/* The caller alone runs a call that takes less time than sharing it would cost; longer calls are shared with as many helpers as they are
 * worth. */
static void test_small_calls(void **state)
{
	(void)state;
	struct hspmd_thread_pool *pool = hspmd_thread_pool_create(4, NULL);
	atomic_bool others = false;
	assert_non_null(pool);
	for (int i = 0; i < 1000; i++)
		hspmd_thread_pool_for(pool, 64, 10, note_thread, &others); /* 640 ns */
	hspmd_thread_pool_for(pool, 1, 1e9, note_thread, &others);
	assert_int_equal(counts_of(pool).alone, 1001);
	assert_int_equal(counts_of(pool).shared, 0);
	assert_false(atomic_load(&others));
	for (int i = 0; i < 100; i++)
		hspmd_thread_pool_for(pool, 64, 10e3, note_thread, &others);
	assert_int_equal(counts_of(pool).shared, 100);
	hspmd_thread_pool_destroy(pool);
}

/* A model of width 32: none of its kernels is worth a second thread. */
static void test_small_kernels(void **state)
{
	(void)state;
	enum { ROWS = 64, WIDTH = 32 };
	static float x[ROWS * WIDTH], w[WIDTH * WIDTH], y[ROWS * WIDTH], stats[2 * ROWS];
	struct hspmd_device *dev = open_device(4);
	struct hspmd_op_attr attr = { .eps = 1e-5 };
	struct hspmd_view rows = { .data = x, .dtype = HSPMD_F32, .rank = 3, .shape = { 1, ROWS, WIDTH }, .full = { 1, ROWS, WIDTH } };
	struct hspmd_view square = { .data = w, .dtype = HSPMD_F32, .rank = 2, .shape = { WIDTH, WIDTH }, .full = { WIDTH, WIDTH } };
	struct hspmd_view gain = vector(w, HSPMD_F32, WIDTH), out = rows, pair = rows;
	out.data = y;
	pair.data = stats;
	pair.shape[2] = pair.full[2] = 2;
	struct hspmd_kernel_args gelu = { .attr = &attr, .input_count = 1, .output_count = 1, .in = { rows }, .out = { out } };
	struct hspmd_kernel_args linear = { .attr = &attr, .input_count = 2, .output_count = 1, .in = { rows, square }, .out = { out } };
	struct hspmd_kernel_args norm = { .attr = &attr, .input_count = 2, .output_count = 2, .in = { rows, gain }, .out = { out, pair } };
	run(dev, HSPMD_OP_GELU, &gelu);
	run(dev, HSPMD_OP_LINEAR, &linear);
	run(dev, HSPMD_OP_RMSNORM, &norm);
	struct hspmd_thread_pool_counts c = counts_of(((struct hspmd_cpu *)dev)->pool);
	assert_true(c.alone >= 4);
	assert_int_equal(c.shared, 0);
	dev->ops->close(dev);
}

static void wait_until_slept(const struct hspmd_thread_pool *pool, int64_t times)
{
	while (counts_of(pool).slept < times)
		sched_yield();
}

/* Helpers whose spins are in vain stop spinning, except for a few attempts. */
static void test_spins_in_vain(void **state)
{
	(void)state;
	struct hspmd_thread_pool *pool = hspmd_thread_pool_create(2, NULL);
	atomic_int seen[2] = { 0 };
	assert_non_null(pool);
	hspmd_thread_pool_share_all(pool);
	for (int i = 0; i < 1000; i++) {
		wait_until_slept(pool, i + 1);
		hspmd_thread_pool_for(pool, 2, 1, count_item, seen);
	}
	struct hspmd_thread_pool_counts c = counts_of(pool);
	assert_int_equal(c.shared, 1000);
	assert_true(c.vain > 0 && c.vain < 100);
	assert_int_equal(atomic_load(&seen[0]) + atomic_load(&seen[1]), 2000);
	hspmd_thread_pool_destroy(pool);
}

/* Threads inherit their scheduling policy from the thread that starts them. */
static void *create_idle(void *pool)
{
	assert_int_equal(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }), 0);
	*(struct hspmd_thread_pool **)pool = hspmd_thread_pool_create(2, NULL);
	return NULL;
}

/* A helper that gets a core only when the caller leaves one: the caller does the work alone and does not wait for it. */
static void test_absent_helper(void **state)
{
	(void)state;
	enum { CALLS = 1000 };
	cpu_set_t before, one;
	int cpu = 0;
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	while (!CPU_ISSET(cpu, &before))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	struct hspmd_thread_pool *pool = NULL;
	pthread_t starter;
	atomic_int seen[2] = { 0 };
	assert_int_equal(pthread_create(&starter, NULL, create_idle, &pool), 0);
	pthread_join(starter, NULL);
	assert_non_null(pool);
	hspmd_thread_pool_share_all(pool);
	for (int i = 0; i < CALLS; i++)
		hspmd_thread_pool_for(pool, 2, 1, count_item, seen);
	assert_int_equal(atomic_load(&seen[0]), CALLS);
	assert_int_equal(atomic_load(&seen[1]), CALLS);
	assert_true(counts_of(pool).helped < CALLS / 2);
	hspmd_thread_pool_destroy(pool);
	assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void test_exponential(void **state)
{
	(void)state;
	double worst = 0;
	for (double x = -87; x < 88; x += 0.00137) {
		double exact = exp((double)(float)x);
		worst = fmax(worst, fabs((double)vexp(splat((float)x))[0] - exact) / exact);
	}
	assert_true(worst < 1.5e-7);
	assert_true(vexp(splat(-100))[1] == 0);
	assert_true(vexp(splat(-INFINITY))[1] == 0);
	assert_true(vexp(splat(0))[0] == 1);
	assert_true(isnan(vexp(splat(NAN))[2]));
	assert_true(vexp(splat(1e30f))[0] > 1e38f);
}

static void test_gelu(void **state)
{
	(void)state;
	for (double step = -13; step < 13; step += 0.00093) {
		double x = (double)(float)step, phi = 0.5 * erfc(-x * M_SQRT1_2), bell = exp(-0.5 * x * x) * 0.3989422804014327;
		double rounding = 5e-7 + 0.5 * x * x * 1.2e-7; /* of e^(-x^2 / 2), whose exponent is rounded */
		assert_true(fabs((double)erf_gelu(splat((float)x), false)[0] - x * phi) <= fabs(x * phi) * rounding);
		assert_true(fabs((double)erf_gelu(splat((float)x), true)[1] - (phi + x * bell)) <= 1e-6);
	}
	assert_true(erf_gelu(splat(0), false)[0] == 0);
	assert_true(erf_gelu(splat(30), false)[0] == 30);
	assert_true(erf_gelu(splat(-30), false)[0] == 0);
	assert_true(isnan(erf_gelu(splat(NAN), false)[1]));
}

static void test_adamw(void **state)
{
	(void)state;
	enum { N = 16384 + 37 };
	struct hspmd_device *dev = open_device(3);
	struct hspmd_op_attr attr = { .scale = 0.5 };
	static float g[N], p[N], m[N], v[N], was[3][N];
	attr.update = hspmd_optimizer_update(HSPMD_OPTIMIZER_ADAMW, (double[]){ 0.9, 0.95, 1e-8 }, 0.01, 0.1, 3);
	for (int i = 0; i < N; i++) {
		g[i] = (float)hspmd_random_normal(1, 1, (uint64_t)i);
		was[0][i] = p[i] = (float)hspmd_random_normal(1, 2, (uint64_t)i);
		was[1][i] = m[i] = (float)hspmd_random_normal(1, 3, (uint64_t)i);
		was[2][i] = v[i] = fabsf((float)hspmd_random_normal(1, 4, (uint64_t)i));
	}
	struct hspmd_kernel_args args = { .attr = &attr,
		                          .input_count = 1,
		                          .output_count = 3,
		                          .in = { vector(g, HSPMD_F32, N) },
		                          .out = { vector(p, HSPMD_F32, N), vector(m, HSPMD_F32, N), vector(v, HSPMD_F32, N) } };
	run(dev, HSPMD_OP_UPDATE, &args);
	for (int i = 0; i < N; i++) {
		double gradient = g[i] * 0.5, first = 0.9 * was[1][i] + 0.1 * gradient,
		       second = 0.95 * was[2][i] + 0.05 * gradient * gradient;
		double step = 0.01 * (first / (1 - 0.9 * 0.9 * 0.9)) / (sqrt(second / (1 - 0.95 * 0.95 * 0.95)) + 1e-8);
		assert_true(fabs(m[i] - first) < 1e-6 && fabs(v[i] - second) < 1e-6);
		assert_true(fabs(p[i] - (was[0][i] * (1 - 0.01 * 0.1) - step)) < 1e-6);
	}
	dev->ops->close(dev);
}

/* A loss's statistics and its gradient at once, in place: the bits of one after the other. */
static void test_cross_entropy(void **state)
{
	(void)state;
	enum { ROWS = 19, WIDTH = 37 };
	struct hspmd_device *dev = open_device(2);
	float logits[ROWS * WIDTH], gradient[ROWS * WIDTH], weights[ROWS], stats[ROWS * 4], both[ROWS * 4];
	int32_t targets[ROWS];
	for (int i = 0; i < ROWS * WIDTH; i++)
		logits[i] = (float)hspmd_random_normal(5, 1, (uint64_t)i);
	for (int i = 0; i < ROWS; i++) {
		weights[i] = (float)(i % 4) * 0.5f;
		targets[i] = i % 5 ? i : -1;
	}
	struct hspmd_op_attr attr = { .parts = 1, .scale = 0.3, .smoothing = 0.1, .ignores = true, .numbers = { 7 } };
	struct hspmd_view x = { .data = logits, .dtype = HSPMD_F32, .rank = 3, .shape = { 1, ROWS, WIDTH }, .full = { 1, ROWS, WIDTH } },
	                  t = { .data = targets, .dtype = HSPMD_I32, .rank = 2, .shape = { 1, ROWS }, .full = { 1, ROWS } }, w = t, dx = x,
	                  s = { .data = stats, .dtype = HSPMD_F32, .rank = 4, .shape = { 1, 1, ROWS, 4 }, .full = { 1, 1, ROWS, 4 } };
	w.data = weights;
	w.dtype = HSPMD_F32;
	dx.data = gradient;
	struct hspmd_kernel_args first = { .attr = &attr, .input_count = 2, .output_count = 1, .in = { x, t }, .out = { s } },
	                         second = { .attr = &attr, .input_count = 4, .output_count = 1, .in = { x, t, s, w }, .out = { dx } },
	                         at_once = { .attr = &attr, .input_count = 3, .output_count = 2, .in = { x, t, w }, .out = { x, s } };
	at_once.out[1].data = both;
	run(dev, HSPMD_OP_VOCAB_STATS, &first);
	run(dev, HSPMD_OP_LOSS_GRAD, &second);
	run(dev, HSPMD_OP_CROSS_ENTROPY, &at_once);
	assert_memory_equal(stats, both, sizeof stats);
	assert_memory_equal(gradient, logits, sizeof logits);
	dev->ops->close(dev);
}

static void test_sum_squares(void **state)
{
	(void)state;
	enum { N = 3 * 16384 + 5 };
	static float x[N];
	double total = 100, expected = 100;
	struct hspmd_device *dev = open_device(2);
	for (int i = 0; i < N; i++) {
		x[i] = (float)hspmd_random_normal(2, 1, (uint64_t)i);
		expected += (double)x[i] * (double)x[i];
	}
	struct hspmd_kernel_args args = {
		.input_count = 1, .output_count = 1, .in = { vector(x, HSPMD_F32, N) }, .out = { vector(&total, HSPMD_F64, 1) }
	};
	args.out[0].accumulate = true;
	run(dev, HSPMD_OP_SUM_SQUARES, &args);
	assert_true(fabs(total - expected) < 1e-9 * expected);
	dev->ops->close(dev);
}

/* A part of a tensor gets the same numbers as those elements of the full tensor, and the numbers are normal. */
static void test_random(void **state)
{
	(void)state;
	enum { ROWS = 40, COLUMNS = 257 };
	static float whole[ROWS * COLUMNS], part[7 * 13];
	struct hspmd_device *dev = open_device(2);
	struct hspmd_op_attr attr = { .random = { .seed = 5, .stream = 9, .mean = 1, .deviation = 2 } };
	struct hspmd_kernel_args args = { .attr = &attr, .output_count = 1 };
	args.out[0] =
	        (struct hspmd_view){ .data = whole, .dtype = HSPMD_F32, .rank = 2, .shape = { ROWS, COLUMNS }, .full = { ROWS, COLUMNS } };
	run(dev, HSPMD_OP_NORMAL, &args);
	double sum = 0, squares = 0;
	for (int i = 0; i < ROWS * COLUMNS; i++) {
		sum += whole[i];
		squares += (whole[i] - 1.) * (whole[i] - 1.);
	}
	assert_true(fabs(sum / (ROWS * COLUMNS) - 1) < 0.06);
	assert_true(fabs(sqrt(squares / (ROWS * COLUMNS)) - 2) < 0.06);
	args.out[0] = (struct hspmd_view){
		.data = part, .dtype = HSPMD_F32, .rank = 2, .shape = { 7, 13 }, .start = { 21, 106 }, .full = { ROWS, COLUMNS }
	};
	run(dev, HSPMD_OP_NORMAL, &args);
	for (int r = 0; r < 7; r++)
		assert_memory_equal(part + r * 13, whole + (21 + r) * COLUMNS + 106, 13 * sizeof *part);
	attr.random.stream = 10;
	run(dev, HSPMD_OP_NORMAL, &args);
	assert_true(part[0] != whole[21 * COLUMNS + 106]);
	dev->ops->close(dev);
}

static void test_cast(void **state)
{
	(void)state;
	struct hspmd_device *dev = open_device(1);
	/* 1 + 2^-8 is between two BF16 numbers: to even, down; 1 + 3 * 2^-8 to even, up. */
	float x[4] = { 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, NAN, -2.5f }, back[4];
	uint16_t half[4];
	struct hspmd_kernel_args args = {
		.input_count = 1, .output_count = 1, .in = { vector(x, HSPMD_F32, 4) }, .out = { vector(half, HSPMD_BF16, 4) }
	};
	run(dev, HSPMD_OP_CAST, &args);
	args.in[0] = vector(half, HSPMD_BF16, 4);
	args.out[0] = vector(back, HSPMD_F32, 4);
	run(dev, HSPMD_OP_CAST, &args);
	assert_true(back[0] == 1 && back[1] == 1 + 4 * 0x1p-8f && isnan(back[2]) && back[3] == -2.5f);
	double wide[4];
	args.out[0] = vector(wide, HSPMD_F64, 4);
	run(dev, HSPMD_OP_CAST, &args);
	assert_true(wide[0] == 1 && wide[3] == -2.5);
	dev->ops->close(dev);
}

/* A part is rounded like those elements of the full tensor, with any number of threads, and only if the attribute says so. */
static void test_cast_at_random(void **state)
{
	(void)state;
	enum { ROWS = 130, COLUMNS = 257, FROM = 106, WIDTH = 40 };
	static float x[ROWS * COLUMNS], part[ROWS * WIDTH];
	static uint16_t whole[ROWS * COLUMNS], again[ROWS * COLUMNS], got[ROWS * WIDTH];
	struct hspmd_op_attr attr = { .stochastic = true, .random = { .seed = 5, .stream = 9 } };
	for (int i = 0; i < ROWS * COLUMNS; i++)
		x[i] = (float)hspmd_random_normal(3, 1, (uint64_t)i);
	for (int r = 0; r < ROWS; r++)
		memcpy(part + r * WIDTH, x + r * COLUMNS + FROM, WIDTH * sizeof *x);
	struct hspmd_view full = { .data = x, .dtype = HSPMD_F32, .rank = 2, .shape = { ROWS, COLUMNS }, .full = { ROWS, COLUMNS } },
	                  cut = full;
	cut.data = part;
	cut.shape[1] = WIDTH;
	cut.start[1] = FROM;
	struct hspmd_kernel_args args = { .attr = &attr, .input_count = 1, .output_count = 1, .in = { full }, .out = { full } };
	args.out[0].dtype = HSPMD_BF16;
	for (int threads = 1; threads <= 3; threads += 2) {
		struct hspmd_device *dev = open_device(threads);
		args.in[0].data = x;
		args.out[0].data = threads == 1 ? whole : again;
		run(dev, HSPMD_OP_CAST, &args);
		dev->ops->close(dev);
	}
	assert_memory_equal(whole, again, sizeof whole);
	struct hspmd_device *dev = open_device(1);
	args.in[0] = args.out[0] = cut;
	args.out[0].data = got;
	args.out[0].dtype = HSPMD_BF16;
	run(dev, HSPMD_OP_CAST, &args);
	int up = 0;
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < WIDTH; c++) {
			float value = part[r * WIDTH + c], rounded = hspmd_bf16_to_float(got[r * WIDTH + c]);
			assert_int_equal(got[r * WIDTH + c], whole[r * COLUMNS + FROM + c]);
			assert_true(fabsf(rounded - value) < fabsf(value) * 0x1p-7f);
			up += got[r * WIDTH + c] != hspmd_bf16_from_float(value);
		}
	assert_true(up > ROWS * WIDTH / 5); /* a quarter of a unit is not rounded to the nearest */
	attr.stochastic = false;
	run(dev, HSPMD_OP_CAST, &args);
	for (int i = 0; i < ROWS * WIDTH; i++)
		assert_int_equal(got[i], hspmd_bf16_from_float(part[i]));
	dev->ops->close(dev);
}

static void test_copies(void **state)
{
	(void)state;
	struct hspmd_device *dev = open_device(1);
	struct hspmd_error err;
	struct hspmd_box from = { 3, { 0, 0, 0 }, { 2, 5, 6 } }, to = { 3, { 0, 1, 2 }, { 2, 4, 6 } },
	                 part = { 3, { 0, 2, 3 }, { 2, 4, 5 } };
	float src[60], dst[24];
	for (int i = 0; i < 60; i++)
		src[i] = (float)i;
	for (int add = 0; add < 2; add++) {
		for (int i = 0; i < 24; i++)
			dst[i] = 1000;
		assert_int_equal(dev->ops->copy_box(dev, dst, &to, src, &from, &part, HSPMD_F32, add, &err), 0);
		for (int64_t a = 0; a < 2; a++)
			for (int64_t b = 1; b < 4; b++)
				for (int64_t c = 2; c < 6; c++) {
					bool in = b >= 2 && c >= 3 && c < 5;
					float expected = in ? src[(a * 5 + b) * 6 + c] + (add ? 1000 : 0) : 1000;
					assert_true(dst[(a * 3 + b - 1) * 4 + c - 2] == expected);
				}
	}
	assert_int_equal(dev->ops->copy_box(dev, dst, &to, src, &from, &part, HSPMD_I32, true, &err), -1);
	dev->ops->close(dev);
}

/* A product packs at most what its device's blocks say, and hardly less. */
static void test_product_blocks(void **state)
{
	(void)state;
	static const char *const isas[] = { "generic", "avx2", "avx512" };
	static const int64_t sizes[] = { 1, 7, 64, 500, 768, 1000, 3000, 3072, 5000, 40000 };
	enum { SIZES = sizeof sizes / sizeof *sizes };
	for (int i = 0; i < 3 * SIZES * SIZES; i++) {
		struct hspmd_device *dev = NULL;
		struct hspmd_error err;
		struct hspmd_product_blocks b;
		int64_t columns = sizes[i / 3 % SIZES], depth = sizes[i / 3 / SIZES];
		setenv("HSPMD_CPU_ISA", isas[i % 3], 1);
		if (hspmd_device_find("cpu", &err)->open(&dev, 0, 1 + i % 4, &err))
			continue; /* the machine does not have it */
		struct hspmd_op_attr attr = { 0 };
		struct hspmd_kernel_args args = { .attr = &attr, .input_count = 2, .output_count = 1 };
		args.in[0] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { 9, depth } };
		args.in[1] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { columns, depth } };
		args.out[0] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { 9, columns } };
		double bytes = (double)dev->ops->workspace(dev, HSPMD_OP_LINEAR, &args);
		hspmd_device_product_blocks(dev, &b);
		double rows = (double)b.rows, packs = fmin((double)depth, (double)b.depth);
		double predicted = 4 * packs * (fmin((double)columns, (double)b.columns) + rows);
		assert_true(bytes <= predicted && predicted <= 4 * packs * 32 + bytes); /* a panel is at most so wide */
		dev->ops->close(dev);
	}
	unsetenv("HSPMD_CPU_ISA");
}

static void test_errors(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_device *dev = NULL;
	assert_null(hspmd_device_find("abacus", &err));
	assert_non_null(strstr(err.text, "no device kind 'abacus'; there are: cpu, cuda"));
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	assert_non_null(ops);
	setenv("HSPMD_CPU_ISA", "mmx", 1);
	assert_int_equal(ops->open(&dev, 0, 1, &err), -1);
	assert_non_null(strstr(err.text, "HSPMD_CPU_ISA=mmx"));
	unsetenv("HSPMD_CPU_ISA");
	assert_int_equal(ops->open(&dev, 0, -1, &err), -1);
	dev = open_device(1);
	uint16_t half[4] = { 0 };
	struct hspmd_kernel_args args = {
		.input_count = 1, .output_count = 1, .in = { vector(half, HSPMD_BF16, 4) }, .out = { vector(half, HSPMD_BF16, 4) }
	};
	assert_int_equal(dev->ops->run(dev, HSPMD_OP_GELU, &args, &err), -1);
	assert_string_equal(err.text, "the CPU device has no kernel for gelu on BF16");
	double total;
	float x[4] = { 0 };
	args.in[0] = vector(x, HSPMD_F32, 4);
	args.out[0] = vector(&total, HSPMD_F64, 1);
	assert_int_equal(dev->ops->run(dev, HSPMD_OP_SUM_SQUARES, &args, &err), -1);
	assert_string_equal(err.text, "sum_squares was given 0 bytes of workspace and needs 8");
	dev->ops->close(dev);
	ops->close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_calls),    cmocka_unit_test(test_small_kernels), cmocka_unit_test(test_spins_in_vain),
		cmocka_unit_test(test_absent_helper),  cmocka_unit_test(test_pool),          cmocka_unit_test(test_exponential),
		cmocka_unit_test(test_gelu),           cmocka_unit_test(test_adamw),         cmocka_unit_test(test_cross_entropy),
		cmocka_unit_test(test_sum_squares),    cmocka_unit_test(test_random),        cmocka_unit_test(test_cast),
		cmocka_unit_test(test_cast_at_random), cmocka_unit_test(test_copies),        cmocka_unit_test(test_errors),
		cmocka_unit_test(test_product_blocks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
