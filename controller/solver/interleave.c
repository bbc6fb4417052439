/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaved 1F1B (Megatron-LM, arXiv 2104.04473, section 2.2), event by event: every seat runs its turns in the order of common/schedule.h, each as soon
 * as the seat is free and what the turn needs has come. With full groups of micro-batches, equal chunks and no transfers this is the paper's
 *     rounds m (f + b) + (seats - 1) (f + b)        f, b: of one chunk
 *
 * A transfer holds the seat that sends for as long as it lasts, and the seat that takes it in as well, from when both could; unlike with one chunk a device
 * nobody waits for the other side to be ready, since here two seats may want to send to one another at the same time.
 */
#include "controller/solver/simulate.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/schedule.h"

struct table {
	const struct hspmd_sim_stage *stages;
	int count, seats, micro_batches;
	struct hspmd_turn *turns;        /* per seat */
	int *next;                       /* per seat: its turn */
	double *free;                    /* per seat */
	double *sent[2];                 /* per stage and micro-batch: when its result began to be sent on, forward and backward; < 0: not yet */
	struct hspmd_sim_result *result;
	int ops;
};

static void note(struct table *t, enum hspmd_sim_kind kind, int stage, int micro_batch, double start, double end)
{
	if (t->result->ops)
		t->result->ops[t->ops++] = (struct hspmd_sim_op){ kind, stage, micro_batch, start, end };
}

static double seconds_of_transfer(const struct table *t, int from, bool backward)
{
	if (t->seats == 1)
		return 0;
	return backward ? t->stages[from].send_backward : t->stages[from].send_forward;
}

/* False: what the seat's turn needs has not been sent yet. */
static bool run_turn(struct table *t, int seat)
{
	int per_seat = 2 * t->micro_batches * (t->count / t->seats);
	const struct hspmd_turn *turn = &t->turns[(size_t)seat * (size_t)per_seat + (size_t)t->next[seat]];
	int stage = seat + turn->round * t->seats, m = turn->micro_batch, way = turn->backward ? -1 : 1, from = stage - way, to = stage + way;
	double start = t->free[seat];
	if (from >= 0 && from < t->count) {
		double sent = t->sent[turn->backward][(size_t)from * (size_t)t->micro_batches + (size_t)m];
		if (sent < 0)
			return false;
		start = (sent > start ? sent : start) + seconds_of_transfer(t, from, turn->backward);
	}
	double end = start + (turn->backward ? t->stages[stage].backward : t->stages[stage].forward);
	note(t, turn->backward ? HSPMD_SIM_BACKWARD : HSPMD_SIM_FORWARD, stage, m, start, end);
	t->sent[turn->backward][(size_t)stage * (size_t)t->micro_batches + (size_t)m] = t->free[seat] = end;
	if (turn->backward && t->result->stage_end && end > t->result->stage_end[stage])
		t->result->stage_end[stage] = end;
	if (end > t->result->end)
		t->result->end = end;
	if (to >= 0 && to < t->count) {
		t->free[seat] += seconds_of_transfer(t, stage, turn->backward);
		note(t, turn->backward ? HSPMD_SIM_SEND_BACKWARD : HSPMD_SIM_SEND_FORWARD, stage, m, end, t->free[seat]);
	}
	t->next[seat]++;
	return true;
}

int hspmd_simulate_rounds(const struct hspmd_sim_stage *stages, int count, int rounds, int micro_batches, struct hspmd_sim_result *result)
{
	int seats = count / rounds, per_seat = 2 * micro_batches * rounds;
	size_t cells = (size_t)count * (size_t)micro_batches;
	struct table t = { .stages = stages, .count = count, .seats = seats, .micro_batches = micro_batches, .result = result };
	t.turns = hspmd_calloc((size_t)seats * (size_t)per_seat, sizeof *t.turns);
	t.next = hspmd_calloc((size_t)seats, sizeof *t.next);
	t.free = hspmd_calloc((size_t)seats, sizeof *t.free);
	t.sent[0] = hspmd_calloc(2 * cells, sizeof *t.sent[0]);
	int status = t.turns && t.next && t.free && t.sent[0] ? 0 : -1;
	result->end = 0;
	if (!status) {
		t.sent[1] = t.sent[0] + cells;
		for (size_t i = 0; i < 2 * cells; i++)
			t.sent[0][i] = -1;
		for (int s = 0; s < count && result->stage_end; s++)
			result->stage_end[s] = 0;
		for (int s = 0; s < seats; s++)
			hspmd_schedule(HSPMD_SCHEDULE_INTERLEAVED, &(struct hspmd_seat){ s, seats, rounds, micro_batches }, t.turns + (size_t)s * (size_t)per_seat);
		for (bool moved = true; moved;) {
			moved = false;
			for (int s = 0; s < seats; s++)
				while (t.next[s] < per_seat && run_turn(&t, s))
					moved = true;
		}
	}
	free(t.turns);
	free(t.next);
	free(t.free);
	free(t.sent[0]);
	return status;
}
