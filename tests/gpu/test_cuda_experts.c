/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which the CUDA device computes experts, each compared with the CPU device in double precision: grouped products of
 * warp-groups and of warps, in all orders of threads and blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/op/op.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/wide_case.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"

static void reopen(bool wgmma)
{
	gpu->ops->close(gpu);
	setenv("HSPMD_CUDA_WGMMA", wgmma ? "1" : "0", 1);
	gpu = gpu_open();
	gpu_wgmma_runs();
}

static bool has_experts(const struct op_case *c)
{
	return strstr(c->name, "experts") != NULL;
}

static bool is_fp8(const struct op_case *c)
{
	return strstr(c->name, "FP8") != NULL;
}

/* Runs a case. Returns a hash of its results' bits, and sets *asked to what was asked of the emulated device. */
static uint64_t bits_of(const struct op_case *c, long *asked)
{
	struct mirror_sum sum = { .bound = BF16_BOUND };
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS];
	gpu_counts(before);
	mirror_measure_case(c, HSPMD_BF16, mirror_add_result, &sum);
	gpu_counts(after);
	*asked = after[EMULATE_ASKED] - before[EMULATE_ASKED];
	return sum.bits;
}

/* In the first of three orders of threads and blocks and in one or both of the others, from `second` on: a missing wait, or a sum whose
 * order is left to chance, changes bits. */
static void check_in_orders(const struct op_case *c, unsigned second, unsigned others)
{
	static const char *const orders[] = { "0", "1", "7" };
	uint64_t first = 0;
	for (unsigned i = 0; i < (gpu_is_emulated() ? 1 + others : 1); i++) {
		long asked;
		setenv("HSPMD_EMULATE_ORDER", orders[i ? second + i : 0], 1);
		uint64_t bits = bits_of(c, &asked);
		first = i ? first : bits;
		if (bits != first)
			fail_msg("%s has other bits in order %s", c->name, orders[i ? second + i : 0]);
	}
	setenv("HSPMD_EMULATE_ORDER", "0", 1);
}

static void both_kinds_of_kernels(void **state)
{
	(void)state;
	const unsigned others = draw_count(1, 2), second = draw_first(others, 2);
	for (int wgmma = 0; wgmma < 2; wgmma++) {
		reopen(wgmma);
		for (size_t i = 0; i < wide_case_count; i++)
			if (has_experts(&wide_cases[i]) && (wgmma || !gpu_is_emulated()))
				check_in_orders(&wide_cases[i], second, others);
			else if (has_experts(&wide_cases[i]) && !wide_cases[i].large)
				mirror_check_case(&wide_cases[i], HSPMD_BF16, BF16_BOUND);
		assert_true(!gpu_is_emulated() || (gpu_wgmma_runs() > 0) == (bool)wgmma);
	}
}

/* Warp-groups compute gate, up and what follows in one launch, where warps take three in the forward pass, and in the backward pass two, or
 * with biases three. The emulated tensor cores sum in one order, and so both give the same bits. */
static void gate_and_up_are_one_product(void **state)
{
	(void)state;
	uint64_t bits[2][16];
	long asked[2][16];
	for (int wgmma = 0; wgmma < 2; wgmma++) {
		size_t n = 0;
		reopen(wgmma);
		for (size_t i = 0; i < wide_case_count && gpu_is_emulated(); i++)
			if (has_experts(&wide_cases[i]) && !is_fp8(&wide_cases[i]) && !wide_cases[i].large && n < 16) {
				bits[wgmma][n] = bits_of(&wide_cases[i], &asked[wgmma][n]);
				if (wgmma && bits[1][n] != bits[0][n])
					fail_msg("%s has other bits than two products have", wide_cases[i].name);
				int saved = 2 + (strstr(wide_cases[i].name, "biases") ? 2 : 1);
				if (wgmma && asked[0][n] - asked[1][n] != 2 * saved) /* each runs once more, prepared */
					fail_msg("%s: %ld and %ld", wide_cases[i].name, asked[0][n], asked[1][n]);
				n++;
			}
		assert_true(!gpu_is_emulated() || n > 3);
	}
}

/* Rows of whole 16 codes are multiplied as codes by all products, those of gradients of matrices, too; others as elements. */
static void rows_are_codes(void **state)
{
	(void)state;
	int cases = 0;
	reopen(true);
	for (size_t i = 0; i < wide_case_count && gpu_is_emulated(); i++) {
		const struct op_case *c = &wide_cases[i];
		bool coded = strstr(c->name, "of 90") == NULL;
		long before[EMULATE_COUNTS], after[EMULATE_COUNTS], asked;
		if (!is_fp8(c) || !has_experts(c) || c->large)
			continue;
		gpu_counts(before);
		bits_of(c, &asked);
		gpu_counts(after);
		long products = after[EMULATE_WGMMA] - before[EMULATE_WGMMA], codes = after[EMULATE_FP8] - before[EMULATE_FP8];
		if (!products || codes != (coded ? products : 0))
			fail_msg("%s: %ld of %ld blocks multiply codes", c->name, codes, products);
		cases++;
	}
	assert_true(!gpu_is_emulated() || cases == 3);
}

/* A tensor without data, for a question about memory. */
static void ask_about(struct hspmd_kernel_args *args, struct hspmd_op_view *v, int input, enum hspmd_dtype type, int64_t a, int64_t b,
                      int64_t c)
{
	struct hspmd_view *to = &args->in[input];
	v->in[input] = (struct hspmd_shape){ 3, { a, b, c } };
	v->in_dtype[input] = to->dtype = type;
	to->rank = 3;
	to->shape[0] = a;
	to->shape[1] = b;
	to->shape[2] = c;
}

/* What plans count for the memory within experts in FP8 is enough whether operands are codes or elements, and not far from what either
 * takes: it is the larger of the rows, and of the matrices, of both. */
static void memory_is_counted(void **state)
{
	(void)state;
	static const struct {
		int64_t tokens, count, width, inner;
	} sizes[] = { { 64, 8, 512, 256 }, { 64, 8, 256, 512 }, { 2048, 4, 64, 512 }, { 2048, 4, 512, 64 }, { 300, 4, 200, 264 } };
	struct hspmd_op_attr attr = { .experts_per_token = 2, .scale = 1.0 / 256 };
	for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
		int64_t tokens = sizes[i / 2].tokens, count = sizes[i / 2].count, width = sizes[i / 2].width, inner = sizes[i / 2].inner;
		int x = i % 2;
		enum hspmd_opcode opcode = x ? HSPMD_OP_EXPERTS_FP8_GRAD : HSPMD_OP_EXPERTS_FP8;
		struct hspmd_kernel_args args = { .attr = &attr, .input_count = 7 + x, .output_count = 5 * x + 1 };
		struct hspmd_op_view v = { .attr = &attr, .input_count = 7 + x, .output_count = 5 * x + 1 };
		attr.experts = (int)count;
		ask_about(&args, &v, 0, HSPMD_BF16, 1, tokens, width);
		ask_about(&args, &v, x, HSPMD_BF16, 1, tokens, width);
		ask_about(&args, &v, x + 1, HSPMD_I32, 1, tokens, 2);
		ask_about(&args, &v, x + 2, HSPMD_BF16, 1, tokens, 2);
		ask_about(&args, &v, x + 3, HSPMD_BF16, count, inner, width);
		ask_about(&args, &v, x + 4, HSPMD_BF16, count, inner, width);
		ask_about(&args, &v, x + 5, HSPMD_BF16, count, width, inner);
		double counted = hspmd_op_types[opcode]->workspace(&v, true), most = 0, sort = 4096 + 16.0 * (double)tokens;
		for (int wgmma = 0; wgmma < 2; wgmma++) {
			reopen(wgmma);
			double taken = (double)gpu->ops->workspace(gpu, opcode, &args);
			if (taken > counted + sort)
				fail_msg("%s %zu: %.0f bytes are counted, %.0f are needed", hspmd_opcode_names[opcode], i / 2, counted,
				         taken);
			most = taken > most ? taken : most;
		}
		double matrices = 2 * (double)(count * width * inner);
		if (gpu_is_emulated() && counted > most + matrices)
			fail_msg("%s %zu: %.0f bytes are counted, %.0f at most are needed", hspmd_opcode_names[opcode], i / 2, counted,
			         most);
	}
}

/* Rows that are no multiple of 16 bytes, and F32, have no such products. */
static void others_are_left_alone(void **state)
{
	(void)state;
	reopen(true);
	for (size_t i = 0; i < op_case_count(); i++)
		if (has_experts(op_case_at(i)) && !op_case_at(i)->large)
			mirror_check_case(op_case_at(i), HSPMD_BF16, BF16_BOUND);
	for (size_t i = 0; i < wide_case_count; i++)
		if (has_experts(&wide_cases[i]) && !wide_cases[i].large)
			mirror_check_case(&wide_cases[i], HSPMD_F32, F32_BOUND);
	assert_int_equal(gpu_wgmma_runs(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(both_kinds_of_kernels), cmocka_unit_test(gate_and_up_are_one_product),
		                            cmocka_unit_test(rows_are_codes), cmocka_unit_test(memory_is_counted),
		                            cmocka_unit_test(others_are_left_alone) };
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	gpu = gpu_open();
	int status = cmocka_run_group_tests(tests, NULL, NULL);
	gpu->ops->close(gpu);
	return status;
}
