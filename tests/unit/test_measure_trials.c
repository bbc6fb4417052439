/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers are measured and how often, on simulated devices with their own clock: everything that was requested if there is time,
 * and never longer than the time limit except by what took longer than could be expected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/measure/measure.h"

#define TRIALS 64

/* A device that takes `second` for a step of one sample alone, and what follows from it. */
struct device {
	double second, start; /* start: of a trial */
	double beyond;        /* how much slower groups become with their size */
	double noise;         /* steps take up to this much longer than they should, the first one twice that */
	double wrong;         /* how much longer the first trial takes than the device's rates suggest */
	int able;             /* the largest tp that works */
	unsigned random;
	/* results */
	double clock;
	int tp, micro_batch, steps;
	int kept_count, notes;
	struct {
		int tp, micro_batch, steps;
	} kept[TRIALS];
};

static double roll(struct device *d)
{
	d->random = d->random * 1664525u + 1013904223u;
	return (d->random >> 8) / 16777216.0;
}

static double now(void *context)
{
	return ((struct device *)context)->clock;
}

static int agree(void *context, double *value, struct hspmd_error *err)
{
	(void)context, (void)value, (void)err;
	return 0;
}

static double step_of(const struct device *d, int tp, int micro_batch)
{
	return d->second * micro_batch / tp * (1 + d->beyond * (tp - 1));
}

static struct hspmd_trial_estimate estimate(void *context, int tp, int micro_batch)
{
	const struct device *d = context;
	return (struct hspmd_trial_estimate){ d->start / d->wrong, step_of(d, tp, micro_batch) / d->wrong };
}

static int begin(void *context, int tp, int micro_batch, bool *able, struct hspmd_error *err)
{
	struct device *d = context;
	(void)err;
	*able = tp <= d->able;
	if (!*able)
		return 0;
	d->clock += d->start;
	d->tp = tp;
	d->micro_batch = micro_batch;
	d->steps = 0;
	return 0;
}

static int step(void *context, double *took, struct hspmd_error *err)
{
	struct device *d = context;
	(void)err;
	double should = step_of(d, d->tp, d->micro_batch);
	*took = should * (1 + d->noise * roll(d) * (d->steps ? 1 : 2));
	d->clock += *took;
	d->steps++;
	return 0;
}

static int end(void *context, int tp, int micro_batch, bool keep, struct hspmd_error *err)
{
	struct device *d = context;
	(void)err;
	if (keep) {
		assert_true(d->kept_count < TRIALS && d->steps > 0);
		d->kept[d->kept_count].tp = tp;
		d->kept[d->kept_count].micro_batch = micro_batch;
		d->kept[d->kept_count++].steps = d->steps;
	}
	return 0;
}

static void note(void *context, int tp, int micro_batch, const char *why)
{
	struct device *d = context;
	(void)tp, (void)micro_batch;
	assert_true(strlen(why) > 10);
	d->notes++;
}

static const struct hspmd_measure_options options = {
	.tp_count = 4, .tps = { 1, 2, 4, 8 }, .micro_batch_count = 5, .micro_batches = { 1, 2, 4, 8, 16 }
};

static void measure(struct device *d, int peers, double seconds)
{
	const struct hspmd_trial_ops ops = { d, now, agree, estimate, begin, step, end, note };
	struct hspmd_error err = { "" };
	d->able = d->able ? d->able : 8;
	d->wrong = d->wrong > 0 ? d->wrong : 1;
	assert_int_equal(hspmd_measure_trials(&ops, &options, peers, seconds, &err), 0);
}

static int steps_kept(const struct device *d, int tp, int micro_batch)
{
	for (int i = 0; i < d->kept_count; i++)
		if (d->kept[i].tp == tp && d->kept[i].micro_batch == micro_batch)
			return d->kept[i].steps;
	return 0;
}

/* Fast devices: everything, and each as often as is useful. */
static void everything_where_there_is_time(void **state)
{
	(void)state;
	struct device d = { .second = 1e-3, .start = 0.01 };
	measure(&d, 8, 35);
	assert_int_equal(d.kept_count, 20);
	assert_int_equal(d.notes, 0);
	for (int i = 0; i < d.kept_count; i++)
		assert_int_equal(d.kept[i].steps, 16);
	assert_true(d.clock < 35);
	/* No more degrees than there are devices, or than there is work. */
	d = (struct device){ .second = 1e-3, .start = 0.01 };
	measure(&d, 3, 35);
	assert_int_equal(d.kept_count, 10);
	d = (struct device){ .second = 1e-3, .start = 0.01, .able = 2 };
	measure(&d, 8, 35);
	assert_int_equal(d.kept_count, 10);
	/* When the time is over, measuring ends, however much was requested. */
	d = (struct device){ .second = 1e-3 };
	measure(&d, 8, 0);
	assert_int_equal(d.kept_count, 0);
	assert_int_equal(d.notes, 4);
	assert_true(d.clock == 0);
}

/* Devices of any speed, over seven orders of magnitude: the limit is kept except for the time that one step took longer than expected,
 * the smallest trial is measured if there is time for a step of it, and whatever was left out would not have fitted. */
static void the_end_is_kept(void **state)
{
	(void)state;
	const double seconds = 35;
	int nothing = 0, all = 0;
	for (int i = 0; i < 3000; i++) {
		struct device d = { .random = (unsigned)i, .noise = 0.2 };
		d.second = 1e-5 * pow(10, 7 * roll(&d));
		d.start = d.second * 5 * roll(&d);
		d.beyond = 0.4 * roll(&d);
		const struct device as_it_was = d;
		measure(&d, 1 + (int)(8 * roll(&d)), seconds);
		/* No step is expected to take less than the one before; noise makes the slowest of them take this much longer. */
		const int at = d.kept_count - 1;
		double longest = at < 0 ? 0 : step_of(&d, d.kept[at].tp, d.kept[at].micro_batch);
		assert_true(d.clock <= seconds + 0.4 * longest + 1e-9);
		if (as_it_was.start + as_it_was.second < seconds)
			assert_true(steps_kept(&d, 1, 1) > 0);
		else
			assert_int_equal(steps_kept(&d, 1, 1), 0);
		/* Larger micro-batches only after smaller ones. */
		for (int k = 0; k < d.kept_count; k++)
			assert_true(d.kept[k].micro_batch == 1 || steps_kept(&d, d.kept[k].tp, d.kept[k].micro_batch / 2) > 0);
		nothing += d.kept_count == 0;
		all += d.notes == 0;
	}
	/* Both limits were reached. */
	assert_true(nothing > 50 && all > 500);
}

/* A device four times slower than its rates suggest: the first trial takes that much longer, which could not be known; nothing after it
 * does. */
static void only_the_first_trial_can_surprise(void **state)
{
	(void)state;
	for (int i = 0; i < 100; i++) {
		struct device d = { .second = 1.3 * (i + 1), .start = 1, .wrong = 4 };
		measure(&d, 8, 35);
		double first = d.kept_count ? d.start + step_of(&d, d.kept[0].tp, d.kept[0].micro_batch) : 0;
		if (d.clock > fmax(35, first) + 1e-9)
			fail_msg("%g s a step: %g s", d.second, d.clock);
	}
}

/* There is time for one step but not for two: the warm-up counts, and this is noted. */
static void one_step_is_better_than_none(void **state)
{
	(void)state;
	struct device d = { .second = 20, .start = 2 };
	measure(&d, 1, 35);
	assert_int_equal(d.kept_count, 1);
	assert_int_equal(d.kept[0].steps, 1);
	assert_int_equal(d.notes, 2); /* that, and what was left out */
	assert_true(d.clock == 22);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_where_there_is_time),
		cmocka_unit_test(the_end_is_kept),
		cmocka_unit_test(only_the_first_trial_can_surprise),
		cmocka_unit_test(one_step_is_better_than_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
