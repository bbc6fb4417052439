/* SPDX-License-Identifier: Apache-2.0 */
/* Communication steps against a plain reference (comm_scene.h). The memory of odd members' devices cannot be accessed by the CPU, so
 * that both staging and in-place transfers are tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/comm.h"
#include "runtime/comm/comm_internal.h"
#include "tests/unit/comm_scene.h"

/* ---- a test device: unless its memory is the host's, its addresses are off by FAR */

#define FAR ((uintptr_t)1 << 56)

struct test_device {
	struct hspmd_device base;
	uintptr_t shift;
};

static char *reach(struct hspmd_device *d, const void *p)
{
	return (char *)((uintptr_t)p - ((struct test_device *)d)->shift);
}

static void *device_allocate(struct hspmd_device *d, size_t bytes, struct hspmd_error *err)
{
	char *p = malloc(bytes + 1);
	if (!p)
		hspmd_fail_memory(err, "testing");
	return p ? (void *)((uintptr_t)p + ((struct test_device *)d)->shift) : NULL;
}

static void device_release(struct hspmd_device *d, void *data)
{
	free(reach(d, data));
}

static int device_to_device(struct hspmd_device *d, void *dst, const void *host, size_t bytes, struct hspmd_error *err)
{
	(void)err;
	memcpy(reach(d, dst), host, bytes);
	return 0;
}

static int device_to_host(struct hspmd_device *d, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	(void)err;
	memcpy(host, reach(d, src), bytes);
	return 0;
}

static int device_zero(struct hspmd_device *d, void *dst, size_t bytes, struct hspmd_error *err)
{
	(void)err;
	memset(reach(d, dst), 0, bytes);
	return 0;
}

static int device_copy_box(struct hspmd_device *d, void *dst, const struct hspmd_box *dst_box, const void *src,
                           const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                           struct hspmd_error *err)
{
	(void)err;
	if (add)
		scene_add_box((float *)reach(d, dst), dst_box, (const float *)reach(d, src), src_box, part);
	else
		hspmd_box_copy(reach(d, dst), dst_box, reach(d, src), src_box, part, dtype == HSPMD_BF16 ? 2 : 4);
	return 0;
}

static const struct hspmd_device_ops near_ops = {
	.name = "near",
	.host_memory = true,
	.allocate = device_allocate,
	.release = device_release,
	.to_device = device_to_device,
	.to_host = device_to_host,
	.zero = device_zero,
	.copy_box = device_copy_box,
};
static const struct hspmd_device_ops far_ops = {
	.name = "far",
	.host_memory = false,
	.allocate = device_allocate,
	.release = device_release,
	.to_device = device_to_device,
	.to_host = device_to_host,
	.zero = device_zero,
	.copy_box = device_copy_box,
};

static struct hspmd_device *open_device(int rank)
{
	struct test_device *d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	*d = (struct test_device){ .base.ops = rank % 2 ? &far_ops : &near_ops, .shift = rank % 2 ? FAR : 0 };
	return &d->base;
}

static void close_device(struct hspmd_device *dev)
{
	free(dev);
}

static void test_sums(void **state)
{
	(void)state;
	scene_sums(120);
}

static void test_gathers(void **state)
{
	(void)state;
	scene_gathers(120);
}

static void test_batched(void **state)
{
	(void)state;
	scene_batched(120);
}

static void test_local_and_pair(void **state)
{
	(void)state;
	scene_local_and_pair(90);
}

/* ---- sums of the other types */

static void test_add(void **state)
{
	(void)state;
	/* 1 + 2^-8 + 2^-8: if the sum is rounded to BF16 in between, each addend is lost; both together are not. */
	uint16_t one = 0x3f80, tiny = 0x3b80, sum = 0;
	const void *b[] = { &one, &tiny, &tiny };
	hspmd_comm_add(HSPMD_BF16, &sum, b, 3, 1);
	assert_int_equal(sum, 0x3f81);
	uint16_t nan = 0x7f81, huge = 0x7f7f, out[1];
	hspmd_comm_add(HSPMD_BF16, out, (const void *[]){ &nan, &one }, 2, 1);
	assert_true((out[0] & 0x7f80) == 0x7f80 && out[0] & 0x7f);
	hspmd_comm_add(HSPMD_BF16, out, (const void *[]){ &huge, &huge }, 2, 1);
	assert_int_equal(out[0], 0x7f80);
	double d[3] = { 1e16, 1, -1e16 }, sum64;
	hspmd_comm_add(HSPMD_F64, &sum64, (const void *[]){ &d[0], &d[1], &d[2] }, 3, 1);
	assert_true(sum64 == (1e16 + 1) - 1e16);
	int32_t i[2] = { 2147483647, 2 }, wrapped;
	hspmd_comm_add(HSPMD_I32, &wrapped, (const void *[]){ &i[0], &i[1] }, 2, 1);
	assert_int_equal(wrapped, -2147483647);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sums),           cmocka_unit_test(test_gathers), cmocka_unit_test(test_batched),
		cmocka_unit_test(test_local_and_pair), cmocka_unit_test(test_add),
	};
	static struct scene_ground ground = { .open = open_device, .close = close_device, .longest = 1500 };
	scene_use(&ground);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
