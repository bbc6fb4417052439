/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller in a simulated cluster (world.c) under random faults, at random times and in any order. */
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

/* Once the faults are over, the job trains on all nodes that it holds, but for those that are left out for a while. Returns false if it
 * ends before. */
static bool uses_all_nodes(struct world *w, uint64_t seed)
{
	int status;
	bool all = false;
	double began = world_now(w);
	for (int i = 0; !all && !world_ended(w, &status); i++) {
		if (!world_move(w))
			world_wait(w);
		if (i % 50)
			continue;
		json_t *s = world_status(w);
		size_t held = (size_t)json_integer_value(json_object_get(s, "node_count")),
		       left_out = json_object_size(json_object_get(s, "left_out"));
		all = !strcmp(json_string_value(json_object_get(s, "phase")), "training") && world_nodes(w) == (int)(held - left_out);
		if (!all && world_now(w) - began > 3600) /* some workers never answer `preconnect`: each change may wait for 600 s */
			fail_msg("seed %llu: after %.0f s it trains on %d of %d nodes, %d left out", (unsigned long long)seed,
			         world_now(w) - began, world_nodes(w), (int)held, (int)left_out);
		json_decref(s);
	}
	return all;
}

/* In worlds without and with devices that connect slowly: preconnects, and starts after them without addresses. */
static int meetings[2], informed[2];

/* Second agents that were turned away, and that replaced the first. */
static int turned_away, replaced;

/* restarts: the controller is killed at random actions, too. unused: plans leave nodes out, which may have parts of the copies in memory.
 * cuts: as in world_options. Returns how many members only read such parts. */
static int under_chaos_with(uint64_t seed, int faults, bool checkpoints, bool restarts, bool unused, bool cuts)
{
	struct world_options o = { .seed = seed,
		                   .nodes = 2 + (int)(seed % 5),
		                   .devices_per_node = 1 + (int)(seed % 3),
		                   .checkpoints = checkpoints,
		                   .noise = true,
		                   .cuts = cuts,
		                   .stragglers = seed % 4 == 0,
		                   .repairs = seed % 3 == 0 ? 1 + 0.1 * (double)(seed % 7) : 0 };
	if (unused) {
		o.nodes = 3 + (int)(seed % 2);
		o.devices_per_node = 1;
		o.halves = o.unused = true;
	}
	o.held = unused ? o.nodes : 1 + (int)(seed % (uint64_t)o.nodes);
	o.steps = 400;
	struct world *w = world_create(&o);
	int status;
	uint64_t x = seed;
	for (int i = 0; i < faults && !world_ended(w, &status); i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		int moves = (int)(x >> 33) % ((x >> 20) % 3 ? 200 : 10);
		for (int k = 0; k < moves && !world_ended(w, &status); k++)
			if (!world_move(w))
				world_wait(w);
		world_fault(w);
		if (restarts && (x >> 45) % 3 == 0)
			world_dies(w, (int)(x >> 50) % 20);
	}
	world_heal(w);
	if (world_prolong(w, 1000000) && uses_all_nodes(w, seed))
		world_prolong(w, 20);
	world_run_out(w, seed);
	world_ended(w, &status);
	if (status && !strstr(world_exit_text(w), "checkpoint"))
		fail_msg("seed %llu ended with %d: %s", (unsigned long long)seed, status, world_exit_text(w));
	assert_int_equal(world_steps_told(w), world_steps(w));
	meetings[seed % 2] += world_preconnects(w, &informed[seed % 2]);
	turned_away += world_turned_away(w);
	replaced += world_replaced(w);
	int readers = world_readers(w);
	world_destroy(w);
	return readers;
}

static void under_chaos(uint64_t seed, int faults, bool checkpoints, bool restarts)
{
	under_chaos_with(seed, faults, checkpoints, restarts, false, false);
}

/* What a lost node had is only on nodes that the next plan does not use. */
static void test_chaos_unused(void **state)
{
	(void)state;
	const char *one = getenv("HSPMD_SEED");
	const unsigned count = one ? 1 : getenv("HSPMD_LONG") ? 3000 : 30;
	const uint64_t first = one ? strtoull(one, NULL, 10) : 1 + draw_first(count, 3000);
	int readers = 0;
	if (!one) /* A start from the beginning is lost before its first step, and the next one finds a copy again. */
		under_chaos_with(1733, 25, false, true, true, false);
	for (uint64_t seed = first; seed < first + count; seed++) {
		if (getenv("HSPMD_WORLD"))
			fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
		readers += under_chaos_with(seed, 25, seed % 8 == 0, seed % 2, true, false);
	}
	assert_true(readers || count < 1000); /* few runs come to it */
}

/* Links are cut, agents die unnoticed, and nodes have two agents. */
static void test_chaos_cuts(void **state)
{
	(void)state;
	const char *one = getenv("HSPMD_SEED");
	const unsigned count = one ? 1 : getenv("HSPMD_LONG") ? 3000 : 30;
	const uint64_t first = one ? strtoull(one, NULL, 10) : 1 + draw_first(count, 3000);
	if (!one) /* Second agents are turned away, and one replaces the first. */
		under_chaos_with(2, 30, false, false, false, true);
	for (uint64_t seed = first; seed < first + count; seed++) {
		if (getenv("HSPMD_WORLD"))
			fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
		under_chaos_with(seed, 30, seed % 2, seed % 3 == 0, seed % 7 == 0, true);
	}
	assert_true(one || (turned_away && replaced));
}

static void test_chaos_restarts(void **state)
{
	(void)state;
	const char *one = getenv("HSPMD_SEED");
	const unsigned count = one ? 1 : getenv("HSPMD_LONG") ? 3000 : 20;
	const uint64_t first = one ? strtoull(one, NULL, 10) : 1 + draw_first(count, 3000);
	if (!one) {
		/* A shrink is asked for before the workers of an earlier controller are taken over. */
		under_chaos(2713, 25, true, true);
		/* A shrink is asked for before Slurm has told a new controller which node is the first. */
		under_chaos(1469, 25, true, true);
		/* A process without state, of an earlier controller, is ended while the next generation waits for its device. */
		under_chaos(2111, 25, true, true);
	}
	for (uint64_t seed = first; seed < first + count; seed++) {
		if (getenv("HSPMD_WORLD"))
			fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
		under_chaos(seed, 25, seed % 2, true);
	}
}

static void test_chaos(void **state)
{
	(void)state;
	meetings[0] = meetings[1] = 0;
	const int runs = getenv("HSPMD_LONG") ? 3000 : 30;
	const char *one = getenv("HSPMD_SEED");
	if (one) {
		under_chaos(strtoull(one, NULL, 10), 25, strtoull(one, NULL, 10) % 2, false);
		return;
	}
	/* A ping is left over from a generation that needs no answer any more. */
	under_chaos(2177, 25, true, false);
	/* Workers that have held the state in silence are asked for a checkpoint. */
	under_chaos(901, 25, true, false);
	/* A shrink is given up while the plan for fewer nodes is made ready. */
	under_chaos(329, 25, true, false);
	/* A node that was given back comes again at once, and others join, while the shrink waits for Slurm's report. */
	under_chaos(2597, 25, true, false);
	/* A further plan is being made before the first step of the last one is reported. */
	under_chaos(2225, 25, true, false);
	const int first = 1 + (int)draw_first((unsigned)runs, 3000);
	for (int seed = first; seed < first + runs; seed++) {
		if (getenv("HSPMD_WORLD"))
			fprintf(stderr, "seed %d\n", seed);
		under_chaos((uint64_t)seed, 25, seed % 2, false);
	}
	assert_int_equal(meetings[0], 0);
	assert_true(meetings[1] > runs / 10);
	assert_int_equal(informed[0], 0);
	assert_true(informed[1] > runs / 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chaos),
		cmocka_unit_test(test_chaos_restarts),
		cmocka_unit_test(test_chaos_unused),
		cmocka_unit_test(test_chaos_cuts),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
