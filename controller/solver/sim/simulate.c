/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule fixes what a stage does and in which order, so a step is a longest path: an operation starts when its stage is free and
 * its input has arrived.
 *
 * Time is divided into rounds. In round i stage s of S runs the forward pass of micro-batch i + w(s) and then the backward pass of
 * micro-batch i, if these micro-batches exist; 1F1B has w(s) = S - 1 - s, GPipe m more. A stage exchanges its results with its neighbour
 * before it continues: neighbours exchange once per round, after the forward pass of the earlier stage and the backward pass of the later
 * one; first the gradient is sent, then the activation. A transfer needs both sides and occupies both as long as it lasts, like sends and
 * receives in one stream of instructions; so transfers are part of every period of a stage, not only of the first micro-batch's path.
 *
 *     forward done  f(s, i) = l(s, i) + F(s)
 *     exchanged     l(s, i + 1) = max(b(s, i), f(s - 1, i)) + gradient(s) + activation(s - 1)
 *     backward done b(s, i) = l(s + 1, i + 1) + B(s);   for the last stage f(s, i) + B(s)
 * so a round takes O(S), from the last stage to the first. ZB-H1 is 1F1B in which B(s) lacks the weight gradients; stage s computes those
 * of micro-batch i - s while it waits for its neighbours in round i, and those that are left at the end. */
#include "controller/solver/sim/simulate.h"

#include <stdlib.h>

#include "common/alloc.h"

#define SMALL 64

struct run {
	const struct hspmd_sim_stage *stages;
	bool split_backward;             /* weight gradients are computed separately */
	int count, micro_batches, ahead; /* ahead: additional rounds between the last stage's first forward pass and first backward pass */
	double *exchanged, *forward_done;
	double *backward, *deferred; /* per stage, if micro-batches are alike: of a backward pass, without and only weight gradients */
	struct hspmd_pipeline_sim *result;
	int ops;
};

int hspmd_sim_op_count(int stages, int micro_batches, enum hspmd_schedule schedule)
{
	return ((schedule == HSPMD_SCHEDULE_ZB_H1 ? 5 : 4) * stages - 2) * micro_batches;
}

int hspmd_in_flight(int stage, int count, int micro_batches, enum hspmd_schedule schedule)
{
	int deep = schedule == HSPMD_SCHEDULE_GPIPE ? micro_batches : schedule == HSPMD_SCHEDULE_ZB_H1 ? count : count - stage;
	return deep < micro_batches ? deep : micro_batches;
}

int hspmd_deferred_weight_grads(int stage, int micro_batches, enum hspmd_schedule schedule)
{
	return schedule != HSPMD_SCHEDULE_ZB_H1 ? 0 : stage + 1 < micro_batches ? stage + 1 : micro_batches;
}

static const struct hspmd_sim_stage *stage_of(const struct run *r, int stage, int micro_batch)
{
	return &r->stages[micro_batch * r->result->stride + stage];
}

static void note(struct run *r, enum hspmd_sim_kind kind, int stage, int micro_batch, double start, double end)
{
	if (r->result->ops)
		r->result->ops[r->ops++] = (struct hspmd_sim_op){ kind, stage, micro_batch, start, end };
}

/* The micro-batch whose forward pass stage s runs in round i; none if out of range. */
static int forward_of(const struct run *r, int s, int i)
{
	return i + r->count - 1 - s + r->ahead;
}

static bool exists(const struct run *r, int micro_batch)
{
	return micro_batch >= 0 && micro_batch < r->micro_batches;
}

/* Stage s, which has finished its backward pass of round i at `free`, exchanges with the stage before it. Returns when the latter can
 * continue. */
static double exchange(struct run *r, int s, int i, double free)
{
	int next = forward_of(r, s, i + 1);
	double at = r->forward_done[s - 1];
	bool has_gradient = i >= 0, has_next = exists(r, next);
	double gradient = has_gradient ? stage_of(r, s, i)->send_backward : 0,
	       activation = has_next ? stage_of(r, s - 1, next)->send_forward : 0;
	r->exchanged[s] = free;
	if (!has_gradient && !has_next)
		return at;
	at = free > at ? free : at;
	if (has_gradient) {
		note(r, HSPMD_SIM_SEND_BACKWARD, s, i, at, at + gradient);
		at += gradient;
	}
	if (has_next) {
		note(r, HSPMD_SIM_SEND_FORWARD, s - 1, next, at, at + activation);
		at += activation;
	}
	return r->exchanged[s] = at;
}

/* Stage s in round i is free to compute weight gradients from `start` on. Returns when it has computed those that are due. */
static double run_weight_grads(struct run *r, int s, int i, double start)
{
	int left = i - s < 0 ? 0 : i - s, due = i == r->micro_batches - 1 ? r->micro_batches : i - s + 1;
	for (; left < due; left++) {
		note(r, HSPMD_SIM_WEIGHT_GRADS, s, left, start, start + stage_of(r, s, left)->weight_grads);
		start += stage_of(r, s, left)->weight_grads;
	}
	return start;
}

static void round_of(struct run *r, int i)
{
	for (int s = 0; s < r->count; s++) {
		int micro_batch = forward_of(r, s, i);
		r->forward_done[s] = r->exchanged[s];
		if (exists(r, micro_batch)) {
			r->forward_done[s] += stage_of(r, s, micro_batch)->forward;
			note(r, HSPMD_SIM_FORWARD, s, micro_batch, r->exchanged[s], r->forward_done[s]);
		}
	}
	double ready = r->forward_done[r->count - 1];
	for (int s = r->count - 1; s >= 0; s--) {
		double done = ready, idle;
		if (i >= 0) {
			done += stage_of(r, s, i)->backward - (r->split_backward ? stage_of(r, s, i)->weight_grads : 0);
			note(r, HSPMD_SIM_BACKWARD, s, i, ready, done);
		}
		idle = i >= 0 && r->split_backward ? run_weight_grads(r, s, i, done) : done;
		if (i >= 0 && idle > r->result->end)
			r->result->end = idle;
		if (r->result->stage_end && i == r->micro_batches - 1)
			r->result->stage_end[s] = idle;
		if (s > 0)
			ready = exchange(r, s, i, done);
		else
			r->exchanged[0] = done;
		r->exchanged[s] = idle > r->exchanged[s] ? idle : r->exchanged[s];
	}
}

/* The following are round_of for micro-batches that are alike, if operations are not listed: most rounds that a search simulates. Their
 * sums are the same, term by term. */

static inline double later(double a, double b)
{
	return a > b ? a : b;
}

/* A round without backward passes. */
static void forward_round_of(struct run *r, int i)
{
	const struct hspmd_sim_stage *x = r->stages;
	double *exchanged = r->exchanged, *forward_done = r->forward_done;
	int first = forward_of(r, 0, i), last = first + 1 < r->count ? first + 1 : r->count - 1; /* nothing has come to those behind it */
	for (int s = 0; s <= last; s++)
		forward_done[s] = exchanged[s] + (exists(r, first - s) ? x[s].forward : 0);
	double ready = forward_done[last];
	for (int s = last; s > 0; s--) {
		exchanged[s] = ready;
		ready = forward_done[s - 1];
		if (exists(r, first - s + 1)) {
			ready = later(exchanged[s], ready) + x[s - 1].send_forward;
			exchanged[s] = ready;
		}
	}
	exchanged[0] = ready;
}

/* A round with backward passes but the last, on its way from the last stage to the first. No stage ends in it: each has one more to
 * come. */
struct sweep {
	int first, deferring; /* stages from `first` on run another forward pass; those up to `deferring` weight gradients */
	double ready;         /* when the stage before the ones that are done has received its gradient, and the activation has been sent */
};

static inline struct sweep begin_sweep(const struct run *r, int i)
{
	int last = r->count - 1, first = forward_of(r, 0, i) - r->micro_batches + 1;
	return (struct sweep){ first, r->split_backward ? i : last, r->exchanged[last] + (last >= first ? r->stages[last].forward : 0) };
}

/* full: every stage runs all that it may. */
static inline void sweep_stage(const struct run *r, struct sweep *w, bool full, int s)
{
	const struct hspmd_sim_stage *x = &r->stages[s];
	double *exchanged = r->exchanged;
	double done = w->ready + r->backward[s], idle = done + (full || s <= w->deferring ? r->deferred[s] : 0);
	if (s) {
		double forward_done = exchanged[s - 1] + (full || s > w->first ? x[-1].forward : 0);
		w->ready = later(done, forward_done) + x->send_backward;
		w->ready += full || s > w->first ? x[-1].send_forward : 0;
		idle = later(idle, w->ready);
	}
	exchanged[s] = idle;
}

/* Rounds i and i + 1. The latter follows two stages behind, where all that it needs is known: so a processor can compute both at once. */
static inline void two_rounds_of(struct run *r, bool full, int i)
{
	int last = r->count - 1;
	struct sweep one = begin_sweep(r, i), other;
	sweep_stage(r, &one, full, last);
	if (last)
		sweep_stage(r, &one, full, last - 1);
	other = begin_sweep(r, i + 1);
	for (int s = last - 2; s >= 0; s--) {
		sweep_stage(r, &one, full, s);
		sweep_stage(r, &other, full, s + 2);
	}
	if (last)
		sweep_stage(r, &other, full, 1);
	sweep_stage(r, &other, full, 0);
}

#define FEWEST_ABREAST 8 /* stages */

/* The same of four rounds, of as many stages at least. */
static inline void four_rounds_of(struct run *r, bool full, int i)
{
	int last = r->count - 1;
	struct sweep one = begin_sweep(r, i), two, three, four;
	sweep_stage(r, &one, full, last);
	sweep_stage(r, &one, full, last - 1);
	two = begin_sweep(r, i + 1);
	for (int s = last - 2; s > last - 4; s--) {
		sweep_stage(r, &one, full, s);
		sweep_stage(r, &two, full, s + 2);
	}
	three = begin_sweep(r, i + 2);
	for (int s = last - 4; s > last - 6; s--) {
		sweep_stage(r, &one, full, s);
		sweep_stage(r, &two, full, s + 2);
		sweep_stage(r, &three, full, s + 4);
	}
	four = begin_sweep(r, i + 3);
	for (int s = last - 6; s > 0; s--) {
		sweep_stage(r, &one, full, s);
		sweep_stage(r, &two, full, s + 2);
		sweep_stage(r, &three, full, s + 4);
		sweep_stage(r, &four, full, s + 6);
	}
	for (int s = 0; s >= -6; s--) {
		if (s == 0)
			sweep_stage(r, &one, full, s);
		if (s >= -2)
			sweep_stage(r, &two, full, s + 2);
		if (s >= -4)
			sweep_stage(r, &three, full, s + 4);
		sweep_stage(r, &four, full, s + 6);
	}
}

static void round_alone(struct run *r, int i)
{
	struct sweep w = begin_sweep(r, i);
	for (int s = r->count - 1; s >= 0; s--)
		sweep_stage(r, &w, false, s);
}

/* Rounds [i, end) with backward passes, without the last one. */
static void run_plain_rounds(struct run *r, int i, int end)
{
	int full = r->split_backward ? r->count - 1 : 0, full_end = r->micro_batches - r->count - r->ahead;
	while (i < end) {
		int rounds = end - i >= 4 && r->count >= FEWEST_ABREAST ? 4 : end - i >= 2 ? 2 : 1;
		bool all = i >= full && i + rounds <= full_end;
		if (rounds == 4 && all)
			four_rounds_of(r, true, i);
		else if (rounds == 4)
			four_rounds_of(r, false, i);
		else if (rounds == 2 && all)
			two_rounds_of(r, true, i);
		else if (rounds == 2)
			two_rounds_of(r, false, i);
		else
			round_alone(r, i);
		i += rounds;
	}
}

int hspmd_simulate(const struct hspmd_sim_stage *stages, int count, int micro_batches, enum hspmd_schedule schedule,
                   struct hspmd_pipeline_sim *result)
{
	bool alike = !result->stride && !result->ops;
	double few[4 * SMALL], *many = NULL, *room = few;
	struct run r = { .stages = stages,
		         .split_backward = schedule == HSPMD_SCHEDULE_ZB_H1,
		         .count = count,
		         .micro_batches = micro_batches,
		         .ahead = schedule == HSPMD_SCHEDULE_GPIPE ? micro_batches : 0,
		         .result = result };
	if (count > SMALL) {
		room = many = hspmd_calloc((size_t)count * 4, sizeof *many);
		if (!many)
			return -1;
	}
	r.exchanged = room;
	r.forward_done = room + count;
	r.backward = room + 2 * count;
	r.deferred = room + 3 * count;
	for (int s = 0; s < count; s++) {
		r.exchanged[s] = 0;
		r.deferred[s] = r.split_backward ? stages[s].weight_grads : 0;
		r.backward[s] = stages[s].backward - r.deferred[s];
	}
	result->end = 0;
	for (int i = 1 - count - r.ahead; i < (alike ? 0 : micro_batches); i++)
		(alike ? forward_round_of : round_of)(&r, i);
	if (alike && micro_batches > 0) {
		run_plain_rounds(&r, 0, micro_batches - 1);
		round_of(&r, micro_batches - 1);
	}
	free(many);
	return 0;
}
