/* SPDX-License-Identifier: Apache-2.0 */
/* Communication steps against a plain reference (comm_scene.h). The memory of odd members' devices cannot be accessed by the CPU, so
 * that both staging and in-place transfers are tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
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

/* Sums that are made in several places have the bits of those that are made in one. */
static void test_sums_in_parts(void **state)
{
	(void)state;
	enum { MEMBERS = 40, ELEMENTS = 3000 };
	static const enum hspmd_dtype types[] = { HSPMD_F32, HSPMD_F64, HSPMD_I32, HSPMD_BF16 };
	static const size_t bytes[] = { 4, 8, 4, 2 };
	static double values[MEMBERS][ELEMENTS], whole[ELEMENTS], sum[ELEMENTS], parts[ELEMENTS]; /* room for any type */
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		const void *source[MEMBERS];
		for (int m = 0; m < MEMBERS; m++) {
			source[m] = values[m];
			for (int i = 0; i < ELEMENTS; i++) {
				uint32_t drawn = (uint32_t)(i * 2654435761u + (unsigned)m * 40503u) * 2246822519u;
				float f = (float)((double)drawn / 4294967296.0 - 0.4) * (float)(1 << m % 9);
				if (bytes[t] == 8)
					values[m][i] = (double)f * 1.1;
				else if (types[t] == HSPMD_F32)
					((float *)values[m])[i] = f;
				else if (types[t] == HSPMD_I32)
					((uint32_t *)values[m])[i] = drawn;
				else
					((uint16_t *)values[m])[i] = hspmd_bf16_from_float(f);
			}
		}
		hspmd_comm_add(types[t], whole, source, MEMBERS, ELEMENTS);
		hspmd_comm_sum_begin(types[t], sum, source[0], ELEMENTS, bytes[t]);
		for (int m = 1; m < MEMBERS; m++)
			hspmd_comm_sum_add(types[t], sum, source[m], ELEMENTS);
		hspmd_comm_sum_end(types[t], parts, sum, ELEMENTS, bytes[t]);
		assert_memory_equal(whole, parts, ELEMENTS * bytes[t]);
	}
}

/* ---- steps of many members: sums in the bits of one sum, all of them in no more memory than is planned */

enum { CHAIN = 18, CHAIN_ELEMENTS = 1200007 };

struct chain_member {
	pthread_t thread;
	int rank;
	enum hspmd_comm_kind kind;
	struct hspmd_transport *transport;
	uint16_t *in, *out;
	size_t left;           /* sends that have not ended after the step */
	int64_t held, planned; /* bytes of buffers */
	int rv;
	struct hspmd_error err;
};

/* Unequal ranges of a row, one of them empty. */
static struct hspmd_box range_of(int member)
{
	int64_t lo = member * (int64_t)(CHAIN_ELEMENTS / CHAIN) - 1000 * (member % 3);
	int64_t hi = member == CHAIN - 1 ? CHAIN_ELEMENTS : (member + 1) * (int64_t)(CHAIN_ELEMENTS / CHAIN) - 1000 * ((member + 1) % 3);
	return (struct hspmd_box){ .rank = 1, .lo = { lo }, .hi = { member == 5 ? lo : hi } };
}

enum { TABLE_ROWS = 1203, TABLE_COLUMNS = 2001 }; /* more than small steps of many members have */

/* The boxes of member `member`: of sums, a row and ranges of it; in an all-gather, unequal columns of a table, some of them empty, and all
 * of it; in an all-to-all, such columns, and rows. */
static void chain_boxes(enum hspmd_comm_kind kind, int member, struct hspmd_box *in, struct hspmd_box *out)
{
	struct hspmd_box table = { .rank = 2, .hi = { TABLE_ROWS, TABLE_COLUMNS } };
	bool sums = kind == HSPMD_COMM_ALL_REDUCE || kind == HSPMD_COMM_REDUCE_SCATTER;
	*in = *out = sums ? (struct hspmd_box){ .rank = 1, .hi = { CHAIN_ELEMENTS } } : table;
	if (kind == HSPMD_COMM_REDUCE_SCATTER)
		*out = range_of(member);
	if (sums)
		return;
	in->lo[1] = member == 5 ? 0 : TABLE_COLUMNS * member / CHAIN + member % 3;
	in->hi[1] = member == 5 ? 0 : member == CHAIN - 1 ? TABLE_COLUMNS : TABLE_COLUMNS * (member + 1) / CHAIN + (member + 1) % 3;
	if (kind == HSPMD_COMM_ALL_TO_ALL) {
		out->lo[0] = TABLE_ROWS * member / CHAIN;
		out->hi[0] = TABLE_ROWS * (member + 1) / CHAIN;
	}
}

static void *run_chain_member(void *arg)
{
	struct chain_member *m = arg;
	int devices[CHAIN], rank_of[CHAIN];
	struct hspmd_box in[CHAIN], out[CHAIN];
	for (int i = 0; i < CHAIN; i++) {
		devices[i] = rank_of[i] = i;
		chain_boxes(m->kind, i, &in[i], &out[i]);
	}
	struct hspmd_layout layout[2] = { { CHAIN, devices, in }, { CHAIN, devices, out } };
	struct hspmd_transfer t = { .element_bytes = 2, .value_count = 2, .layout = layout };
	struct hspmd_comm_step step = {
		.kind = m->kind, .input = 0, .output = 1, .member_count = CHAIN, .members = devices, .in = in, .out = out
	};
	struct test_device device = { .base.ops = &near_ops };
	struct hspmd_comm *c = hspmd_comm_create(&device.base, m->transport, rank_of, CHAIN, m->rank, &m->err);
	m->rv = c ? hspmd_comm_run(c, &t, &step, HSPMD_BF16, m->in, m->out, 1 << 8, &m->err) : -1;
	m->left = c ? c->pending_count : 0;
	if (!m->rv)
		m->rv = hspmd_comm_flush(c, NULL, 0, &m->err);
	for (const struct hspmd_scratch *s = c ? c->pool : NULL; s; s = s->next)
		m->held += (int64_t)s->size;
	m->planned = hspmd_comm_scratch_bytes(&t, &step, m->rank, &m->err);
	hspmd_comm_destroy(c);
	return NULL;
}

/* Connects the members, and runs the step. */
static void run_chain_members(struct chain_member *member)
{
	struct hspmd_address address[CHAIN];
	struct hspmd_error err = { "" };
	for (int r = 0; r < CHAIN; r++) {
		struct hspmd_transport_options o = { .rank = r, .size = CHAIN, .timeout_s = 60 };
		assert_int_equal(hspmd_transport_memory.open(&o, &member[r].transport, &err), 0);
		assert_int_equal(hspmd_transport_memory.address(member[r].transport, &address[r], &err), 0);
	}
	for (int r = 0; r < CHAIN; r++)
		assert_int_equal(hspmd_transport_memory.connect(member[r].transport, address, &err), 0);
	for (int r = 0; r < CHAIN; r++)
		assert_int_equal(pthread_create(&member[r].thread, NULL, run_chain_member, &member[r]), 0);
	for (int r = 0; r < CHAIN; r++)
		pthread_join(member[r].thread, NULL);
	for (int r = 0; r < CHAIN; r++) {
		if (member[r].rv)
			fail_msg("rank %d: %s", r, member[r].err.text);
		free(address[r].data);
	}
}

static void clear_chain_members(struct chain_member *member)
{
	for (int r = 0; r < CHAIN; r++) {
		hspmd_transport_memory.close(member[r].transport);
		free(member[r].in);
		free(member[r].out);
	}
}

static void run_chain(enum hspmd_comm_kind kind)
{
	static struct chain_member member[CHAIN];
	const void *source[CHAIN];
	for (int r = 0; r < CHAIN; r++) {
		member[r] = (struct chain_member){ .rank = r, .kind = kind };
		member[r].in = calloc(CHAIN_ELEMENTS, 2);
		member[r].out = calloc(CHAIN_ELEMENTS, 2);
		for (int i = 0; i < CHAIN_ELEMENTS; i++)
			member[r].in[i] = hspmd_bf16_from_float((float)((i * 31 + r * 1017) % 4099 - 2000) * (float)(1 << r % 7));
		source[r] = member[r].in;
	}
	run_chain_members(member);
	uint16_t *want = calloc(CHAIN_ELEMENTS, 2);
	hspmd_comm_add(HSPMD_BF16, want, source, CHAIN, CHAIN_ELEMENTS);
	for (int r = 0; r < CHAIN; r++) {
		struct hspmd_box in, box;
		chain_boxes(kind, r, &in, &box);
		assert_memory_equal(member[r].out, want + box.lo[0], (size_t)(box.hi[0] - box.lo[0]) * 2);
		assert_true(kind == HSPMD_COMM_REDUCE_SCATTER || !member[r].left);
		assert_in_range(member[r].held, 1, member[r].planned);
		assert_in_range(member[r].planned, 1, 20 << 20); /* nine sums of a message, in F32, whatever CHAIN is */
	}
	clear_chain_members(member);
	free(want);
}

static uint16_t table_value(int64_t row, int64_t column)
{
	return (uint16_t)(row * 4099 + column * 31 + 1);
}

static bool is_in_part(enum hspmd_comm_kind kind, int64_t column)
{
	bool any = false;
	for (int r = 0; r < CHAIN; r++) {
		struct hspmd_box in, out;
		chain_boxes(kind, r, &in, &out);
		any |= column >= in.lo[1] && column < in.hi[1];
	}
	return any;
}

/* Each member gets what it needs of the columns that the members have, and nothing else is written. */
static void run_moves(enum hspmd_comm_kind kind)
{
	static struct chain_member member[CHAIN];
	struct hspmd_box in, out;
	for (int r = 0; r < CHAIN; r++) {
		chain_boxes(kind, r, &in, &out);
		member[r] = (struct chain_member){ .rank = r, .kind = kind };
		member[r].in = calloc((size_t)hspmd_box_elements(&in) + 1, 2);
		member[r].out = calloc((size_t)hspmd_box_elements(&out), 2);
		uint16_t *at = member[r].in;
		for (int64_t row = in.lo[0]; row < in.hi[0]; row++)
			for (int64_t column = in.lo[1]; column < in.hi[1]; column++)
				*at++ = table_value(row, column);
	}
	run_chain_members(member);
	for (int64_t column = 0; column < TABLE_COLUMNS; column++) {
		bool there = is_in_part(kind, column);
		for (int r = 0; r < CHAIN; r++) {
			chain_boxes(kind, r, &in, &out);
			for (int64_t row = out.lo[0]; row < out.hi[0]; row++)
				if (member[r].out[(row - out.lo[0]) * TABLE_COLUMNS + column] != (there ? table_value(row, column) : 0))
					fail_msg("rank %d: row %d, column %d", r, (int)row, (int)column);
		}
	}
	for (int r = 0; r < CHAIN; r++) {
		assert_int_equal(member[r].left, 0);
		assert_in_range(member[r].held, 1, member[r].planned);
		assert_in_range(member[r].planned, 1, 8 << 20); /* eight messages, whatever CHAIN is */
	}
	clear_chain_members(member);
}

static void test_chain(void **state)
{
	(void)state;
	run_chain(HSPMD_COMM_ALL_REDUCE);
	run_chain(HSPMD_COMM_REDUCE_SCATTER);
}

static void test_ring(void **state)
{
	(void)state;
	run_moves(HSPMD_COMM_ALL_GATHER);
	run_moves(HSPMD_COMM_ALL_TO_ALL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sums),           cmocka_unit_test(test_gathers), cmocka_unit_test(test_batched),
		cmocka_unit_test(test_local_and_pair), cmocka_unit_test(test_add),     cmocka_unit_test(test_sums_in_parts),
		cmocka_unit_test(test_chain),          cmocka_unit_test(test_ring),
	};
	static struct scene_ground ground = { .open = open_device, .close = close_device, .longest = 1500 };
	scene_use(&ground);
	/* Thousands of members have buffers, one after the other: the process keeps the memory. */
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
