/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaved 1F1B (Megatron-LM, arXiv 2104.04473, section 2.2), event by event: every pipeline rank runs its entries in the order of
 * common/schedule.h, each as soon as the rank is free and the entry's input has arrived. With full groups of micro-batches, equal chunks
 * and no transfers the step is the paper's
 *     chunks m (f + b) + (ranks - 1) (f + b)        f, b: of one chunk
 *
 * A transfer occupies the sending rank as long as it lasts, and also the receiving rank, from when both are free. Unlike with one chunk
 * per device, no rank waits for the other side to be ready, because here two ranks may want to send to each other at the same time. */
#include "controller/solver/sim/simulate.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/schedule.h"

struct schedule_run {
	const struct hspmd_sim_stage *stages;
	int count, ranks, micro_batches;
	struct hspmd_schedule_entry *entries; /* per rank */
	int *next;                            /* per rank: its next entry */
	double *free;                         /* per rank */
	double *sent[2]; /* per stage and micro-batch: when sending its result began, forward and backward; < 0: not yet */
	struct hspmd_pipeline_sim *result;
	int ops;
};

static void note(struct schedule_run *t, enum hspmd_sim_kind kind, int stage, int micro_batch, double start, double end)
{
	if (t->result->ops)
		t->result->ops[t->ops++] = (struct hspmd_sim_op){ kind, stage, micro_batch, start, end };
}

static const struct hspmd_sim_stage *stage_of(const struct schedule_run *t, int stage, int micro_batch)
{
	return &t->stages[micro_batch * t->result->stride + stage];
}

static double seconds_of_transfer(const struct schedule_run *t, int from, int micro_batch, bool backward)
{
	if (t->ranks == 1)
		return 0;
	return backward ? stage_of(t, from, micro_batch)->send_backward : stage_of(t, from, micro_batch)->send_forward;
}

/* Run the rank's next entry. Returns false if its input has not been sent yet. */
static bool run_entry(struct schedule_run *t, int rank)
{
	int per_rank = 2 * t->micro_batches * (t->count / t->ranks);
	const struct hspmd_schedule_entry *entry = &t->entries[(size_t)rank * (size_t)per_rank + (size_t)t->next[rank]];
	int stage = rank + entry->chunk * t->ranks, m = entry->micro_batch, direction = entry->backward ? -1 : 1, from = stage - direction,
	    to = stage + direction;
	double start = t->free[rank];
	if (from >= 0 && from < t->count) {
		double sent = t->sent[entry->backward][(size_t)from * (size_t)t->micro_batches + (size_t)m];
		if (sent < 0)
			return false;
		start = (sent > start ? sent : start) + seconds_of_transfer(t, from, m, entry->backward);
	}
	double end = start + (entry->backward ? stage_of(t, stage, m)->backward : stage_of(t, stage, m)->forward);
	note(t, entry->backward ? HSPMD_SIM_BACKWARD : HSPMD_SIM_FORWARD, stage, m, start, end);
	t->sent[entry->backward][(size_t)stage * (size_t)t->micro_batches + (size_t)m] = t->free[rank] = end;
	if (entry->backward && t->result->stage_end && end > t->result->stage_end[stage])
		t->result->stage_end[stage] = end;
	if (end > t->result->end)
		t->result->end = end;
	if (to >= 0 && to < t->count) {
		t->free[rank] += seconds_of_transfer(t, stage, m, entry->backward);
		note(t, entry->backward ? HSPMD_SIM_SEND_BACKWARD : HSPMD_SIM_SEND_FORWARD, stage, m, end, t->free[rank]);
	}
	t->next[rank]++;
	return true;
}

int hspmd_simulate_interleaved(const struct hspmd_sim_stage *stages, int count, int chunks, int micro_batches,
                               struct hspmd_pipeline_sim *result)
{
	int ranks = count / chunks, per_rank = 2 * micro_batches * chunks;
	size_t cells = (size_t)count * (size_t)micro_batches;
	struct schedule_run t = { .stages = stages, .count = count, .ranks = ranks, .micro_batches = micro_batches, .result = result };
	t.entries = hspmd_calloc((size_t)ranks * (size_t)per_rank, sizeof *t.entries);
	t.next = hspmd_calloc((size_t)ranks, sizeof *t.next);
	t.free = hspmd_calloc((size_t)ranks, sizeof *t.free);
	t.sent[0] = hspmd_calloc(2 * cells, sizeof *t.sent[0]);
	int status = t.entries && t.next && t.free && t.sent[0] ? 0 : -1;
	result->end = 0;
	if (!status) {
		t.sent[1] = t.sent[0] + cells;
		for (size_t i = 0; i < 2 * cells; i++)
			t.sent[0][i] = -1;
		for (int s = 0; s < count && result->stage_end; s++)
			result->stage_end[s] = 0;
		for (int s = 0; s < ranks; s++)
			hspmd_schedule(HSPMD_SCHEDULE_INTERLEAVED, &(struct hspmd_pipeline_rank){ s, ranks, chunks, micro_batches },
			               t.entries + (size_t)s * (size_t)per_rank);
		for (bool moved = true; moved;) {
			moved = false;
			for (int s = 0; s < ranks; s++)
				while (t.next[s] < per_rank && run_entry(&t, s))
					moved = true;
		}
	}
	free(t.entries);
	free(t.next);
	free(t.free);
	free(t.sent[0]);
	return status;
}
