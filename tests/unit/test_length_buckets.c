/* SPDX-License-Identifier: Apache-2.0 */
/* One program, several sequence lengths: under any plan, a program made for 16 positions trains steps of fewer positions exactly like
 * programs made for those lengths. A length that does not fit the program's parts is refused before the first step, with a message that
 * names the multiple that would fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "common/alloc.h"
#include "runtime/exec/train_local.h"
#include "runtime/model/model.h"
#include "tests/unit/trainer.h"

#define STEPS 8

/* Sample `number` has the same tokens at any length. */
static int read_tokens(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	(void)context;
	(void)err;
	int64_t shift = start + !strcmp(name, HSPMD_TENSOR_TARGETS);
	for (int64_t i = 0; i < count; i++)
		((int32_t *)to)[i] = !strcmp(name, HSPMD_TENSOR_SEGMENTS) ? (int32_t)((start + i) / 5)
		                                                          : (int32_t)((number * 7 + (shift + i) * (shift + i)) % 250);
	return 0;
}

static void take_loss(void *context, int64_t step, double loss)
{
	((double *)context)[step] = loss;
}

static int by_turns(void *context, int64_t step)
{
	return (int)(step % *(int *)context);
}

/* Trains on devices n:0-3 with a plan for `length` positions; the lengths of the steps cycle through `lengths` (count 0: the plan's). */
static int train(const char *model, const char *pipelines, int length, const int64_t *lengths, int count, double *losses,
                 struct hspmd_error *err)
{
	static const char cluster[] =
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
	        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":4}]}],"
	        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";
	char *plan_text = hspmd_asprintf(
	        "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":1,\"seq_len\":%d,\"schedule\":\"1f1b\",\"zero_stage\":1,"
	        "\"pipelines\":%s}",
	        length, pipelines);
	json_t *c = json_loads(cluster, 0, NULL), *p = json_loads(plan_text, 0, NULL), *m = json_loads(model, 0, NULL);
	struct hspmd_job job = {
		.seed = 5, .global_batch = 4, .optimizer = { .lr = 2e-3, .values = { 0.9, 0.95, 1e-8 }, .clip = 1 }, .steps = STEPS
	};
	struct hspmd_cluster *cl = hspmd_cluster_from_json(c, "cluster", err);
	struct hspmd_model *mo = hspmd_model_from_json(m, "model", err);
	struct hspmd_plan *pl = hspmd_plan_from_json(p, "plan", cl, hspmd_model_layers(mo), err);
	assert_non_null(pl);
	struct hspmd_train_local_options o = {
		.source = hspmd_graph_source_model(mo),
		.cluster = cl,
		.plan = pl,
		.job = &job,
		.samples = { read_tokens, NULL },
		.steps = STEPS,
		.lengths = lengths,
		.length_count = count,
		.length_of_step = by_turns,
		.length_context = &count,
		.on_loss = take_loss,
		.context = losses,
	};
	o.source.documents = true;
	int status = hspmd_train_local(&o, err);
	hspmd_plan_destroy(pl);
	hspmd_cluster_destroy(cl);
	hspmd_model_destroy(mo);
	json_decref(c);
	json_decref(p);
	json_decref(m);
	free(plan_text);
	return status;
}

static const char one[] = "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]";
static const char *const plans[] = {
	one,
	"[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"sequence_parallel\":true},{\"layers\":[2,4],"
	"\"devices\":[\"n:2\"],"
	"\"recompute\":\"full\"}]}]",
	"[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0-3\"],\"context\":2,\"sequence_parallel\":true,"
	"\"recompute\":\"selective\"}]}]",
	"[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]},{\"micro_batches\":3,\"stages\":[{\"layers\":[0,3],"
	"\"devices\":[\"n:1-2\"],"
	"\"context\":2,\"context_ratio\":[3,1]},{\"layers\":[3,4],\"devices\":[\"n:3\"]}]}]",
};
static const char *const *const models[] = { &(const char *const){ trainer_gpt2 }, &(const char *const){ trainer_mixtral } };

/* Mixtral's config has two blocks, GPT-2's three: drops one so that plans fit both. */
static char *four_layers(const char *config)
{
	char *text = strdup(config), *at = text ? strstr(text, "\"n_layer\":3") : NULL;
	assert_non_null(text);
	if (at)
		at[strlen("\"n_layer\":")] = '2';
	return text;
}

static void one_program_many_lengths(void **state)
{
	(void)state;
	static const int64_t lengths[] = { 16, 4, 12, 8 };
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		struct hspmd_error err = { "" };
		char *model = four_layers(*models[m]);
		double want[STEPS], got[STEPS];
		for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
			if (train(model, plans[p], 16, lengths, 4, p ? got : want, &err))
				fail_msg("%s: %s", plans[p], err.text);
			for (int s = 0; p && s < STEPS; s++)
				if (!(fabs(got[s] - want[s]) < 1e-5 * fabs(want[s])))
					fail_msg("%s: loss of step %d is %.17g, not %.17g", plans[p], s, got[s], want[s]);
		}
		free(model);
	}
}

/* The losses equal, to the bit, those of a program made for the length. */
static void as_if_made_for_it(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	char *model = four_layers(trainer_gpt2);
	for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
		double made[STEPS], served[STEPS];
		if (train(model, plans[p], 8, NULL, 0, made, &err) || train(model, plans[p], 16, &(int64_t){ 8 }, 1, served, &err))
			fail_msg("%s: %s", plans[p], err.text);
		assert_memory_equal(made, served, sizeof made);
	}
	free(model);
}

static void what_cannot_be_is_refused(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	char *model = four_layers(trainer_gpt2);
	double losses[STEPS] = { 0 };
	assert_int_equal(train(model, plans[1], 16, &(int64_t){ 7 }, 1, losses, &err), -1);
	assert_string_equal(err.text, "a sequence length of 7 cannot be split as this program's 16: expected a multiple of 2");
	assert_int_equal(train(model, plans[3], 16, &(int64_t){ 6 }, 1, losses, &err), -1);
	assert_string_equal(err.text, "a sequence length of 6 cannot be split as this program's 16: expected a multiple of 4");
	assert_int_equal(train(model, one, 16, &(int64_t){ 17 }, 1, losses, &err), -1);
	assert_string_equal(err.text, "a sequence length of 17: expected 1..16, which the program is for");
	assert_true(losses[0] == 0); /* no step was run */
	free(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_program_many_lengths),
		cmocka_unit_test(as_if_made_for_it),
		cmocka_unit_test(what_cannot_be_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
