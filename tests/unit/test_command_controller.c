/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller of a job with a command, in random orders of messages, failures and resizes drawn from a seed: a rank is started only
 * where none runs, all ranks of a generation agree about the world, and the job ends with the right status. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/command_site.h"

static void test_ends(void **state)
{
	(void)state;
	for (uint64_t seed = getenv("HSPMD_SEED") ? strtoul(getenv("HSPMD_SEED"), NULL, 10) : 1; seed <= 400; seed++) {
		struct site s = { .random = seed };
		site_run(&s, seed, seed % 2 ? "x" : "{12/world}", (int)(seed % 9), -1);
		if (s.status != s.ends_with)
			fail_msg("seed %llu: exit status %d, where the ranks ended with %d: %s", (unsigned long long)seed, s.status,
			         s.ends_with, s.why);
		assert_int_equal(s.step, STEPS);
		assert_int_equal(s.lost, 0);
		for (int i = 0; i < STEPS; i++)
			if (s.lines[i] != 1)
				fail_msg("seed %llu: step %d has %d lines", (unsigned long long)seed, i, s.lines[i]);
		site_clear(&s);
	}
}

/* Told to end at any moment: it does, with a status that says whether it saved. */
static void test_shutdown(void **state)
{
	(void)state;
	int saved = 0;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		struct site s = { .random = seed };
		site_run(&s, seed, "x", (int)(seed % 4), (int)(seed % 150));
		assert_true(s.status == 0 || s.status == 1 || s.status == RUN_EXIT_MORE);
		saved += s.status == RUN_EXIT_MORE && s.step < STEPS;
		site_clear(&s);
	}
	assert_true(saved > 20);
}

/* Delivers all messages, and lets time pass until n0 has a rank of this generation or of a later one. */
static bool starts(struct site *s, int64_t generation, double until)
{
	while (s->status < 0 && s->now < until) {
		for (int idle = 0; idle < 100; idle++)
			if (site_deliver(s, (int)site_pick(s, NODES)) || site_solve(s))
				idle = 0;
		if (s->place[0].runs && s->place[0].generation >= generation)
			return true;
		site_wait_for_deadline(s);
	}
	return false;
}

/* A command that has told steps hangs while it starts again: it is started once more. One that has told none is left alone. */
static void test_hangs_in_a_start(void **state)
{
	(void)state;
	for (int tells = 0; tells < 2; tells++) {
		struct site s;
		site_begin(&s, 1, "x");
		assert_true(starts(&s, 1, s.now + 100));
		if (tells)
			site_tell_step(&s, &s.place[0]);
		site_fail_rank(&s.place[1]);
		assert_true(starts(&s, 2, s.now + 100));
		assert_int_equal(starts(&s, 3, s.now + 3000), tells);
		site_clear(&s);
	}
}

/* Three ranks that take changes in their own processes make a step. */
static void begin_elastic(struct site *s)
{
	site_begin(s, 1, "x");
	assert_true(starts(s, 1, s->now + 100));
	for (int i = 0; i < 3; i++) {
		s->place[i].elastic = true;
		site_say(&s->place[i], json_pack("{s:s, s:I, s:b}", "type", "elastic", "generation", (json_int_t)1, "elastic", 1));
	}
	site_tell_step(s, &s->place[0]);
}

/* Such ranks connect for the next generation while they train, and are stopped when they have, or if one hangs, after a while. If the step
 * under way is given up, so are these connections: another generation follows. */
static void test_connects_beside_training(void **state)
{
	(void)state;
	for (int hangs = 0; hangs < 2; hangs++)
		for (int gives_up = 0; gives_up <= hangs; gives_up++) {
			struct site s;
			begin_elastic(&s);
			s.place[1].hangs = hangs;
			site_ask(&s, "shrink");
			assert_int_equal(starts(&s, 2, s.now + 10), !hangs);
			assert_true(s.place[0].runs);
			for (int i = 0; i < 2; i++)
				assert_int_equal(s.place[i].connected, 2);
			if (gives_up)
				site_say(&s.place[0], json_pack("{s:s, s:I, s:s, s:b}", "type", "fault", "generation", (json_int_t)1,
				                                "text", "a peer is gone", "lives", 1));
			for (int i = 0; i < 4 && s.place[0].generation == 1; i++) { /* it trains on, without a step that takes too long */
				if (!gives_up)
					site_tell_step(&s, &s.place[0]);
				starts(&s, 2, s.now + 10);
			}
			assert_int_equal(s.place[0].generation, gives_up ? 3 : 2);
			assert_int_equal(s.place[0].given_up, gives_up ? 2 : 0);
			site_clear(&s);
		}
}

/* Ranks that take changes in their own processes go on at once after a loss: also while another, which was lost before, is made ready to
 * join them again. They do not wait for it. */
static void test_survivors_wait_for_nobody(void **state)
{
	(void)state;
	struct site s;
	begin_elastic(&s);
	s.place[1].slow = true;
	site_fail_rank(&s.place[1]);
	assert_true(starts(&s, 2, s.now + 10));
	assert_false(s.place[1].runs);
	site_tell_step(&s, &s.place[0]); /* n1 is to join now */
	assert_false(starts(&s, 3, s.now + 10));
	assert_int_equal(s.place[1].prepared, 3);
	site_fail_rank(&s.place[2]);
	assert_true(starts(&s, 3, s.now + 10));
	assert_false(s.place[1].runs);
	assert_false(s.place[2].runs);
	site_tell_step(&s, &s.place[0]); /* and now both are */
	assert_false(starts(&s, 5, s.now + 10));
	assert_int_equal(s.place[1].prepared, 5);
	assert_int_equal(s.place[2].prepared, 5);
	site_clear(&s);
}

/* A change before the ranks have said that they take changes in their processes: those that end are not asked for state, whether all end,
 * or all but the first. Otherwise ranks would wait for a process that is not there. */
static void test_a_change_before_ranks_are_ready(void **state)
{
	(void)state;
	for (int ready = 0; ready < 2; ready++) {
		struct site s;
		site_begin(&s, 1, "x");
		assert_true(starts(&s, 1, s.now + 100));
		s.place[0].elastic = ready;
		if (ready)
			site_say(&s.place[0], json_pack("{s:s, s:I, s:b}", "type", "elastic", "generation", (json_int_t)1, "elastic", 1));
		site_ask(&s, "shrink");
		for (int i = 0; i < 100 && s.place[0].generation == 1; i++) {
			starts(&s, 2, s.now + 0.1);
			for (int k = 0; k < NODES; k++)
				if (s.place[k].runs && s.place[k].noticed)
					site_rank_ended(&s.place[k], "stopped", 85);
		}
		assert_true(s.place[0].runs);
		assert_true(s.place[0].generation > 1);
		assert_int_equal(s.place[0].members, 2);
		for (int i = 0; i < 2; i++) {
			s.place[i].elastic = true;
			site_say(&s.place[i], json_pack("{s:s, s:I, s:b}", "type", "elastic", "generation",
			                                (json_int_t)s.place[i].generation, "elastic", 1));
			s.place[i].finished = true;
			site_rank_ended(&s.place[i], "finished", 0);
		}
		for (int i = 0; i < 2000 && s.status < 0; i++)
			site_deliver(&s, (int)site_pick(&s, NODES));
		assert_int_equal(s.status, 0);
		site_clear(&s);
	}
}

/* Ranks that are done as soon as they have grown, one of them before another has started: who asked for the growth is told that it was
 * done. */
static void test_done_once_grown(void **state)
{
	(void)state;
	struct site s;
	site_begin(&s, 1, "x");
	assert_true(starts(&s, 1, s.now + 100));
	site_ask(&s, "grow");
	while (s.status < 0 && s.now < 1100) {
		for (int i = 0; i < NODES; i++) {
			struct place *p = &s.place[i];
			if (p->runs && p->noticed) {
				site_rank_ended(p, "stopped", 85);
			} else if (p->runs && p->generation > 1) {
				p->finished = true;
				site_rank_ended(p, "finished", 0);
			}
		}
		if (!site_deliver(&s, (int)site_pick(&s, NODES)) && !site_solve(&s) && !site_pick(&s, 20))
			site_wait_for_deadline(&s);
	}
	assert_int_equal(s.status, 0);
	assert_int_equal(s.place[0].members, 4);
	assert_true(s.agreed);
	site_clear(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_shutdown),
		cmocka_unit_test(test_hangs_in_a_start),
		cmocka_unit_test(test_connects_beside_training),
		cmocka_unit_test(test_survivors_wait_for_nobody),
		cmocka_unit_test(test_a_change_before_ranks_are_ready),
		cmocka_unit_test(test_done_once_grown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
