/* SPDX-License-Identifier: Apache-2.0 */
/* Steps on the CUDA device decide nothing: no lock, no allocation and no look-up after the first step of a program, and no capture after
 * the first steps of each length. (test_cuda_ops: the same of every operator's call.) Nor do they wait for samples, or for the host between
 * passes and update. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/exec/execute.h"
#include "runtime/input/data.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/host_calls.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/trainer.h"

#define STEPS 4
#define LENGTH_STEPS 30
#define GLOBAL_BATCH 4
#define PLAN                                                                                                                               \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"         \
	"\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0\"]}]}]}"

/* The source of samples is a file of the test's, which is not part of the device. */
int __real_hspmd_executor_step(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                               struct hspmd_error *err);
int __wrap_hspmd_executor_step(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                               struct hspmd_error *err);

/* What a step reads, and when: hspmd_device_read_batch is the step's wait for the device. */
struct hspmd_sample_source __real_hspmd_data_source(struct hspmd_data *d);
struct hspmd_sample_source __wrap_hspmd_data_source(struct hspmd_data *d);
int __real_hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes,
                                   struct hspmd_error *err);
int __wrap_hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes,
                                   struct hspmd_error *err);

static struct hspmd_sample_source own_source;
static int64_t present; /* the step that runs */
static bool waited;     /* for the device, in this step */
static long early, late;
static long at_totals[EMULATE_COUNTS]; /* when the host has them */
static long asked_later;               /* of the device, in all steps */

static void see_reading(int64_t step)
{
	if (step > 0)
		*(step == present + 1 && !waited ? &early : &late) += 1;
}

static int read_watched(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	see_reading(number / GLOBAL_BATCH);
	return own_source.read(context, name, number, start, count, to, err);
}

static double factor_watched(void *context, int64_t step)
{
	see_reading(step);
	return own_source.loss_factor(context, step);
}

struct hspmd_sample_source __wrap_hspmd_data_source(struct hspmd_data *d)
{
	struct hspmd_sample_source source = own_source = __real_hspmd_data_source(d);
	source.read = read_watched;
	source.loss_factor = own_source.loss_factor ? factor_watched : NULL;
	return source;
}

int __wrap_hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes,
                                   struct hspmd_error *err)
{
	waited = true;
	int status = __real_hspmd_device_read_batch(dev, host, src, count, bytes, err);
	gpu_counts(at_totals);
	return status;
}

static long asked;
static int watched;
static char first[HOST_CALLS_TEXT];
static long most_waits; /* of the host, for the device, in a step that is not the first */
static bool in_three;   /* steps are asked for in three calls: the host knows the norm before it asks for the update */
static int losses_counted;

static int step_in_three(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                         struct hspmd_error *err)
{
	struct hspmd_totals own = { 0 };
	return hspmd_executor_gradients(ex, step, &own, times, err) || hspmd_executor_vote(ex, step, &own, all, err) ||
	                       hspmd_executor_commit(ex, step, all, err)
	               ? -1
	               : 0;
}

int __wrap_hspmd_executor_step(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                               struct hspmd_error *err)
{
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS];
	char text[HOST_CALLS_TEXT];
	present = step;
	waited = false;
	gpu_counts(before);
	host_calls_begin();
	int status = (in_three ? step_in_three : __real_hspmd_executor_step)(ex, step, all, times, err);
	long now = host_calls_end(text);
	gpu_counts(after);
	asked_later += after[EMULATE_ASKED] - at_totals[EMULATE_ASKED];
	if (now && !asked && step)
		snprintf(first, sizeof first, "%s", text);
	asked += step ? now : 0;
	watched += step > 0;
	if (step && after[EMULATE_WAITS] - before[EMULATE_WAITS] > most_waits)
		most_waits = after[EMULATE_WAITS] - before[EMULATE_WAITS];
	return status;
}

static void train(const char *model, int layers, bool bf16, const char *job, bool on_gpu, int steps, double *losses)
{
	struct hspmd_error err = { "" };
	char plan[512];
	snprintf(plan, sizeof plan, PLAN, layers);
	struct trainer_options o = {
		.model = model,
		.plan = plan,
		.devices = 1,
		.gpus = on_gpu,
		.steps = steps,
		.bf16 = bf16,
		.documents = job != NULL,
		.job = job,
	};
	if (trainer_train(&o, losses, &err))
		fail_msg("%s", err.text);
}

static void steps_decide_nothing(void **state)
{
	(void)state;
	if (!gpu_is_emulated())
		skip(); /* a real device's libraries have locks of their own */
	static const struct {
		const char *name, *config;
		int layers;
	} models[] = { { "gpt2", trainer_gpt2, 5 }, { "llama", trainer_llama, 5 }, { "mixtral", trainer_mixtral, 4 } };
	setenv("HSPMD_CUDA_GRAPHS", "0", 1);
	for (size_t m = 0; m < sizeof models / sizeof *models; m++)
		for (int bf16 = 0; bf16 < 2; bf16++) {
			double losses[STEPS];
			asked = watched = 0;
			train(models[m].config, models[m].layers, bf16, NULL, true, STEPS, losses);
			assert_int_equal(watched, STEPS - 1);
			if (asked)
				fail_msg("steps of %s in %s asked for %ld things, the first with any for %s", models[m].name,
				         bf16 ? "bf16" : "fp32", asked, first);
		}
	unsetenv("HSPMD_CUDA_GRAPHS");
}

/* Steps of three lengths, mixed: each length's passes are captured once, and give the bits of passes that are not. */
static void each_length_is_captured_once(void **state)
{
	(void)state;
	static const char job[] = "{\"data\":{\"lengths\":[8,14,16]}}";
	double plain[LENGTH_STEPS], captured[LENGTH_STEPS];
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS], few;
	setenv("HSPMD_CUDA_GRAPHS", "0", 1);
	train(trainer_gpt2, 5, false, job, true, LENGTH_STEPS, plain);
	setenv("HSPMD_CUDA_GRAPHS", "1", 1);
	gpu_counts(before);
	train(trainer_gpt2, 5, false, job, true, LENGTH_STEPS / 2, captured);
	gpu_counts(after);
	few = after[EMULATE_GRAPHS] - before[EMULATE_GRAPHS];
	train(trainer_gpt2, 5, false, job, true, LENGTH_STEPS, captured);
	gpu_counts(before);
	unsetenv("HSPMD_CUDA_GRAPHS");
	printf("%ld graphs in %d steps, %ld in %d\n", few, LENGTH_STEPS / 2, before[EMULATE_GRAPHS] - after[EMULATE_GRAPHS], LENGTH_STEPS);
	assert_memory_equal(plain, captured, sizeof plain);
	assert_true(few > 0 || !gpu_is_emulated()); /* only the emulated device counts */
	assert_int_equal(before[EMULATE_GRAPHS] - after[EMULATE_GRAPHS], few);
}

/* On a device that computes while the host goes on, what a step reads is there when it begins, of whichever length it is. */
static void samples_are_read_ahead(void **state)
{
	(void)state;
	static const char *const jobs[] = { "{}", "{\"data\":{\"lengths\":[8,14,16]}}" };
	char plan[512];
	snprintf(plan, sizeof plan, PLAN, 5);
	double all[4][2 * STEPS];
	for (int i = 0; i < 4; i++) {
		struct hspmd_error err = { "" };
		double *losses = all[i];
		struct trainer_options o = { .model = trainer_gpt2,
			                     .plan = plan,
			                     .devices = 1,
			                     .gpus = i & 1,
			                     .steps = 2 * STEPS,
			                     .documents = true,
			                     .masked = true,
			                     .job = jobs[i / 2] };
		early = late = 0;
		if (trainer_train(&o, losses, &err))
			fail_msg("%s", err.text);
		if (i & 1)
			assert_true(early > 0 && !late);
		else
			assert_true(late > 0 && !early);
		/* Each step has a factor of its losses, for what its mask leaves. */
		for (int s = 0; i & 1 && s < 2 * STEPS; s++)
			assert_true(fabs(all[i][s] - all[i - 1][s]) <= 1e-4 * all[i - 1][s]);
	}
}

/* Draws `few` consecutive cases of all for the emulated GPU; a real one tries all. */
static void draw_few(unsigned few, unsigned all, unsigned *begin, unsigned *end)
{
	unsigned count = gpu_is_emulated() ? draw_count(few, all) : all;
	*begin = draw_first(count, all);
	*end = *begin + count;
}

/* The optimizer beside the next step's passes gives the bits of one that is waited for: of all losses, and of the state that is left. */
static void updates_run_beside(void **state)
{
	(void)state;
	static const struct {
		const char *config, *job;
		int layers;
	} models[] = { { trainer_gpt2, NULL, 5 },
		       { trainer_llama, NULL, 5 },
		       { trainer_mixtral, NULL, 4 },
		       { trainer_gpt2, "{\"data\":{\"lengths\":[8,14,16]}}", 5 } };
	unsigned begin, end;
	draw_few(6, 16, &begin, &end);
	for (unsigned i = begin; i < end; i++) {
		double losses[2][2 * STEPS];
		uint64_t sums[2] = { 0, 0 };
		for (int beside = 0; beside < 2; beside++) {
			struct hspmd_error err = { "" };
			char plan[512];
			snprintf(plan, sizeof plan, PLAN, models[i / 4].layers);
			struct trainer_options o = { .model = models[i / 4].config,
				                     .plan = plan,
				                     .devices = 1,
				                     .gpus = 1,
				                     .steps = 2 * STEPS,
				                     .bf16 = i & 1,
				                     .documents = models[i / 4].job != NULL,
				                     .job = models[i / 4].job,
				                     .on_end = trainer_sum_parameters,
				                     .context = &sums[beside] };
			setenv("HSPMD_CUDA_BESIDE", beside ? "1" : "0", 1);
			setenv("HSPMD_CUDA_GRAPHS", i & 2 ? "1" : "0", 1);
			setenv("HSPMD_EMULATE_STREAMS", (i ^ i >> 1) & 1 ? "early" : "late", 1);
			if (trainer_train(&o, losses[beside], &err))
				fail_msg("%s", err.text);
		}
		assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
		assert_true(sums[0] == sums[1]);
	}
	unsetenv("HSPMD_CUDA_BESIDE");
	unsetenv("HSPMD_CUDA_GRAPHS");
	unsetenv("HSPMD_EMULATE_STREAMS");
}

static int read_constant(void *token, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	(void)name, (void)number, (void)start, (void)err;
	for (int64_t i = 0; i < count; i++)
		((int32_t *)to)[i] = *(const int32_t *)token;
	return 0;
}

static double loss_with(struct hspmd_executor *ex, int32_t *token, int64_t step)
{
	struct hspmd_error err = { "" };
	struct hspmd_totals own = { 0 };
	struct hspmd_step_times times;
	if (token)
		hspmd_executor_set_samples(ex, (struct hspmd_sample_source){ .read = read_constant, .context = token });
	if (hspmd_executor_gradients(ex, step, &own, &times, &err))
		fail_msg("%s", err.text);
	return own.loss;
}

/* What was read ahead from one source is not taken for another's, nor for another step's. */
static int change_source(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                         struct hspmd_error *err)
{
	(void)context, (void)p, (void)device, (void)err;
	struct hspmd_executor *ex = (struct hspmd_executor *)(uintptr_t)executor;
	int32_t three = 3, five = 5;
	double want = loss_with(ex, &three, 1), other = loss_with(ex, &five, 0);
	assert_true(other != want);
	assert_true(loss_with(ex, &three, 1) == want);
	loss_with(ex, NULL, 0);
	three = 5; /* the source must give the same whenever it is asked; this one shows when that was */
	assert_true(loss_with(ex, NULL, 1) == want);
	three = 3;
	assert_true(loss_with(ex, NULL, 7) == want);
	return 0;
}

static void sources_are_kept_apart(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	double loss;
	char plan[512];
	snprintf(plan, sizeof plan, PLAN, 5);
	struct trainer_options o = { .model = trainer_gpt2, .plan = plan, .devices = 1, .gpus = 1, .steps = 1, .on_end = change_source };
	if (trainer_train(&o, &loss, &err))
		fail_msg("%s", err.text);
}

/* What the job says of how exact sums are is in the arguments of every call. */
static int check_args(void *context, const struct hspmd_program *p, const struct hspmd_executor *ex, struct hspmd_device *device,
                      struct hspmd_error *err)
{
	const struct trainer_options *o = context;
	(void)ex;
	(void)device;
	(void)err;
	for (size_t i = 0; i < p->instruction_count; i++) {
		struct hspmd_kernel_args args;
		if (p->instructions[i].kind == HSPMD_INSTRUCTION_READ || p->instructions[i].kind == HSPMD_INSTRUCTION_COMM)
			continue;
		hspmd_program_kernel_args(p, &p->instructions[i], NULL, &args);
		assert_true(args.any_order == o->any_order && args.tf32 == o->tf32);
	}
	return 0;
}

static void jobs_say_how_exact(void **state)
{
	(void)state;
	static const char job[] = "{\"data\":{\"lengths\":[8,16]}}";
	char plan[512];
	snprintf(plan, sizeof plan, PLAN, 5);
	for (int how = 0; how < 4; how++) {
		struct hspmd_error err = { "" };
		double loss;
		struct trainer_options o = {
			.model = trainer_gpt2,
			.plan = plan,
			.devices = 1,
			.gpus = 1,
			.steps = 1,
			.tf32 = how & 1,
			.any_order = how & 2,
			.documents = true,
			.job = job,
			.on_end = check_args,
		};
		o.context = &o;
		if (trainer_train(&o, &loss, &err))
			fail_msg("%s", err.text);
	}
}

/* One launch for the passes, one for the updates, and a copy of each of the totals, which the host waits for: whatever the length of the
 * program, and although losses have a factor of the step. */
#define MANY 4

static int count_losses(void *context, const struct hspmd_program *p, const struct hspmd_executor *ex, struct hspmd_device *device,
                        struct hspmd_error *err)
{
	(void)context, (void)ex, (void)device, (void)err;
	losses_counted = p->loss_count;
	return 0;
}

static void a_step_is_two_launches(void **state)
{
	(void)state;
	static const struct {
		const char *config;
		int layers;
	} models[] = { { trainer_gpt2, 5 }, { trainer_llama, 5 }, { trainer_mixtral, 4 } };
	if (!gpu_is_emulated())
		skip(); /* a real one does not count */
	for (int i = 0; i < 6; i++) {
		bool beside = i & 1;
		long counts[4][EMULATE_COUNTS];
		double losses[2 * MANY];
		char plan[512];
		struct hspmd_error err = { "" };
		snprintf(plan, sizeof plan, PLAN, models[i / 2].layers);
		struct trainer_options o = { .model = models[i / 2].config,
			                     .plan = plan,
			                     .devices = 1,
			                     .gpus = 1,
			                     .bf16 = true,
			                     .masked = i % 3,
			                     .on_end = count_losses };
		setenv("HSPMD_CUDA_BESIDE", beside ? "1" : "0", 1);
		setenv("HSPMD_CUDA_GRAPHS", "1", 1);
		setenv("HSPMD_CUDA_PRODUCTS_BESIDE", "1", 1); /* what is measured could differ from one training to the next */
		most_waits = asked_later = 0;
		for (int k = 0; k < 3; k++) { /* the first measures algorithms */
			o.steps = k < 2 ? MANY : 2 * MANY;
			if (trainer_train(&o, losses, &err))
				fail_msg("%s", err.text);
			gpu_counts(counts[k]);
		}
		long steps = (counts[2][EMULATE_ASKED] - counts[1][EMULATE_ASKED]) - (counts[1][EMULATE_ASKED] - counts[0][EMULATE_ASKED]);
		printf("updates %s the next step: %.2f things asked per step, %ld waits\n", beside ? "beside" : "before",
		       (double)steps / MANY, most_waits);
		/* beside: its stream waits for the passes, which is a thing asked, too */
		assert_int_equal(steps, MANY * (2 + beside + 1 + losses_counted));
		assert_int_equal(most_waits, 1);
		assert_int_equal(asked_later, 0); /* the update did not wait for the host to learn the norm */
	}
	unsetenv("HSPMD_CUDA_BESIDE");
	unsetenv("HSPMD_CUDA_GRAPHS");
	unsetenv("HSPMD_CUDA_PRODUCTS_BESIDE");
}

/* The device clips, rates and rounds with the bits of a host that knows the norm before it asks for the update. */
static void the_device_knows_the_step(void **state)
{
	(void)state;
	static const char *const jobs[] = { NULL, "{\"data\":{\"lengths\":[8,14,16]}}", "{\"optimizer\":{\"type\":\"lion\"}}" };
	unsigned begin, end;
	draw_few(4, 12, &begin, &end);
	for (unsigned i = begin; i < end; i++) {
		double losses[2][2 * STEPS];
		uint64_t sums[2] = { 0, 0 };
		for (int k = 0; k < 2; k++) {
			struct hspmd_error err = { "" };
			char plan[512];
			snprintf(plan, sizeof plan, PLAN, 5);
			struct trainer_options o = { .model = i % 2 ? trainer_gpt2 : trainer_llama,
				                     .plan = plan,
				                     .devices = 1,
				                     .gpus = 1,
				                     .steps = 2 * STEPS,
				                     .bf16 = i / 2 % 2,
				                     .stochastic = i / 2 % 2 && i / 4 % 2,
				                     .documents = i % 3 == 1,
				                     .masked = i / 3 % 2,
				                     .clip = i < 9 ? 0.3 : 0,
				                     .job = jobs[i % 3],
				                     .on_end = trainer_sum_parameters,
				                     .context = &sums[k] };
			setenv("HSPMD_CUDA_BESIDE", i / 4 % 2 ? "1" : "0", 1);
			setenv("HSPMD_CUDA_GRAPHS", i / 6 ? "1" : "0", 1);
			in_three = k;
			if (trainer_train(&o, losses[k], &err))
				fail_msg("%s", err.text);
		}
		assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
		assert_true(sums[0] == sums[1]);
	}
	in_three = false;
	unsetenv("HSPMD_CUDA_BESIDE");
	unsetenv("HSPMD_CUDA_GRAPHS");
}

/* Passes without an update leave the state alone; and of an update that was asked for but not seen to end, the executor says so. */
static int hang(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                struct hspmd_error *err)
{
	struct hspmd_executor *ex = (struct hspmd_executor *)(uintptr_t)executor;
	struct hspmd_totals all = { 0 };
	struct hspmd_step_times times;
	uint64_t sums[2] = { 0, 0 };
	(void)context;
	if (trainer_sum_parameters(&sums[0], p, ex, device, err))
		return -1;
	loss_with(ex, NULL, 1);
	if (trainer_sum_parameters(&sums[1], p, ex, device, err))
		return -1;
	assert_true(sums[0] == sums[1]);
	assert_false(hspmd_executor_is_torn(ex));
	char path[] = "/tmp/hspmd-hang-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	setenv("HSPMD_EMULATE_HANG", path, 1);
	setenv("HSPMD_CUDA_WAIT_S", "0.01", 1);
	assert_int_equal(__real_hspmd_executor_step(ex, 1, &all, &times, err), -1);
	assert_non_null(strstr(err->text, "the GPU has not done its work for"));
	assert_true(hspmd_executor_is_torn(ex));
	unlink(path);
	unsetenv("HSPMD_EMULATE_HANG");
	unsetenv("HSPMD_CUDA_WAIT_S");
	return 0;
}

static void an_update_without_an_end_is_torn(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	double loss;
	char plan[512];
	if (!gpu_is_emulated())
		skip(); /* a real one does not hang when told to */
	snprintf(plan, sizeof plan, PLAN, 5);
	struct trainer_options o = { .model = trainer_gpt2, .plan = plan, .devices = 1, .gpus = 1, .steps = 1, .on_end = hang };
	if (trainer_train(&o, &loss, &err))
		fail_msg("%s", err.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_decide_nothing),
		cmocka_unit_test(each_length_is_captured_once),
		cmocka_unit_test(updates_run_beside),
		cmocka_unit_test(samples_are_read_ahead),
		cmocka_unit_test(sources_are_kept_apart),
		cmocka_unit_test(jobs_say_how_exact),
		cmocka_unit_test(a_step_is_two_launches),
		cmocka_unit_test(the_device_knows_the_step),
		cmocka_unit_test(an_update_without_an_end_is_torn),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	struct hspmd_device *gpu = gpu_open();
	gpu->ops->close(gpu);
	return cmocka_run_group_tests_name("prepared", tests, NULL, NULL);
}
