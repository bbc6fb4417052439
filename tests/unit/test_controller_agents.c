/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller in a simulated cluster (world.c) with agents that refuse, fail or are silent; and a restarted controller that adopts
 * the agents and workers of the previous one. */
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

/* Runs until the agent of node 2 was started `starts` times; the number of polls of Slurm makes no difference. */
static void run_until_starts(struct world *w, int starts)
{
	for (int i = 0; i < WORLD_MOVES && world_starts(w, 2) < starts; i++) {
		world_poll(w);
		world_go_on(w);
	}
	assert_int_equal(world_starts(w, 2), starts);
}

static struct world *two_of_three(uint64_t seed)
{
	struct world *w = world_create(
	        &(struct world_options){ .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 2, .steps = 1000000, .gather = 5 });
	world_run_until(w, 20);
	return w;
}

/* A node that has come back may refuse its agent for a while: the agent is started again at growing intervals, and finally no more, until
 * the node leaves and joins again. */
static void test_refused(void **state)
{
	(void)state;
	struct world *w = two_of_three(1);
	world_refuse(w, 2, 1);
	world_hold(w, 2, true);
	run_until_starts(w, 1);
	double first = world_started_at(w, 2);
	run_until_starts(w, 2);
	assert_true(world_started_at(w, 2) >= first + 1);
	world_run_until_nodes(w, 3);
	world_hold(w, 2, false);
	world_run_until_nodes(w, 2);
	world_refuse(w, 2, 1000);
	world_hold(w, 2, true);
	double pause = 0.5;
	for (int starts = 3; starts <= 7; starts++, pause *= 2) {
		double last = world_started_at(w, 2);
		run_until_starts(w, starts);
		assert_true(starts == 3 || world_started_at(w, 2) >= last + pause);
	}
	world_run_for(w, 60);
	assert_int_equal(world_starts(w, 2), 7);
	assert_int_equal(world_nodes(w), 2);
	world_refuse(w, 2, 0);
	world_hold(w, 2, false);
	world_run_for(w, 1);
	world_hold(w, 2, true);
	world_run_until_nodes(w, 3);
	assert_int_equal(world_steps_lost(w), 0);
	world_destroy(w);
}

/* The same before the first generation, which waits while the agent is started again: a node that is ready a moment later takes part, and
 * the job starts without one that never is. */
static void test_refused_at_first(void **state)
{
	(void)state;
	for (int refusals = 3; refusals <= 1000; refusals += 997) {
		bool comes = refusals < 5;
		struct world *w = world_create(
		        &(struct world_options){ .seed = 1, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 1000000, .gather = 60 });
		double began = world_now(w), pause = 1;
		world_refuse(w, 2, refusals);
		run_until_starts(w, 1);
		for (int starts = 2; starts <= (comes ? 4 : 5); starts++, pause *= 2) {
			double last = world_started_at(w, 2);
			world_poll(w); /* a poll that the controller did not request makes no difference */
			for (int i = 0; i < WORLD_MOVES && world_starts(w, 2) < starts; i++)
				world_go_on(w);
			assert_int_equal(world_starts(w, 2), starts);
			assert_true(world_started_at(w, 2) >= last + pause && world_started_at(w, 2) < last + pause + 1);
			assert_int_equal(world_generations(w), 0);
		}
		world_run_until(w, 20);
		assert_int_equal(world_nodes(w), comes ? 3 : 2);
		assert_int_equal(world_generations(w), 1);
		assert_int_equal(world_starts(w, 2), comes ? 4 : 5);
		assert_true(world_started_at(w, 2) < began + 20);
		world_destroy(w);
	}
}

/* The status says why n2 is left out, and whether for a time that is known. */
static void expect_reason(struct world *w, const char *reason, bool timed)
{
	json_t *s = world_status(w), *one = json_object_get(json_object_get(s, "left_out"), "n2");
	const char *text = json_string_value(json_object_get(one, "reason"));
	if (!text || !strstr(text, reason))
		fail_msg("expected the reason \"%s\", got \"%s\"", reason, text ? text : "none");
	assert_int_equal(json_is_real(json_object_get(one, "for_s")), timed);
	json_decref(s);
}

/* A node that was upgraded while the job runs is left out, once and in words; with the job's version it takes part again. */
static void test_other_version(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct world *w = two_of_three(seed);
		world_set_version(w, 2, "99.0");
		world_hold(w, 2, true);
		run_until_starts(w, 1);
		world_run_for(w, 300);
		assert_int_equal(world_nodes(w), 2);
		assert_int_equal(world_starts(w, 2), 1);
		static const char left_out[] =
		        "node n2 is not used: it runs hspmd 99.0, and this job was started by hspmd " PACKAGE_VERSION;
		assert_int_equal(world_events_with(w, left_out), 1);
		expect_reason(w, "it runs hspmd 99.0, and this job was started by hspmd " PACKAGE_VERSION, false);
		world_hold(w, 2, false);
		world_run_for(w, 5);
		world_set_version(w, 2, NULL);
		world_hold(w, 2, true);
		world_run_until_nodes(w, 3);
		world_destroy(w);
	}
}

/* A run that can go on in another job ends before Slurm ends the job, all steps saved, with a status that a script can read. */
static void test_ends_in_time(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .held = 3, .devices_per_node = 1, .steps = 1000000, .checkpoints = true, .ends = 200 });
		int status = 0;
		world_run_until(w, 5);
		world_poll(w);
		for (int i = 0; i < WORLD_MOVES && !world_ended(w, &status) && world_now(w) < 200; i++)
			world_go_on(w);
		assert_true(world_ended(w, &status));
		assert_true(world_saved(w));
		assert_int_equal(status, RUN_EXIT_MORE);
		assert_true(world_now(w) < 200 && world_now(w) > 100);
		world_destroy(w);
	}
}

/* What the job holds on a node and cannot use is named, with the reason. */
static void test_idle(void **state)
{
	(void)state;
	static const struct {
		const char *held, *granted;
		int found;
		const char *text;
	} cases[] = {
		{ "{\"cpus\": 4, \"gpus\": \"0-1\"}", "{\"cpus\": 4, \"gpus\": \"0,1\"}", 2, "" },
		{ "{\"cpus\": 4, \"gpus\": \"\"}", "{\"cpus\": 4, \"gpus\": \"\"}", 0, "" },
		{ "{\"cpus\": 0, \"gpus\": \"0-1\"}", "{\"cpus\": 4}", 4, "" },
		{ "{\"cpus\": 4, \"gpus\": \"0-7\"}", "{\"cpus\": 4, \"gpus\": \"3\"}", 1,
		  "GPUs 0-2, 4-7: Slurm gave only others to the agent's step (an option of srun, or a default of the site's, for tasks)" },
		{ "{\"cpus\": 4, \"gpus\": \"5\"}", "{\"cpus\": 1, \"gpus\": \"\"}", 0,
		  "GPU 5: Slurm gave none to the agent's step (an option of srun, or a default of the site's, for tasks); 3 of 4 CPUs: "
		  "Slurm "
		  "gave 1 to the agent's step" },
		{ "{\"cpus\": 4, \"gpus\": \"0-1,6\"}", "{\"cpus\": 4}", 0,
		  "GPUs 0-1, 6: hspmd finds none of them there (it needs the module hspmd-cuda, and NVIDIA's driver)" },
		{ "{\"cpus\": 4, \"gpus\": \"0-1\"}", "{\"cpus\": 4, \"gpus\": \"0-1\"}", 1, "1 of GPUs 0-1: hspmd finds only 1 there" },
		{ "{\"cpus\": 4, \"gpus\": \"x-,999999999999,-4,1-\"}", "{}", 0, "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[700];
		json_t *held = json_loads(cases[i].held, 0, NULL), *granted = json_loads(cases[i].granted, 0, NULL);
		assert_int_equal(idle_describe(held, granted, cases[i].found, text, sizeof text), *cases[i].text != '\0');
		assert_string_equal(text, cases[i].text);
		json_decref(held);
		json_decref(granted);
	}
}

static bool left_out(struct world *w, const char *node)
{
	json_t *s = world_status(w);
	bool is = json_object_get(json_object_get(s, "left_out"), node) != NULL;
	json_decref(s);
	return is;
}

/* Kills the worker of node 2 so often that no step is made, until `until` returns true. */
static void fail_again_and_again(struct world *w, bool (*until)(struct world *w, int so_far), int so_far)
{
	for (int i = 0; i < WORLD_MOVES && !until(w, so_far); i++) {
		if (i % 5 == 0)
			world_kill(w, 2, 0, WORLD_KILL);
		world_go_on(w);
	}
	assert_true(until(w, so_far));
}

static bool n2_is_left_out(struct world *w, int so_far)
{
	(void)so_far;
	return left_out(w, "n2");
}

static bool has_more_plans(struct world *w, int so_far)
{
	return world_generations(w) > so_far + 3;
}

/* A node whose worker fails repeatedly is quarantined, which does not delay the reply to a growth; it is tried again, each time later. */
static void test_left_out_for_failing(void **state)
{
	(void)state;
	struct world *w =
	        world_create(&(struct world_options){ .seed = 1, .nodes = 4, .devices_per_node = 1, .held = 3, .steps = 1000000 });
	world_run_until(w, 20);
	fail_again_and_again(w, n2_is_left_out, 0);
	expect_reason(w, "worker n2:0 failed ", true);
	double since = world_now(w);
	world_run_until_nodes(w, 2);
	world_ask(w, "grow", 1);
	for (int i = 0; i < WORLD_MOVES && !world_replies(w, true); i++)
		world_go_on(w);
	assert_int_equal(world_replies(w, true), 1);
	assert_int_equal(world_nodes(w), 3);
	assert_true(left_out(w, "n2") && world_now(w) < since + 60);
	world_run_until_nodes(w, 4);
	assert_true(!left_out(w, "n2") && world_now(w) >= since + 60);
	fail_again_and_again(w, n2_is_left_out, 0);
	since = world_now(w);
	world_run_until_nodes(w, 3);
	world_run_until_nodes(w, 4);
	assert_true(world_now(w) >= since + 120);
	assert_int_equal(world_steps_lost(w), 0);
	world_destroy(w);
}

/* A node without which there is no plan is not left out for long. */
static void test_needed_though_it_fails(void **state)
{
	(void)state;
	struct world *w = world_create(
	        &(struct world_options){ .seed = 1, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 1000000, .needs = 3 });
	world_run_until(w, 20);
	fail_again_and_again(w, has_more_plans, world_generations(w));
	double since = world_now(w);
	world_run_until(w, world_steps_told(w) + 10);
	assert_int_equal(world_nodes(w), 3);
	assert_true(world_now(w) < since + 30);
	world_destroy(w);
}

/* All workers die at once, or all of a node, as with its driver: that is one attempt that has failed, not one for each. */
static void test_many_workers_die_at_once(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .devices_per_node = 4, .held = 3, .steps = 40, .checkpoints = true, .attempts = 2 });
		int status = -1;
		for (int step = 5; step <= 25; step += 10) {
			world_run_until(w, step);
			for (int n = 0; n < (seed % 2 ? 3 : 1); n++)
				for (int d = 0; d < 4; d++)
					world_kill(w, n, d, WORLD_KILL);
		}
		world_run_out(w, seed);
		if (!world_ended(w, &status) || status)
			fail_msg("seed %d: %d: %s", (int)seed, status, world_exit_text(w));
		world_destroy(w);
	}
}

/* An agent that does not connect is started again at its deadline, not before. */
static void test_silent(void **state)
{
	(void)state;
	struct world *w = two_of_three(2);
	world_silence(w, 2, true);
	world_hold(w, 2, true);
	run_until_starts(w, 1);
	for (int starts = 2; starts <= 5; starts++) {
		double last = world_started_at(w, 2);
		run_until_starts(w, starts);
		assert_true(world_started_at(w, 2) >= last + 5);
	}
	world_run_for(w, 60);
	assert_int_equal(world_starts(w, 2), 5);
	assert_int_equal(world_nodes(w), 2);
	assert_int_equal(world_resizes(w), 0);
	world_destroy(w);
}

/* A restarted controller finds the workers training, and lets them train on. */
static void test_adopted(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *w = world_create(&(struct world_options){ .seed = seed,
		                                                        .nodes = 3,
		                                                        .devices_per_node = 2,
		                                                        .held = 3,
		                                                        .steps = 400,
		                                                        .sole = seed % 2,
		                                                        .checkpoints = seed % 3 == 0 });
		int status;
		for (int incarnation = 1; incarnation <= 4; incarnation++) {
			world_run_until(w, 60 * incarnation);
			world_restart(w);
		}
		world_run_out(w, seed);
		if (world_ended(w, &status) && status)
			fail_msg("seed %llu: %s", (unsigned long long)seed, world_exit_text(w));
		assert_int_equal(world_steps_told(w), 400);
		assert_int_equal(world_resizes(w), 0);
		assert_int_equal(world_generations(w), 1);
		for (int n = 0; n < 3; n++)
			assert_int_equal(world_starts(w, n), 1);
		world_destroy(w);
	}
}

/* The controller waits for an agent that does not reconnect, and then continues without it. The workers of one that reconnects too late are
 * killed, and its node takes part again. */
static void test_not_adopted(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .devices_per_node = 2, .held = 3, .steps = 1000000, .sole = seed % 2 });
		world_run_until(w, 60);
		world_restart(w);
		double since = world_now(w);
		world_silence(w, 1, true);
		if (seed % 4 < 2)
			world_kill(w, 1, 0, WORLD_AGENT);
		for (int i = 0; i < WORLD_MOVES && world_now(w) < since + 14; i++)
			world_go_on(w);
		assert_int_equal(world_generations(w), 1);
		assert_int_equal(world_resizes(w), 0);
		for (int i = 0; i < WORLD_MOVES && world_starts(w, 1) < 2; i++)
			world_go_on(w);
		for (int i = 0; i < 200 && world_move(w); i++) /* the others have answered before it connects */
			;
		world_silence(w, 1, false);
		for (int i = 0; i < WORLD_MOVES && (!world_resizes(w) || world_nodes(w) < 3); i++)
			world_go_on(w);
		int told = world_steps_told(w);
		world_run_until(w, told + 100);
		assert_int_equal(world_nodes(w), 3);
		assert_true(world_generations(w) >= 2);
		assert_int_equal(world_steps_lost(w), 0);
		assert_int_equal(world_starts(w, 1), 2);
		world_destroy(w);
	}
}

/* The controller is killed when the journal has a new generation that no worker has received yet: all workers hold the older generation's
 * state. */
static void test_adopted_in_a_switch(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .devices_per_node = 2, .held = 3, .steps = 300, .sole = seed % 2 });
		int status;
		world_run_until(w, 30);
		world_dies_in_switch(w);
		world_ask(w, "shrink", 1);
		world_run_out(w, seed);
		if (world_ended(w, &status) && status)
			fail_msg("seed %llu: %s", (unsigned long long)seed, world_exit_text(w));
		assert_int_equal(world_steps_told(w), 300);
		assert_int_equal(world_steps_lost(w), 0);
		assert_true(world_resizes(w) >= 1);
		world_destroy(w);
	}
}

/* The controller is killed when some workers have received stop, or a request for a checkpoint, and others have not: no wait is in vain. */
static void test_adopted_in_two_minds(void **state)
{
	(void)state;
	static const char *const at[] = { "stop", "checkpoint" };
	for (int what = 0; what < 2; what++)
		for (uint64_t seed = 1; seed <= 60; seed++) {
			struct world *w = world_create(&(struct world_options){ .seed = seed,
			                                                        .nodes = 3,
			                                                        .devices_per_node = 1,
			                                                        .held = 3,
			                                                        .steps = 60,
			                                                        .checkpoints = true,
			                                                        .every_steps = 2,
			                                                        .long_steps = seed % 4 > 0 });
			int status;
			world_run_until(w, 30);
			double began = world_now(w);
			world_ask(w, "shrink", 1);
			world_dies_at(w, at[what]);
			world_run_out(w, seed);
			if (world_ended(w, &status) && status)
				fail_msg("%s, seed %llu: %s", at[what], (unsigned long long)seed, world_exit_text(w));
			if (world_now(w) - began > 100)
				fail_msg("%s, seed %llu: it took %.0f s", at[what], (unsigned long long)seed, world_now(w) - began);
			assert_int_equal(world_steps_told(w), 60);
			world_destroy(w);
		}
}

static struct world *three_nodes(uint64_t seed)
{
	struct world *w = world_create(&(struct world_options){
	        .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 1000000, .sole = true, .cuts = true });
	world_run_until(w, 20);
	return w;
}

/* Someone starts a second agent on a node whose first one works: nothing changes. */
static void test_second_agent(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world *w = three_nodes(seed);
		for (int i = 1; i <= 3; i++) {
			world_start_second(w, 2);
			world_run_until(w, world_steps_told(w) + 100);
			assert_int_equal(world_turned_away(w), i);
		}
		assert_int_equal(world_replaced(w), 0);
		assert_int_equal(world_generations(w), 1);
		for (int n = 0; n < 3; n++)
			assert_int_equal(world_starts(w, n), 1);
		world_destroy(w);
	}
}

/* The first agent is dead, but its connection is open: the second one takes its place, and its workers take up the state in the node's
 * memory. */
static void test_second_agent_of_a_dead_one(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world *w = three_nodes(seed);
		world_vanish(w, 2);
		world_start_second(w, 2);
		double since = world_now(w);
		for (int i = 0; i < WORLD_MOVES && !world_replaced(w); i++)
			world_go_on(w);
		assert_int_equal(world_replaced(w), 1);
		assert_true(world_now(w) <= since + 11);
		world_run_until(w, world_steps_told(w) + 100);
		assert_int_equal(world_nodes(w), 3);
		assert_int_equal(world_steps_lost(w), 0);
		assert_int_equal(world_turned_away(w), 0);
		assert_int_equal(world_starts(w, 2), 1);
		world_destroy(w);
	}
}

/* A link is cut, and an agent is started meanwhile. When the link is back, either may come first: the one with the workers stays, and its
 * node's memory is used. */
static void test_second_agent_after_a_cut(void **state)
{
	(void)state;
	int second_came_first = 0, turned_away = 0;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct world *w = three_nodes(seed);
		bool polls = seed % 2;
		world_cut(w, 2);
		world_silence(w, 2, true);
		for (int i = 0; i < WORLD_MOVES && polls && world_starts(w, 2) < 2; i++)
			world_go_on(w);
		world_silence(w, 2, false);
		world_run_until(w, world_steps_told(w) + 100);
		world_run_until_nodes(w, 3);
		world_run_until(w, world_steps_told(w) + 100);
		assert_int_equal(world_steps_lost(w), 0);
		assert_int_equal(world_replaced(w), 0);
		assert_true(world_starts(w, 2) <= 2);
		assert_int_equal(world_turned_away(w), world_starts(w, 2) - 1);
		turned_away += world_turned_away(w);
		second_came_first += world_second_came_first(w);
		world_destroy(w);
	}
	assert_true(turned_away > 40 && second_came_first && second_came_first < turned_away);
}

/* A second agent calls a new controller before the first one does: it waits, and the workers train on. */
static void test_second_agent_and_a_new_controller(void **state)
{
	(void)state;
	int second_came_first = 0;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct world *w = three_nodes(seed);
		world_start_second(w, 2);
		world_restart(w);
		world_run_until(w, 300);
		assert_int_equal(world_turned_away(w), 1);
		assert_int_equal(world_replaced(w), 0);
		assert_int_equal(world_generations(w), 1);
		assert_int_equal(world_resizes(w), 0);
		second_came_first += world_second_came_first(w);
		world_destroy(w);
	}
	assert_in_range(second_came_first, 10, 90);
}

/* Whichever agent connects first after a controller's death, the node with the batch script stays. */
static void test_adopted_and_shrunk(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct world *w =
		        world_create(&(struct world_options){ .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 60 });
		int status;
		world_run_until(w, 5);
		world_restart(w);
		world_run_until(w, 10);
		world_ask(w, "shrink", 2);
		world_run_out(w, seed);
		if (world_ended(w, &status) && status)
			fail_msg("seed %llu: %s", (unsigned long long)seed, world_exit_text(w));
		assert_int_equal(world_nodes(w), 1);
		world_destroy(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_refused_at_first),
		cmocka_unit_test(test_other_version),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_ends_in_time),
		cmocka_unit_test(test_left_out_for_failing),
		cmocka_unit_test(test_needed_though_it_fails),
		cmocka_unit_test(test_many_workers_die_at_once),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_adopted),
		cmocka_unit_test(test_not_adopted),
		cmocka_unit_test(test_adopted_in_a_switch),
		cmocka_unit_test(test_adopted_in_two_minds),
		cmocka_unit_test(test_adopted_and_shrunk),
		cmocka_unit_test(test_second_agent),
		cmocka_unit_test(test_second_agent_of_a_dead_one),
		cmocka_unit_test(test_second_agent_after_a_cut),
		cmocka_unit_test(test_second_agent_and_a_new_controller),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
