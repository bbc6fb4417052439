/* SPDX-License-Identifier: Apache-2.0 */
#include "common/schedule.h"

/* Number `k` of the passes in one direction: groups of micro-batches, within a group round after round. */
static struct hspmd_turn pass(const struct hspmd_seat *seat, bool backward, int k)
{
	int group = k / (seat->stages * seat->rounds), first = group * seat->stages;
	int size = seat->micro_batches - first < seat->stages ? seat->micro_batches - first : seat->stages;
	k -= group * seat->stages * seat->rounds;
	int round = k / size;
	return (struct hspmd_turn){ .backward = backward, .micro_batch = first + k % size, .round = backward ? seat->rounds - 1 - round : round };
}

int hspmd_schedule_turns(enum hspmd_schedule schedule, const struct hspmd_seat *seat)
{
	return (schedule == HSPMD_SCHEDULE_ZB_H1 ? 3 : 2) * seat->micro_batches * seat->rounds;
}

void hspmd_schedule(enum hspmd_schedule schedule, const struct hspmd_seat *seat, struct hspmd_turn *turns)
{
	struct hspmd_seat plain = *seat;
	bool all_first = schedule == HSPMD_SCHEDULE_GPIPE, interleaved = schedule == HSPMD_SCHEDULE_INTERLEAVED;
	if (!interleaved)
		plain.stages = seat->micro_batches; /* one group: plain order */
	int total = seat->micro_batches * seat->rounds, n = 0, forward = 0, backward = 0, weights = 0;
	int behind = schedule == HSPMD_SCHEDULE_ZB_H1 ? seat->stage : total;
	int ahead = all_first ? total : interleaved ? 2 * (seat->stages - seat->stage - 1) + (seat->rounds - 1) * seat->stages : seat->stages - seat->stage - 1;
	if (ahead > total || (interleaved && seat->micro_batches % seat->stages))
		ahead = total;
	while (forward < ahead)
		turns[n++] = pass(&plain, false, forward++);
	while (backward < total) {
		if (forward < total)
			turns[n++] = pass(&plain, false, forward++);
		turns[n] = pass(&plain, true, backward++);
		if (all_first)
			turns[n].micro_batch = total - backward;
		n++;
		if (backward - weights > behind)
			turns[n++] = (struct hspmd_turn){ .weights = true, .micro_batch = weights++ };
	}
	while (schedule == HSPMD_SCHEDULE_ZB_H1 && weights < total)
		turns[n++] = (struct hspmd_turn){ .weights = true, .micro_batch = weights++ };
}
