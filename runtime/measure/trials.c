/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches grow, and each size runs with all degrees of tensor parallelism, so that if time is short the largest ones are missing,
 * whose times are the easiest to extrapolate. Each trial gets an equal part of the time that is left, or more if a few steps need more.
 *
 * The time limit is kept because nothing starts that is not expected to end before it: a trial's first step and its preparation are
 * estimated from earlier trials or from the device's rates; every further step from the previous one. So the measurement exceeds its
 * time at most by the amount by which a single step exceeds its estimate. */
#include <math.h>
#include <stdio.h>

#include "runtime/measure/measure.h"

#define STEPS_FEW 3
#define STEPS_MOST 15

/* What is known about a degree of tensor parallelism. */
struct degree {
	double start_s, step_s; /* of its last trial; step_s 0: there was none */
	int micro_batch;
	bool over; /* larger micro-batches are not possible */
};

struct trial_queue {
	const struct hspmd_trial_ops *ops;
	const struct hspmd_measure_options *w;
	double until;
	int left; /* trials that are left, including this one */
	struct degree degrees[HSPMD_MEASURE_MAX_VALUES];
};

/* Seconds until the end, the minimum of all devices. */
static int time_left(const struct trial_queue *t, double *left, struct hspmd_error *err)
{
	double late = t->ops->now(t->ops->context) - t->until;
	int rv = t->ops->agree(t->ops->context, &late, err);
	*left = -late;
	return rv;
}

/* Estimate the trial of degree number `which`: the work grows with the micro-batch, and a larger group is at most as slow as a smaller
 * one. */
static struct hspmd_trial_estimate estimate_trial(const struct trial_queue *t, int which, int micro_batch)
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

/* Run the steps of the current trial. `began`: when it started. */
static int run_steps(struct trial_queue *t, int which, int micro_batch, double began, double allotted, struct hspmd_error *err)
{
	const struct hspmd_trial_ops *s = t->ops;
	struct degree *d = &t->degrees[which];
	double start = s->now(s->context) - began, step = 0, left;
	int run = 0;
	if (s->agree(s->context, &start, err) || s->step(s->context, &step, err) || s->agree(s->context, &step, err))
		return -1;
	/* The first step is only a warm-up. */
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

static int try_one(struct trial_queue *t, int which, int micro_batch, struct hspmd_error *err)
{
	const struct hspmd_trial_ops *s = t->ops;
	struct degree *d = &t->degrees[which];
	double left, failed;
	bool able;
	if (d->over)
		return 0;
	if (time_left(t, &left, err))
		return -1;
	struct hspmd_trial_estimate g = estimate_trial(t, which, micro_batch);
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
	struct trial_queue t = { .ops = ops, .w = options, .until = until };
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
