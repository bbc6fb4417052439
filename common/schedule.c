/* SPDX-License-Identifier: Apache-2.0 */
#include "common/schedule.h"

/* Pass number `k` in one direction: groups of micro-batches, within a group chunk after chunk. */
static struct hspmd_schedule_entry pass(const struct hspmd_pipeline_rank *rank, bool backward, int k)
{
	int group = k / (rank->stages * rank->chunks), first = group * rank->stages;
	int size = rank->micro_batches - first < rank->stages ? rank->micro_batches - first : rank->stages;
	k -= group * rank->stages * rank->chunks;
	int chunk = k / size;
	return (struct hspmd_schedule_entry){ .backward = backward,
		                              .micro_batch = first + k % size,
		                              .chunk = backward ? rank->chunks - 1 - chunk : chunk };
}

int hspmd_schedule_length(enum hspmd_schedule schedule, const struct hspmd_pipeline_rank *rank)
{
	return (schedule == HSPMD_SCHEDULE_ZB_H1 ? 3 : 2) * rank->micro_batches * rank->chunks;
}

void hspmd_schedule(enum hspmd_schedule schedule, const struct hspmd_pipeline_rank *rank, struct hspmd_schedule_entry *entries)
{
	struct hspmd_pipeline_rank plain = *rank;
	bool all_first = schedule == HSPMD_SCHEDULE_GPIPE, interleaved = schedule == HSPMD_SCHEDULE_INTERLEAVED;
	if (!interleaved)
		plain.stages = rank->micro_batches; /* one group: plain order */
	int total = rank->micro_batches * rank->chunks, n = 0, forward = 0, backward = 0, weights = 0;
	int behind = schedule == HSPMD_SCHEDULE_ZB_H1 ? rank->stage : total;
	int ahead = all_first     ? total
	            : interleaved ? 2 * (rank->stages - rank->stage - 1) + (rank->chunks - 1) * rank->stages
	                          : rank->stages - rank->stage - 1;
	if (ahead > total || (interleaved && rank->micro_batches % rank->stages))
		ahead = total;
	while (forward < ahead)
		entries[n++] = pass(&plain, false, forward++);
	while (backward < total) {
		if (forward < total)
			entries[n++] = pass(&plain, false, forward++);
		entries[n] = pass(&plain, true, backward++);
		if (all_first)
			entries[n].micro_batch = total - backward;
		n++;
		if (backward - weights > behind)
			entries[n++] = (struct hspmd_schedule_entry){ .weights = true, .micro_batch = weights++ };
	}
	while (schedule == HSPMD_SCHEDULE_ZB_H1 && weights < total)
		entries[n++] = (struct hspmd_schedule_entry){ .weights = true, .micro_batch = weights++ };
}
