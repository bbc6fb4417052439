/* SPDX-License-Identifier: Apache-2.0 */
/* Every operator of the CUDA device, forward and backward, compared with the CPU device in double precision on the same inputs, with chosen
 * and random shapes; the same bits twice. Also what is not part of a model's graph: optimizer, random numbers, casts, copies. HSPMD_LONG=1
 * tries more shapes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device/random.h"
#include "runtime/device/step_values.h"
#include "runtime/op/op.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/random_case.h"
#include "tests/gpu/wide_case.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/op_case.h"
#include "tests/unit/repeated_operand.h"

/* On the emulated device threads run in one of three orders (HSPMD_LONG: in each of them), so that a missing barrier changes the result,
 * and large cases are tried in one of two types, the other with another draw. */
static void check_cases(enum hspmd_dtype type, double bound)
{
	static const char *const orders[] = { "0", "1", "7" };
	const unsigned count = gpu_is_emulated() && getenv("HSPMD_LONG") ? 3 : 1, first = gpu_is_emulated() ? draw_first(count, 3) : 0;
	for (unsigned o = first; o < first + count; o++) {
		setenv("HSPMD_EMULATE_ORDER", orders[o], 1);
		for (size_t i = 0; i < op_case_count(); i++)
			mirror_check_case(op_case_at(i), type, bound);
		for (size_t i = 0; i < wide_case_count; i++)
			if (!wide_cases[i].large || !gpu_is_emulated() || draw_takes((unsigned)i + (type == HSPMD_BF16), 2))
				mirror_check_case(&wide_cases[i], type, bound);
	}
	setenv("HSPMD_EMULATE_ORDER", "0", 1);
}

static void operators_f32(void **state)
{
	(void)state;
	check_cases(HSPMD_F32, F32_BOUND);
}

static void operators_bf16(void **state)
{
	(void)state;
	check_cases(HSPMD_BF16, BF16_BOUND);
}

static void operators_of_random_shapes(void **state)
{
	(void)state;
	unsigned count = getenv("HSPMD_LONG") ? 2000 : gpu_is_emulated() ? 60 : 200;
	for (unsigned seed = 0; seed < count; seed++) {
		char name[160];
		struct op_case c = random_case(seed, name, sizeof name);
		enum hspmd_dtype type = seed / RANDOM_KINDS % 2 ? HSPMD_BF16 : HSPMD_F32;
		mirror_check_case(&c, type, type == HSPMD_F32 ? F32_BOUND : BF16_BOUND);
	}
	print_message("%u operators of random shapes\n", count);
}

static struct hspmd_view vector(void *data, enum hspmd_dtype type, int64_t n)
{
	return (struct hspmd_view){ .data = data, .dtype = type, .rank = 1, .shape = { n }, .full = { n } };
}

static void run_on(struct hspmd_device *dev, enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_error err;
	args->workspace_bytes = dev->ops->workspace(dev, opcode, args);
	args->workspace = args->workspace_bytes ? dev->ops->allocate(dev, args->workspace_bytes, &err) : NULL;
	mirror_must(dev->ops->run(dev, opcode, args, &err), &err);
	dev->ops->release(dev, args->workspace);
}

static struct hspmd_device *open_cpu(void)
{
	struct hspmd_error err;
	struct hspmd_device *dev;
	mirror_must(hspmd_device_find("cpu", &err)->open(&dev, 0, 1, &err), &err);
	return dev;
}

/* Runs one operator on both devices on the same F32 vectors: inputs and outputs, of which `outs` are read before they are written. */
static void check_vectors(enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int ins, int outs, int n, double bound)
{
	struct hspmd_device *cpu = open_cpu();
	struct hspmd_kernel_args mine = { .attr = attr, .input_count = ins, .output_count = outs }, theirs = mine;
	struct hspmd_error err;
	float *host[8];
	for (int k = 0; k < ins + outs; k++) {
		host[k] = malloc((size_t)n * sizeof(float));
		assert_non_null(host[k]);
		for (int i = 0; i < n; i++)
			host[k][i] = fabsf((float)hspmd_random_normal(4, (uint64_t)k, (uint64_t)i));
		void *device = mirror_allocate((size_t)n * sizeof(float));
		mirror_must(gpu->ops->to_device(gpu, device, host[k], (size_t)n * sizeof(float), &err), &err);
		*(k < ins ? &mine.in[k] : &mine.out[k - ins]) = vector(device, HSPMD_F32, n);
		*(k < ins ? &theirs.in[k] : &theirs.out[k - ins]) = vector(host[k], HSPMD_F32, n);
	}
	run_on(gpu, opcode, &mine);
	run_on(cpu, opcode, &theirs);
	for (int o = 0; o < outs; o++) {
		float *got = mirror_take_back(mine.out[o].data, (size_t)n * sizeof(float));
		for (int i = 0; i < n; i++)
			if (!(fabs((double)got[i] - (double)host[ins + o][i]) <= bound * (1 + fabs((double)host[ins + o][i]))))
				fail_msg("%s: output %d, element %d is %.9g, not %.9g", hspmd_opcode_names[opcode], o, i, (double)got[i],
				         (double)host[ins + o][i]);
		free(got);
	}
	for (int k = 0; k < ins + outs; k++) {
		gpu->ops->release(gpu, (k < ins ? &mine.in[k] : &mine.out[k - ins])->data);
		free(host[k]);
	}
	cpu->ops->close(cpu);
}

static void optimizer(void **state)
{
	(void)state;
	struct hspmd_op_attr attr = { .scale = 0.5 };
	attr.update = hspmd_optimizer_update(HSPMD_OPTIMIZER_ADAMW, (double[]){ 0.9, 0.95, 1e-8 }, 0.01, 0.1, 3);
	check_vectors(HSPMD_OP_UPDATE, &attr, 1, 3, 1031, 1e-6);
	attr.update = hspmd_optimizer_update(HSPMD_OPTIMIZER_LION, (double[]){ 0.9, 0.99 }, 0.01, 0.1, 3);
	check_vectors(HSPMD_OP_UPDATE, &attr, 1, 2, 1031, 1e-6);
}

/* Of FP8 operands the two gradients need theirs in different orders; kept as F32 they have one order, unless the weight has the other. */
static void repeated_operands(void **state)
{
	(void)state;
	for (int transposed = 0; transposed < 2; transposed++) {
		check_repeated_operand(gpu, HSPMD_F32, transposed, !transposed);
		if (gpu_is_emulated()) /* which has products of FP8 operands */
			check_repeated_operand(gpu, HSPMD_BF16, transposed, false);
	}
}

static void random_numbers(void **state)
{
	(void)state;
	struct hspmd_op_attr attr = { .random = { .seed = 5, .stream = 9, .mean = 1, .deviation = 2 } };
	check_vectors(HSPMD_OP_NORMAL, &attr, 0, 1, 1031, 1e-6);
	struct hspmd_op_attr value = { .scale = 3 };
	check_vectors(HSPMD_OP_FILL, &value, 0, 1, 1031, 0);
}

static void sum_of_squares(void **state)
{
	(void)state;
	enum { N = 3 * 16384 + 5 };
	static float x[N];
	struct hspmd_error err;
	double start = 100, expected = 100;
	for (int i = 0; i < N; i++) {
		x[i] = (float)hspmd_random_normal(2, 1, (uint64_t)i);
		expected += (double)x[i] * (double)x[i];
	}
	void *data = mirror_allocate(sizeof x), *total = mirror_allocate(sizeof start);
	mirror_must(gpu->ops->to_device(gpu, data, x, sizeof x, &err), &err);
	mirror_must(gpu->ops->to_device(gpu, total, &start, sizeof start, &err), &err);
	struct hspmd_kernel_args args = {
		.input_count = 1, .output_count = 1, .in = { vector(data, HSPMD_F32, N) }, .out = { vector(total, HSPMD_F64, 1) }
	};
	args.out[0].accumulate = true;
	run_on(gpu, HSPMD_OP_SUM_SQUARES, &args);
	double *got = mirror_take_back(total, sizeof start);
	assert_true(fabs(*got - expected) < 1e-9 * expected);
	free(got);
	gpu->ops->release(gpu, data);
	gpu->ops->release(gpu, total);
}

static struct hspmd_step_values *put_values(const struct hspmd_step_values *host)
{
	struct hspmd_error err;
	void *device = mirror_allocate(sizeof *host);
	mirror_must(gpu->ops->to_device(gpu, device, host, sizeof *host, &err), &err);
	return device;
}

/* More vectors than fit into a launch, of all sizes, some without weight decay: the same bits as one after the other, except for the order
 * in which squares are summed; and as with a step's values instead of attributes. */
static void many_at_once(void **state)
{
	(void)state;
	enum { COUNT = 131 };
	static struct hspmd_kernel_args all[3][COUNT], squares[COUNT];
	struct hspmd_op_attr attr = { .scale = 0.5,
		                      .update = hspmd_optimizer_update(HSPMD_OPTIMIZER_ADAMW, (double[]){ 0.9, 0.95, 1e-8 }, 0.01, 0, 3) },
	                     decays = attr;
	struct hspmd_error err = { "" };
	double start = 0, sums[2];
	void *total = mirror_allocate(sizeof start), *workspace = mirror_allocate(4096);
	decays.update = hspmd_optimizer_update(HSPMD_OPTIMIZER_ADAMW, (double[]){ 0.9, 0.95, 1e-8 }, 0.01, 0.1, 3);
	struct hspmd_step_values values = { .square_sum = 36, .clip = 3, .keep = decays.update.keep };
	memcpy(values.rates, attr.update.rates, sizeof values.rates);
	struct hspmd_step_values *on_device = put_values(&values);
	for (int way = 0; way < 3; way++)
		for (int i = 0; i < COUNT; i++) {
			int n = i % 7 == 0 ? 4096 * (i % 3) + i : i + 1;
			struct hspmd_kernel_args *a = &all[way][i];
			*a = (struct hspmd_kernel_args){ .attr = i % 2 ? &attr : &decays, .input_count = 1, .output_count = i % 3 ? 4 : 3 };
			for (int k = 0; k < 5; k++) {
				struct hspmd_op_attr fill = {
					.random = { .seed = 5, .stream = (uint64_t)(5 * i + k), .mean = 4, .deviation = 1 }
				};
				struct hspmd_kernel_args f = { .attr = &fill, .output_count = 1 };
				struct hspmd_view *to = k ? &a->out[k - 1] : &a->in[0];
				*to = vector(mirror_allocate((size_t)n * sizeof(float) + 64), k == 4 ? HSPMD_BF16 : HSPMD_F32, n);
				f.out[0] = vector(to->data, HSPMD_F32, k == 4 ? (n + 1) / 2 : n);
				run_on(gpu, HSPMD_OP_NORMAL, &f);
			}
			squares[i] = (struct hspmd_kernel_args){ .input_count = 1,
				                                 .output_count = 1,
				                                 .in = { a->in[0] },
				                                 .out = { vector(total, HSPMD_F64, 1) },
				                                 .workspace = workspace,
				                                 .workspace_bytes = 64 };
			squares[i].out[0].accumulate = true;
		}
	for (int i = 0; i < COUNT; i++)
		run_on(gpu, HSPMD_OP_UPDATE, &all[0][i]);
	mirror_must(gpu->ops->run_batch(gpu, HSPMD_OP_UPDATE, all[1], COUNT, &err), &err);
	for (int i = 0; i < COUNT; i++)
		all[2][i].values = on_device;
	attr.scale = decays.scale = attr.update.keep = decays.update.keep = 99;
	memset(attr.update.rates, 0, sizeof attr.update.rates);
	memset(decays.update.rates, 0, sizeof decays.update.rates);
	attr.update.keep = 1;
	mirror_must(gpu->ops->run_batch(gpu, HSPMD_OP_UPDATE, all[2], COUNT, &err), &err);
	for (int way = 0; way < 2; way++) {
		mirror_must(gpu->ops->to_device(gpu, total, &start, sizeof start, &err), &err);
		for (int i = 0; way == 0 && i < COUNT; i++)
			mirror_must(gpu->ops->run(gpu, HSPMD_OP_SUM_SQUARES, &squares[i], &err), &err);
		if (way)
			mirror_must(gpu->ops->run_batch(gpu, HSPMD_OP_SUM_SQUARES, squares, COUNT, &err), &err);
		mirror_must(gpu->ops->to_host(gpu, &sums[way], total, sizeof sums[way], &err), &err);
	}
	assert_true(sums[0] > 0 && fabs(sums[1] - sums[0]) < 1e-12 * sums[0]);
	for (int i = 0; i < COUNT; i++)
		for (int k = 0; k < 5; k++) {
			void *got[3];
			for (int way = 0; way < 3; way++) {
				const struct hspmd_view *v = k ? &all[way][i].out[k - 1] : &all[way][i].in[0];
				size_t bytes = (size_t)v->shape[0] * hspmd_dtype_bytes(v->dtype);
				got[way] = mirror_take_back(v->data, bytes);
				if (memcmp(got[0], got[way], bytes))
					fail_msg("vector %d of %lld elements, way %d: %d has other bits", i, (long long)v->shape[0], way,
					         k);
				gpu->ops->release(gpu, v->data);
			}
			for (int way = 0; way < 3; way++)
				free(got[way]);
		}
	gpu->ops->release(gpu, on_device);
	gpu->ops->release(gpu, total);
	gpu->ops->release(gpu, workspace);
}

/* A factor of the step among its values gives the bits of one that is in attr.scale. */
static void losses_take_the_factor(void **state)
{
	(void)state;
	enum { ROWS = 5, V = 37 };
	float x[ROWS * V], *stats[2], *gradient[2];
	int32_t wanted[ROWS] = { 3, -1, 36, 0, 11 };
	double zero = 0, losses[2];
	struct hspmd_error err;
	struct hspmd_step_values *values = put_values(&(struct hspmd_step_values){ .loss_factor = 1.37 });
	for (int i = 0; i < ROWS * V; i++)
		x[i] = (float)hspmd_random_normal(6, 2, (uint64_t)i);
	void *logits = mirror_allocate(sizeof x), *targets = mirror_allocate(sizeof wanted), *loss = mirror_allocate(sizeof zero),
	     *to = mirror_allocate(sizeof x), *s = mirror_allocate(ROWS * 3 * sizeof(float));
	mirror_must(gpu->ops->to_device(gpu, logits, x, sizeof x, &err), &err);
	mirror_must(gpu->ops->to_device(gpu, targets, wanted, sizeof wanted, &err), &err);
	for (int way = 0; way < 2; way++) {
		struct hspmd_op_attr attr = { .scale = way ? 0.3 : 0.3 * 1.37, .parts = 1 };
		struct hspmd_kernel_args args = { .attr = &attr, .input_count = 2, .output_count = 2, .values = way ? values : NULL };
		args.in[0] = args.out[0] =
		        (struct hspmd_view){ logits, HSPMD_F32, .rank = 3, .shape = { 1, ROWS, V }, .full = { 1, ROWS, V } };
		args.out[0].data = to;
		args.in[1] = (struct hspmd_view){ targets, HSPMD_I32, .rank = 2, .shape = { 1, ROWS }, .full = { 1, ROWS } };
		args.out[1] = (struct hspmd_view){ s, HSPMD_F32, .rank = 4, .shape = { 1, 1, ROWS, 3 }, .full = { 1, 1, ROWS, 3 } };
		run_on(gpu, HSPMD_OP_CROSS_ENTROPY, &args);
		gradient[way] = mirror_take_back(to, sizeof x);
		stats[way] = mirror_take_back(s, ROWS * 3 * sizeof(float));
		args.in[0] = args.out[1];
		args.output_count = 1;
		args.out[0] = vector(loss, HSPMD_F64, 1);
		run_on(gpu, HSPMD_OP_LOSS, &args);
		mirror_must(gpu->ops->to_host(gpu, &losses[way], loss, sizeof *losses, &err), &err);
	}
	assert_true(losses[0] != 0 && losses[0] == losses[1]);
	assert_memory_equal(gradient[0], gradient[1], sizeof x);
	for (int way = 0; way < 2; way++) {
		free(gradient[way]);
		free(stats[way]);
	}
	for (int i = 0; i < 6; i++)
		gpu->ops->release(gpu, ((void *[]){ values, logits, targets, loss, to, s })[i]);
}

static void casts(void **state)
{
	(void)state;
	/* 1 + 2^-8 is halfway between two BF16 numbers: to even, down; 1 + 3 * 2^-8: to even, up. */
	float x[9] = { 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, NAN, -2.5f, 0, 1e30f, -1e-30f, 3, 4 };
	struct hspmd_error err;
	void *wide = mirror_allocate(sizeof x), *half = mirror_allocate(9 * 2), *back = mirror_allocate(sizeof x);
	mirror_must(gpu->ops->to_device(gpu, wide, x, sizeof x, &err), &err);
	struct hspmd_kernel_args args = {
		.input_count = 1, .output_count = 1, .in = { vector(wide, HSPMD_F32, 9) }, .out = { vector(half, HSPMD_BF16, 9) }
	};
	run_on(gpu, HSPMD_OP_CAST, &args);
	args.in[0] = vector(half, HSPMD_BF16, 9);
	args.out[0] = vector(back, HSPMD_F32, 9);
	run_on(gpu, HSPMD_OP_CAST, &args);
	float *got = mirror_take_back(back, sizeof x);
	assert_true(got[0] == 1 && got[1] == 1 + 4 * 0x1p-8f && isnan(got[2]) && got[3] == -2.5f && got[8] == 4);
	free(got);
	gpu->ops->release(gpu, wide);
	gpu->ops->release(gpu, half);
	gpu->ops->release(gpu, back);
}

static void copies(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_box from = { 3, { 0, 0, 0 }, { 2, 5, 6 } }, to = { 3, { 0, 1, 2 }, { 2, 4, 6 } },
	                 part = { 3, { 0, 2, 3 }, { 2, 4, 5 } };
	float src[60], dst[24];
	void *source = mirror_allocate(sizeof src), *target = mirror_allocate(sizeof dst);
	for (int i = 0; i < 60; i++)
		src[i] = (float)i;
	mirror_must(gpu->ops->to_device(gpu, source, src, sizeof src, &err), &err);
	for (int add = 0; add < 2; add++) {
		for (int i = 0; i < 24; i++)
			dst[i] = 1000;
		mirror_must(gpu->ops->to_device(gpu, target, dst, sizeof dst, &err), &err);
		mirror_must(gpu->ops->copy_box(gpu, target, &to, source, &from, &part, HSPMD_F32, add, &err), &err);
		mirror_must(gpu->ops->to_host(gpu, dst, target, sizeof dst, &err), &err);
		for (int64_t a = 0; a < 2; a++)
			for (int64_t b = 1; b < 4; b++)
				for (int64_t c = 2; c < 6; c++) {
					bool in = b >= 2 && c >= 3 && c < 5;
					float expected = in ? src[(a * 5 + b) * 6 + c] + (add ? 1000 : 0) : 1000;
					assert_true(dst[(a * 3 + b - 1) * 4 + c - 2] == expected);
				}
	}
	mirror_must(gpu->ops->zero(gpu, target, sizeof dst, &err), &err);
	mirror_must(gpu->ops->to_host(gpu, dst, target, sizeof dst, &err), &err);
	for (int i = 0; i < 24; i++)
		assert_true(dst[i] == 0);
	assert_int_equal(gpu->ops->copy_box(gpu, target, &to, source, &from, &part, HSPMD_I32, true, &err), -1);
	gpu->ops->release(gpu, source);
	gpu->ops->release(gpu, target);
}

/* Boxes of all ranks whose rows begin on multiples of 16 bytes in both buffers, in one, or in none, compared with a copy on the host. */
static void many_copies(void **state)
{
	(void)state;
	enum { TRIALS = 400, MOST = 3 * 3 * 73 };
	uint16_t from[2 * MOST], to[2 * MOST], want[2 * MOST];
	void *source = mirror_allocate(sizeof from), *target = mirror_allocate(sizeof to);
	struct hspmd_error err;
	uint64_t drawn = 0;
	for (size_t i = 0; i < 2 * MOST; i++)
		from[i] = (uint16_t)(i + 1);
	mirror_must(gpu->ops->to_device(gpu, source, from, sizeof from, &err), &err);
	for (int trial = 0; trial < TRIALS; trial++) {
		enum hspmd_dtype type = trial % 2 ? HSPMD_BF16 : HSPMD_F32;
		struct hspmd_box a = { .rank = 1 + trial % 3 }, b = a, part = a;
		for (int d = 0; d < a.rank; d++) {
			int64_t grain = d + 1 < a.rank ? 1 : trial % 5 ? 8 : 3, cut[4];
			uint32_t word[4];
			hspmd_random_words(3, 0, drawn++, word);
			for (int k = 0; k < 4; k++)
				cut[k] = word[k] % (d + 1 < a.rank ? 2 : 5) * grain;
			part.lo[d] = cut[0];
			part.hi[d] = cut[0] + cut[1] + grain; /* a and b contain it */
			a.lo[d] = cut[2] < cut[0] ? cut[2] : cut[0];
			b.lo[d] = cut[3] < cut[0] ? cut[3] : cut[0];
			a.hi[d] = part.hi[d];
			b.hi[d] = part.hi[d] + (trial % 7 == 0 && d + 1 == a.rank ? 1 : 0);
			assert_true(a.hi[d] - a.lo[d] <= (d + 1 < a.rank ? 3 : 72));
		}
		memset(to, 0xee, sizeof to);
		memcpy(want, to, sizeof to);
		hspmd_box_copy(want, &b, from, &a, &part, hspmd_dtype_bytes(type));
		mirror_must(gpu->ops->to_device(gpu, target, to, sizeof to, &err), &err);
		mirror_must(gpu->ops->copy_box(gpu, target, &b, source, &a, &part, type, false, &err), &err);
		mirror_must(gpu->ops->to_host(gpu, to, target, sizeof to, &err), &err);
		if (memcmp(to, want, sizeof to))
			fail_msg("copy %d of %s is wrong", trial, hspmd_dtype_names[type]);
	}
	gpu->ops->release(gpu, source);
	gpu->ops->release(gpu, target);
}

/* More than the ring of pinned memory holds, in both directions. */
static void large_copies(void **state)
{
	(void)state;
	struct hspmd_error err;
	size_t bytes = ((size_t)33 << 20) + 5;
	char *host = malloc(bytes), *back = malloc(bytes);
	void *data = mirror_allocate(bytes);
	assert_true(host && back);
	for (size_t i = 0; i < bytes; i++)
		host[i] = (char)(i * 2654435761u >> 13);
	mirror_must(gpu->ops->to_device(gpu, data, host, bytes, &err), &err);
	mirror_must(gpu->ops->to_host(gpu, back, data, bytes, &err), &err);
	assert_memory_equal(host, back, bytes);
	gpu->ops->release(gpu, data);
	free(host);
	free(back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operators_f32),
		cmocka_unit_test(operators_bf16),
		cmocka_unit_test(operators_of_random_shapes),
		cmocka_unit_test(repeated_operands),
		cmocka_unit_test(optimizer),
		cmocka_unit_test(many_at_once),
		cmocka_unit_test(random_numbers),
		cmocka_unit_test(sum_of_squares),
		cmocka_unit_test(casts),
		cmocka_unit_test(copies),
		cmocka_unit_test(many_copies),
		cmocka_unit_test(large_copies),
		cmocka_unit_test(losses_take_the_factor),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	gpu = gpu_open();
	int status = cmocka_run_group_tests(tests, NULL, NULL);
	gpu->ops->close(gpu);
	return status;
}
