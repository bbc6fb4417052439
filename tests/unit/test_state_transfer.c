/* SPDX-License-Identifier: Apache-2.0 */
/* Executing planned moves of state: every slice arrives; a peer that does not take part is named, and the memory that its message would
 * write outlives the call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "runtime/generation/state_transfer.h"

#define MEMBERS 3
#define ROWS 64

/* Tensor t of a member: ROWS numbers. */
struct member {
	struct hspmd_transport *t;
	int rank;
	float held[2][ROWS];
	const struct hspmd_planned_move *moves;
	size_t count;
	struct hspmd_state_transfer_report report;
	struct hspmd_error err;
	int status;
};

static const size_t element_bytes[] = { sizeof(float), sizeof(float) };

static int get(void *context, int tensor, const struct hspmd_box *box, bool own, void *host, struct hspmd_error *err)
{
	struct member *m = context;
	(void)own, (void)err;
	memcpy(host, &m->held[tensor][box->lo[0]], (size_t)(box->hi[0] - box->lo[0]) * sizeof(float));
	return 0;
}

static int put(void *context, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err)
{
	struct member *m = context;
	(void)err;
	memcpy(&m->held[tensor][box->lo[0]], host, (size_t)(box->hi[0] - box->lo[0]) * sizeof(float));
	return 0;
}

static void open_all(struct member *members, double timeout_s)
{
	static char names[MEMBERS][64] = { "n0:0", "n1:0", "n2:0" };
	struct hspmd_address at[MEMBERS];
	struct hspmd_error err = { "" };
	for (int r = 0; r < MEMBERS; r++) {
		struct hspmd_transport_options o = { .rank = r, .size = MEMBERS, .timeout_s = timeout_s, .names = names };
		members[r].rank = r;
		assert_int_equal(hspmd_transport_memory.open(&o, &members[r].t, &err), 0);
		assert_int_equal(hspmd_transport_memory.address(members[r].t, &at[r], &err), 0);
	}
	for (int r = 0; r < MEMBERS; r++)
		assert_int_equal(hspmd_transport_memory.connect(members[r].t, at, &err), 0);
	for (int r = 0; r < MEMBERS; r++)
		free(at[r].data);
}

static void close_all(struct member *members)
{
	for (int r = 0; r < MEMBERS; r++)
		hspmd_transport_memory.close(members[r].t);
}

static void *run(void *argument)
{
	struct member *m = argument;
	struct hspmd_state_endpoint end = { .context = m, .get = get, .put = put };
	m->status = hspmd_state_transfer_run(m->t, m->rank, m->moves, m->count, element_bytes, &end, &m->report, &m->err);
	return NULL;
}

static struct hspmd_planned_move move(int tensor, int from, int to, int lo, int hi)
{
	return (struct hspmd_planned_move){ tensor, from, to, { .rank = 1, .lo = { lo }, .hi = { hi } } };
}

static void every_slice_arrives(void **state)
{
	(void)state;
	struct member members[MEMBERS] = { 0 };
	struct hspmd_planned_move moves[] = { move(0, 0, 0, 0, 8), move(0, 0, 1, 8, 40), move(1, 0, 1, 3, 4), move(1, 1, 0, 0, 3),
		                              move(0, 2, 1, 40, 64) };
	pthread_t threads[MEMBERS];
	open_all(members, 60);
	for (int r = 0; r < MEMBERS; r++)
		for (int i = 0; i < 2 * ROWS; i++)
			members[r].held[i / ROWS][i % ROWS] = (float)(1000 * r + i);
	for (int r = 0; r < MEMBERS; r++) {
		members[r].moves = moves;
		members[r].count = sizeof moves / sizeof *moves;
		assert_int_equal(pthread_create(&threads[r], NULL, run, &members[r]), 0);
	}
	for (int r = 0; r < MEMBERS; r++) {
		pthread_join(threads[r], NULL);
		if (members[r].status)
			fail_msg("member %d: %s", r, members[r].err.text);
	}
	for (int i = 0; i < ROWS; i++) {
		assert_float_equal(members[1].held[0][i], (i < 8 ? 1000 : i < 40 ? 0 : 2000) + i, 0);
		assert_float_equal(members[0].held[1][i], (i < 3 ? 1000 : 0) + ROWS + i, 0);
	}
	assert_int_equal(members[1].report.bytes_received, 57 * (int)sizeof(float));
	assert_int_equal(members[1].report.bytes_sent, 3 * (int)sizeof(float));
	assert_int_equal(members[0].report.bytes_local, 8 * (int)sizeof(float));
	close_all(members);
}

/* A member that is left alone has no transport. */
static void a_member_alone(void **state)
{
	(void)state;
	struct member alone = { 0 };
	struct hspmd_planned_move moves[] = { move(0, 0, 0, 0, 8), move(1, 0, 0, 3, 4) };
	alone.moves = moves;
	alone.count = sizeof moves / sizeof *moves;
	run(&alone);
	assert_int_equal(alone.status, 0);
	assert_int_equal(alone.report.bytes_local, 9 * (int)sizeof(float));
	alone.count = 0;
	run(&alone);
	assert_int_equal(alone.status, 0);
}

/* Only member 0 calls the function. */
static void a_peer_that_does_not_come(void **state)
{
	(void)state;
	struct member members[MEMBERS] = { 0 };
	struct hspmd_planned_move from = move(0, 2, 0, 0, 16), both[] = { move(0, 0, 1, 0, 8), move(1, 2, 0, 0, 16) };
	open_all(members, 0.05);
	members[0].moves = &from;
	members[0].count = 1;
	run(&members[0]);
	assert_int_equal(members[0].status, -1);
	assert_string_equal(members[0].err.text, "moving state: waited 0.05 s for 64 bytes from n2:0, slices 0 to 0 of 1");
	members[0].moves = both;
	members[0].count = 2;
	run(&members[0]);
	assert_int_equal(members[0].status, -1);
	assert_string_equal(members[0].err.text, "moving state: waited 0.05 s for 32 bytes to n1:0, slices 0 to 0 of 1");
	/* Abandoned messages may still be read and written: both ends must exist until they are closed. */
	members[2].moves = &from;
	members[2].count = 1;
	run(&members[2]);
	close_all(members);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_slice_arrives), cmocka_unit_test(a_member_alone),
		                            cmocka_unit_test(a_peer_that_does_not_come) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
