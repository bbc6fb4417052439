/* SPDX-License-Identifier: Apache-2.0 */
/* Unequal parts of one GPU (HSPMD_CUDA_SM_PARTITION) on the emulated driver: parts that overlap, are larger or smaller than asked for
 * without need, or are cut in a way that a driver refuses. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device/cuda/sm_partition.h"
#include "tests/gpu/emulate/driver_sm.h"

static const struct emulate_green_context *contexts;

/* The runtime is not needed here. */
cudaError_t cudaFree(void *data)
{
	(void)data;
	return cudaSuccess;
}

static int open_part(const char *list, int index, struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	*cuda = (struct hspmd_cuda){ .multiprocessors = 132 };
	setenv("HSPMD_CUDA_SM_PARTITION", list, 1);
	return hspmd_cuda_sm_partition_open(cuda, index, err);
}

/* Opens all parts of a list, whose sizes the driver can give as `sizes`, and checks that no multiprocessor belongs to two. */
static void check_parts(const char *list, const int *sizes, int count)
{
	struct hspmd_cuda part[8];
	struct hspmd_error err = { "" };
	for (int i = 0; i < count; i++) {
		if (open_part(list, i, &part[i], &err))
			fail_msg("%s", err.text);
		assert_int_equal(part[i].multiprocessors, sizes[i]);
		assert_non_null(part[i].stream);
	}
	for (int m = 0; m < 132; m++) {
		int owners = 0;
		for (int i = 0; i < EMULATE_GREEN_CONTEXTS; i++)
			owners += contexts[i].open && contexts[i].has[m];
		assert_true(owners <= 1);
	}
	for (int i = 0; i < count; i++)
		hspmd_cuda_sm_partition_close(&part[i]);
	for (int i = 0; i < EMULATE_GREEN_CONTEXTS; i++)
		assert_false(contexts[i].open);
}

static void parts_are_cut_as_the_driver_allows(void **state)
{
	(void)state;
	check_parts("88,44", (int[]){ 88, 44 }, 2);
	check_parts("66,66", (int[]){ 64, 68 }, 2);
	check_parts("32,16,8,76", (int[]){ 32, 16, 8, 76 }, 4);
	check_parts("120,4", (int[]){ 120, 8 }, 2);
	check_parts("16,16", (int[]){ 16, 16 }, 2);
}

static void a_device_beyond_the_list_has_the_whole_gpu(void **state)
{
	struct hspmd_cuda cuda;
	(void)state;
	assert_int_equal(open_part("88", 1, &cuda, NULL), 0);
	assert_int_equal(cuda.multiprocessors, 132);
	assert_null(cuda.green_context);
}

static void parts_that_do_not_fit_are_an_error(void **state)
{
	struct hspmd_cuda cuda;
	struct hspmd_error err = { "" };
	(void)state;
	assert_int_equal(open_part("128,8", 1, &cuda, &err), 0); /* 4 are left */
	assert_int_equal(cuda.multiprocessors, 4);
	hspmd_cuda_sm_partition_close(&cuda);
	assert_int_equal(open_part("128,16,16", 1, &cuda, &err), -1);
	assert_non_null(strstr(err.text, "part 1 does not fit"));
	assert_int_equal(open_part("200,8", 0, &cuda, &err), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_are_cut_as_the_driver_allows),
		cmocka_unit_test(a_device_beyond_the_list_has_the_whole_gpu),
		cmocka_unit_test(parts_that_do_not_fit_are_an_error),
	};
	char path[4096];
	const char *build = getenv("builddir");
	snprintf(path, sizeof path, "%s/hspmd-driver-emulated.so", build ? build : ".");
	/* Its soname makes it the libcuda.so.1 that is opened later. */
	void *driver = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	contexts = driver ? dlsym(driver, "emulate_green_contexts") : NULL;
	if (!contexts) {
		printf("%s\n", dlerror());
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
