/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/schedule.h"

#define MOST 128

/* Every stage runs its turns in order and waits for what a turn needs; messages are never full. Returns false when all wait. */
static bool runs_through(enum hspmd_schedule schedule, int stages, int rounds, int micro_batches)
{
	static struct hspmd_turn turns[8][MOST];
	static bool done[2][32][32]; /* [backward][stage][micro-batch] */
	int next[8] = { 0 }, left = 0;
	memset(done, 0, sizeof done);
	for (int s = 0; s < stages; s++) {
		struct hspmd_seat seat = { s, stages, rounds, micro_batches };
		hspmd_schedule(schedule, &seat, turns[s]);
		left += hspmd_schedule_turns(&seat);
	}
	for (bool moved = true; moved;) {
		moved = false;
		for (int s = 0; s < stages; s++) {
			while (next[s] < 2 * micro_batches * rounds) {
				const struct hspmd_turn *t = &turns[s][next[s]];
				int stage = s + t->round * stages, last = stages * rounds - 1, m = t->micro_batch;
				assert_in_range(m, 0, micro_batches - 1);
				assert_false(done[t->backward][stage][m]); /* each pass once */
				bool ready = t->backward ? done[0][stage][m] && (stage == last || done[1][stage + 1][m]) : stage == 0 || done[0][stage - 1][m];
				if (!ready)
					break;
				done[t->backward][stage][m] = moved = true;
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
			for (int rounds = 2; stages > 1 && rounds <= 4; rounds++)
				if (!runs_through(HSPMD_SCHEDULE_INTERLEAVED, stages, rounds, micro_batches))
					fail_msg("interleaved: %d stages, %d rounds, %d micro-batches", stages, rounds, micro_batches);
		}
}

/* 1F1B keeps as few micro-batches in flight as there are stages behind. */
static void in_flight(void **state)
{
	(void)state;
	struct hspmd_turn turns[MOST];
	for (int stage = 0; stage < 4; stage++) {
		struct hspmd_seat seat = { stage, 4, 1, 9 };
		int now = 0, most = 0;
		hspmd_schedule(HSPMD_SCHEDULE_1F1B, &seat, turns);
		for (int t = 0; t < hspmd_schedule_turns(&seat); t++) {
			now += turns[t].backward ? -1 : 1;
			most = now > most ? now : most;
		}
		assert_int_equal(most, 4 - stage);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(nobody_waits_for_ever), cmocka_unit_test(in_flight) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
