/* SPDX-License-Identifier: Apache-2.0 */
/* What a stage does, and in which order, is fixed by the schedule, so a step is a longest path: an operation starts when its stage is free and
 * what it needs has come.
 *
 * Stage s of S runs w = min(S - 1 - s, m) forward passes, then one forward and one backward in turn, then the w backward passes left. Between two
 * passes it exchanges with its neighbours: a pass's result is sent before the next pass starts, and its input is received then. A transfer needs both sides and holds both while it lasts, as sends and receives of one stream of
 * instructions do; so transfers are part of each stage's cycle, not only of the first micro-batch's way. In the
 * steady state gradients go before activations.
 */
#include "controller/solver/simulate.h"

#include <stdlib.h>

#include "common/alloc.h"

/* A transfer that one side has come to. */
struct meeting {
	bool waiting;
	double since;
};

struct cursor {
	int forwards, backwards; /* passes done */
	int phase;               /* of the exchanges before the next pass */
	bool last_forward;       /* the pass done last was a forward one */
	double free;             /* when the stage can go on */
};

struct run {
	const struct hspmd_sim_stage *stages;
	int count, micro_batches;
	enum hspmd_schedule schedule;
	struct cursor *at;
	struct meeting *activation, *gradient; /* at the border behind stage s */
	struct hspmd_sim_result *result;
	int ops;
};

int hspmd_sim_op_count(int stages, int micro_batches)
{
	return (4 * stages - 2) * micro_batches;
}

int hspmd_in_flight(int stage, int count, int micro_batches, enum hspmd_schedule schedule)
{
	int deep = schedule == HSPMD_SCHEDULE_GPIPE ? micro_batches : count - stage;
	return deep < micro_batches ? deep : micro_batches;
}

static bool next_is_forward(const struct run *r, int s)
{
	const struct cursor *c = &r->at[s];
	if (c->forwards == r->micro_batches)
		return false;
	return c->forwards - c->backwards < hspmd_in_flight(s, r->count, r->micro_batches, r->schedule);
}

static void note(struct run *r, enum hspmd_sim_kind kind, int stage, int micro_batch, double start, double end)
{
	if (r->result->ops)
		r->result->ops[r->ops++] = (struct hspmd_sim_op){ kind, stage, micro_batch, start, end };
	if (end > r->result->end)
		r->result->end = end;
}

/* Stage s comes to a transfer with its neighbour `other`. True when both are there: it is then done for both. */
static bool meet(struct run *r, struct meeting *m, int s, int other, double seconds, enum hspmd_sim_kind kind, int sender, int micro_batch)
{
	if (!m->waiting) {
		*m = (struct meeting){ true, r->at[s].free };
		return false;
	}
	double start = m->since > r->at[s].free ? m->since : r->at[s].free;
	*m = (struct meeting){ 0 };
	r->at[s].free = r->at[other].free = start + seconds;
	r->at[s].phase++;
	r->at[other].phase++;
	note(r, kind, sender, micro_batch, start, start + seconds);
	return true;
}

/* Does the stage behind s run the backward pass that s waits for before the forward pass that s has just made possible? Then it sends first. */
static bool gradient_comes_first(const struct run *r, int s)
{
	const struct cursor *c = &r->at[s];
	return s < r->count - 1 && c->forwards - c->backwards > hspmd_in_flight(s + 1, r->count, r->micro_batches, r->schedule);
}

/* The exchange that is due, by phase. Returns the neighbour it was done with, STAYS when the neighbour has not come yet, READY when the next
 * pass can start. */
enum { SEND_GRADIENT, RECEIVE_EARLY, SEND_ACTIVATION, RECEIVE_LATE, RECEIVE_ACTIVATION, NONE_LEFT };
enum { STAYS = -1, READY = -2 };

static int exchange(struct run *r, int s, bool done, bool forward)
{
	struct cursor *c = &r->at[s];
	int before = s - 1, after = s + 1;
	bool begun = c->forwards > 0, last = after == r->count, wants_gradient = !done && !forward && !last;
	bool early = gradient_comes_first(r, s), met;
	for (; c->phase < NONE_LEFT; c->phase++) {
		if (c->phase == SEND_GRADIENT && begun && !c->last_forward && s > 0)
			met = meet(r, &r->gradient[before], s, before, r->stages[s].send_backward, HSPMD_SIM_SEND_BACKWARD, s, c->backwards - 1);
		else if (wants_gradient && c->phase == (early ? RECEIVE_EARLY : RECEIVE_LATE))
			met = meet(r, &r->gradient[s], s, after, r->stages[after].send_backward, HSPMD_SIM_SEND_BACKWARD, after, c->backwards);
		else if (c->phase == SEND_ACTIVATION && begun && c->last_forward && !last)
			met = meet(r, &r->activation[s], s, after, r->stages[s].send_forward, HSPMD_SIM_SEND_FORWARD, s, c->forwards - 1);
		else if (c->phase == RECEIVE_ACTIVATION && !done && forward && s > 0)
			met = meet(r, &r->activation[before], s, before, r->stages[before].send_forward, HSPMD_SIM_SEND_FORWARD, before, c->forwards);
		else
			continue;
		return met ? (c->phase == SEND_GRADIENT + 1 || c->phase == RECEIVE_ACTIVATION + 1 ? before : after) : STAYS;
	}
	return READY;
}

static void pass(struct run *r, int s, bool forward)
{
	struct cursor *c = &r->at[s];
	double start = c->free, end = start + (forward ? r->stages[s].forward : r->stages[s].backward);
	note(r, forward ? HSPMD_SIM_FORWARD : HSPMD_SIM_BACKWARD, s, forward ? c->forwards : c->backwards, start, end);
	c->free = end;
	c->last_forward = forward;
	c->phase = 0;
	if (forward)
		c->forwards++;
	else if (++c->backwards == r->micro_batches && r->result->stage_end)
		r->result->stage_end[s] = end;
}

/* Run the stages on the stack until each waits for a neighbour or is done; a neighbour that was waited for goes back on. */
static void drive(struct run *r, int *stack)
{
	int depth = 0;
	for (int s = r->count - 1; s >= 0; s--)
		stack[depth++] = s;
	while (depth) {
		int s = stack[--depth];
		for (;;) {
			bool done = r->at[s].backwards == r->micro_batches, forward = !done && next_is_forward(r, s);
			int other = exchange(r, s, done, forward);
			if (other >= 0) {
				stack[depth++] = other;
				continue;
			}
			if (other == STAYS || done)
				break;
			pass(r, s, forward);
		}
	}
}

int hspmd_simulate(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule, struct hspmd_sim_result *result)
{
	enum { SMALL = 32 };
	struct cursor few[SMALL];
	struct meeting meetings[2 * SMALL];
	int stack[SMALL];
	size_t n = (size_t)count;
	char *block = NULL;
	struct run r = { stages, count, micro_batches, schedule, few, meetings, meetings + SMALL, result, 0 };
	int *order = stack;
	if (count > SMALL) {
		block = hspmd_calloc(n, sizeof(struct cursor) + 2 * sizeof(struct meeting) + sizeof(int));
		if (!block)
			return -1;
		r.at = (struct cursor *)block;
		r.activation = (struct meeting *)(r.at + n);
		r.gradient = r.activation + n;
		order = (int *)(r.gradient + n);
	}
	for (size_t s = 0; s < n; s++) {
		r.at[s] = (struct cursor){ 0 };
		r.activation[s] = r.gradient[s] = (struct meeting){ 0 };
	}
	result->end = 0;
	drive(&r, order);
	free(block);
	return 0;
}
