/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/job.h"
#include "fuzz.h"

/* The learning rate must be between 0 and the requested one at every step. */
static void look_around(const struct hspmd_job *j)
{
	const int64_t steps[] = { 0, 1, j->optimizer.warmup_steps, j->steps / 2, j->steps, INT64_MAX };
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		double lr = hspmd_job_lr(j, steps[i]);
		fuzz_check(lr >= 0 && lr <= j->optimizer.lr, "a learning rate lies within its bounds");
	}
}

static void ignore(void *context, const char *text)
{
	(void)context;
	fuzz_check(*text != '\0', "a mistake has words");
}

/* A reader that continues after mistakes must refuse the same files. */
static void look_for_all(const json_t *value, bool refused)
{
	struct hspmd_mistakes all = { .report = ignore };
	struct hspmd_error last;
	struct hspmd_job *x = hspmd_job_from_json(value, "/jobs/input", &all, &last);
	fuzz_check(!x == refused && !all.count == !refused, "all mistakes are found where one is, and only there");
	hspmd_job_destroy(x);
}

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_job *x = hspmd_job_from_json(value, "/jobs/input", NULL, err);
	look_for_all(value, !x);
	if (!x)
		return NULL;
	look_around(x);
	json_t *o = hspmd_job_to_json(x);
	hspmd_job_destroy(x);
	fuzz_check(o != NULL, "what was read can be written");
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
