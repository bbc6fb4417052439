/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that mix lengths: under any plan, samples of 4, 8 and 16 tokens in micro-batches of their own lengths train exactly like samples
 * that are all padded to 16 tokens on one device, where what was added does not count. */
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

#define STEPS 12
#define BATCH 8
#define LONGEST 16

static const int64_t lengths[] = { 4, 8, 16 };

struct samples {
	bool bimodal; /* else with a long tail */
	bool padded;  /* all are read at the longest length */
};

/* Some steps have short samples alone. */
static int length_of(const struct samples *s, int64_t number)
{
	unsigned x = (unsigned)(number * 2654435761u) >> 16 & 0xff;
	if (number / BATCH % 4 == 3)
		return 0;
	return s->bimodal ? (x < 40) * 2 : x < 25 ? 2 : x < 75 ? 1 : 0;
}

static int length_of_sample(void *context, int64_t number)
{
	return length_of(context, number);
}

/* Every seventh target or so does not count. */
static bool counts(const struct samples *s, int64_t number, int64_t position)
{
	return position < lengths[length_of(s, number)] && (number * 3 + position) % 7;
}

static int read_samples(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	const struct samples *s = context;
	bool targets = !strcmp(name, HSPMD_TENSOR_TARGETS), segments = !strcmp(name, HSPMD_TENSOR_SEGMENTS);
	for (int64_t i = 0; i < count; i++) {
		int64_t at = start + i;
		int32_t *value = &((int32_t *)to)[i];
		if (number >= 0 && !s->padded && at >= lengths[length_of(s, number)])
			return hspmd_fail(err, "position %lld of a sample of %lld tokens is read", (long long)at,
			                  (long long)lengths[length_of(s, number)]);
		*value = segments ? (int32_t)(at / 5) : (int32_t)((number * 7 + (at + targets) * (at + targets)) % 250);
		if (number < 0 || (targets && !counts(s, number, at)))
			*value = targets ? -1 : 0;
	}
	return 0;
}

static double loss_factor(void *context, int64_t step)
{
	const struct samples *s = context;
	double all = 0, counted = 0;
	for (int64_t n = step * BATCH; n < (step + 1) * BATCH; n++) {
		all += (double)(s->padded ? LONGEST : lengths[length_of(s, n)]);
		for (int64_t at = 0; at < LONGEST; at++)
			counted += counts(s, n, at);
	}
	return all / counted;
}

/* Trains on devices n:0-3. head: keys of the plan before its pipelines. */
static int train(const char *model, const char *head, const char *pipelines, struct samples *s, double *losses, struct hspmd_error *err)
{
	char *plan = hspmd_asprintf("{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"seq_len\":%d,%s,\"pipelines\":%s}", BATCH, LONGEST,
	                            head, pipelines);
	int status = trainer_samples(model, plan,
	                             &(struct hspmd_train_local_options){
	                                     .samples = { read_samples, s, .loss_factor = loss_factor },
	                                     .steps = STEPS,
	                                     .lengths = s->padded ? NULL : lengths,
	                                     .length_count = s->padded ? 0 : (int)(sizeof lengths / sizeof *lengths),
	                                     .length_context = s,
	                                     .length_of_sample = s->padded ? NULL : length_of_sample,
	                             },
	                             losses, err);
	free(plan);
	return status;
}

#define PLAIN "\"micro_batch\":1,\"schedule\":\"1f1b\""
static const char one[] = "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]";
static const struct {
	const char *head, *pipelines;
} plans[] = {
	{ PLAIN, one },
	/* Larger micro-batches of shorter samples. */
	{ "\"micro_batch\":2", "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]" },
	{ PLAIN,
	  "[{\"micro_batches\":8,\"lengths\":[{\"seq_len\":8,\"micro_batch\":2,\"micro_batch_s\":1},{\"seq_len\":16,\"micro_batch\":1,"
	  "\"micro_batch_s\":2}],\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0-1\"],\"sequence_parallel\":true},"
	  "{\"layers\":[2,4],\"devices\":[\"n:2\"],\"recompute\":\"full\"}]}]" },
	{ "\"micro_batch\":1,\"schedule\":\"zb-h1\",\"zero_stage\":1",
	  "[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0\"]},{\"layers\":[2,4],\"devices\":[\"n:1\"]}]},"
	  "{\"micro_batches\":5,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:2\"]},{\"layers\":[1,4],\"devices\":[\"n:3\"],\"recompute\":"
	  "\"selective\"}]}]" },
	{ "\"micro_batch\":1,\"schedule\":\"interleaved\",\"virtual_stages\":2",
	  "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,1],\"devices\":[\"n:0\"]},{\"layers\":[1,2],\"devices\":[\"n:1\"]},{\"layers\":"
	  "[2,3],\"devices\":[\"n:0\"]},{\"layers\":[3,4],\"devices\":[\"n:1\"]}]}]" },
	/* One pipeline for the long samples, and two for the short ones. */
	{ PLAIN ",\"zero_stage\":1",
	  "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0-1\"],\"context\":2}]},"
	  "{\"micro_batches\":3,\"lengths\":[{\"seq_len\":4,\"micro_batch\":3,\"micro_batch_s\":1e-3}],\"stages\":[{\"layers\":[0,4],"
	  "\"devices\":[\"n:2\"]}]},"
	  "{\"micro_batches\":3,\"lengths\":[{\"seq_len\":4,\"micro_batch\":2,\"micro_batch_s\":1e-3},{\"seq_len\":8,\"micro_batch\":1,"
	  "\"micro_batch_s\":1e-3}],\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:3\"]}]}]" },
	/* The second pipeline is so slow that it never gets a sample. */
	{ PLAIN,
	  "[{\"micro_batches\":7,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]},{\"micro_batches\":1,\"lengths\":[{\"seq_len\":16,"
	  "\"micro_batch\":1,\"micro_batch_s\":1000}],\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:1\"]}]}]" },
};

static void close_losses(const char *plan, const double *got, const double *want)
{
	for (int s = 0; s < STEPS; s++)
		if (!(fabs(got[s] - want[s]) < 1e-6 * fabs(want[s])))
			fail_msg("%s: loss of step %d is %.17g, not %.17g", plan, s, got[s], want[s]);
}

/* experts: losses of experts count what was added, too: the reference is then not padded. */
static void trains_alike(const char *config, bool experts)
{
	struct hspmd_error err = { "" };
	char *model = trainer_four_layers(config);
	for (int bimodal = 0; bimodal < 2; bimodal++) {
		struct samples padded = { .bimodal = bimodal, .padded = !experts }, mixed = { .bimodal = bimodal };
		double want[STEPS], got[STEPS];
		if (train(model, PLAIN, one, &padded, want, &err))
			fail_msg("padded: %s", err.text);
		for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
			if (train(model, plans[p].head, plans[p].pipelines, &mixed, got, &err))
				fail_msg("%s: %s", plans[p].pipelines, err.text);
			close_losses(plans[p].pipelines, got, want);
		}
	}
	free(model);
}

static void as_if_padded(void **unused)
{
	(void)unused;
	trains_alike(trainer_gpt2, false);
	trains_alike(trainer_llama, false);
}

static void experts_count_each_token_once(void **unused)
{
	(void)unused;
	trains_alike(trainer_mixtral, true);
}

static void the_same_bits_twice(void **unused)
{
	(void)unused;
	struct hspmd_error err = { "" };
	char *model = trainer_four_layers(trainer_llama);
	struct samples s = { .bimodal = false };
	double once[STEPS], twice[STEPS];
	assert_int_equal(train(model, plans[5].head, plans[5].pipelines, &s, once, &err), 0);
	assert_int_equal(train(model, plans[5].head, plans[5].pipelines, &s, twice, &err), 0);
	assert_memory_equal(once, twice, sizeof once);
	free(model);
}

static void refuse(const char *head, const char *pipelines, const char *why)
{
	struct hspmd_error err = { "" };
	char *model = trainer_four_layers(trainer_gpt2);
	struct samples s = { .bimodal = false };
	double losses[STEPS] = { 0 };
	assert_int_equal(train(model, head, pipelines, &s, losses, &err), -1);
	if (!strstr(err.text, why))
		fail_msg("\"%s\" does not say \"%s\"", err.text, why);
	assert_true(losses[0] == 0);
	free(model);
}

static void what_cannot_be_is_refused(void **unused)
{
	(void)unused;
	refuse("\"micro_batch\":1,\"schedule\":\"gpipe\"", one, "plan.schedule: gpipe keeps all micro-batches");
	refuse("\"micro_batch\":1,\"zero_stage\":2",
	       "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]},{\"micro_batches\":4,\"stages\":[{\"layers\":["
	       "0,4],"
	       "\"devices\":[\"n:1\"]}]}]",
	       "plan.zero_stage: 2 needs as many micro-batches");
	refuse(PLAIN,
	       "[{\"micro_batches\":8,\"lengths\":[{\"seq_len\":8,\"micro_batch\":1,\"micro_batch_s\":1}],\"stages\":[{\"layers\":[0,4],"
	       "\"devices\":[\"n:0\"]}]}]",
	       "plan: pipelines: none of them takes samples of seq_len (16)");
	refuse(PLAIN,
	       "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]},{\"micro_batches\":4,\"lengths\":[{\"seq_"
	       "len\":3,"
	       "\"micro_batch\":1,\"micro_batch_s\":1}],\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:1\"]}]}]",
	       "plan.pipelines[1].lengths: none is as long as the shortest samples, 4 tokens");
	refuse(PLAIN,
	       "[{\"micro_batches\":8,\"lengths\":[{\"seq_len\":4,\"micro_batch\":5,\"micro_batch_s\":1},{\"seq_len\":16,\"micro_batch\":1,"
	       "\"micro_batch_s\":1}],\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0\"]}]}]",
	       "plan: pipelines[0].lengths[0].micro_batch: expected at most 4");
	refuse(PLAIN,
	       "[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"n:0-2\"],\"context\":3,\"context_ratio\":[6,1,1]}]}]",
	       "a sequence length of 4 cannot be split as this program's 16: expected a multiple of 8");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_if_padded),
		cmocka_unit_test(experts_count_each_token_once),
		cmocka_unit_test(the_same_bits_twice),
		cmocka_unit_test(what_cannot_be_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
