/* SPDX-License-Identifier: Apache-2.0 */
/* Products that run beside other operators of the backward pass give the bits of those that run before them: of all losses, and of the
 * state that is left. On the emulated device a stream's work, or a graph's branch, is done as late as those allow that wait for it, or
 * as early as what it waits for allows: what the device does not wait for, or begins too early, has other bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/program/program.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/trainer.h"

#define STEPS 6

struct outcome {
	double losses[STEPS];
	uint64_t sum;
	long asked; /* of the device; a recorded step is one thing, and work on another stream is two more: it waits, and is waited for */
};

/* A training that is to have the same bits however its products run. */
struct training {
	const char *config, *job;
	int layers;
	bool bf16;
	bool two; /* devices, each with a micro-batch; else one with both */
};

/* beside: HSPMD_CUDA_PRODUCTS_BESIDE; streams: HSPMD_EMULATE_STREAMS. */
static struct outcome train(const struct training *t, const char *beside, const char *graphs, const char *streams)
{
	struct outcome o = { .sum = 0 };
	struct hspmd_error err = { "" };
	char plan[512];
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS];
	int at = snprintf(plan, sizeof plan,
	                  "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\","
	                  "\"pipelines\":[");
	for (int d = 0; d <= t->two; d++)
		at += snprintf(plan + at, sizeof plan - (size_t)at,
		               "%s{\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:%d\"]}]}", d ? "," : "", 2 - t->two,
		               t->layers, d);
	snprintf(plan + at, sizeof plan - (size_t)at, "]}");
	struct trainer_options options = { .model = t->config,
		                           .plan = plan,
		                           .devices = t->two ? 2 : 1,
		                           .gpus = t->two ? 3 : 1,
		                           .steps = STEPS,
		                           .bf16 = t->bf16,
		                           .documents = t->job != NULL,
		                           .job = t->job,
		                           .on_end = t->two ? NULL : trainer_sum_parameters,
		                           .context = &o.sum };
	setenv("HSPMD_CUDA_PRODUCTS_BESIDE", beside, 1);
	setenv("HSPMD_CUDA_GRAPHS", graphs, 1);
	setenv("HSPMD_EMULATE_STREAMS", streams, 1);
	gpu_counts(before);
	if (trainer_train(&options, o.losses, &err))
		fail_msg("%s", err.text);
	gpu_counts(after);
	o.asked = after[EMULATE_ASKED] - before[EMULATE_ASKED];
	unsetenv("HSPMD_CUDA_PRODUCTS_BESIDE");
	unsetenv("HSPMD_CUDA_GRAPHS");
	unsetenv("HSPMD_EMULATE_STREAMS");
	return o;
}

/* On a real device cuBLASLt may choose another algorithm for a product that is held to fewer multiprocessors, which adds up differently. */
static void compare(const struct training *t, const struct outcome *want, const struct outcome *got, const char *how)
{
	double bound = gpu_is_emulated() ? 0 : t->bf16 ? 5e-3 : 1e-5;
	for (int s = 0; s < STEPS; s++)
		if (!(fabs(want->losses[s] - got->losses[s]) <= bound * want->losses[s]))
			fail_msg("%.40s in %s, %s: loss of step %d is %.17g, not %.17g", t->config, t->bf16 ? "bf16" : "fp32", how, s,
			         got->losses[s], want->losses[s]);
	assert_true(want->sum == got->sum || !gpu_is_emulated());
}

static void check(const struct training *t, const char *graphs)
{
	static const char *const streams[] = { "late", "early" };
	struct outcome before = train(t, "0", graphs, "late"), first;
	for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
		struct outcome beside = train(t, "1", graphs, streams[i]);
		char how[64];
		snprintf(how, sizeof how, "graphs %s, streams %s", graphs, streams[i]);
		compare(t, &before, &beside, how);
		first = i ? first : beside;
		assert_memory_equal(first.losses, beside.losses, sizeof first.losses);
		assert_true(first.sum == beside.sum);
		/* Products did run beside others: without graphs, more was asked for. (Several devices count in processes of their own.) */
		assert_true(!gpu_is_emulated() || t->two || !strcmp(graphs, "1") || beside.asked > before.asked);
	}
}

/* Two micro-batches add to each gradient. */
static void the_bits_are_the_same(void **state)
{
	(void)state;
	static const struct training all[] = {
		{ trainer_llama, NULL, 5, true, false },    { trainer_gpt2, NULL, 5, true, false },
		{ trainer_llama, NULL, 5, false, false },   { trainer_mixtral, NULL, 4, true, false },
		{ trainer_gpt2, NULL, 5, false, false },    { trainer_gpt2, "{\"data\":{\"lengths\":[8,14,16]}}", 5, true, false },
		{ trainer_mixtral, NULL, 4, false, false },
	};
	const unsigned cases = 2 * sizeof all / sizeof *all, count = gpu_is_emulated() ? draw_count(4, cases) : cases,
	               first = draw_first(count, cases);
	for (unsigned i = first; i < first + count; i++)
		check(&all[i / 2], i & 1 ? "1" : "0");
}

/* Sums over devices begin behind the products that they read. */
static void sums_wait_for_products(void **state)
{
	(void)state;
	static const struct training two[] = { { trainer_llama, NULL, 5, true, true }, { trainer_gpt2, NULL, 5, false, true } };
	const unsigned i = draw_first(1, 2);
	check(&two[i], "0");
	check(&two[i], "1");
}

/* By measurement, too, which the emulated device does in its own time. */
static void measured(void **state)
{
	(void)state;
	static const struct training t = { trainer_llama, NULL, 5, true, false };
	struct outcome before = train(&t, "0", "0", "late");
	setenv("HSPMD_CUDA_TUNE", "1", 1);
	struct outcome chosen = train(&t, "auto", "0", "late");
	setenv("HSPMD_CUDA_TUNE", "0", 1);
	compare(&t, &before, &chosen, "chosen by measurement");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_bits_are_the_same),
		cmocka_unit_test(sums_wait_for_products),
		cmocka_unit_test(measured),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	setenv("HSPMD_CUDA_OVERSUBSCRIBE", "1", 1);
	setenv("HSPMD_CUDA_TUNE", "0", 0);
	struct hspmd_device *gpu = gpu_open();
	gpu->ops->close(gpu);
	return cmocka_run_group_tests_name("beside", tests, NULL, NULL);
}
