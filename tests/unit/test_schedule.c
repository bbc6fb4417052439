/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/schedule.h"

#define MOST 128

/* Every stage runs its entries in order and waits for what an entry needs; messages are never blocked. Returns false if all stages wait. */
static bool runs_through(enum hspmd_schedule schedule, int stages, int chunks, int micro_batches)
{
	static struct hspmd_schedule_entry entries[8][MOST];
	static bool done[3][32][32]; /* [forward, backward, weights][stage][micro-batch] */
	int next[8] = { 0 }, left = 0;
	memset(done, 0, sizeof done);
	for (int s = 0; s < stages; s++) {
		struct hspmd_pipeline_rank rank = { s, stages, chunks, micro_batches };
		hspmd_schedule(schedule, &rank, entries[s]);
		left += hspmd_schedule_length(schedule, &rank);
	}
	for (bool moved = true; moved;) {
		moved = false;
		for (int s = 0; s < stages; s++) {
			struct hspmd_pipeline_rank rank = { s, stages, chunks, micro_batches };
			while (next[s] < hspmd_schedule_length(schedule, &rank)) {
				const struct hspmd_schedule_entry *t = &entries[s][next[s]];
				int stage = s + t->chunk * stages, last = stages * chunks - 1, m = t->micro_batch;
				assert_in_range(m, 0, micro_batches - 1);
				int pass = t->weights ? 2 : t->backward;
				assert_false(done[pass][stage][m]); /* each pass once */
				bool ready = t->weights    ? done[1][stage][m]
				             : t->backward ? done[0][stage][m] && (stage == last || done[1][stage + 1][m])
				                           : stage == 0 || done[0][stage - 1][m];
				if (!ready)
					break;
				done[pass][stage][m] = moved = true;
				next[s]++;
				left--;
			}
		}
	}
	return left == 0;
}

static void nobody_waits_for_ever(void **state)
{
	(void)state;
	for (int stages = 1; stages <= 6; stages++)
		for (int micro_batches = 1; micro_batches <= 13; micro_batches++) {
			assert_true(runs_through(HSPMD_SCHEDULE_1F1B, stages, 1, micro_batches));
			assert_true(runs_through(HSPMD_SCHEDULE_GPIPE, stages, 1, micro_batches));
			assert_true(runs_through(HSPMD_SCHEDULE_ZB_H1, stages, 1, micro_batches));
			for (int chunks = 2; stages > 1 && chunks <= 4; chunks++)
				if (!runs_through(HSPMD_SCHEDULE_INTERLEAVED, stages, chunks, micro_batches))
					fail_msg("interleaved: %d stages, %d chunks, %d micro-batches", stages, chunks, micro_batches);
		}
}

/* The maximum number of micro-batches that a stage has begun and not ended. */
static int most_in_flight(enum hspmd_schedule schedule, struct hspmd_pipeline_rank rank)
{
	struct hspmd_schedule_entry entries[MOST];
	int now = 0, most = 0;
	hspmd_schedule(schedule, &rank, entries);
	for (int t = 0; t < hspmd_schedule_length(schedule, &rank); t++) {
		bool ends = schedule == HSPMD_SCHEDULE_ZB_H1 ? entries[t].weights : entries[t].backward;
		now += ends ? -1 : !entries[t].backward;
		most = now > most ? now : most;
	}
	return most;
}

/* As many as the papers say: GPipe all; 1F1B one per stage from this one on; zb-h1 as many as the first stage of 1F1B; interleaved
 * (Megatron-LM, section 2.2.2) one more than the warm-up. */
static void in_flight(void **state)
{
	(void)state;
	for (int stage = 0; stage < 4; stage++)
		for (int m = 1; m <= 12; m++) {
			int behind = 4 - stage < m ? 4 - stage : m, all = 4 < m ? 4 : m;
			assert_int_equal(most_in_flight(HSPMD_SCHEDULE_GPIPE, (struct hspmd_pipeline_rank){ stage, 4, 1, m }), m);
			assert_int_equal(most_in_flight(HSPMD_SCHEDULE_1F1B, (struct hspmd_pipeline_rank){ stage, 4, 1, m }), behind);
			assert_int_equal(most_in_flight(HSPMD_SCHEDULE_ZB_H1, (struct hspmd_pipeline_rank){ stage, 4, 1, m }), all);
			int ahead = 2 * (4 - stage - 1) + 4, total = 2 * m;
			int expected = m % 4 || ahead >= total ? total : ahead + 1;
			assert_int_equal(most_in_flight(HSPMD_SCHEDULE_INTERLEAVED, (struct hspmd_pipeline_rank){ stage, 4, 2, m }),
			                 expected);
		}
}

/* If the gradients of weights are computed after a backward pass, the previous stage can continue sooner. Two stages, two micro-batches,
 * three passes of equal length: seven, compared with nine for 1F1B. */
static int length(enum hspmd_schedule schedule, int stages, int micro_batches)
{
	struct hspmd_schedule_entry entries[8][MOST];
	int end[3][8][32] = { 0 }, free[8] = { 0 }, next[8] = { 0 }, last = 0;
	for (int s = 0; s < stages; s++)
		hspmd_schedule(schedule, &(struct hspmd_pipeline_rank){ s, stages, 1, micro_batches }, entries[s]);
	for (bool moved = true; moved;) {
		moved = false;
		for (int s = 0; s < stages; s++) {
			const struct hspmd_schedule_entry *t = &entries[s][next[s]];
			if (next[s] == hspmd_schedule_length(schedule, &(struct hspmd_pipeline_rank){ s, stages, 1, micro_batches }))
				continue;
			int pass = t->weights ? 2 : t->backward, m = t->micro_batch;
			int from = pass == 0 ? s - 1 : s + 1;
			int ready = pass == 2 || from < 0 || from == stages ? 1 : end[pass][from][m];
			if (!ready)
				continue;
			int start = free[s] > ready - 1 ? free[s] : ready - 1; /* ends are stored plus one: 0 means not yet */
			free[s] = start + (pass == 1 && schedule != HSPMD_SCHEDULE_ZB_H1 ? 2 : 1);
			end[pass][s][m] = free[s] + 1;
			last = free[s] > last ? free[s] : last;
			next[s]++;
			moved = true;
		}
	}
	return last;
}

static void split_backward_is_shorter(void **state)
{
	(void)state;
	assert_int_equal(length(HSPMD_SCHEDULE_1F1B, 2, 2), 9);
	assert_int_equal(length(HSPMD_SCHEDULE_ZB_H1, 2, 2), 7);
	for (int stages = 1; stages <= 6; stages++)
		for (int m = stages; m <= 12; m++) {
			assert_int_equal(length(HSPMD_SCHEDULE_1F1B, stages, m), 3 * m + 3 * (stages - 1));
			assert_int_equal(length(HSPMD_SCHEDULE_ZB_H1, stages, m), 3 * m + stages - 1);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_waits_for_ever),
		cmocka_unit_test(in_flight),
		cmocka_unit_test(split_backward_is_shorter),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
