/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation of schedules compared with results computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/schedule.h"
#include "controller/solver/sim/pipeline_memo.h"
#include "tests/unit/draw.h"

#define CLOSE 1e-9

static double end_of(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule)
{
	struct hspmd_pipeline_sim result = { 0 };
	assert_int_equal(hspmd_simulate(stages, count, micro_batches, schedule, &result), 0);
	return result.end;
}

/* Equal stages without transfers: m micro-batches and a bubble of S - 1 (PipeDream-flush). */
static void equal_stages_follow_the_closed_form(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[8];
	for (int i = 0; i < 8; i++)
		stages[i] = (struct hspmd_sim_stage){ 1, 2, 1, 0, 0 };
	for (int count = 1; count <= 8; count++)
		for (int m = 1; m <= 20; m++) {
			assert_float_equal(end_of(stages, count, m, HSPMD_SCHEDULE_1F1B), 3.0 * (m + count - 1), CLOSE);
			assert_float_equal(end_of(stages, count, m, HSPMD_SCHEDULE_GPIPE), 3.0 * (m + count - 1), CLOSE);
			if (m >= count) /* a third of the bubble (Zero Bubble Pipeline Parallelism, table 2) */
				assert_float_equal(end_of(stages, count, m, HSPMD_SCHEDULE_ZB_H1), 3.0 * m + count - 1, CLOSE);
		}
}

/* Two stages, two micro-batches, by hand: F00 0-1, F01 1-2 | F10 1-4, B10 4-8, F11 8-11, B11 11-15 | B00 8-10, B01 15-17. */
static void unequal_stages_by_hand(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[2] = { { 1, 2, 1, 0, 0 }, { 3, 4, 2, 0, 0 } };
	struct hspmd_sim_op ops[12];
	double ends[2];
	struct hspmd_pipeline_sim result = { .ops = ops, .stage_end = ends };
	assert_int_equal(hspmd_simulate(stages, 2, 2, HSPMD_SCHEDULE_1F1B, &result), 0);
	assert_float_equal(result.end, 17, CLOSE);
	assert_float_equal(ends[1], 15, CLOSE);
	assert_int_equal(hspmd_sim_op_count(2, 2, HSPMD_SCHEDULE_1F1B), 12);
	for (int i = 0; i < 12; i++)
		if (ops[i].stage == 1 && ops[i].micro_batch == 1 && ops[i].kind == HSPMD_SIM_FORWARD)
			assert_float_equal(ops[i].start, 8, CLOSE);
}

/* A transfer delays the receiver and occupies the sender: one micro-batch crosses each boundary twice. */
static void transfers_are_part_of_the_cycle(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[2] = { { 1, 2, 1, 0.5, 0 }, { 1, 2, 1, 0, 0.25 } };
	assert_float_equal(end_of(stages, 2, 1, HSPMD_SCHEDULE_1F1B), 6.75, CLOSE);
	double per_cycle = (end_of(stages, 2, 101, HSPMD_SCHEDULE_1F1B) - end_of(stages, 2, 1, HSPMD_SCHEDULE_1F1B)) / 100;
	assert_true(per_cycle > 3.2);
}

/* F00 0-1, F01 1-2 | F10 1-4, B10 4-6, F11 6-9, B11 9-11, W10 11-13, W11 13-15 | B00 6-7, W00 7-8, B01 11-12, W01 12-13. */
static void split_backward_by_hand(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[2] = { { 1, 2, 1, 0, 0 }, { 3, 4, 2, 0, 0 } };
	struct hspmd_sim_op ops[16];
	double ends[2], weights = 0;
	struct hspmd_pipeline_sim result = { .ops = ops, .stage_end = ends };
	assert_int_equal(hspmd_sim_op_count(2, 2, HSPMD_SCHEDULE_ZB_H1), 16);
	assert_int_equal(hspmd_simulate(stages, 2, 2, HSPMD_SCHEDULE_ZB_H1, &result), 0);
	assert_float_equal(result.end, 15, CLOSE);
	assert_float_equal(ends[0], 13, CLOSE);
	for (int i = 0; i < 16; i++)
		weights += ops[i].kind == HSPMD_SIM_WEIGHT_GRADS ? ops[i].end - ops[i].start : 0;
	assert_float_equal(weights, 6, CLOSE);
}

/* Full groups of micro-batches, equal chunks, no transfers: the bubble is that of one chunk (Megatron-LM, arXiv 2104.04473, section
 * 2.2). */
static void interleaving_shrinks_the_bubble(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[24];
	for (int i = 0; i < 24; i++)
		stages[i] = (struct hspmd_sim_stage){ .forward = 1, .backward = 2 };
	for (int ranks = 2; ranks <= 6; ranks++)
		for (int chunks = 2; chunks <= 4; chunks++)
			for (int groups = 1; groups <= 3; groups++) {
				struct hspmd_pipeline_sim result = { 0 };
				assert_int_equal(hspmd_simulate_interleaved(stages, ranks * chunks, chunks, groups * ranks, &result), 0);
				assert_float_equal(result.end, 3.0 * (chunks * groups * ranks + ranks - 1), CLOSE);
			}
}

/* Two ranks, two chunks, two micro-batches, a transfer of 0.5 each time a pass changes ranks: every operation is listed once, and no rank
 * runs two at the same time. */
static void interleaved_operations_do_not_overlap(void **state)
{
	(void)state;
	struct hspmd_sim_stage stages[4];
	struct hspmd_sim_op ops[28];
	double ends[4], least = 4 * 3 + 6 * 0.5; /* one micro-batch forward and backward through all stages */
	struct hspmd_pipeline_sim result = { .ops = ops, .stage_end = ends };
	for (int i = 0; i < 4; i++)
		stages[i] = (struct hspmd_sim_stage){ .forward = 1, .backward = 2, .send_forward = 0.5, .send_backward = 0.5 };
	assert_int_equal(hspmd_sim_op_count(4, 2, HSPMD_SCHEDULE_INTERLEAVED), 28);
	assert_int_equal(hspmd_simulate_interleaved(stages, 4, 2, 2, &result), 0);
	assert_true(result.end >= least);
	assert_float_equal(ends[0], result.end, CLOSE);
	for (int i = 0; i < 28; i++)
		for (int k = 0; k < i; k++)
			if (ops[i].stage % 2 == ops[k].stage % 2)
				assert_true(ops[i].start >= ops[k].end - CLOSE || ops[k].start >= ops[i].end - CLOSE);
}

static void in_flight_falls_along_the_pipeline(void **state)
{
	(void)state;
	assert_int_equal(hspmd_in_flight(0, 4, 8, HSPMD_SCHEDULE_1F1B), 4);
	assert_int_equal(hspmd_in_flight(3, 4, 8, HSPMD_SCHEDULE_1F1B), 1);
	assert_int_equal(hspmd_in_flight(0, 4, 2, HSPMD_SCHEDULE_1F1B), 2);
	assert_int_equal(hspmd_in_flight(3, 4, 8, HSPMD_SCHEDULE_GPIPE), 8);
	assert_int_equal(hspmd_in_flight(3, 4, 8, HSPMD_SCHEDULE_ZB_H1), 4);
}

/* The closed form compared with the order in which a stage runs its passes; with a split backward pass, saved activations stay until the
 * weight gradients are computed. */
static void in_flight_is_what_the_schedule_holds(void **state)
{
	(void)state;
	static const enum hspmd_schedule schedules[] = { HSPMD_SCHEDULE_1F1B, HSPMD_SCHEDULE_GPIPE, HSPMD_SCHEDULE_ZB_H1 };
	static struct hspmd_schedule_entry entries[3 * 20];
	for (int k = 0; k < 3; k++)
		for (int count = 1; count <= 6; count++)
			for (int m = 1; m <= 20; m++)
				for (int s = 0; s < count; s++) {
					struct hspmd_pipeline_rank rank = { s, count, 1, m };
					int now = 0, most = 0;
					hspmd_schedule(schedules[k], &rank, entries);
					for (int i = 0; i < hspmd_schedule_length(schedules[k], &rank); i++) {
						bool forward = !entries[i].backward && !entries[i].weights;
						now += forward ? 1 : entries[i].weights == (schedules[k] == HSPMD_SCHEDULE_ZB_H1) ? -1 : 0;
						most = now > most ? now : most;
					}
					assert_int_equal(now, 0);
					assert_int_equal(hspmd_in_flight(s, count, m, schedules[k]), most);
				}
}

static double fraction(unsigned *dice)
{
	*dice = *dice * 1103515245 + 12345;
	return (double)(*dice >> 16 & 0x7fff) / 0x7fff;
}

/* Random pipelines, half of which were there shortly before: what the simulation of all operations says, to the bit, is also said without a
 * list of them, and by a memo, whether it knows the pipeline or not. */
static void known_pipelines_take_as_long(void **state)
{
	(void)state;
	enum { MOST = 12, PARTS = 40 };
	static const enum hspmd_schedule schedules[] = { HSPMD_SCHEDULE_1F1B, HSPMD_SCHEDULE_GPIPE, HSPMD_SCHEDULE_ZB_H1 };
	static struct hspmd_sim_op ops[5 * MOST * PARTS];
	const unsigned count = draw_count(4000, 20000), first = draw_first(count, 20000);
	struct hspmd_pipeline_memo *memo = hspmd_pipeline_memo_new();
	assert_non_null(memo);
	for (unsigned i = 0; i < count; i++) {
		unsigned number = first + (i % 2 && i > 100 ? i - 101 : i), dice = 97 * number;
		struct hspmd_sim_stage stages[MOST];
		double listed[MOST], plain[MOST], known[MOST], end;
		struct hspmd_pipeline_run run = { stages, 1 + (int)(fraction(&dice) * (MOST - 1)), 1 + (int)(fraction(&dice) * (PARTS - 1)),
			                          schedules[(int)(fraction(&dice) * 2.99)] };
		size_t bytes = (size_t)run.count * sizeof *listed;
		for (int s = 0; s < run.count; s++) {
			double forward = 1 + fraction(&dice), backward = 2 * forward + fraction(&dice);
			stages[s] = (struct hspmd_sim_stage){ forward, backward, hspmd_sim_weight_grads(forward, backward), fraction(&dice),
				                              fraction(&dice) };
		}
		struct hspmd_pipeline_sim all = { .stage_end = listed, .ops = ops }, short_one = { .stage_end = plain };
		assert_int_equal(hspmd_simulate(stages, run.count, run.micro_batches, run.schedule, &all), 0);
		assert_int_equal(hspmd_simulate(stages, run.count, run.micro_batches, run.schedule, &short_one), 0);
		assert_int_equal(hspmd_pipeline_memo_simulate(memo, &run, known, &end), 0);
		if (all.end != short_one.end || all.end != end || memcmp(listed, plain, bytes) || memcmp(listed, known, bytes))
			fail_msg("pipeline %u: %.17g s, %.17g s without a list, %.17g s by the memo", number, all.end, short_one.end, end);
	}
	hspmd_pipeline_memo_destroy(memo);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_stages_follow_the_closed_form),  cmocka_unit_test(unequal_stages_by_hand),
		cmocka_unit_test(transfers_are_part_of_the_cycle),      cmocka_unit_test(split_backward_by_hand),
		cmocka_unit_test(interleaving_shrinks_the_bubble),      cmocka_unit_test(interleaved_operations_do_not_overlap),
		cmocka_unit_test(in_flight_is_what_the_schedule_holds), cmocka_unit_test(in_flight_falls_along_the_pipeline),
		cmocka_unit_test(known_pipelines_take_as_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
