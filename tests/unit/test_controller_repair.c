/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller after a loss in a simulated cluster (world.c): it goes on with a repaired plan, while a better one is searched for
 * that replaces it if this pays off. Anything may happen between the two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/core/controller_internal.h"
#include "tests/unit/only.h"
#include "tests/unit/world_runs.h"

#define SEEDS 12
#define ANOTHER "plan stays: another would be"

static struct world *four_nodes(uint64_t seed, int steps, double repairs, double min_gain)
{
	struct world *w = world_create(&(struct world_options){ .seed = seed,
	                                                        .nodes = 5,
	                                                        .devices_per_node = 1,
	                                                        .held = 4,
	                                                        .steps = steps,
	                                                        .checkpoints = true,
	                                                        .repairs = repairs,
	                                                        .min_gain = min_gain });
	world_run_until(w, 20);
	return w;
}

/* A node fails, which Slurm reports when the job has noticed it. */
static void lose(struct world *w, int node)
{
	int before = world_events_with(w, "lost the agent of");
	world_kill(w, node, 0, WORLD_AGENT);
	for (int i = 0; i < WORLD_MOVES && world_events_with(w, "lost the agent of") == before; i++)
		world_go_on(w);
	world_hold(w, node, false);
}

static void run_until_resizes(struct world *w, int count)
{
	for (int i = 0; i < WORLD_MOVES && world_resizes(w) < count; i++)
		world_go_on(w);
	assert_int_equal(world_resizes(w), count);
}

static void run_until_event(struct world *w, const char *words)
{
	for (int i = 0; i < WORLD_MOVES && !world_events_with(w, words); i++)
		world_go_on(w);
	assert_int_equal(world_events_with(w, words), 1);
}

static void more_steps(struct world *w, int steps)
{
	world_run_until(w, world_steps_told(w) + steps);
}

/* All steps are made, and each once. */
static void ends_well(struct world *w, uint64_t seed)
{
	int status;
	world_search(w, false);
	world_prolong(w, 20); /* not if it is about to end */
	world_run_out(w, seed);
	if (!world_ended(w, &status) || status)
		fail_msg("seed %llu: %s", (unsigned long long)seed, world_exit_text(w));
	assert_int_equal(world_steps_told(w), world_steps(w));
	world_destroy(w);
}

/* The status says this of the repaired plan; NULL: it is not one. */
static void status_says(const struct world *w, const char *search, const char *words)
{
	json_t *s = world_status(w), *repaired = json_object_get(s, "repaired");
	assert_int_equal(repaired != NULL, search != NULL);
	if (search) {
		assert_string_equal(json_string_value(json_object_get(repaired, "search")), search);
		assert_non_null(strstr(json_string_value(json_object_get(repaired, "text")), words));
	}
	json_decref(s);
}

static void test_better_plan(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct world *w = four_nodes(seed, 1000000, 1.5, 0.05);
		lose(w, 3);
		run_until_resizes(w, 1);
		assert_string_not_equal(world_cause(w), "better-plan");
		assert_int_equal(world_events_with(w, "a better one is searched for"), 1);
		run_until_resizes(w, 2);
		assert_string_equal(world_cause(w), "better-plan");
		/* That was all: nothing else is looked for. */
		more_steps(w, 20);
		assert_int_equal(world_plans_asked(w), 0);
		assert_int_equal(world_resizes(w), 2);
		assert_int_equal(world_plans_cancelled(w), 0);
		status_says(w, NULL, NULL);
		ends_well(w, seed);
	}
}

/* Training does not wait for the search, which begins before the repaired plan is prepared. */
static void test_goes_on_meanwhile(void **state)
{
	(void)state;
	struct world *w = four_nodes(1, 1000000, 1.5, 0.05);
	world_search(w, true);
	status_says(w, NULL, NULL);
	lose(w, 3);
	while (!world_plans_asked(w) || !world_events_with(w, "a better one is searched for"))
		world_go_on(w);
	assert_int_equal(world_resizes(w), 0);
	run_until_resizes(w, 1);
	more_steps(w, 200);
	assert_int_equal(world_plans_asked(w), 1);
	json_t *s = world_status(w);
	assert_string_equal(json_string_value(json_object_get(s, "phase")), "training");
	json_decref(s);
	status_says(w, "running", "a search for a better plan runs, for ");
	/* But not for ever. */
	run_until_event(w, "the solver did not answer in time");
	status_says(w, "ended", "the repaired plan stays: the solver did not answer in time");
	assert_int_equal(world_plans_asked(w), 0);
	more_steps(w, 20);
	assert_int_equal(world_plans_asked(w), 0);
	assert_int_equal(world_resizes(w), 1);
	ends_well(w, 1);
}

/* It is not faster by as much as the policy wants, or too few steps are left to save what the change costs: the plan stays, and that is
 * said once. */
static void test_does_not_pay(void **state)
{
	(void)state;
	for (int what = 0; what < 3; what++)
		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct world *w = four_nodes(seed, what == 2 ? 150 : 1000000,
			                             what == 0   ? 1.04
			                             : what == 1 ? 1.5
			                                         : 1.01,
			                             what == 0   ? 0.05
			                             : what == 1 ? 0.4
			                                         : 1e-3);
			lose(w, 3);
			run_until_resizes(w, 1);
			run_until_event(w, ANOTHER);
			assert_int_equal(world_plans_asked(w), 0);
			if (what < 2) {
				more_steps(w, 10);
				world_restart(w);
				more_steps(w, 10);
				status_says(w, "ended", ANOTHER);
			}
			assert_int_equal(world_plans_asked(w), 0);
			assert_int_equal(world_events_with(w, ANOTHER), 1);
			assert_int_equal(world_resizes(w), 1);
			ends_well(w, seed);
		}
}

/* Another node is lost, or comes, while the search runs: it is given up, its answer is not used if it comes all the same, and the next one
 * is about what is there then. */
static void test_changes_meanwhile(void **state)
{
	(void)state;
	int late = 0;
	for (uint64_t seed = 1; seed <= 4 * SEEDS; seed++) {
		bool comes = seed % 2;
		struct world *w = four_nodes(seed, 1000000, 1.5, 0.05);
		world_search(w, true);
		lose(w, 3);
		if (seed % 4 < 2)
			run_until_resizes(w, 1);
		else
			run_until_event(w, "a better one is searched for");
		if (comes)
			world_hold(w, 4, true);
		else
			lose(w, 2);
		for (int i = 0; i < WORLD_MOVES && !world_plans_cancelled(w); i++)
			world_go_on(w);
		assert_true(world_plans_cancelled(w) >= 1);
		world_search(w, false);
		world_run_until_nodes(w, comes ? 4 : 2);
		for (int i = 0; i < WORLD_MOVES && strcmp(world_cause(w), comes ? "grow" : "better-plan") != 0; i++)
			world_go_on(w);
		more_steps(w, 20);
		assert_string_equal(world_cause(w), comes ? "grow" : "better-plan");
		assert_int_equal(world_nodes(w), comes ? 4 : 2);
		late += world_plans_late(w);
		ends_well(w, seed);
	}
	assert_true(late > 0);
}

/* The answer of a search that was given up comes while the next one runs: it is dropped, and the other one is waited for. */
static void test_stale_answer(void **state)
{
	(void)state;
	int late = 0;
	for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++) {
		struct world *w = four_nodes(seed, 1000000, 1.5, 0.05);
		world_search(w, true);
		lose(w, 3);
		run_until_resizes(w, 1);
		lose(w, 2);
		run_until_resizes(w, 2);
		int asked = world_plans_total(w);
		world_search(w, false);
		run_until_resizes(w, 3);
		assert_string_equal(world_cause(w), "better-plan");
		more_steps(w, 20);
		assert_int_equal(world_plans_total(w), asked);
		late += world_plans_late(w);
		ends_well(w, seed);
	}
	assert_true(late > 0);
}

/* Slurm reports late that the node is gone: nothing follows from it. */
static void test_late_report(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct world *w = four_nodes(seed, 1000000, 1.5, 0.05);
		world_search(w, true);
		world_silence(w, 3, true);
		world_kill(w, 3, 0, WORLD_AGENT);
		run_until_resizes(w, 1);
		world_hold(w, 3, false);
		world_poll(w);
		run_until_event(w, "node n3 left the job");
		more_steps(w, 20);
		assert_int_equal(world_plans_cancelled(w), 0);
		assert_int_equal(world_plans_asked(w), 1);
		world_search(w, false);
		run_until_resizes(w, 2);
		assert_string_equal(world_cause(w), "better-plan");
		ends_well(w, seed);
	}
}

/* While a planned change's search runs, a worker is lost: training does not wait for that search. */
static void test_loss_in_planned_search(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct world *w = four_nodes(seed, 1000000, 1.5, 0.05);
		world_search(w, true);
		world_hold(w, 4, true);
		for (int i = 0; i < WORLD_MOVES && !world_plans_asked(w); i++)
			world_go_on(w);
		assert_int_equal(world_plans_asked(w), 1);
		double began = world_now(w);
		world_kill(w, 1, 0, WORLD_KILL);
		run_until_resizes(w, 1);
		assert_true(world_plans_cancelled(w) >= 1);
		assert_true(world_now(w) - began < run_timeouts_default().solve / 2);
		ends_well(w, seed);
	}
}

/* The controller dies while the search runs, or between its answer and the decision: the next one searches again. */
static void test_restart(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++) {
		struct world *w = four_nodes(seed, 1000000, 1.5, 0.05);
		world_search(w, seed % 2);
		lose(w, 3);
		run_until_event(w, "a better one is searched for");
		for (uint64_t i = 0; i < 10 * seed; i++)
			world_go_on(w);
		if (seed % 2)
			run_until_resizes(w, 1);
		world_restart(w);
		world_search(w, false);
		for (int i = 0; i < WORLD_MOVES && strcmp(world_cause(w), "better-plan") != 0; i++)
			world_go_on(w);
		assert_string_equal(world_cause(w), "better-plan");
		more_steps(w, 20);
		assert_int_equal(world_plans_asked(w), 0);
		ends_well(w, seed);
	}
}

/* The run ends, or is told to, while the search runs. */
static void test_end_while_searching(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct world *w = four_nodes(seed, 300, 1.5, 0.05);
		int status;
		world_search(w, true);
		lose(w, 3);
		run_until_resizes(w, 1);
		if (seed % 2)
			world_shutdown(w);
		world_run_out(w, seed);
		assert_true(world_ended(w, &status));
		assert_int_equal(status, seed % 2 ? 85 : 0);
		assert_int_equal(world_plans_asked(w), 0);
		world_destroy(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_better_plan),
		cmocka_unit_test(test_goes_on_meanwhile),
		cmocka_unit_test(test_does_not_pay),
		cmocka_unit_test(test_changes_meanwhile),
		cmocka_unit_test(test_stale_answer),
		cmocka_unit_test(test_late_report),
		cmocka_unit_test(test_loss_in_planned_search),
		cmocka_unit_test(test_restart),
		cmocka_unit_test(test_end_while_searching),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
