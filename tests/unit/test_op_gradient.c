/* SPDX-License-Identifier: Apache-2.0 */
/* Every operator's backward against central differences of its forward in double precision; single precision against double, on every
 * instruction set; and equal bits for any number of threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device/random.h"
#include "runtime/op/op.h"
#include "tests/unit/op_case.h"

static const char *const isas[] = { "generic", "avx2", "avx512" };

static bool machine_has(const char *isa)
{
	struct hspmd_error err;
	struct hspmd_device *dev = NULL;
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	setenv("HSPMD_CPU_ISA", isa, 1);
	bool has = ops && ops->open(&dev, 0, 1, &err) == 0;
	if (has)
		ops->close(dev);
	unsetenv("HSPMD_CPU_ISA");
	return has;
}

static int64_t elements(const struct hspmd_graph *g, int t)
{
	return hspmd_shape_elements(&g->tensors[t].shape);
}

/* Products of rounded operands are steps; test_golden compares them with PyTorch's. */
static bool is_smooth(const struct hspmd_graph *g)
{
	for (size_t i = 0; i < g->op_count; i++)
		if (hspmd_op_types[g->ops[i].opcode]->fp8)
			return false;
	return true;
}

static void check_differences(const struct op_case *c)
{
	const double step = 1e-4;
	struct hspmd_graph *g = op_case_graph(c, HSPMD_F64);
	struct op_values v;
	int checked = 0;
	if (!is_smooth(g)) {
		hspmd_graph_destroy(g);
		return;
	}
	op_values_open(&v, g, 2);
	op_values_fill(&v, 7);
	op_values_run(&v, true);
	for (size_t t = 0; t < g->tensor_count; t++) {
		int grad = g->tensors[t].grad;
		if (g->tensors[t].role != HSPMD_TENSOR_PARAMETER || grad < 0)
			continue;
		double *x = v.data[t], *dx = v.data[grad];
		int64_t count = elements(g, (int)t), tries = count < 40 ? count : 40;
		for (int64_t k = 0; k < tries; k++) {
			uint32_t w[4];
			hspmd_random_words(3, t, (uint64_t)k, w);
			int64_t i = tries == count ? k : (int64_t)(w[0] % (uint64_t)count);
			double was = x[i];
			x[i] = was + step;
			op_values_run(&v, false);
			double up = op_case_loss(&v);
			x[i] = was - step;
			op_values_run(&v, false);
			double down = op_case_loss(&v), difference = (up - down) / (2 * step);
			x[i] = was;
			if (!(fabs(difference - dx[i]) <= 1e-6 * (1 + fabs(difference))))
				fail_msg("%s: gradient of %s[%lld] is %.9g, differences give %.9g", c->name, g->tensors[t].name,
				         (long long)i, dx[i], difference);
			checked++;
		}
	}
	assert_true(checked > 0);
	op_values_close(&v);
	hspmd_graph_destroy(g);
}

static void test_finite_differences(void **state)
{
	(void)state;
	for (size_t i = 0; i < op_case_count(); i++)
		check_differences(op_case_at(i));
}

static double largest(const void *data, enum hspmd_dtype type, int64_t n)
{
	double most = 0;
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(op_value_get(data, type, i)));
	return most;
}

static void compare_single(const struct op_case *c, const char *isa)
{
	struct hspmd_graph *g32 = op_case_graph(c, HSPMD_F32), *g64 = op_case_graph(c, HSPMD_F64);
	struct op_values v32, v64;
	setenv("HSPMD_CPU_ISA", isa, 1);
	op_values_open(&v32, g32, 1);
	op_values_open(&v64, g64, 1);
	unsetenv("HSPMD_CPU_ISA");
	op_values_fill(&v32, 5);
	op_values_fill(&v64, 5);
	op_values_run(&v32, true);
	op_values_run(&v64, true);
	for (size_t t = 0; t < g64->tensor_count; t++) {
		int64_t n = elements(g64, (int)t);
		enum hspmd_dtype a = g32->tensors[t].dtype, b = g64->tensors[t].dtype;
		double most = largest(v64.data[t], b, n);
		for (int64_t i = 0; i < n; i++) {
			double single = op_value_get(v32.data[t], a, i), whole = op_value_get(v64.data[t], b, i);
			if (!(fabs(single - whole) <= 3e-6 * (1 + most)))
				fail_msg("%s on %s: %s[%lld] is %.9g in single, %.9g in double", c->name, isa, g64->tensors[t].name,
				         (long long)i, single, whole);
		}
	}
	op_values_close(&v32);
	op_values_close(&v64);
	hspmd_graph_destroy(g32);
	hspmd_graph_destroy(g64);
}

static void test_single_precision(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
		if (!machine_has(isas[k])) {
			print_message("this machine has no %s: not tested\n", isas[k]);
			continue;
		}
		for (size_t i = 0; i < op_case_count(); i++)
			compare_single(op_case_at(i), isas[k]);
	}
}

static void test_threads(void **state)
{
	(void)state;
	for (size_t k = 0; k < op_case_count(); k++) {
		struct hspmd_graph *g = op_case_graph(op_case_at(k), HSPMD_F32);
		struct op_values one, more;
		op_values_open(&one, g, 1);
		op_values_fill(&one, 9);
		op_values_run(&one, true);
		for (int threads = 2; threads <= 5; threads += 3) {
			op_values_open(&more, g, threads);
			op_values_fill(&more, 9);
			op_values_run(&more, true);
			for (size_t t = 0; t < g->tensor_count; t++)
				if (memcmp(one.data[t], more.data[t],
				           (size_t)elements(g, (int)t) * hspmd_dtype_bytes(g->tensors[t].dtype)) != 0)
					fail_msg("%s: %s differs with %d threads", op_case_at(k)->name, g->tensors[t].name, threads);
			op_values_close(&more);
		}
		op_values_close(&one);
		hspmd_graph_destroy(g);
	}
}

/* Runs operator `number` again onto contents 0, 1, 2, ...: the results must be larger by exactly that. */
static void check_accumulation(struct op_values *v, size_t number)
{
	const struct hspmd_op *op = &v->g->ops[number];
	struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
	double *sums[HSPMD_OP_MAX_IO] = { NULL };
	for (int i = 0; i < op->input_count; i++)
		args.in[i] = op_values_view(v, op->in[i]);
	for (int o = 0; o < op->output_count; o++) {
		args.out[o] = op_values_view(v, op->out[o]);
		if (!(hspmd_op_types[op->opcode]->accumulates >> o & 1) || op->out[o] < 0)
			continue;
		int64_t n = elements(v->g, op->out[o]);
		sums[o] = calloc((size_t)n, sizeof(double));
		assert_non_null(sums[o]);
		for (int64_t i = 0; i < n; i++)
			sums[o][i] = (double)i;
		args.out[o].data = sums[o];
		args.out[o].accumulate = true;
	}
	op_values_kernel(v, op->opcode, &args);
	for (int o = 0; o < op->output_count; o++) {
		for (int64_t i = 0; sums[o] && i < elements(v->g, op->out[o]); i++) {
			double plain = ((const double *)v->data[op->out[o]])[i];
			assert_true(fabs(sums[o][i] - (double)i - plain) <= 1e-9 * (1 + fabs(sums[o][i])));
		}
		free(sums[o]);
	}
}

static void test_accumulate(void **state)
{
	(void)state;
	for (size_t k = 0; k < op_case_count(); k++) {
		struct hspmd_graph *g = op_case_graph(op_case_at(k), HSPMD_F64);
		struct op_values v;
		op_values_open(&v, g, 1);
		op_values_fill(&v, 11);
		op_values_run(&v, true);
		for (size_t i = 0; i < g->op_count; i++)
			if (g->ops[i].opcode != HSPMD_OP_VOCAB_STATS)
				check_accumulation(&v, i);
		op_values_close(&v);
		hspmd_graph_destroy(g);
	}
}

/* Attention computes a score for every key that a query sees: of a multiply and an add per element of the head, and as much for its value;
 * backward five such products instead of two. It moves its inputs and outputs once. */
static void test_cost_of_attention(void **state)
{
	(void)state;
	static const int64_t windows[] = { 0, 1, 3, 16, 100, 1000 };
	const int64_t samples = 2, length = 256, heads = 6, kv_heads = 2, head = 8;
	const struct hspmd_shape q = SHAPE(samples, length, heads * head), kv = SHAPE(samples, length, kv_heads * head),
	                         stats = SHAPE(samples, heads, length);
	for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
		struct hspmd_op_attr attr = { .head_dim = (int)head, .heads = (int)heads, .kv_heads = (int)kv_heads, .window = windows[i] };
		int64_t scores = 0;
		for (int64_t at = 0; at < length; at++)
			scores += windows[i] && at >= windows[i] ? windows[i] : at + 1;
		double one = 2.0 * (double)(samples * heads * head * scores), flops, bytes;
		struct hspmd_op_view v = { .attr = &attr, .input_count = 3, .output_count = 2, .in = { q, kv, kv }, .out = { q, stats } };
		v.in_dtype[0] = v.in_dtype[1] = v.in_dtype[2] = v.out_dtype[0] = HSPMD_BF16;
		v.out_dtype[1] = HSPMD_F32;
		hspmd_op_types[HSPMD_OP_ATTENTION]->cost(&v, &flops, &bytes);
		if (!(fabs(flops / (2 * one) - 1) < 0.25))
			fail_msg("window %lld: %g flops instead of %g", (long long)windows[i], flops, 2 * one);
		double qs = (double)(samples * length * heads * head), kvs = (double)(samples * length * kv_heads * head),
		       sums = (double)(samples * length * heads);
		assert_float_equal(bytes, 2 * (2 * qs + 2 * kvs) + 4 * sums, 0);
		double forward = flops;
		struct hspmd_op_view g = {
			.attr = &attr, .input_count = 6, .output_count = 3, .in = { q, q, kv, kv, q, stats }, .out = { q, kv, kv }
		};
		hspmd_op_types[HSPMD_OP_ATTENTION_GRAD]->cost(&g, &flops, &bytes);
		assert_float_equal(flops, 2.5 * forward, 1e-6 * flops);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_finite_differences), cmocka_unit_test(test_single_precision),  cmocka_unit_test(test_threads),
		cmocka_unit_test(test_accumulate),         cmocka_unit_test(test_cost_of_attention),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
