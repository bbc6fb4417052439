/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a stage's operations is fixed by the schedule, so a step is a longest path: each operation starts when its stage is free and
 * what it needs has come. A stage sends what it made before it goes on, and the receiver takes it then; transfers are part of the cycle.
 *
 * Stage s of S runs w = min(S - 1 - s, m) forward passes, then one forward and one backward in turn, then the w backward passes left.
 */
#include "controller/solver/simulate.h"

#include <stdlib.h>

#include "common/alloc.h"

struct cursor {
	int forwards, backwards; /* done */
	double free;             /* when the stage can start its next operation */
};

int hspmd_in_flight(int stage, int count, int micro_batches, enum hspmd_schedule schedule)
{
	int deep = schedule == HSPMD_SCHEDULE_GPIPE ? micro_batches : count - stage;
	return deep < micro_batches ? deep : micro_batches;
}

static bool next_is_forward(const struct cursor *at, int stage, int count, int micro_batches, enum hspmd_schedule schedule)
{
	if (at->forwards == micro_batches)
		return false;
	return at->forwards - at->backwards < hspmd_in_flight(stage, count, micro_batches, schedule);
}

int hspmd_simulate(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule, struct hspmd_sim_result *result)
{
	size_t cells = (size_t)count * (size_t)micro_batches;
	struct cursor *at = hspmd_calloc((size_t)count, sizeof *at);
	double *forward_at = hspmd_calloc(cells, sizeof *forward_at);   /* when stage s's activation of micro-batch i lies at s + 1 */
	double *backward_at = hspmd_calloc(cells, sizeof *backward_at); /* when stage s's gradient lies at s - 1 */
	if (!at || !forward_at || !backward_at) {
		free(at);
		free(forward_at);
		free(backward_at);
		return -1;
	}
	result->end = 0;
	size_t left = 2 * cells, op = 0;
	while (left) {
		for (int s = 0; s < count; s++) {
			const struct hspmd_sim_stage *st = &stages[s];
			size_t row = (size_t)s * (size_t)micro_batches;
			while (at[s].backwards < micro_batches) {
				bool forward = next_is_forward(&at[s], s, count, micro_batches, schedule);
				int i = forward ? at[s].forwards : at[s].backwards;
				double start = at[s].free;
				if (forward && s > 0) {
					if (at[s - 1].forwards <= i)
						break;
					double there = forward_at[row - (size_t)micro_batches + (size_t)i];
					start = there > start ? there : start;
				} else if (!forward && s < count - 1) {
					if (at[s + 1].backwards <= i)
						break;
					double there = backward_at[row + (size_t)micro_batches + (size_t)i];
					start = there > start ? there : start;
				}
				double end = start + (forward ? st->forward : st->backward);
				at[s].free = end;
				if (forward) {
					at[s].forwards++;
					if (s < count - 1)
						at[s].free += st->send_forward;
					forward_at[row + (size_t)i] = end + st->send_forward;
				} else {
					at[s].backwards++;
					if (s > 0)
						at[s].free += st->send_backward;
					backward_at[row + (size_t)i] = end + st->send_backward;
					if (i == micro_batches - 1 && result->stage_end)
						result->stage_end[s] = end;
					if (i == micro_batches - 1 && result->stage_start)
						result->stage_start[s] = start;
				}
				if (result->ops)
					result->ops[op] = (struct hspmd_sim_op){ s, i, !forward, start, end };
				op++;
				left--;
				result->end = end > result->end ? end : result->end;
			}
		}
	}
	free(at);
	free(forward_at);
	free(backward_at);
	return 0;
}
