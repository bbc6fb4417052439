/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that one GPU has measured count on another, as nodes and restarts need to give the same bits: a choice that is not passed on,
 * or not obeyed; workspace that another choice has no room in. So does whether a product runs beside another operator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/gpu.h"

#define ROWS 24

/* A product of [ROWS, 64] with [64, 64]. */
struct work {
	struct hspmd_kernel_args product;
	struct hspmd_op_attr product_attr;
	void *memory;
};

static struct hspmd_view matrix(void *data, int64_t rows)
{
	return (struct hspmd_view){ .data = data, .dtype = HSPMD_BF16, .rank = 2, .shape = { rows, 64 }, .full = { rows, 64 } };
}

static void make(struct hspmd_device *gpu, struct work *w)
{
	struct hspmd_error err = { "" };
	*w = (struct work){ .product_attr = { .scale = 1 } };
	w->memory = gpu->ops->allocate(gpu, (2 * ROWS + 64) * 64 * 2, &err);
	assert_non_null(w->memory);
	assert_int_equal(gpu->ops->zero(gpu, w->memory, (2 * ROWS + 64) * 64 * 2, &err), 0);
	w->product = (struct hspmd_kernel_args){ .attr = &w->product_attr, .input_count = 3, .output_count = 1 };
	w->product.in[0] = matrix(w->memory, ROWS);
	w->product.in[1] = matrix((char *)w->memory + ROWS * 128, 64);
	w->product.in[2] = (struct hspmd_view){ .rank = -1 };
	w->product.out[0] = matrix((char *)w->memory + (ROWS + 64) * 128, ROWS);
}

static int run(struct hspmd_device *gpu, struct work *w, size_t workspace_bytes, struct hspmd_error *err)
{
	void *workspace = workspace_bytes ? gpu->ops->allocate(gpu, workspace_bytes, err) : NULL;
	w->product.workspace = workspace;
	w->product.workspace_bytes = workspace_bytes;
	int status = gpu->ops->run(gpu, HSPMD_OP_LINEAR, &w->product, err) || gpu->ops->synchronise(gpu, err) ? -1 : 0;
	gpu->ops->release(gpu, workspace);
	return status;
}

/* The line with the second word of its algorithm, which numbers the emulated candidates, replaced. */
static char *with_candidate(const char *line, int candidate)
{
	const char *word = strstr(line, " = ") + 3, *second = strchr(word, ' ') + 1, *third = strchr(second, ' ');
	char *text = NULL;
	assert_true(asprintf(&text, "%.*s%d%s", (int)(second - line), line, candidate, third) > 0);
	return text;
}

static void a_choice_counts_elsewhere(void **state)
{
	(void)state;
	struct hspmd_device *one = gpu_open(), *other = gpu_open();
	struct hspmd_error err = { "" };
	struct work a, b;
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS];
	make(one, &a);
	make(other, &b);
	size_t room = one->ops->workspace(one, HSPMD_OP_LINEAR, &a.product);
	assert_int_equal(run(one, &a, room, &err), 0);
	char *chosen = one->ops->choices(one);
	assert_non_null(strstr(chosen, "cublaslt-"));
	for (int candidate = 0; candidate < 2; candidate++) {
		char *told = with_candidate(chosen, candidate), *now;
		assert_int_equal(one->ops->choose(one, told), 0);
		assert_int_equal(other->ops->choose(other, told), 0);
		/* Room was made when the program was placed. */
		assert_int_equal(one->ops->workspace(one, HSPMD_OP_LINEAR, &a.product), room);
		assert_int_equal(other->ops->workspace(other, HSPMD_OP_LINEAR, &b.product), room);
		gpu_counts(before);
		if (run(one, &a, room, &err) || run(other, &b, room, &err))
			fail_msg("%s", err.text);
		gpu_counts(after);
		assert_int_equal(after[EMULATE_SECOND] - before[EMULATE_SECOND], candidate ? 2 : 0);
		now = other->ops->choices(other);
		assert_string_equal(now, told);
		free(now);
		free(told);
	}
	/* Another library's, and what is no choice at all, change nothing. */
	assert_int_equal(one->ops->choose(one, "cublaslt-1-other 1 2 3 4 = 0 0 0 0 0 0 0 0\nnothing\n\n"), 0);
	assert_int_equal(run(one, &a, room, &err), 0);
	free(chosen);
	one->ops->release(one, a.memory);
	other->ops->release(other, b.memory);
	one->ops->close(one);
	other->ops->close(other);
}

/* Whatever was chosen, a product takes no more workspace than it is to have; and without a limit it takes what was chosen. */
static void less_workspace_is_taken(void **state)
{
	(void)state;
	struct hspmd_device *gpu = gpu_open();
	struct hspmd_error err = { "" };
	struct work w;
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS];
	make(gpu, &w);
	size_t room = gpu->ops->workspace(gpu, HSPMD_OP_LINEAR, &w.product);
	char *chosen = gpu->ops->choices(gpu);
	assert_int_equal(room, 64);
	for (int candidate = 1; candidate >= 0; candidate--) {
		char *told = with_candidate(chosen, candidate), *now;
		static const uint32_t mosts[] = { 1, 32, 64, 1 << 20, 0 };
		for (size_t i = 0; i < sizeof mosts / sizeof *mosts; i++) {
			uint32_t most = mosts[i];
			size_t least = most && most < room ? (most > 1 ? most : 0) : room;
			w.product.workspace_most = most;
			/* Asked for before it is known what was chosen elsewhere, it suffices for any choice. */
			assert_int_equal(gpu->ops->workspace(gpu, HSPMD_OP_LINEAR, &w.product), least);
			assert_int_equal(gpu->ops->choose(gpu, told), 0);
			gpu_counts(before);
			if (run(gpu, &w, least, &err))
				fail_msg("%s", err.text);
			gpu_counts(after);
			assert_int_equal(after[EMULATE_SECOND] - before[EMULATE_SECOND], candidate && least == room);
		}
		now = gpu->ops->choices(gpu);
		assert_string_equal(now, told); /* nothing more was chosen by measurement */
		free(now);
		free(told);
	}
	free(chosen);
	gpu->ops->release(gpu, w.memory);
	gpu->ops->close(gpu);
}

/* An algorithm that this GPU's library does not have is not used. */
static void an_unknown_algorithm_is_not_used(void **state)
{
	(void)state;
	struct hspmd_device *gpu = gpu_open();
	struct hspmd_error err = { "" };
	struct work w;
	make(gpu, &w);
	size_t room = gpu->ops->workspace(gpu, HSPMD_OP_LINEAR, &w.product);
	char *chosen = gpu->ops->choices(gpu), *told = with_candidate(chosen, 9);
	assert_int_equal(gpu->ops->choose(gpu, told), 0);
	assert_int_equal(run(gpu, &w, room, &err), 0);
	free(chosen);
	free(told);
	gpu->ops->release(gpu, w.memory);
	gpu->ops->close(gpu);
}

/* The line of `choices` that says whether the product runs beside others, with that as told. */
static char *with_beside(const char *choices, bool beside)
{
	const uint64_t marks = (uint64_t)511 << 23; /* gemm.c, LEFT_MOST */
	for (const char *line = choices; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		const char *is = strstr(line, " = "), *flags = is - 1, *end = strchr(is + 3, ' ');
		char *text = NULL;
		while (flags[-1] != ' ')
			flags--;
		if ((strtoull(flags, NULL, 16) & marks) != marks)
			continue;
		assert_true(asprintf(&text, "%.*s%d%.*s", (int)(is + 3 - line), line, beside, (int)strcspn(end, "\n"), end) > 0);
		return text;
	}
	fail_msg("nothing was decided:\n%s", choices);
	return NULL;
}

/* How many more things are asked of the device for the product if it may run beside others: to wait, and to be waited for. */
static long asked_beside(struct hspmd_device *gpu, struct work *w, size_t workspace_bytes)
{
	struct hspmd_error err = { "" };
	struct hspmd_prepared *prepared = NULL;
	long counts[3][EMULATE_COUNTS];
	w->product.workspace = gpu->ops->allocate(gpu, workspace_bytes + 1, &err);
	w->product.workspace_bytes = workspace_bytes;
	if (!w->product.workspace || gpu->ops->prepare(gpu, HSPMD_OP_LINEAR_GRAD_W, &w->product, &prepared, &err))
		fail_msg("%s", err.text);
	w->product.prepared = prepared;
	gpu_counts(counts[0]);
	if (gpu->ops->run(gpu, HSPMD_OP_LINEAR_GRAD_W, &w->product, &err))
		fail_msg("%s", err.text);
	gpu_counts(counts[1]);
	if (gpu->ops->run_apart(gpu, HSPMD_OP_LINEAR_GRAD_W, &w->product, &err) || gpu->ops->join_apart(gpu, &err))
		fail_msg("%s", err.text);
	gpu_counts(counts[2]);
	assert_int_equal(gpu->ops->synchronise(gpu, &err), 0);
	w->product.prepared = NULL;
	gpu->ops->prepared_free(gpu, prepared);
	gpu->ops->release(gpu, w->product.workspace);
	return (counts[2][EMULATE_ASKED] - counts[1][EMULATE_ASKED]) - (counts[1][EMULATE_ASKED] - counts[0][EMULATE_ASKED]);
}

static void a_decision_to_run_beside_counts_elsewhere(void **state)
{
	(void)state;
	struct hspmd_device *gpus[2] = { gpu_open(), gpu_open() };
	struct work works[2];
	size_t room[2];
	for (int i = 0; i < 2; i++) {
		struct work *w = &works[i];
		make(gpus[i], w);
		w->product.input_count = 2;
		w->product.in[0] = w->product.in[1] = matrix(w->memory, ROWS);
		w->product.out[0] = matrix((char *)w->memory + ROWS * 128, 64);
		w->product.bytes_beside = 2048; /* so many that both could be faster beside each other than one after the other */
		room[i] = gpus[i]->ops->workspace(gpus[i], HSPMD_OP_LINEAR_GRAD_W, &w->product);
	}
	char *chosen = gpus[0]->ops->choices(gpus[0]);
	for (int beside = 0; beside < 3; beside++) {
		char *told = with_beside(chosen, beside % 2);
		for (int i = 0; i < 2; i++) {
			char *now;
			assert_int_equal(gpus[i]->ops->choose(gpus[i], told), 0);
			assert_int_equal(gpus[i]->ops->workspace(gpus[i], HSPMD_OP_LINEAR_GRAD_W, &works[i].product), room[i]);
			assert_int_equal(asked_beside(gpus[i], &works[i], room[i]), beside % 2 ? 2 : 0);
			now = gpus[i]->ops->choices(gpus[i]);
			assert_non_null(strstr(now, told));
			free(now);
		}
		free(told);
	}
	free(chosen);
	for (int i = 0; i < 2; i++) {
		gpus[i]->ops->release(gpus[i], works[i].memory);
		gpus[i]->ops->close(gpus[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_choice_counts_elsewhere),
		cmocka_unit_test(an_unknown_algorithm_is_not_used),
		cmocka_unit_test(less_workspace_is_taken),
		cmocka_unit_test(a_decision_to_run_beside_counts_elsewhere),
	};
	struct hspmd_device *gpu = gpu_open();
	gpu->ops->close(gpu);
	if (!gpu_is_emulated()) {
		printf("skipped: a real library has other candidates\n");
		return 77;
	}
	setenv("HSPMD_CUDA_TUNE", "1", 1);
	setenv("HSPMD_CUDA_CACHE", "", 1);
	return cmocka_run_group_tests_name("choices", tests, NULL, NULL);
}
