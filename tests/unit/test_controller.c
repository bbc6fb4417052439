/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller in a simulated cluster (world.c): undisturbed, and disturbed in ways that tests choose
 * (test_controller_chaos.c draws them). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/world_runs.h"

static void test_undisturbed(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct world *w =
		        world_create(&(struct world_options){ .seed = seed, .nodes = 4, .devices_per_node = 2, .held = 4, .steps = 20 });
		int status;
		world_run_out(w, seed);
		assert_true(world_ended(w, &status));
		if (status)
			fail_msg("%s", world_exit_text(w));
		assert_int_equal(world_steps_told(w), 20);
		assert_int_equal(world_resizes(w), 0);
		world_destroy(w);
	}
}

/* A growth that is requested between a shrink's reply and the first step after it is reported as a growth. What workers are told when they
 * prepare, of who will hold the state, is what they are told when they start. */
static void test_causes(void **state)
{
	(void)state;
	int between = 0;
	for (uint64_t seed = 50; seed <= 80; seed++) { /* with seed 65 the node comes before the step */
		struct world *w =
		        world_create(&(struct world_options){ .seed = seed, .nodes = 4, .devices_per_node = 1, .held = 3, .steps = 400 });
		int status;
		world_run_until(w, 10);
		world_ask(w, "shrink", 1);
		for (int i = 0; i < WORLD_MOVES && !world_replies(w, true); i++)
			if (!world_move(w))
				world_wait(w);
		bool early = !world_resizes(w);
		between += early;
		world_ask(w, "grow", 1);
		world_run_out(w, seed);
		assert_true(world_ended(w, &status) && !status);
		assert_int_equal(world_unexpected(w), 0);
		if (early) {
			assert_int_equal(world_resizes(w), 2);
			assert_string_equal(world_cause(w), "grow");
		}
		world_destroy(w);
	}
	assert_true(between > 0);
}

/* SIGTERM at any moment: the job ends, and all reported steps are in a checkpoint from which a later incarnation starts. */
static void test_leave(void **state)
{
	(void)state;
	for (int when = 0; when < 30; when += 3) {
		struct world *w = world_create(&(struct world_options){
		        .seed = 77 + (uint64_t)when, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 1000, .checkpoints = true });
		int status;
		world_run_until(w, when);
		world_shutdown(w);
		world_run_out(w, 77);
		assert_true(world_ended(w, &status));
		/* Whoever started the job is told by the status whether it can go on. */
		assert_int_equal(status, strstr(world_exit_text(w), "without a checkpoint") ? 1 : 85);
		assert_non_null(strstr(world_exit_text(w), "SIGTERM"));
		if (world_steps_told(w) > 0 && strstr(world_exit_text(w), "is complete"))
			assert_true(world_saved(w));
		world_destroy(w);
	}
}

/* Samples are asked for when they are due, from a checkpoint that is made for them if there is no other; also if the job is resized, and at
 * the last step. */
static void test_samples(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		bool resized = seed > 4;
		struct world *w = world_create(&(struct world_options){ .seed = seed,
		                                                        .nodes = 3,
		                                                        .devices_per_node = 1,
		                                                        .held = 3,
		                                                        .steps = 30,
		                                                        .checkpoints = true,
		                                                        .every_steps = seed % 2 ? 1000 : 3,
		                                                        .samples_every = 7,
		                                                        .long_steps = true });
		int status;
		world_run_until(w, 10);
		if (resized)
			world_ask(w, "shrink", 1);
		world_run_out(w, seed);
		assert_true(world_ended(w, &status) && !status);
		/* The steps after a resize may be over before the controller hears of the first. */
		assert_in_range(world_samples(w), resized ? 2 : 4, 5);
		world_destroy(w);
	}
}

/* All state is lost, and while the controller waits for a plan and searches for checkpoints a node joins, or its agent dies once more: its
 * agent gets the query again. */
static void test_asked_again(void **state)
{
	(void)state;
	for (int when = 0; when < 120; when++) {
		struct world *w = world_create(&(struct world_options){ .seed = 2 + 4 * (uint64_t)when,
		                                                        .nodes = 3,
		                                                        .devices_per_node = 1,
		                                                        .held = 2,
		                                                        .steps = 1000000,
		                                                        .checkpoints = true,
		                                                        .stuck = true });
		world_run_until(w, 10);
		world_kill(w, 0, 0, WORLD_AGENT);
		world_kill(w, 1, 0, WORLD_AGENT);
		for (int i = 0; i < when / 2; i++)
			if (!world_move(w))
				world_wait(w);
		if (when % 2)
			world_hold(w, 2, true);
		else
			world_kill(w, 1, 0, WORLD_AGENT);
		double began = world_now(w);
		for (int i = 0; i < WORLD_MOVES && world_now(w) < began + 50 && (!world_resizes(w) || world_nodes(w) < 2); i++)
			if (!world_move(w))
				world_wait(w);
		if (!world_resizes(w) || world_nodes(w) < 2)
			fail_msg("after %d moves: it has not gone on after %.0f s", when, world_now(w) - began);
		world_destroy(w);
	}
}

/* One pipeline, no copies anywhere: a worker's state is taken up from its node's memory, whatever was in progress when the worker was
 * killed, also if the process that takes it up is killed, too. The same for a hung worker that is ended, for all workers of an agent, and
 * if the controller dies. */
static void revived(uint64_t first, uint64_t last, bool restarts)
{
	for (uint64_t seed = first; seed <= last; seed++) {
		struct world *w = world_create(
		        &(struct world_options){ .seed = seed, .nodes = 3, .devices_per_node = 2, .held = 3, .steps = 120, .sole = true });
		uint64_t x = seed;
		int status;
		for (int i = 0; i < 12 && !world_ended(w, &status); i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			int moves = (int)(x >> 33) % ((x >> 20) % 3 ? 150 : 15);
			world_run_until(w, 1); /* before the first step there is no state to lose */
			for (int k = 0; k < moves && !world_ended(w, &status); k++)
				if (!world_move(w))
					world_wait(w);
			if (restarts && (x >> 45) % 3 == 0)
				world_dies(w, (int)(x >> 52) % 20);
			world_kill(w, (int)(x >> 40) % 3, (int)(x >> 50) % 2, seed % 3 == 0 ? (enum world_how)((x >> 55) % 3) : WORLD_KILL);
		}
		world_heal(w);
		world_run_out(w, seed);
		world_ended(w, &status);
		if (status)
			fail_msg("seed %llu ended with %d: %s", (unsigned long long)seed, status, world_exit_text(w));
		if (world_steps_lost(w))
			fail_msg("seed %llu: %lld steps lost", (unsigned long long)seed, (long long)world_steps_lost(w));
		world_destroy(w);
	}
}

static void test_revived(void **state)
{
	(void)state;
	const char *one = getenv("HSPMD_SEED");
	const unsigned count = one ? 1 : getenv("HSPMD_LONG") ? 3000 : 12;
	uint64_t first = one ? strtoull(one, NULL, 10) : 1 + draw_first(count, 3000), last = first + count - 1;
	/* A worker that only sends state is lost after the start for which it sends has failed. */
	if (!one)
		revived(805, 805, false);
	revived(first, last, false);
	revived(first, last, true);
}

/* A worker is lost, and the controller dies before or after the others have been told: those wait for the lost one in the middle of a step
 * and do not answer the new controller, which does not need their answers. */
static void test_lost_without_controller(void **state)
{
	(void)state;
	for (int when = 0; when < 60; when++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = 1 + (uint64_t)when, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 1000, .sole = true });
		world_run_until(w, 10);
		world_kill(w, when % 3, 0, WORLD_KILL);
		for (int i = 0; i < when / 2; i++)
			if (!world_move(w))
				world_wait(w);
		world_restart(w);
		double began = world_now(w);
		world_run_until(w, world_steps_told(w) + 5);
		if (world_now(w) - began > 50)
			fail_msg("after %d moves: it took %.0f s", when / 2, world_now(w) - began);
		assert_int_equal(world_steps_lost(w), 0);
		world_destroy(w);
	}
}

/* Before Slurm has told a new controller which nodes the job holds, neither their number nor the first is known: resizes are refused. */
static void test_resized_too_early(void **state)
{
	(void)state;
	for (int when = 0; when < 40; when++) {
		struct world *w = world_create(
		        &(struct world_options){ .seed = 1 + (uint64_t)when, .nodes = 5, .devices_per_node = 1, .held = 4, .steps = 1000 });
		world_run_until(w, 10);
		world_restart(w);
		for (int i = 0; i < when / 2; i++)
			if (!world_move(w))
				world_wait(w);
		bool known = world_polled(w);
		world_ask(w, when % 2 ? "shrink" : "grow", 1);
		assert_int_equal(world_replies(w, false), !known);
		if (known)
			world_run_until_nodes(w, when % 2 ? 3 : 5);
		world_destroy(w);
	}
}

/* One pipeline: a node that a member job brought holds state that nobody else has. It still hands it over when the job's time is over,
 * whether Slurm or the agent tells first. */
static void test_member_times_out(void **state)
{
	(void)state;
	int done = 0;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 2, .steps = 1000000, .sole = true });
		world_run_until(w, 10);
		world_ask(w, "grow", 1);
		world_run_until_nodes(w, 3);
		world_run_until(w, world_steps_told(w) + 5 + (int)seed);
		if (world_member_times_out(w, 2)) { /* it has not grown in place */
			world_run_until_nodes(w, 2);
			for (int i = 0; i < WORLD_MOVES && !world_events_with(w, "has timed out"); i++)
				world_go_on(w);
			if (world_steps_lost(w))
				fail_msg("seed %llu: %lld steps lost", (unsigned long long)seed, (long long)world_steps_lost(w));
			assert_int_equal(world_events_with(w, "has timed out"), 1);
			done++;
		}
		world_destroy(w);
	}
	assert_true(done > 10);
}

/* A shrink is done when its nodes have left, also if others have joined meanwhile. */
static void test_shrink_while_others_join(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct world *w = world_create(
		        &(struct world_options){ .seed = seed, .nodes = 4, .devices_per_node = 1, .held = 2, .steps = 100000 });
		world_run_until(w, 10);
		world_ask(w, "shrink", 1);
		world_hold(w, 2, true);
		world_hold(w, 3, true);
		double began = world_now(w);
		while (!world_replies(w, true) && !world_replies(w, false))
			world_go_on(w);
		assert_int_equal(world_replies(w, true), 1);
		assert_true(world_now(w) - began < 100);
		world_destroy(w);
	}
}

/* Slurm refuses to take nodes back, before or after the user has given up: the job uses them again. */
static void test_shrink_refused(void **state)
{
	(void)state;
	for (int late = 0; late < 2; late++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = 6, .nodes = 4, .devices_per_node = 1, .held = 4, .steps = 100000, .keeps_for_s = late ? 1100 : 1 });
		world_run_until(w, 10);
		world_ask(w, "shrink", 2);
		world_run_until_nodes(w, 2);
		world_run_until_nodes(w, 4);
		assert_int_equal(world_replies(w, false), 1);
		assert_int_equal(world_events_with(w, "Slurm keeps them"), 1);
		world_destroy(w);
	}
}

/* A worker that hangs at any moment from its start to its first steps, or in a switch, costs a minute, not the deadlines of preparing and
 * connecting. */
static void test_hung(void **state)
{
	(void)state;
	for (int when = 0; when < 120; when++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = 5 + (uint64_t)when, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 300, .checkpoints = true });
		int status;
		if (when >= 60) {
			world_run_until(w, 30);
			world_ask(w, "shrink", 1);
		}
		double began = world_now(w);
		for (int i = 0; i < when % 60; i++)
			if (!world_move(w))
				world_wait(w);
		world_kill(w, 0, 0, WORLD_HANG);
		world_run_until(w, 60);
		if (world_ended(w, &status))
			fail_msg("after %d moves: ended with %d: %s", when, status, world_exit_text(w));
		if (world_now(w) - began > 100)
			fail_msg("after %d moves: it took %.0f s", when, world_now(w) - began);
		world_destroy(w);
	}
}

/* A controller that was stopped while workers' answers were on their way kills none of them when it continues: it asks again. One that has
 * run all the time does not wait any longer. */
static void test_stopped_itself(void **state)
{
	(void)state;
	double ping = run_timeouts_default().ping;
	for (int stopped = 0; stopped < 2; stopped++) {
		int killed = 0;
		for (int when = 0; when < 60; when++) {
			struct world *w = world_create(&(struct world_options){
			        .seed = 3 + 4 * (uint64_t)when, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 20 });
			for (int i = 0; i < when; i++)
				if (!world_move(w))
					world_wait(w);
			world_stop(w, 10); /* `ping` is sent to workers */
			world_stop(w, (stopped ? 2.1 : 1.1) * ping);
			world_run_until(w, 20);
			killed += world_events_with(w, "has not answered");
			world_destroy(w);
		}
		assert_true(stopped ? killed == 0 : killed > 0);
	}
}

/* Runs until the solver's input has a slowdown of node 1 between these. */
static void run_until_slowdown(struct world *w, double least, double most)
{
	int status;
	for (int i = 0; i < WORLD_MOVES && !world_ended(w, &status) && (world_slowdown(w, 1) < least || world_slowdown(w, 1) > most); i++)
		if (!world_move(w))
			world_wait(w);
	if (world_ended(w, &status))
		fail_msg("it ended, and node 1 has a slowdown of %g", world_slowdown(w, 1));
}

/* Plans take a slow node's slowdown into account; a new one is made if the node becomes slower or recovers. A slightly slow node changes
 * nothing. */
static void test_stragglers(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 2; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .devices_per_node = 1 + (int)(seed % 2), .held = 3, .steps = 20000, .stragglers = true });
		world_run_until(w, 50);
		world_slow(w, 1, 1.4);
		world_run_until(w, 300);
		assert_int_equal(world_resizes(w), 0);
		world_slow(w, 1, 3);
		run_until_slowdown(w, 2.9, 3.1);
		world_run_until(w, world_steps_told(w) + 200);
		assert_true(world_slowdown(w, 1) > 2.9);
		world_slow(w, 1, 6);
		run_until_slowdown(w, 5.8, 6.2);
		world_slow(w, 1, 1);
		run_until_slowdown(w, 1, 1);
		world_run_until(w, world_steps_told(w) + 200);
		assert_true(world_slowdown(w, 1) == 1);
		assert_int_equal(world_steps_lost(w), 0);
		world_destroy(w);
	}
}

/* A slow node that plans do not use, so that its recovery cannot be measured, is tried again; also if only one device is left. */
static void test_left_out(void **state)
{
	(void)state;
	for (int nodes = 2; nodes <= 3; nodes++) {
		struct world *w = world_create(&(struct world_options){ .seed = 5,
		                                                        .nodes = nodes,
		                                                        .devices_per_node = 1,
		                                                        .held = nodes,
		                                                        .steps = 1000000,
		                                                        .stragglers = true,
		                                                        .avoids = true });
		world_run_until(w, 50);
		world_slow(w, 1, 6);
		run_until_slowdown(w, 5.8, 6.2);
		world_run_until(w, world_steps_told(w) + 100);
		world_slow(w, 1, 1);
		run_until_slowdown(w, 1, 1);
		/* If it is still slow then, it is left out for longer. */
		world_slow(w, 1, 6);
		run_until_slowdown(w, 5.8, 6.2);
		run_until_slowdown(w, 1, 1);
		run_until_slowdown(w, 5.8, 6.2);
		world_slow(w, 1, 1);
		run_until_slowdown(w, 1, 1);
		assert_int_equal(world_steps_lost(w), 0);
		world_destroy(w);
	}
}

/* Slurm takes any number of the last nodes without notice, wherever the plan has its stages, and does so again: once copies are made, the
 * job never starts from step 0. */
static void test_shrunk_by_count(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 4, .devices_per_node = 1, .held = 4, .steps = 100000, .halves = true });
		for (int nodes = 4, left; nodes > 1; nodes = left) {
			world_run_until(w, world_steps_told(w) + 200);
			left = 1 + (int)((seed + (uint64_t)nodes) % (uint64_t)(nodes - 1));
			for (int n = left; n < nodes; n++)
				world_hold(w, n, false);
			world_run_until_nodes(w, left);
			if (world_began_anew(w))
				fail_msg("seed %llu: a shrink from %d nodes to %d begins anew", (unsigned long long)seed, nodes, left);
		}
		world_destroy(w);
	}
}

/* A given plan that cannot run is refused before any worker is started; one that fits becomes the first generation's. */
static void test_given(void **state)
{
	(void)state;
	json_t *plan = json_pack("{ss, si, si, si, s[{si, s[{s[ii], s[s]}]}]}", "format", "hspmd-plan-1", "global_batch", 48, "micro_batch",
	                         1, "seq_len", 8, "pipelines", "micro_batches", 48, "stages", "layers", 0, 6, "devices", "n0:0");
	assert_non_null(plan);
	for (int fits = 0; fits < 2; fits++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = 3, .nodes = 2, .devices_per_node = 1, .held = 2, .steps = 5, .given = plan, .unfit = !fits });
		int status;
		world_run_out(w, 3);
		assert_true(world_ended(w, &status));
		assert_int_equal(status, fits ? 0 : 1);
		assert_int_equal(world_generations(w), fits);
		assert_int_equal(world_steps_told(w), fits ? 5 : 0);
		if (!fits)
			assert_string_equal(world_exit_text(w), "given.json: pipelines[0].stages[0]: it cannot be run");
		world_destroy(w);
	}
	json_decref(plan);
}

/* After a loss a plan is asked for as soon as those that are left have settled: no time passes until then. */
static void test_settled_at_once(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *w =
		        world_create(&(struct world_options){ .seed = seed, .nodes = 3, .devices_per_node = 2, .held = 3, .steps = 400 });
		int status;
		world_run_until(w, 10);
		int before = world_generations(w);
		world_kill(w, 2, 1, WORLD_KILL);
		while (world_generations(w) == before)
			if (!world_move(w))
				fail_msg("seed %llu: it waits at %g", (unsigned long long)seed, world_now(w));
		world_run_out(w, seed);
		assert_true(world_ended(w, &status) && !status);
		world_destroy(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_settled_at_once),
		cmocka_unit_test(test_undisturbed),
		cmocka_unit_test(test_causes),
		cmocka_unit_test(test_given),
		cmocka_unit_test(test_leave),
		cmocka_unit_test(test_samples),
		cmocka_unit_test(test_asked_again),
		cmocka_unit_test(test_revived),
		cmocka_unit_test(test_lost_without_controller),
		cmocka_unit_test(test_resized_too_early),
		cmocka_unit_test(test_member_times_out),
		cmocka_unit_test(test_shrink_while_others_join),
		cmocka_unit_test(test_shrink_refused),
		cmocka_unit_test(test_hung),
		cmocka_unit_test(test_stopped_itself),
		cmocka_unit_test(test_stragglers),
		cmocka_unit_test(test_left_out),
		cmocka_unit_test(test_shrunk_by_count),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
