/* SPDX-License-Identifier: Apache-2.0 */
/* doc/design.md, law 1: the same losses under any plan, up to rounding; with the same plan twice, to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "runtime/exec/execute.h"
#include "tests/unit/draw.h"
#include "tests/unit/expert_plans.h"
#include "tests/unit/trainer.h"

#define STEPS 12
#define HEAD                                                                                                                               \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"         \
	"\"pipelines\":"

static const char one[] = HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}";

static const struct {
	const char *name, *plan;
	int devices;
} plans[] = {
	{ "micro-batch of 8",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":8,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"
	  "\"pipelines\":"
	  "[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}",
	  1 },
	{ "4-way data parallel",
	  HEAD
	  "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]},{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],"
	  "\"devices\":[\"n:1\"]}]},{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:2\"]}]},{\"micro_batches\":2,"
	  "\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:3\"]}]}]}",
	  4 },
	{ "4 stages",
	  HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,3],\"devices\":[\"n:1\"]},"
	       "{\"layers\":[3,4],\"devices\":[\"n:2\"]},{\"layers\":[4,5],\"devices\":[\"n:3\"]}]}]}",
	  4 },
	{ "2-way tensor parallel", HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"]}]}]}", 2 },
	{ "2-way tensor parallel, 2 stages",
	  HEAD
	  "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"]},{\"layers\":[2,5],\"devices\":[\"n:2-3\"]}]}]}",
	  4 },
	{ "tensor parallel 2 then 1",
	  HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"]},{\"layers\":[2,5],\"devices\":[\"n:2\"]}]}]}",
	  3 },
	{ "pipelines of 3 and 1",
	  HEAD "[{\"micro_batches\":5,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0\"]},{\"layers\":[2,4],\"devices\":[\"n:1\"]},"
	       "{\"layers\":[4,5],\"devices\":[\"n:2\"]}]},{\"micro_batches\":3,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:3\"]}]}]}",
	  4 },
	{ "unequal widths in two pipelines, ZeRO",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\","
	  "\"zero_stage\":1,\"pipelines\":[{\"micro_batches\":5,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"]}]},"
	  "{\"micro_batches\":3,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n:2\"]},{\"layers\":[3,5],\"devices\":[\"n:3\"]}]}]}",
	  4 },
	{ "recomputation, gpipe",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"gpipe\",\"zero_stage\":0,"
	  "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"recompute\":\"full\"},"
	  "{\"layers\":[2,5],\"devices\":[\"n:2\"],\"recompute\":\"selective\"}]}]}",
	  3 },
	{ "interleaved",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"interleaved\",\"virtual_"
	  "stages\":2,"
	  "\"zero_stage\":1,\"pipelines\":[{\"micro_batches\":5,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,2],"
	  "\"devices\":[\"n:1-2\"],"
	  "\"recompute\":\"full\"},{\"layers\":[2,4],\"devices\":[\"n:0\"]},{\"layers\":[4,5],\"devices\":[\"n:1-2\"]}]},{\"micro_"
	  "batches\":3,\"stages\":["
	  "{\"layers\":[0,1],\"devices\":[\"n:3\"]},{\"layers\":[1,3],\"devices\":[\"n:4\"]},{\"layers\":[3,4],\"devices\":[\"n:3\"]},{"
	  "\"layers\":[4,5],"
	  "\"devices\":[\"n:4\"]}]}]}",
	  5 },
	{ "gradients of weights apart",
	  "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"zb-h1\",\"zero_stage\":1,"
	  "\"pipelines\":[{\"micro_batches\":6,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,3],"
	  "\"devices\":[\"n:1-2\"],\"recompute\":\"full\"},{\"layers\":[3,5],\"devices\":[\"n:3\"]}]},{\"micro_batches\":2,\"stages\":["
	  "{\"layers\":[0,5],\"devices\":[\"n:4\"]}]}]}",
	  5 },
	{ "context parallel", HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-1\"],\"context\":2}]}]}", 2 },
	{ "context by tensor parallel",
	  HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0-3\"],\"context\":2,\"context_ratio\":[0.6,0.4]}]}]}",
	  4 },
};

static double worst(const double *a, const double *b)
{
	double most = 0;
	for (int s = 0; s < STEPS; s++)
		most = fmax(most, fabs(a[s] - b[s]) / fabs(b[s]));
	return most;
}

/* Each plan has the losses of one device; one in three plans (HSPMD_DRAW says which, with HSPMD_LONG all) has the same ones, to the bit, a
 * second time. */
static void same_losses(const char *model)
{
	struct hspmd_error err = { "" };
	double want[STEPS], got[STEPS], again[STEPS];
	if (trainer_run(model, one, 1, STEPS, want, &err))
		fail_msg("one device: %s", err.text);
	assert_true(want[STEPS - 1] < want[0] - 0.5); /* the model learns */
	const unsigned all = sizeof plans / sizeof *plans, count = draw_count(all, all), first = draw_first(count, all);
	for (unsigned i = first; i < first + count; i++) {
		if (trainer_run(model, plans[i].plan, plans[i].devices, STEPS, got, &err))
			fail_msg("%s: %s", plans[i].name, err.text);
		if (!(worst(got, want) < 1e-5))
			fail_msg("%s: losses differ by %g (%.17g against %.17g at the end)", plans[i].name, worst(got, want),
			         got[STEPS - 1], want[STEPS - 1]);
		if (!draw_takes(i, 3))
			continue;
		if (trainer_run(model, plans[i].plan, plans[i].devices, STEPS, again, &err))
			fail_msg("%s, again: %s", plans[i].name, err.text);
		assert_memory_equal(got, again, sizeof got);
	}
}

static void gpt2(void **state)
{
	(void)state;
	same_losses(trainer_gpt2);
}

static void llama(void **state)
{
	(void)state;
	same_losses(trainer_llama);
}

/* 12 heads at 5 to 3 are 8 and 4 (7.5 is rounded up); if two heads share a key's head, they are split in pairs: 4 and 2 of 6. All other
 * splits have units of one. */
static void heads_in_any_ratio(void **state)
{
	(void)state;
	static const char *const models[] = {
		"{\"model_type\":\"gpt2\",\"n_embd\":48,\"n_layer\":2,\"n_head\":12,\"n_positions\":32,\"vocab_size\":257,\"resid_pdrop\":"
		"0,\"embd_pdrop\":0,"
		"\"attn_pdrop\":0}",
		"{\"model_type\":\"qwen2\",\"hidden_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":12,\"num_key_value_heads\":6,"
		"\"intermediate_size\":50,"
		"\"max_position_embeddings\":64,\"vocab_size\":259,\"tie_word_embeddings\":true}",
		"{\"model_type\":\"mistral\",\"hidden_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":12,\"num_key_value_heads\":"
		"6,\"intermediate_size\":50,"
		"\"max_position_embeddings\":64,\"vocab_size\":259,\"sliding_window\":5}",
	};
	static const char *const ratios[] = { "[5,3]", "[1,9]", "[1,1]" };
	struct hspmd_error err = { "" };
	double want[STEPS], got[STEPS];
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		if (trainer_run(models[m], HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]}", 1, STEPS,
		                want, &err))
			fail_msg("%s", err.text);
		for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++) {
			char plan[512];
			snprintf(plan, sizeof plan,
			         HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"shard_ratio\":%s},"
			              "{\"layers\":[2,4],\"devices\":[\"n:2-5\"],\"context\":2,\"shard_ratio\":%s}]}]}",
			         ratios[r], ratios[r]);
			if (trainer_run(models[m], plan, 6, STEPS, got, &err))
				fail_msg("model %zu as %s: %s", m, ratios[r], err.text);
			if (!(worst(got, want) < 1e-5))
				fail_msg("model %zu as %s: losses differ by %g", m, ratios[r], worst(got, want));
		}
	}
}

/* Shapes large enough for every kernel's blocked path: a buffer that is released too early shows only there. */
static void large_shapes(void **state)
{
	(void)state;
	static const char model[] =
	        "{\"model_type\":\"gpt2\",\"n_embd\":128,\"n_layer\":2,\"n_head\":4,\"n_positions\":128,\"vocab_size\":256,"
	        "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";
	static const char *const wide[] = {
		"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":128,\"pipelines\":[{\"micro_batches\":2,"
		"\"stages\":["
		"{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]}",
		"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":128,\"pipelines\":[{\"micro_batches\":2,"
		"\"stages\":["
		"{\"layers\":[0,4],\"devices\":[\"n:0-1\"]}]}]}",
		"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":128,\"pipelines\":[{\"micro_batches\":2,"
		"\"stages\":["
		"{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"sequence_parallel\":true},{\"layers\":[2,4],\"devices\":[\"n:2\"],"
		"\"recompute\":\"full\"}]}]}",
	};
	struct hspmd_error err = { "" };
	double want[4], got[4];
	for (size_t i = 0; i < 3; i++) {
		if (trainer_run(model, wide[i], 3, 4, i ? got : want, &err))
			fail_msg("%s", err.text);
		for (int s = 0; i && s < 4; s++)
			if (!(fabs(got[s] - want[s]) < 1e-5 * want[s]))
				fail_msg("plan %zu: loss of step %d is %.17g, not %.17g", i, s, got[s], want[s]);
	}
}

/* Operators that run again give the same results to the bit, whichever a stage lists; one that the model does not have is named. */
static void recomputes_listed_operators(void **state)
{
	(void)state;
	static const char *const recompute[] = {
		"\"none\"",
		"[\"rmsnorm\",\"swiglu\"]",
		"[\"attention\",\"mlp.up_proj\"]",
		"[\"self_attn.q_proj\",\"rope\",\"mlp.gate_proj\",\"add\"]",
		"[\"linear\",\"attention\",\"rmsnorm\",\"rope\",\"swiglu\",\"add\"]",
	};
	struct hspmd_error err = { "" };
	double want[STEPS], got[STEPS];
	for (size_t i = 0; i <= sizeof recompute / sizeof *recompute; i++) {
		bool unknown = i == sizeof recompute / sizeof *recompute;
		char plan[600];
		snprintf(plan, sizeof plan,
		         HEAD "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"recompute\":%s},"
		              "{\"layers\":[2,5],\"devices\":[\"n:2\"],\"recompute\":%s}]}]}",
		         unknown ? "\"none\"" : recompute[i], unknown ? "[\"rope\",\"wheel\"]" : recompute[i]);
		int status = trainer_run(trainer_llama, plan, 3, STEPS, i ? got : want, &err);
		if (unknown)
			break;
		if (status)
			fail_msg("%s: %s", recompute[i], err.text);
		if (i && memcmp(got, want, sizeof got) != 0)
			fail_msg("%s: losses differ by %g", recompute[i], worst(got, want));
	}
	if (!strstr(err.text, "the model has no operator \"wheel\" that a stage can list; it has "))
		fail_msg("an unknown operator: \"%s\"", err.text);
}

/* Rows of experts alone are sent, evenly and unevenly divided, and the losses are those of one device; twice, to the bit. */
static void rows_of_experts(void **state)
{
	(void)state;
	double want[EXPERT_STEPS], got[EXPERT_STEPS], again[EXPERT_STEPS];
	expert_plan_train(0, 0, want);
	for (int p = 1; p < EXPERT_PLANS + SHARED_PLANS; p++) {
		if (p == EXPERT_PLANS)
			expert_plan_train(p++, 0, want); /* of the other model, on one device */
		expert_plan_train(p, 0, got);
		expert_plan_train(p, 0, again);
		for (int s = 0; s < EXPERT_STEPS; s++)
			if (!(fabs(got[s] - want[s]) < 1e-5 * want[s]))
				fail_msg("plan %d: loss of step %d is %.17g, not %.17g", p, s, got[s], want[s]);
		assert_memory_equal(got, again, sizeof got);
	}
}

/* The norm of all first moments in the state of one device. */
static int moment_norm(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                       struct hspmd_error *err)
{
	double sum = 0;
	(void)device;
	(void)err;
	for (int i = 0; i < p->state_count; i++) {
		const float *m = hspmd_executor_slot_data(executor, p->states[i].moments[0]);
		for (size_t k = 0; k < p->slot_types[p->slots[p->states[i].moments[0]].slot_type].bytes / sizeof *m; k++)
			sum += (double)m[k] * (double)m[k];
	}
	*(double *)context = sqrt(sum);
	return 0;
}

/* The first moments after one step are (1 - beta1) times the gradient that the optimizer received: Adam's update hides a wrong scale,
 * the moments do not. */
static double norm_after_clipping(double clip)
{
	struct hspmd_error err = { "" };
	double norm = 0, loss;
	struct trainer_options o = {
		.model = trainer_llama, .plan = one, .devices = 1, .steps = 1, .clip = clip, .on_end = moment_norm, .context = &norm
	};
	if (trainer_train(&o, &loss, &err))
		fail_msg("clip %g: %s", clip, err.text);
	return norm / 0.1;
}

/* A pattern that matches matrices changes what is trained. (That it matches something is checked at submission: test_job.) */
static void no_decay(void **state)
{
	(void)state;
	struct trainer_options o = { .model = trainer_llama, .plan = one, .devices = 1, .steps = 4 };
	struct hspmd_error err = { "" };
	double losses[3][4];
	static const char *const jobs[] = { "{\"optimizer\":{\"weight_decay\":20}}",
		                            "{\"optimizer\":{\"weight_decay\":20,\"no_decay\":[\"*norm*\"]}}",
		                            "{\"optimizer\":{\"weight_decay\":20,\"no_decay\":[\"*norm*\",\"*proj*\"]}}" };
	for (int i = 0; i < 3; i++) {
		o.job = jobs[i];
		if (trainer_train(&o, losses[i], &err))
			fail_msg("%s", err.text);
	}
	assert_memory_equal(losses[0], losses[1], sizeof losses[0]); /* gains never decay */
	assert_true(losses[2][3] != losses[0][3]);
}

static void clipping(void **state)
{
	(void)state;
	double whole = norm_after_clipping(-1);
	assert_true(whole > 0.1); /* there is something to clip */
	for (double part = 0.9; part > 0.01; part /= 10)
		if (!(fabs(norm_after_clipping(part * whole) / (part * whole) - 1) < 1e-5))
			fail_msg("clipped to %.9g, the gradient's norm is %.9g", part * whole, norm_after_clipping(part * whole));
	assert_true(norm_after_clipping(1.1 * whole) == whole);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(gpt2),
		                            cmocka_unit_test(llama),
		                            cmocka_unit_test(heads_in_any_ratio),
		                            cmocka_unit_test(large_shapes),
		                            cmocka_unit_test(rows_of_experts),
		                            cmocka_unit_test(clipping),
		                            cmocka_unit_test(no_decay),
		                            cmocka_unit_test(recomputes_listed_operators) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
