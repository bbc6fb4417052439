/* SPDX-License-Identifier: Apache-2.0 */
/* What a step of training on the CUDA device waits for, allocates and copies (counted on the emulated device). Also reads that run
 * concurrently with the kernels: they get the bytes that were there, without waiting for any kernel. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/state/checkpoint.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/trainer.h"

#define STEPS 4
#define MICRO_BATCHES 4
#define ELEMENTS 300000 /* more than a piece of pinned memory holds */

static const char plan[] = "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_"
                           "stage\":0,\"pipelines\":["
                           "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}";

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static void train(int steps, long counts[EMULATE_COUNTS])
{
	struct trainer_options o = { .model = trainer_gpt2, .plan = plan, .devices = 1, .steps = steps, .gpus = 1 };
	struct hspmd_error err;
	double losses[2 * STEPS];
	long before[EMULATE_COUNTS];
	gpu_counts(before);
	must(trainer_train(&o, losses, &err), &err);
	gpu_counts(counts);
	for (int i = 0; i < EMULATE_COUNTS; i++)
		counts[i] -= before[i];
}

/* Counts what additional steps cost, independent of the start and the end of the training. */
static void a_step(void **state)
{
	(void)state;
	if (!gpu_is_emulated())
		skip();
	for (int graphs = 0; graphs < 2; graphs++) {
		long some[EMULATE_COUNTS], more[EMULATE_COUNTS];
		setenv("HSPMD_CUDA_GRAPHS", graphs ? "1" : "0", 1);
		train(STEPS, some);
		train(2 * STEPS, more);
		for (int i = 0; i < EMULATE_COUNTS; i++) {
			assert_int_equal((more[i] - some[i]) % STEPS, 0);
			more[i] = (more[i] - some[i]) / STEPS;
		}
		printf("a step, graphs %s: asked %ld times, waited %ld, allocated %ld, copied %ld, beside %ld\n", graphs ? "on" : "off",
		       more[EMULATE_ASKED], more[EMULATE_WAITS], more[EMULATE_ALLOCATIONS], more[EMULATE_COPIES],
		       more[EMULATE_COPIES_BESIDE]);
		assert_int_equal(more[EMULATE_WAITS], 1); /* for the totals that are voted on */
		assert_int_equal(more[EMULATE_ALLOCATIONS], 0);
		/* The norm and the loss; and unless the graph does it, the step's values for the passes and for the update, tokens and
		 * targets. */
		assert_int_equal(more[EMULATE_COPIES], graphs ? 2 : 2 + 2 + 2 * MICRO_BATCHES);
		assert_int_equal(more[EMULATE_COPIES_BESIDE], 0);
	}
	unsetenv("HSPMD_CUDA_GRAPHS");
}

/* ---- concurrently with the kernels */

static struct hspmd_device *gpu;
static float *host;

static void *on_gpu(void)
{
	struct hspmd_error err;
	void *data = gpu->ops->allocate(gpu, ELEMENTS * sizeof(float), &err);
	must(!data, &err);
	must(gpu->ops->zero(gpu, data, ELEMENTS * sizeof(float), &err), &err); /* so that the stream counts as one that computes */
	must(gpu->ops->to_device(gpu, data, host, ELEMENTS * sizeof(float), &err), &err);
	return data;
}

static void open_gpu(void)
{
	host = malloc(ELEMENTS * sizeof *host);
	assert_non_null(host);
	for (int i = 0; i < ELEMENTS; i++)
		host[i] = (float)i;
	gpu = gpu_open();
}

static void close_gpu(void)
{
	gpu->ops->close(gpu);
	free(host);
}

static void fill(void *data)
{
	struct hspmd_op_attr attr = { .scale = -1 };
	struct hspmd_kernel_args args = { .attr = &attr, .output_count = 1 };
	struct hspmd_error err;
	args.out[0] = (struct hspmd_view){ .data = data, .dtype = HSPMD_F32, .rank = 1, .shape = { ELEMENTS }, .full = { ELEMENTS } };
	must(gpu->ops->run(gpu, HSPMD_OP_FILL, &args, &err), &err);
}

/* The emulated device does a stream's work only when someone waits for it, and the host can read its memory. */
static void check_waiting(const float *data)
{
	if (gpu_is_emulated())
		assert_true(data[0] == 0 && data[ELEMENTS - 1] == (float)(ELEMENTS - 1));
}

static void check_filled(const void *data)
{
	float *got = malloc(ELEMENTS * sizeof *got);
	struct hspmd_error err;
	assert_non_null(got);
	must(gpu->ops->to_host(gpu, got, data, ELEMENTS * sizeof *got, &err), &err);
	for (int i = 0; i < ELEMENTS; i++)
		assert_true(got[i] == -1);
	free(got);
}

struct reading {
	const void *from;
	float *to;
	int status;
	struct hspmd_error err;
};

static void *read_beside(void *argument)
{
	struct reading *r = argument;
	r->status = gpu->ops->to_host_concurrent(gpu, r->to, r->from, ELEMENTS * sizeof(float), &r->err);
	return NULL;
}

static void beside_kernels(void **state)
{
	(void)state;
	struct hspmd_error err;
	pthread_t thread;
	open_gpu();
	void *kept = on_gpu(), *changed = on_gpu();
	struct reading r = { .from = kept, .to = calloc(ELEMENTS, sizeof(float)) };
	assert_non_null(r.to);
	must(gpu->ops->synchronise(gpu, &err), &err);
	fill(changed);
	assert_int_equal(pthread_create(&thread, NULL, read_beside, &r), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	must(r.status, &r.err);
	assert_memory_equal(r.to, host, ELEMENTS * sizeof(float));
	check_waiting(changed);
	check_filled(changed);
	gpu->ops->release(gpu, kept);
	gpu->ops->release(gpu, changed);
	free(r.to);
	close_gpu();
}

/* A checkpoint's writer reads the state while kernels of the next step are pending; changes after it releases the state do not affect the
 * checkpoint. */
static void snapshot(void **state)
{
	(void)state;
	char folder[] = "/tmp/hspmd-copies-XXXXXX", command[64];
	const char *locations[] = { folder };
	struct hspmd_writer_job job = {
		.step = 3, .generation = 1, .file = "n-0.safetensors", .node = "n", .locations = locations, .location_count = 1
	};
	struct hspmd_error err;
	json_t *report;
	long before[EMULATE_COUNTS], after[EMULATE_COUNTS];
	size_t bytes;
	assert_non_null(mkdtemp(folder));
	open_gpu();
	void *kept = on_gpu(), *changed = on_gpu();
	struct hspmd_state_slice slice = {
		.tensor = "h.0.w",
		.kind = HSPMD_STATE_PARAM,
		.dtype = HSPMD_F32,
		.shape = { .rank = 1, .dim = { ELEMENTS } },
		.box = { 1, { 0 }, { ELEMENTS } },
		.data = kept,
	};
	struct hspmd_writer *w = hspmd_writer_create(gpu, &err);
	must(!w, &err);
	gpu_counts(before);
	must(hspmd_writer_begin(w, &job, &slice, 1, &err), &err);
	fill(changed);
	assert_int_equal(hspmd_writer_result(w, 60, &report, &err), 1);
	gpu_counts(after);
	check_waiting(changed);
	if (gpu_is_emulated())
		assert_true(after[EMULATE_COPIES] == before[EMULATE_COPIES] &&
		            after[EMULATE_COPIES_BESIDE] > before[EMULATE_COPIES_BESIDE]);
	must(hspmd_writer_wait_copied(w, &err), &err);
	fill(kept);
	check_filled(kept);
	check_filled(changed);
	const void *image = hspmd_writer_image(w, &bytes);
	assert_non_null(image);
	assert_non_null(memmem(image, bytes, host, ELEMENTS * sizeof *host));
	json_decref(report);
	hspmd_writer_destroy(w);
	gpu->ops->release(gpu, kept);
	gpu->ops->release(gpu, changed);
	close_gpu();
	snprintf(command, sizeof command, "rm -r %s", folder);
	assert_int_equal(system(command), 0);
}

/* A part of a GPU is asked for by either name of the variable, the newer one first; 0 is no part. The emulated GPU cannot be divided. */
static void parts_of_a_gpu(void **state)
{
	static const char *const names[] = { "HSPMD_CUDA_SM_PARTITION", "HSPMD_CUDA_SHARES" };
	struct hspmd_error err = { "" };
	const struct hspmd_device_ops *ops = hspmd_device_find("cuda", &err);
	struct hspmd_device *dev;
	(void)state;
	if (!gpu_is_emulated())
		skip();
	assert_non_null(ops);
	for (size_t i = 0; i < 2; i++) {
		setenv(names[i], "0,44", 1);
		assert_int_equal(ops->open(&dev, 1, 0, &err), -1);
		assert_non_null(strstr(err.text, "HSPMD_CUDA_SM_PARTITION: built without green contexts"));
		for (int whole = 0; whole < 3; whole += 2) { /* also beyond the list */
			must(ops->open(&dev, whole, 0, &err), &err);
			dev->ops->close(dev);
		}
		unsetenv(names[i]);
	}
	setenv(names[0], "0,0", 1);
	setenv(names[1], "44,44", 1);
	must(ops->open(&dev, 1, 0, &err), &err);
	dev->ops->close(dev);
	unsetenv(names[0]);
	unsetenv(names[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_step), cmocka_unit_test(beside_kernels), cmocka_unit_test(snapshot),
		                            cmocka_unit_test(parts_of_a_gpu) };
	setenv("HSPMD_CUDA_TUNE", "0", 0);
	gpu = gpu_open(); /* skips the tests if there is no GPU */
	gpu->ops->close(gpu);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
