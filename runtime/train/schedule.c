/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/train/schedule.h"

void hspmd_schedule(enum hspmd_schedule schedule, int stages, int stage, int micro_batches, struct hspmd_turn *turns)
{
	bool all_first = schedule == HSPMD_SCHEDULE_GPIPE;
	int ahead = all_first ? micro_batches : stages - stage - 1;
	if (ahead > micro_batches)
		ahead = micro_batches;
	int n = 0, forward = 0, backward = 0;
	while (forward < ahead)
		turns[n++] = (struct hspmd_turn){ false, forward++ };
	while (forward < micro_batches) {
		turns[n++] = (struct hspmd_turn){ false, forward++ };
		turns[n++] = (struct hspmd_turn){ true, backward++ };
	}
	while (backward < micro_batches) {
		turns[n++] = (struct hspmd_turn){ true, all_first ? micro_batches - 1 - backward : backward };
		backward++;
	}
}
