/* SPDX-License-Identifier: Apache-2.0 */
/* An emulated GPU whose kernels fail or hang: a failure without its operator's name, a wait without an end, a device that is taken for
 * well after it has failed; and a step that waits for measurements of the next plan. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/gpu/gpu.h"

static char folder[] = "/tmp/hspmd-faults-XXXXXX";

/* Names a file in the environment variable; make: creates it. */
static void tell(const char *variable, bool make)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, variable);
	setenv(variable, path, 1);
	if (make)
		close(open(path, O_CREAT | O_WRONLY, 0600));
	else
		unlink(path);
}

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

/* A product of [rows, 64] with [64, 64] and its memory. */
struct product {
	struct hspmd_kernel_args args;
	struct hspmd_op_attr attr;
	void *memory;
};

static struct hspmd_view matrix(void *data, int64_t rows)
{
	return (struct hspmd_view){ .data = data, .dtype = HSPMD_BF16, .rank = 2, .shape = { rows, 64 }, .full = { rows, 64 } };
}

static void make_product(struct hspmd_device *gpu, struct product *p, int64_t rows)
{
	struct hspmd_error err;
	*p = (struct product){ .attr = { .scale = 1 } };
	p->memory = gpu->ops->allocate(gpu, (size_t)(2 * rows + 64) * 64 * 2, &err);
	assert_non_null(p->memory);
	must(gpu->ops->zero(gpu, p->memory, (size_t)(2 * rows + 64) * 64 * 2, &err), &err);
	p->args = (struct hspmd_kernel_args){ .attr = &p->attr, .input_count = 3, .output_count = 1 };
	p->args.in[0] = matrix(p->memory, rows);
	p->args.in[1] = matrix((char *)p->memory + rows * 128, 64);
	p->args.in[2] = (struct hspmd_view){ .rank = -1 };
	p->args.out[0] = matrix((char *)p->memory + (rows + 64) * 128, rows);
}

static int run_product(struct hspmd_device *gpu, struct product *p, struct hspmd_error *err)
{
	p->args.workspace_bytes = gpu->ops->workspace(gpu, HSPMD_OP_LINEAR, &p->args);
	void *workspace = p->args.workspace = p->args.workspace_bytes ? gpu->ops->allocate(gpu, p->args.workspace_bytes, err) : NULL;
	int status = gpu->ops->run(gpu, HSPMD_OP_LINEAR, &p->args, err);
	gpu->ops->release(gpu, workspace);
	return status;
}

static void *measure(void *context)
{
	void **both = context;
	struct hspmd_device *gpu = both[0];
	struct product *p = both[1];
	gpu->ops->workspace(gpu, HSPMD_OP_LINEAR, &p->args);
	return NULL;
}

/* While the algorithms of one shape are measured, another product runs. */
static void a_step_does_not_wait_for_measurements(void **state)
{
	struct hspmd_device *gpu = gpu_open();
	struct product known, unknown;
	struct hspmd_error err = { "" };
	long counts[EMULATE_COUNTS], before;
	pthread_t other;
	(void)state;
	make_product(gpu, &known, 24);
	make_product(gpu, &unknown, 40);
	must(run_product(gpu, &known, &err), &err);
	gpu_counts(counts);
	before = counts[EMULATE_HELD];
	tell("HSPMD_EMULATE_HOLD", true);
	assert_int_equal(pthread_create(&other, NULL, measure, (void *[]){ gpu, &unknown }), 0);
	for (int i = 0; i < 10000 && counts[EMULATE_HELD] == before; i++) {
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		gpu_counts(counts);
	}
	assert_int_equal(counts[EMULATE_HELD], before + 1);
	must(run_product(gpu, &known, &err), &err);
	tell("HSPMD_EMULATE_HOLD", false);
	pthread_join(other, NULL);
	gpu->ops->release(gpu, known.memory);
	gpu->ops->release(gpu, unknown.memory);
	gpu->ops->close(gpu);
}

static void a_wait_has_an_end(void **state)
{
	struct hspmd_device *gpu = gpu_open();
	struct hspmd_error err = { "" };
	(void)state;
	tell("HSPMD_EMULATE_HANG", true);
	setenv("HSPMD_CUDA_WAIT_S", "0.01", 1);
	assert_int_equal(gpu->ops->synchronise(gpu, &err), -1);
	assert_non_null(strstr(err.text, "the GPU has not done its work for"));
	tell("HSPMD_EMULATE_HANG", false);
	unsetenv("HSPMD_CUDA_WAIT_S");
	must(gpu->ops->synchronise(gpu, &err), &err);
	gpu->ops->close(gpu);
}

/* Last, because no device of this process works afterwards. */
static void a_failure_has_a_name_and_lasts(void **state)
{
	setenv("HSPMD_CUDA_CHECK", "1", 1);
	setenv("HSPMD_CUDA_TUNE", "0", 1); /* the operator itself is to fail */
	struct hspmd_device *gpu = gpu_open();
	struct product p;
	struct hspmd_error err = { "" };
	(void)state;
	make_product(gpu, &p, 24);
	must(gpu->ops->synchronise(gpu, &err), &err);
	must(gpu->ops->check(gpu, &err), &err);
	tell("HSPMD_EMULATE_FAULT", true);
	assert_int_equal(run_product(gpu, &p, &err), -1);
	assert_string_equal(err.text, "linear bf16[24,64] bf16[64,64] -> bf16[24,64]: the GPU: an illegal memory access was encountered");
	assert_int_equal(gpu->ops->check(gpu, &err), -1);
	assert_string_equal(err.text, "the GPU: an illegal memory access was encountered");
	gpu->ops->release(gpu, p.memory);
	gpu->ops->close(gpu);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_step_does_not_wait_for_measurements),
		cmocka_unit_test(a_wait_has_an_end),
		cmocka_unit_test(a_failure_has_a_name_and_lasts),
	};
	struct hspmd_device *gpu = gpu_open();
	gpu->ops->close(gpu);
	if (!gpu_is_emulated()) {
		printf("skipped: a real GPU does not fail when told to\n");
		return 77;
	}
	if (!mkdtemp(folder))
		return 1;
	for (size_t i = 0; i < 3; i++)
		tell((const char *const[]){ "HSPMD_EMULATE_HOLD", "HSPMD_EMULATE_HANG", "HSPMD_EMULATE_FAULT" }[i], false);
	int status = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(folder);
	return status;
}
