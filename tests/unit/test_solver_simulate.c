/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule's simulation against what can be computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>

#include "controller/solver/simulate.h"

#define CLOSE 1e-9

static double end_of(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule)
{
	struct hspmd_sim_result result = { 0 };
	assert_int_equal(hspmd_simulate(stages, count, micro_batches, schedule, &result), 0);
	return result.end;
}

/* Equal stages without transfers: m micro-batches and S - 1 of bubble (PipeDream-flush). */
static void equal_stages_follow_the_closed_form(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[8];
	for (int i = 0; i < 8; i++)
		stages[i] = (struct hspmd_sim_stage){ 1, 2, 0, 0 };
	for (int count = 1; count <= 8; count++)
		for (int m = 1; m <= 20; m++) {
			assert_float_equal(end_of(stages, count, m, HSPMD_SCHEDULE_1F1B), 3.0 * (m + count - 1), CLOSE);
			assert_float_equal(end_of(stages, count, m, HSPMD_SCHEDULE_GPIPE), 3.0 * (m + count - 1), CLOSE);
		}
}

/* Two stages, two micro-batches, by hand: F00 0-1, F01 1-2 | F10 1-4, B10 4-8, F11 8-11, B11 11-15 | B00 8-10, B01 15-17. */
static void unequal_stages_by_hand(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[2] = { { 1, 2, 0, 0 }, { 3, 4, 0, 0 } };
	struct hspmd_sim_op ops[12];
	double ends[2];
	struct hspmd_sim_result result = { .ops = ops, .stage_end = ends };
	assert_int_equal(hspmd_simulate(stages, 2, 2, HSPMD_SCHEDULE_1F1B, &result), 0);
	assert_float_equal(result.end, 17, CLOSE);
	assert_float_equal(ends[1], 15, CLOSE);
	assert_int_equal(hspmd_sim_op_count(2, 2), 12);
	for (int i = 0; i < 12; i++)
		if (ops[i].stage == 1 && ops[i].micro_batch == 1 && ops[i].kind == HSPMD_SIM_FORWARD)
			assert_float_equal(ops[i].start, 8, CLOSE);
}

/* A transfer delays the receiver and holds the sender: one micro-batch passes each border twice. */
static void transfers_are_part_of_the_cycle(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[2] = { { 1, 2, 0.5, 0 }, { 1, 2, 0, 0.25 } };
	assert_float_equal(end_of(stages, 2, 1, HSPMD_SCHEDULE_1F1B), 6.75, CLOSE);
	double per_cycle = (end_of(stages, 2, 101, HSPMD_SCHEDULE_1F1B) - end_of(stages, 2, 1, HSPMD_SCHEDULE_1F1B)) / 100;
	assert_true(per_cycle > 3.2);
}

static void in_flight_falls_along_the_pipeline(void **state)
{
	(void)state;
	assert_int_equal(hspmd_in_flight(0, 4, 8, HSPMD_SCHEDULE_1F1B), 4);
	assert_int_equal(hspmd_in_flight(3, 4, 8, HSPMD_SCHEDULE_1F1B), 1);
	assert_int_equal(hspmd_in_flight(0, 4, 2, HSPMD_SCHEDULE_1F1B), 2);
	assert_int_equal(hspmd_in_flight(3, 4, 8, HSPMD_SCHEDULE_GPIPE), 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_stages_follow_the_closed_form),
		cmocka_unit_test(unequal_stages_by_hand),
		cmocka_unit_test(transfers_are_part_of_the_cycle),
		cmocka_unit_test(in_flight_falls_along_the_pipeline),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
