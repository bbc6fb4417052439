/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller's checkpoints in a simulated cluster (world.c): which stand, a shared folder that hangs, the search for one to
 * continue from, and those at the job's end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/world_runs.h"

#define IN_SHARED "is complete in the shared folder"

static void until_kept(struct world *w, int written)
{
	for (int i = 0; i < 100000 && (world_written(w) < written || !world_kept(w)); i++)
		if (!world_move(w))
			world_wait(w);
	assert_int_equal(world_written(w), written);
}

/* Nodes, which may lack the manifests, are told of each checkpoint, and that the one before it stands; also by a controller that has taken
 * over from one that died. */
static void test_kept(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 1000, .checkpoints = true });
		until_kept(w, 1);
		assert_int_equal(world_kept(w), 1);
		until_kept(w, 2);
		assert_int_equal(world_kept(w), 2);
		until_kept(w, 3);
		assert_int_equal(world_kept(w), 2);
		world_restart(w);
		until_kept(w, 4);
		assert_int_equal(world_kept(w), 2);
		world_destroy(w);
	}
}

static void until_it_trains(struct world *w)
{
	int told = world_steps_told(w);
	for (int i = 0; i < WORLD_MOVES && world_steps_told(w) < told + 10; i++)
		world_go_on(w);
	assert_true(world_steps_told(w) >= told + 10);
}

static struct world *shared_goes_away(uint64_t seed, int steps)
{
	struct world *w = world_create(
	        &(struct world_options){ .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = steps, .checkpoints = true });
	until_kept(w, 2);
	world_shared_away(w, true);
	return w;
}

/* The shared folder is away for five minutes: the job trains on, saves on the nodes' own disks as before, does not ask again and again for
 * what hangs, and saves in the folder when it is back. */
static void test_shared_away(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 2; seed++) {
		struct world *w = shared_goes_away(seed, 1000000);
		int asked = world_shared_asked(w), steps = world_steps_told(w), in_shared = world_events_with(w, IN_SHARED);
		double gone = world_now(w);
		for (int minute = 0; minute < 5; minute++) {
			int written = world_written(w);
			world_run_for(w, 60);
			assert_in_range(world_written(w) - written, 30, 130); /* one every 0.5 s of some seconds' steps */
		}
		assert_true(world_steps_told(w) > steps + 1000);
		assert_int_equal(world_shared_asked(w) - asked, 1);
		int replies = world_replies(w, true);
		world_checkpoint(w); /* a user's is on the nodes' own disks, and says so */
		world_run_for(w, 10);
		assert_int_equal(world_replies(w, true), replies + 1);
		assert_int_equal(world_events_with(w, IN_SHARED), in_shared);
		world_shared_away(w, false);
		world_run_for(w, 10);
		assert_true(world_events_with(w, IN_SHARED) > in_shared + 1);
		until_kept(w, world_written(w) + 1);
		assert_int_equal(world_kept(w), 2);
		assert_int_equal(world_events_with(w, " failed"), 0);
		assert_true(world_now(w) < gone + 330);
		world_destroy(w);
	}
}

/* Meanwhile all workers are lost, with what is in memory: they go on from the newest checkpoint on the nodes' disks. */
static void test_all_lost_while_shared_is_away(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4; seed++) {
		struct world *w = shared_goes_away(4 * seed + 2, 1000000);
		world_run_for(w, 30);
		int64_t lost = world_steps_lost(w);
		double died = world_now(w);
		for (int n = 0; n < 3; n++)
			world_kill(w, n, 0, WORLD_AGENT);
		until_it_trains(w);
		assert_int_equal(world_began_anew(w), 0);
		assert_true(world_now(w) < died + 60);
		assert_true(world_steps_lost(w) - lost < 100); /* of some hundreds since the folder went away */
		world_destroy(w);
	}
}

/* It is away for longer than any wait: each try fails by itself and is told. A run that ends then has its last checkpoint on the nodes'
 * disks alone, and says so by its exit status. */
static void test_shared_stays_away(void **state)
{
	(void)state;
	struct world *w = shared_goes_away(1, 40000);
	int status = -1;
	for (int i = 0; i < 100 * WORLD_MOVES && !world_ended(w, &status); i++)
		if (!world_move(w))
			world_wait(w);
	assert_int_equal(status, 1);
	assert_non_null(strstr(world_exit_text(w), "on the nodes' own disks alone: /shared failed: "));
	assert_true(world_events_with(w, "failed in the shared folder: waited 600 s for ") > 0);
	assert_true(world_events_with(w, "failed in the shared folder: the shared folder is still busy") > 0);
	world_destroy(w);
}

/* A job whose nodes all see a checkpoint loses all of its workers, which leave nothing in memory. */
static struct world *lose_all(uint64_t seed, unsigned bad_senders)
{
	struct world *w = world_create(&(struct world_options){
	        .seed = 4 * seed + 2, .nodes = 4, .devices_per_node = 1, .held = 4, .steps = 1000000, .checkpoints = true });
	until_kept(w, 2);
	world_set_bad_senders(w, bad_senders);
	for (int n = 0; n < 4; n++)
		world_kill(w, n, 0, WORLD_AGENT);
	return w;
}

/* All name the checkpoint, and one sends its manifest, also if another plan must be made before the job trains. */
static void test_manifest_is_sent_once(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world *w = lose_all(seed, 0);
		int64_t before = world_last_start(w);
		for (int i = 0; i < WORLD_MOVES && world_last_start(w) == before; i++)
			world_go_on(w);
		if (seed % 2)
			world_kill(w, (int)seed / 2 % 4, 0, WORLD_KILL); /* while it loads */
		until_it_trains(w);
		if (world_began_anew(w) || world_manifests(w).asked != 1 || world_manifests(w).sent != 1)
			fail_msg("seed %d: anew %d times; %d were asked, %d sent", (int)seed, world_began_anew(w), world_manifests(w).asked,
			         world_manifests(w).sent);
		world_destroy(w);
	}
}

/* Agents refuse, send something else, or do not answer: others are asked, as long as there is one. */
static void test_manifest_of_bad_senders(void **state)
{
	(void)state;
	for (unsigned good = 0; good < 4; good++)
		for (uint64_t seed = 1; seed <= 10; seed++) {
			struct world *w = lose_all(seed, ~(1u << good));
			double lost = world_now(w);
			until_it_trains(w);
			if (world_began_anew(w) || world_manifests(w).sent < 1 || world_now(w) > lost + 100)
				fail_msg("seed %d, good %u: anew %d times, %d sent, after %.0f s", (int)seed, good, world_began_anew(w),
				         world_manifests(w).sent, world_now(w) - lost);
			world_destroy(w);
		}
}

/* Nobody can send it: the job waits before it begins anew, and goes on from the checkpoint if somebody can meanwhile. */
static void test_manifest_of_nobody(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct world *w = lose_all(seed, ~0u);
		double lost = world_now(w);
		while (seed % 2 && world_now(w) < lost + 300)
			world_go_on(w);
		world_set_bad_senders(w, seed % 2 ? 0 : ~0u);
		until_it_trains(w);
		assert_int_equal(world_began_anew(w) > 0, seed % 2 == 0);
		assert_true(seed % 2 || world_now(w) > lost + 600);
		assert_in_range(world_manifests(w).asked, 4, 400);
		world_destroy(w);
	}
}

/* The agent that was asked dies before it answers: another is asked, without a wait for the deadline. */
static void test_sender_dies(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *w = lose_all(seed, ~0u);
		for (int i = 0; i < WORLD_MOVES && !world_manifests(w).asked; i++)
			world_go_on(w);
		assert_int_equal(world_manifests(w).asked, 1);
		double died = world_now(w);
		world_set_bad_senders(w, 0);
		world_kill(w, world_manifests(w).last, 0, WORLD_AGENT); /* with what it was about to send */
		until_it_trains(w);
		assert_int_equal(world_began_anew(w), 0);
		assert_true(world_now(w) < died + 20);
		world_destroy(w);
	}
}

/* One node after the other is lost, and often the plan for those that are left does not use one that alone has a part of the newest copy in
 * memory: a member reads there, and the job never begins anew. */
static void test_unused_node_has_a_part(void **state)
{
	(void)state;
	int readers = 0;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world *w = world_create(&(struct world_options){
		        .seed = seed, .nodes = 4, .devices_per_node = 1, .held = 4, .steps = 100000, .halves = true, .unused = true });
		bool held[4] = { true, true, true, true };
		for (int nodes = 4; nodes > 2; nodes--) {
			int lost = 1 + (int)(seed / (uint64_t)nodes) % 3;
			while (!held[lost])
				lost = 1 + lost % 3;
			held[lost] = false;
			world_run_until(w, world_steps_told(w) + 200);
			world_hold(w, lost, false);
			world_run_until(w, world_steps_told(w) + 50);
			if (world_began_anew(w))
				fail_msg("seed %d: the loss of n%d, one of %d nodes, begins anew", (int)seed, lost, nodes);
		}
		readers += world_readers(w);
		world_destroy(w);
	}
	assert_true(readers > 0);
}

/* Kills the worker of a node whenever it has one, until the node is left out. */
static void leave_out(struct world *w, int node)
{
	char name[8];
	bool left_out = false;
	snprintf(name, sizeof name, "n%d", node);
	for (int i = 0; i < WORLD_MOVES && !left_out; i++) {
		if (i % 5 == 0)
			world_kill(w, node, 0, WORLD_KILL);
		world_go_on(w);
		json_t *s = world_status(w);
		left_out = json_object_get(json_object_get(s, "left_out"), name) != NULL;
		json_decref(s);
	}
	assert_true(left_out);
}

/* A node is left out, and then another one is lost. If a part of the newest copy is in the memory of the first alone, it is read there. If
 * that fails every time, the job does not wait for it: it goes on from what others have. */
static void test_left_out_node_has_a_part(void **state)
{
	(void)state;
	for (int fails = 0; fails < 2; fails++) {
		int readers = 0, anew = 0, not_read = 0;
		for (uint64_t seed = 1; seed <= 100; seed++) {
			struct world *w = world_create(&(struct world_options){
			        .seed = seed, .nodes = 3, .devices_per_node = 1, .held = 3, .steps = 100000, .halves = true });
			int bad = (int)(seed % 3), lost = bad == 1 ? 2 : 1, status;
			world_run_until(w, 200);
			leave_out(w, bad);
			int generations = world_generations(w);
			double since = world_now(w);
			world_hold(w, lost, false);
			for (int i = 0; i < WORLD_MOVES && (world_generations(w) <= generations || world_steps_told(w) < 250); i++) {
				if (fails)
					world_kill(w, bad, 0, WORLD_KILL);
				world_go_on(w);
			}
			assert_false(world_ended(w, &status));
			assert_true(world_steps_told(w) >= 250 && world_now(w) < since + 60); /* when the first would be tried again */
			if (world_began_anew(w) && !fails)
				fail_msg("seed %d: n%d is left out, n%d is lost, and it begins anew", (int)seed, bad, lost);
			readers += world_readers(w);
			anew += world_began_anew(w);
			not_read += world_events_with(w, "which is left out, failed 2 times to send what it has of the state");
			world_destroy(w);
		}
		assert_true(fails ? anew > 10 && not_read > 10 : readers > 10 && !not_read);
	}
}

static struct world *short_job(uint64_t seed, int steps, int every_steps)
{
	return world_create(&(struct world_options){ .seed = seed,
	                                             .nodes = 2,
	                                             .devices_per_node = 1 + (int)(seed % 2),
	                                             .held = 2,
	                                             .steps = steps,
	                                             .checkpoints = true,
	                                             .every_steps = every_steps });
}

/* All steps are made, and a checkpoint of the last step exists. */
static void ends_well(struct world *w, uint64_t seed, int steps)
{
	int status;
	world_run_out(w, seed);
	if (!world_ended(w, &status) || status)
		fail_msg("seed %llu, %d steps: %s", (unsigned long long)seed, steps, world_exit_text(w));
	assert_int_equal(world_steps_told(w), steps);
	assert_true(world_saved(w));
	assert_int_equal(world_replies(w, true) + world_replies(w, false), world_commands(w));
}

/* Checkpoints at every alignment with the last step. */
static void test_last_checkpoint(void **state)
{
	(void)state;
	for (int steps = 1; steps <= 7; steps++)
		for (int every = 1; every <= 7; every++)
			for (uint64_t seed = 1; seed <= 8; seed++) {
				struct world *w = short_job(seed, steps, every);
				ends_well(w, seed, steps);
				world_destroy(w);
			}
}

/* Before every move of a short job something happens: a checkpoint is requested, a worker or an agent is lost or hangs, the controller
 * dies. */
static void test_to_the_end(void **state)
{
	(void)state;
	for (int what = 0; what < 5; what++)
		for (int when = 0, over = 0; !over; when++) {
			uint64_t seed = (uint64_t)when;
			struct world *w = short_job(seed, 3, 1 + when % 4);
			int status;
			for (int i = 0; i < when && !world_ended(w, &status); i++)
				if (!world_move(w))
					world_wait(w);
			over = world_ended(w, &status);
			double began = world_now(w);
			for (int i = 0; i < 2 && (over || what == 0); i++) /* the second waits for the first, and perhaps in vain */
				world_checkpoint(w);
			if (over || what == 0)
				;
			else if (what < 4)
				world_kill(w, when % 2, 0, (enum world_how)(what - 1));
			else
				world_restart(w);
			world_run_out(w, seed);
			world_ended(w, &status);
			if (status)
				fail_msg("what %d before move %d: %s", what, when, world_exit_text(w));
			if (world_now(w) - began > 100)
				fail_msg("what %d before move %d: it took %.0f s", what, when, world_now(w) - began);
			assert_int_equal(world_steps_told(w), 3);
			assert_int_equal(world_replies(w, true) + world_replies(w, false), world_commands(w));
			world_destroy(w);
		}
}

/* SIGTERM before every move of a short job whose disks hang: it ends when its time is over, whichever checkpoint it waits for. */
static void test_leave_from_a_save(void **state)
{
	(void)state;
	for (int every = 1; every <= 4; every++)
		for (int when = 0; when < 200; when++) {
			struct world *w = world_create(&(struct world_options){ .seed = 2 + (uint64_t)when,
			                                                        .nodes = 2,
			                                                        .devices_per_node = 1,
			                                                        .held = 2,
			                                                        .steps = 3,
			                                                        .checkpoints = true,
			                                                        .every_steps = every,
			                                                        .stuck = true });
			int status;
			for (int i = 0; i < when; i++)
				if (!world_move(w) && world_steps_told(w) < 3)
					world_wait(w);
			double began = world_now(w);
			world_shutdown(w);
			world_run_out(w, 2 + (uint64_t)when);
			world_ended(w, &status);
			assert_int_equal(status, 1);
			if (world_now(w) - began > 20 + 10 + 1)
				fail_msg("every %d steps, after %d moves: it took %.0f s: %s", every, when, world_now(w) - began,
				         world_exit_text(w));
			world_destroy(w);
		}
}

/* All state is lost, and the checkpoints are of another model: the run neither continues from them nor starts anew, but ends and says
 * why. */
static void test_foreign_checkpoint(void **state)
{
	(void)state;
	struct world *w = world_create(&(struct world_options){
	        .seed = 2, .nodes = 2, .devices_per_node = 1, .held = 2, .steps = 1000000, .checkpoints = true, .foreign = true });
	int status, steps;
	world_run_until(w, 5);
	world_checkpoint(w);
	for (int i = 0; i < WORLD_MOVES && !world_events_with(w, "is complete"); i++)
		if (!world_move(w))
			world_wait(w);
	world_kill(w, 0, 0, WORLD_AGENT);
	world_kill(w, 1, 0, WORLD_AGENT);
	steps = world_steps_told(w);
	world_run_out(w, 2);
	assert_true(world_ended(w, &status));
	assert_int_equal(status, 1);
	assert_string_equal(world_exit_text(w), "the checkpoint is of another model");
	assert_int_equal(world_steps_told(w), steps);
	assert_int_equal(world_began_anew(w), 0);
	world_destroy(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kept),
		cmocka_unit_test(test_shared_away),
		cmocka_unit_test(test_all_lost_while_shared_is_away),
		cmocka_unit_test(test_shared_stays_away),
		cmocka_unit_test(test_manifest_is_sent_once),
		cmocka_unit_test(test_manifest_of_bad_senders),
		cmocka_unit_test(test_manifest_of_nobody),
		cmocka_unit_test(test_sender_dies),
		cmocka_unit_test(test_unused_node_has_a_part),
		cmocka_unit_test(test_left_out_node_has_a_part),
		cmocka_unit_test(test_last_checkpoint),
		cmocka_unit_test(test_to_the_end),
		cmocka_unit_test(test_leave_from_a_save),
		cmocka_unit_test(test_foreign_checkpoint),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
