/* SPDX-License-Identifier: Apache-2.0 */
/* What a job tells hspmdctld of itself: sums over its metrics, in which a lost step counts once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "controller/run/figures.h"

static void step(struct run_figures *f, int number, int generation, int devices, double step_s)
{
	json_t *line = json_pack("{s:i, s:f, s:i, s:f, s:i, s:i}", "step", number, "loss", 3.5, "tokens", 100, "step_s", step_s,
	                         "generation", generation, "devices", devices);
	run_figures_metrics_line(f, line);
	json_decref(line);
}

static void resize(struct run_figures *f, int lost, int devices, double pause_s)
{
	json_t *line = json_pack("{s:s, s:i, s:i, s:f}", "event", "resize", "steps_lost", lost, "devices", devices, "pause_s", pause_s);
	run_figures_metrics_line(f, line);
	json_decref(line);
}

static void test_lost_steps_are_not_trained(void **state)
{
	struct run_figures f;
	(void)state;
	run_figures_init(&f);
	for (int i = 0; i < 10; i++)
		step(&f, i, 1, 4, i ? 1 : 3); /* 12 s: 1.2 s a step */
	resize(&f, 2, 2, 1.5);
	assert_int_equal(f.resizes, 0); /* the pause is not over */
	step(&f, 8, 2, 2, 2);
	assert_int_equal(f.resizes, 1);
	assert_int_equal(f.steps_lost, 2);
	assert_float_equal(f.lost_device_s, 2 * 4.8, 1e-9);
	assert_float_equal(f.trained_device_s, 48, 1e-9); /* it never falls, and waits until the steps are made again */
	step(&f, 9, 2, 2, 2);
	assert_float_equal(f.trained_device_s, 48, 1e-9);
	step(&f, 10, 2, 2, 2);
	assert_float_equal(f.trained_device_s, 48 - 9.6 + 3 * 4, 1e-9);
	assert_float_equal(f.paused_device_s, 3, 1e-9);
	assert_int_equal(f.tokens, 1300);
	/* A step whose time nobody told ends the pause, too. */
	resize(&f, 0, 2, 0.5);
	step(&f, 11, 3, 2, 0);
	assert_float_equal(f.paused_s, 2, 1e-9);
	json_t *o = run_figures_json(&f);
	assert_int_equal(json_integer_value(json_object_get(o, "step")), 11);
	assert_float_equal(json_number_value(json_object_get(o, "loss")), 3.5, 0);
	json_decref(o);
}

/* A later process of a job: what the earlier one trained is unknown, and so is the time of its steps. */
static void test_steps_lost_before(void **state)
{
	struct run_figures f;
	(void)state;
	run_figures_init(&f);
	resize(&f, 5, 2, 0);
	step(&f, 20, 4, 2, 0.5);
	assert_float_equal(f.lost_device_s, 5, 1e-9);
	assert_float_equal(f.trained_device_s, 1, 1e-9);
}

static void test_what_is_not_told(void **state)
{
	struct run_figures f;
	(void)state;
	run_figures_init(&f);
	json_t *line = json_pack("{s:i, s:n, s:i}", "step", 3, "loss", "generation", 1),
	       *event = json_pack("{s:s, s:f}", "event", "checkpoint", "time", 77.0);
	run_figures_metrics_line(&f, line);
	run_figures_event(&f, event);
	json_t *o = run_figures_json(&f);
	assert_null(json_object_get(o, "loss"));
	assert_float_equal(json_number_value(json_object_get(o, "checkpoint_s")), 77, 0);
	json_decref(line);
	json_decref(event);
	json_decref(o);
}

/* The first steps after a change, and those beside a checkpoint, are slow: the job says nothing yet, and then not of those. */
static void test_few_slow_steps_do_not_decide(void **state)
{
	struct run_rate r = { .steps = 0 };
	(void)state;
	for (int i = 0; i < RUN_RATE_LEAST; i++) {
		assert_float_equal(run_rate_median(&r), 0, 0);
		run_rate_step(&r, i < 3 ? 5 : 100 + i % 2);
	}
	assert_float_equal(run_rate_median(&r), 100, 0);
	run_rate_step(&r, 1);
	assert_float_equal(run_rate_median(&r), 100, 0);
	for (int i = 0; i < 3 * RUN_RATE_STEPS; i++)
		run_rate_step(&r, 200);
	assert_float_equal(run_rate_median(&r), 200, 0);
	for (int i = 0; i < RUN_RATE_STEPS / 2 + 1; i++)
		run_rate_step(&r, 80);
	assert_float_equal(run_rate_median(&r), 80, 0); /* a lasting change shows */
	run_rate_restart(&r);
	assert_float_equal(run_rate_median(&r), 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lost_steps_are_not_trained),
		cmocka_unit_test(test_steps_lost_before),
		cmocka_unit_test(test_what_is_not_told),
		cmocka_unit_test(test_few_slow_steps_do_not_decide),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
