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
#include <math.h>

#include "common/alloc.h"
#include "runtime/exec/train_local.h"
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

static int by_turns(void *context, int64_t step)
{
	return (int)(step % *(int *)context);
}

/* Trains on devices n:0-3 with a plan for `length` positions; the lengths of the steps cycle through `lengths` (count 0: the plan's). */
static int train(const char *model, const char *pipelines, int length, const int64_t *lengths, int count, double *losses,
                 struct hspmd_error *err)
{
	char *plan = hspmd_asprintf(
	        "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":1,\"seq_len\":%d,\"schedule\":\"1f1b\",\"zero_stage\":1,"
	        "\"pipelines\":%s}",
	        length, pipelines);
	int status = trainer_samples(model, plan,
	                             &(struct hspmd_train_local_options){
	                                     .samples = { read_tokens, NULL },
	                                     .steps = STEPS,
	                                     .lengths = lengths,
	                                     .length_count = count,
	                                     .length_of_step = by_turns,
	                                     .length_context = &count,
	                             },
	                             losses, err);
	free(plan);
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

static void one_program_many_lengths(void **state)
{
	(void)state;
	static const int64_t lengths[] = { 16, 4, 12, 8 };
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		struct hspmd_error err = { "" };
		char *model = trainer_four_layers(*models[m]);
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
	char *model = trainer_four_layers(trainer_gpt2);
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
	char *model = trainer_four_layers(trainer_gpt2);
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
