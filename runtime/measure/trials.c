/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches grow, and with each all degrees have their turn, so that what the time does not suffice for are the largest ones, whose
 * times are told best from the others'. Each trial gets an even part of what is left, and more where that is needed for a few steps.
 *
 * The end is kept because nothing begins that is not expected to be over by then: a trial's first step and what comes before it by the
 * trials that were, or by what the device's rates make of it; every further step by the one before. So what is measured lasts as much
 * longer than it should as a single step takes longer than expected. */
#include <math.h>
#include <stdio.h>

#include "runtime/measure/measure.h"

#define STEPS_FEW 3
#define STEPS_MOST 15

/* What is known of a degree. */
struct degree {
	double start_s, step_s; /* of its last trial; step_s 0: there was none */
	int micro_batch;
	bool over; /* no larger micro-batch */
};

struct turns {
	const struct hspmd_trial_ops *ops;
	const struct hspmd_measure_options *w;
	double until;
	int left; /* trials to come, this one included */
	struct degree degrees[HSPMD_MEASURE_MAX_VALUES];
};

/* Seconds till the end, for whoever has the fewest. */
static int time_left(const struct turns *t, double *left, struct hspmd_error *err)
{
	double late = t->ops->now(t->ops->context) - t->until;
	int rv = t->ops->agree(t->ops->context, &late, err);
	*left = -late;
	return rv;
}

/* What the trial of degree number `which` should take: work grows with the micro-batch, and a group of more devices is as slow as one of
 * fewer at most. */
static struct hspmd_trial_estimate expect(const struct turns *t, int which, int micro_batch)
{
	struct hspmd_trial_estimate g = t->ops->estimate(t->ops->context, t->w->tps[which], micro_batch);
	const struct degree *known = &t->degrees[which];
	while (known > t->degrees && !(known->step_s > 0))
		known--;
	if (known->step_s > 0) {
		g.step_s = known->step_s * fmax(1, (double)micro_batch / known->micro_batch);
		g.start_s = known->start_s * fmax(1, (double)micro_batch / known->micro_batch);
	}
	return g;
}

/* Run the trial that has begun. `began`: when. */
static int run_steps(struct turns *t, int which, int micro_batch, double began, double allotted, struct hspmd_error *err)
{
	const struct hspmd_trial_ops *s = t->ops;
	struct degree *d = &t->degrees[which];
	double start = s->now(s->context) - began, step = 0, left;
	int run = 0;
	if (s->agree(s->context, &start, err) || s->step(s->context, &step, err) || s->agree(s->context, &step, err))
		return -1;
	/* The first step is cold. */
	for (double rest = allotted - start - step; run < STEPS_MOST; run++) {
		if (time_left(t, &left, err))
			return -1;
		if (run >= fmax(rest / step, STEPS_FEW) || step > left)
			break;
		if (s->step(s->context, &step, err) || s->agree(s->context, &step, err))
			return -1;
	}
	*d = (struct degree){ start, step, micro_batch, false };
	if (!run)
		s->note(s->context, t->w->tps[which], micro_batch, "measured in one cold step for lack of time (--budget)");
	return 0;
}

static int try_one(struct turns *t, int which, int micro_batch, struct hspmd_error *err)
{
	const struct hspmd_trial_ops *s = t->ops;
	struct degree *d = &t->degrees[which];
	double left, failed;
	bool able;
	if (d->over)
		return 0;
	if (time_left(t, &left, err))
		return -1;
	struct hspmd_trial_estimate g = expect(t, which, micro_batch);
	if (g.start_s + g.step_s > left) {
		char why[128];
		snprintf(why, sizeof why, "left out for lack of time (--budget): it takes some %.2g s, and there are %.2g s",
		         g.start_s + g.step_s, fmax(left, 0));
		s->note(s->context, t->w->tps[which], micro_batch, why);
		d->over = true;
		return 0;
	}
	double began = s->now(s->context);
	if (s->begin(s->context, t->w->tps[which], micro_batch, &able, err))
		return -1;
	failed = !able;
	int rv = s->agree(s->context, &failed, err);
	if (!rv && failed > 0)
		d->over = true;
	else if (!rv)
		rv = run_steps(t, which, micro_batch, began, left / t->left, err);
	return s->end(s->context, t->w->tps[which], micro_batch, !rv && !d->over, err) ? -1 : rv;
}

int hspmd_measure_trials(const struct hspmd_trial_ops *ops, const struct hspmd_measure_options *options, int peers, double until,
                         struct hspmd_error *err)
{
	struct turns t = { .ops = ops, .w = options, .until = until };
	int degrees = 0;
	while (degrees < options->tp_count && options->tps[degrees] <= peers)
		degrees++;
	t.left = degrees * options->micro_batch_count;
	for (int m = 0; m < options->micro_batch_count; m++)
		for (int i = 0; i < degrees; i++, t.left--)
			if (try_one(&t, i, options->micro_batches[m], err))
				return -1;
	return 0;
}
