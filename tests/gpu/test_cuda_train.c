/* SPDX-License-Identifier: Apache-2.0 */
/* Whole models on the CUDA device, alone, several together, and mixed with CPU devices. The losses equal those of one CPU device
 * (doc/design.md, law 1); in BF16 they are near. On a machine with one GPU the plans' GPUs are all that GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/gpu.h"
#include "tests/gpu/rounding_case.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/trainer.h"

#define STEPS 3
#define LONG_STEPS 100
#define HEAD                                                                                                                               \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":#,"         \
	"\"pipelines\":"
#define TAIL "]}"

/* The devices of a plan, and which of them are GPUs. */
static const struct plan {
	const char *name, *text;
	int devices, zero;
	unsigned gpus;
} plans[] = {
	{ "one GPU", HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"]}]}" TAIL, 1, 0, 1 },
	{ "a GPU and a CPU as two stages",
	  HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0\"]},{\"layers\":[2,@],\"devices\":[\"n:1\"]}]}" TAIL,
	  2, 0, 1 },
	{ "a CPU and a GPU, tensor parallel",
	  HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0-1\"],\"sequence_parallel\":true}]}" TAIL, 2, 0, 2 },
	{ "two GPUs and a CPU, three pipelines, ZeRO",
	  HEAD "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"]}]},{\"micro_batches\":1,\"stages\":[{\"layers\":["
	       "0,@],\"devices\":[\"n:1\"]}]},"
	       "{\"micro_batches\":1,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:2\"]}]}" TAIL,
	  3, 1, 5 },
	{ "three GPUs, two stages, recomputation",
	  HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"recompute\":\"full\"},{\"layers\":[2,@],"
	       "\"devices\":[\"n:2\"],"
	       "\"recompute\":\"selective\"}]}" TAIL,
	  3, 1, 7 },
	{ "two GPUs, ZeRO",
	  HEAD
	  "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"]}]},{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],"
	  "\"devices\":[\"n:1\"]}]}" TAIL,
	  2, 1, 3 },
};

static const struct model {
	const char *name, *config;
	int layers;
} models[] = { { "gpt2", trainer_gpt2, 5 }, { "llama", trainer_llama, 5 }, { "mixtral", trainer_mixtral, 4 } };

/* Returns the plan's text with # replaced by the ZeRO stage and @ by the number of layers. */
static char *plan_text(const struct plan *p, int layers)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	assert_non_null(f);
	for (const char *c = p->text; *c; c++)
		if (*c == '#' || *c == '@')
			fprintf(f, "%d", *c == '#' ? p->zero : layers);
		else
			fputc(*c, f);
	fclose(f);
	return text;
}

static void train(const struct model *m, const struct plan *p, unsigned gpus, bool bf16, bool documents, int steps, double *losses)
{
	struct hspmd_error err = { "" };
	char *text = plan_text(p, m->layers);
	struct trainer_options o = {
		.model = m->config,
		.plan = text,
		.devices = p->devices,
		.steps = steps,
		.gpus = gpus,
		.bf16 = bf16,
		.documents = documents,
	};
	if (trainer_train(&o, losses, &err))
		fail_msg("%s, %s: %s", m->name, p->name, err.text);
	free(text);
}

static void compare(const struct model *m, const struct plan *p, const double *got, const double *want, int steps, double bound)
{
	for (int s = 0; s < steps; s++)
		if (!(fabs(got[s] - want[s]) < bound * fabs(want[s])))
			fail_msg("%s, %s: loss of step %d is %.9g, not %.9g", m->name, p->name, s, got[s], want[s]);
}

/* Returns true if the model is tried with the plan. On an emulated device every step is expensive: unless HSPMD_LONG is set, GPT-2 takes
 * the first plan and half of the others, drawn, and the other models the first and last. */
static bool is_chosen(size_t model, size_t plan)
{
	const unsigned all = sizeof plans / sizeof *plans;
	if (!gpu_is_emulated() || getenv("HSPMD_LONG") || plan == 0)
		return true;
	const char *given = getenv("HSPMD_DRAW");
	return model ? plan + 1 == all : plan % 2 == strtoul(given ? given : "0", NULL, 10) % 2;
}

static void plans_f32(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
		double want[STEPS], got[STEPS], again[STEPS];
		train(&models[k], &plans[0], 0, false, false, STEPS, want);
		assert_true(want[STEPS - 1] < want[0] - 0.1); /* it learns */
		for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
			if (!is_chosen(k, i))
				continue;
			train(&models[k], &plans[i], plans[i].gpus, false, false, STEPS, got);
			compare(&models[k], &plans[i], got, want, STEPS, 1e-4);
			if (i && gpu_is_emulated() && !getenv("HSPMD_LONG"))
				continue;
			train(&models[k], &plans[i], plans[i].gpus, false, false, STEPS, again);
			assert_memory_equal(got, again, sizeof got);
		}
	}
}

/* TF32: near F32 and other bits, on GPUs; where a CPU computes too, F32. */
static void tf32(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		double losses[2][STEPS];
		struct hspmd_error err = { "" };
		char *text = plan_text(&plans[i], models[1].layers);
		for (int on = 0; on < 2; on++)
			if (trainer_train(&(struct trainer_options){ .model = models[1].config,
			                                             .plan = text,
			                                             .devices = plans[i].devices,
			                                             .steps = STEPS,
			                                             .gpus = plans[i].gpus,
			                                             .tf32 = on },
			                  losses[on], &err))
				fail_msg("tf32, %s: %s", plans[i].name, err.text);
		compare(&models[1], &plans[i], losses[1], losses[0], STEPS, 1e-3);
		assert_int_equal(memcmp(losses[0], losses[1], sizeof losses[0]) != 0, i == 0);
		free(text);
	}
}

static void documents(void **state)
{
	(void)state;
	double want[STEPS], got[STEPS];
	train(&models[1], &plans[0], 0, false, true, STEPS, want);
	train(&models[1], &plans[0], 1, false, true, STEPS, got);
	compare(&models[1], &plans[0], got, want, STEPS, 1e-4);
}

/* BF16 has a 256th of the precision; a few steps of a small model stay near. Mixed plans compute in F32. */
static void plans_bf16(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
		double want[STEPS], got[STEPS];
		train(&models[k], &plans[0], 0, false, false, STEPS, want);
		for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
			if (!is_chosen(k + 1, i))
				continue;
			bool all = plans[i].gpus + 1 == 1u << plans[i].devices;
			train(&models[k], &plans[i], plans[i].gpus, true, false, STEPS, got);
			compare(&models[k], &plans[i], got, want, STEPS, all ? 2e-2 : 1e-4);
			if (all)
				assert_true(fabs(got[0] - want[0]) > 1e-7 * want[0]); /* it really was BF16 */
		}
	}
}

/* Widths for which GPUs have products of FP8 operands. GPUs and CPUs follow one another, with elements in BF16 and without; a plan twice
 * gives the same bits. An emulated GPU takes one of the plans, drawn. */
static void train_in_fp8(const struct model *m)
{
	const size_t chosen[] = { 5, 0, 1 };
	const unsigned all = sizeof chosen / sizeof *chosen, count = gpu_is_emulated() ? draw_count(1, all) : all,
	               first = draw_first(count, all);
	double fp32[STEPS], cpu[STEPS], got[2][STEPS];
	train(m, &plans[0], 0, false, false, STEPS, fp32);
	for (size_t i = 0; i <= count; i++) {
		const struct plan *p = &plans[i ? chosen[first + i - 1] : 0];
		char *text = plan_text(p, m->layers);
		struct hspmd_error err = { "" };
		for (int again = 0; again < 2; again++)
			if (trainer_train(&(struct trainer_options){ .model = m->config,
			                                             .plan = text,
			                                             .devices = p->devices,
			                                             .steps = STEPS,
			                                             .gpus = i ? p->gpus : 0,
			                                             .fp8 = true },
			                  i ? got[again] : cpu, &err))
				fail_msg("%s in fp8, %s: %s", m->name, p->name, err.text);
		free(text);
		compare(m, p, i ? got[0] : cpu, i ? cpu : fp32, STEPS, 2e-2);
		assert_true(!i || !memcmp(got[0], got[1], sizeof got[0]));
		assert_true(fabs((i ? got[0] : cpu)[STEPS - 1] - fp32[STEPS - 1]) > 1e-7 * fp32[STEPS - 1]);
	}
}

static void plans_fp8(void **state)
{
	(void)state;
	static const struct model in_fp8[] = {
		{ "gpt2 of 32",
		  "{\"model_type\":\"gpt2\",\"n_embd\":32,\"n_layer\":3,\"n_head\":4,\"n_positions\":32,\"vocab_size\":257,"
		  "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}",
		  5 },
		{ "mixtral of 32",
		  "{\"model_type\":\"mixtral\",\"hidden_size\":32,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_"
		  "heads\":4,"
		  "\"intermediate_size\":48,\"max_position_embeddings\":32,\"vocab_size\":257,\"num_local_experts\":4,"
		  "\"num_experts_per_tok\":2}",
		  5 },
	};
	train_in_fp8(&in_fp8[0]);
	train_in_fp8(&in_fp8[1]);
}

/* ---- stochastic rounding */

#define ROUNDED_STEPS 50
#define ROUNDED_BOUND 5e-3 /* relative; plans sum in different orders. Emulated: 2e-3 at most, 6e-3 with rounding to the nearest */

#define SMALL_HEAD                                                                                                                         \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":#,"         \
	"\"pipelines\":"
static const struct plan rounded_plans[] = {
	{ "one GPU", SMALL_HEAD "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"]}]}" TAIL, 1, 0, 1 },
	{ "tensor parallel, unequal",
	  SMALL_HEAD "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0-1\"],\"shard_ratio\":[0.7,0.3]}]}" TAIL, 2, 0,
	  3 },
	{ "three stages",
	  SMALL_HEAD "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,3],\"devices\":[\"n:1\"]},{"
	             "\"layers\":[3,@],"
	             "\"devices\":[\"n:2\"]}]}" TAIL,
	  3, 0, 7 },
	{ "two pipelines, one tensor parallel, ZeRO",
	  SMALL_HEAD "[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0-1\"],\"shard_ratio\":[0.6,0.4]}]},"
	             "{\"micro_batches\":1,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:2\"]}]}" TAIL,
	  3, 1, 7 },
};
#define ROUNDED_PLANS (sizeof rounded_plans / sizeof *rounded_plans)

/* Trains; returns the losses, and the parameters at the end. */
static struct rounding_case *train_rounded(const struct model *m, const struct plan *p, int steps, double *losses)
{
	struct rounding_case *c = rounding_case_create();
	struct hspmd_error err = { "" };
	char *text = plan_text(p, m->layers);
	struct trainer_options o = {
		.model = m->config,
		.plan = text,
		.devices = p->devices,
		.steps = steps,
		.gpus = p->gpus,
		.bf16 = true,
		.stochastic = true,
		.on_end = rounding_case_take,
		.context = c,
	};
	if (trainer_train(&o, losses, &err) || rounding_case_check(c, TRAINER_SEED, steps, &err))
		fail_msg("%s, %s, %d steps: %s", m->name, p->name, steps, err.text);
	free(text);
	return c;
}

/* The initial parameters have the same bits under any plan. */
static void rounded_starts(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
		struct rounding_case *one = NULL;
		for (size_t i = 0; i < ROUNDED_PLANS; i++) {
			struct hspmd_error err;
			struct rounding_case *c = train_rounded(&models[k], &rounded_plans[i], 0, NULL);
			if (one && rounding_case_compare(c, one, &err))
				fail_msg("%s, %s: %s", models[k].name, rounded_plans[i].name, err.text);
			if (one)
				rounding_case_destroy(c);
			else
				one = c;
		}
		int64_t moved, all;
		rounding_case_count(one, &moved, &all);
		assert_true(moved > all / 5 && moved < all / 3); /* a quarter, if the numbers are anywhere between two BF16 numbers */
		rounding_case_destroy(one);
	}
}

static void rounded_plans_agree(void **state)
{
	(void)state;
	static double want[ROUNDED_STEPS], got[ROUNDED_STEPS], nearest[STEPS];
	rounding_case_destroy(train_rounded(&models[0], &rounded_plans[0], ROUNDED_STEPS, want));
	assert_true(want[ROUNDED_STEPS - 1] < want[0] - 0.5); /* it learns */
	train(&models[0], &rounded_plans[0], 1, true, false, STEPS, nearest);
	compare(&models[0], &rounded_plans[0], want, nearest, STEPS, 2e-2);
	assert_true(fabs(want[0] - nearest[0]) > 1e-7 * nearest[0]);
	const unsigned count = gpu_is_emulated() ? draw_count(1, ROUNDED_PLANS - 1) : ROUNDED_PLANS - 1,
	               first = 1 + draw_first(count, ROUNDED_PLANS - 1);
	for (size_t i = first; i < first + count; i++) {
		rounding_case_destroy(train_rounded(&models[0], &rounded_plans[i], ROUNDED_STEPS, got));
		double worst = 0;
		for (int s = 0; s < ROUNDED_STEPS; s++)
			worst = fmax(worst, fabs(got[s] / want[s] - 1));
		printf("%s: losses of %d steps differ by %.2g\n", rounded_plans[i].name, ROUNDED_STEPS, worst);
		compare(&models[0], &rounded_plans[i], got, want, ROUNDED_STEPS, gpu_is_emulated() ? ROUNDED_BOUND : 4 * ROUNDED_BOUND);
	}
}

static void rounded_operators(void **state)
{
	(void)state;
	struct hspmd_device *gpu = gpu_open();
	rounding_case_operators(gpu);
	gpu->ops->close(gpu);
}

/* The optimizer's state in the host's memory changes no bit, with updates beside the next step or not. */
static void offload(void **state)
{
	(void)state;
	static const struct plan offloading[] = {
		{ "one GPU, offload",
		  HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"],\"offload\":\"optimizer\"}]}" TAIL, 1, 0,
		  1 },
		{ "two GPUs, ZeRO 2, one offloads",
		  HEAD "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"],\"offload\":\"optimizer\"}]},"
		       "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:1\"]}]}" TAIL,
		  2, 2, 3 },
	};
	for (size_t i = 0; i < 2; i++)
		for (int bf16 = 0; bf16 < 2; bf16++)
			for (int beside = 0; beside < 2 - (int)i; beside++) {
				double kept[STEPS], got[STEPS];
				struct plan without = offloading[i];
				char *text = strdup(without.text), *key = strstr(text, ",\"offload\":\"optimizer\"");
				memmove(key, key + strlen(",\"offload\":\"optimizer\""),
				        strlen(key + strlen(",\"offload\":\"optimizer\"")) + 1);
				without.text = text;
				setenv("HSPMD_CUDA_BESIDE", beside ? "1000" : "0", 1);
				train(&models[1], &without, without.gpus, bf16, false, STEPS, kept);
				train(&models[1], &offloading[i], without.gpus, bf16, false, STEPS, got);
				assert_memory_equal(got, kept, sizeof kept);
				free(text);
			}
	unsetenv("HSPMD_CUDA_BESIDE");
}

/* Activations in the host's memory change no bit, with graphs or without, of one GPU and of pipelines that divide their layers. */
static void offload_activations(void **state)
{
	(void)state;
#define ALL ",\"offload_activations\":\"all\""
	static const char *const texts[][2] = {
		{ HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"]" ALL "}]}" TAIL,
		  HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0\"]}]}" TAIL },
		{ HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0-1\"],\"recompute\":\"selective\"" ALL
		       "}]}" TAIL,
		  HEAD "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,@],\"devices\":[\"n:0-1\"],\"recompute\":\"selective\"}]}" TAIL },
	};
#undef ALL
	for (int i = 0; i < 2; i++)
		for (int graphs = 0; graphs < 2 - i; graphs++) {
			double kept[STEPS], got[STEPS];
			const struct plan with = { "activations offloaded", texts[i][0], 1 + i, 0, 1 + 2 * (unsigned)i },
			                  without = { "activations kept", texts[i][1], 1 + i, 0, 1 + 2 * (unsigned)i };
			setenv("HSPMD_CUDA_GRAPHS", graphs ? "1" : "0", 1);
			train(&models[1], &without, 1 + 2 * (unsigned)i, true, false, STEPS, kept);
			train(&models[1], &with, 1 + 2 * (unsigned)i, true, false, STEPS, got);
			assert_memory_equal(got, kept, sizeof kept);
		}
	unsetenv("HSPMD_CUDA_GRAPHS");
}

static void hundred_steps(void **state)
{
	(void)state;
	static double want[LONG_STEPS], got[LONG_STEPS];
	if (gpu_is_emulated() && !getenv("HSPMD_LONG"))
		skip();
	for (size_t k = 0; k < 2; k++) {
		train(&models[k], &plans[0], 0, false, false, LONG_STEPS, want);
		train(&models[k], &plans[0], 1, false, false, LONG_STEPS, got);
		compare(&models[k], &plans[0], got, want, LONG_STEPS, 1e-4);
	}
}

/* On the emulated device: returns how often the host has asked for work. */
static long asked(void)
{
	long counts[EMULATE_COUNTS];
	gpu_counts(counts);
	return counts[EMULATE_ASKED];
}

/* Captured segments of the passes: the same bits, with few launches after the step that captures. */
static void graphs(void **state)
{
	(void)state;
	const struct {
		bool bf16, documents;
	} kinds[] = { { false, false }, { true, true } };
	for (size_t m = 0; m < sizeof models / sizeof *models; m++)
		for (size_t k = 0; k < (m == 1 ? 2 : 1); k++) {
			double each[STEPS], recorded[STEPS], measured[2 * STEPS], plain[2 * STEPS];
			setenv("HSPMD_CUDA_GRAPHS", "0", 1);
			long before = asked();
			train(&models[m], &plans[0], 1, kinds[k].bf16, kinds[k].documents, STEPS, each);
			long without = asked() - before;
			setenv("HSPMD_CUDA_GRAPHS", "1", 1);
			before = asked();
			train(&models[m], &plans[0], 1, kinds[k].bf16, kinds[k].documents, STEPS, recorded);
			long with = asked() - before;
			printf("%s: %ld launches and copies in %d steps, %ld where passes are recorded\n", models[m].name, without, STEPS,
			       with);
			assert_memory_equal(each, recorded, sizeof each);
			assert_true(!gpu_is_emulated() || with < without * 2 / 3);
			if (m || k)
				continue;
			/* If the choice is measured, either is right. */
			unsetenv("HSPMD_CUDA_GRAPHS");
			train(&models[m], &plans[0], 1, false, false, 2 * STEPS, measured);
			setenv("HSPMD_CUDA_GRAPHS", "0", 1);
			train(&models[m], &plans[0], 1, false, false, 2 * STEPS, plain);
			assert_memory_equal(measured, plain, sizeof plain);
		}
	unsetenv("HSPMD_CUDA_GRAPHS");
}

/* The same with messages between segments, here through host memory (test_cuda_communicators: directly). */
static void graphs_between_messages(void **state)
{
	(void)state;
	for (size_t i = 1; i < sizeof plans / sizeof *plans; i++) {
		double losses[2][STEPS];
		long counts[2];
		if (gpu_is_emulated() && !getenv("HSPMD_LONG") && i != 1 && i != 4)
			continue;
		for (int on = 0; on < 2; on++) {
			setenv("HSPMD_CUDA_GRAPHS", on ? "1" : "0", 1);
			long before = asked();
			train(&models[0], &plans[i], plans[i].gpus, false, false, STEPS, losses[on]);
			counts[on] = asked() - before;
		}
		printf("%s: %ld launches and copies in %d steps, %ld where passes are recorded\n", plans[i].name, counts[0], STEPS,
		       counts[1]);
		assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
		assert_true(!gpu_is_emulated() || counts[1] < counts[0] * 4 / 5);
	}
	unsetenv("HSPMD_CUDA_GRAPHS");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plans_f32),
		cmocka_unit_test(tf32),
		cmocka_unit_test(documents),
		cmocka_unit_test(plans_bf16),
		cmocka_unit_test(plans_fp8),
		cmocka_unit_test(graphs),
		cmocka_unit_test(graphs_between_messages),
		cmocka_unit_test(rounded_operators),
		cmocka_unit_test(rounded_starts),
		cmocka_unit_test(rounded_plans_agree),
		cmocka_unit_test(hundred_steps),
		cmocka_unit_test(offload),
		cmocka_unit_test(offload_activations),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	setenv("HSPMD_CUDA_OVERSUBSCRIBE", "1", 1);
	setenv("HSPMD_CUDA_TUNE", "0", 0);     /* test_cuda_attention chooses by measurement; here that would cost more than the steps */
	struct hspmd_device *gpu = gpu_open(); /* skips the tests if there is no GPU */
	gpu->ops->close(gpu);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
