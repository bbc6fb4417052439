/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld with all kinds of job controllers (ctld_case.h): which jobs get requests while another has not answered, and how a slow
 * slurmctld is spared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/clock.h"
#include "tests/unit/ctld_case.h"

static void answer(struct ctld_case *d, int i, json_t *ask, bool ok)
{
	ctld_client_send_answer(d->line[i], json_integer_value(json_object_get(ask, "id")), ok, ok ? "" : "not now");
	json_decref(ask);
}

/* Job 7 loses least and gets the request. Until it answers, although hspmdctld decides again, no other job gets a request in its place;
 * once it declines, the other job does. */
static void test_one_that_thinks_and_one_that_declines(void **state)
{
	struct ctld_case *d = *state;
	ctld_case_call(d, 0, 100);
	ctld_case_call(d, 1, 1000);
	d->world->waits = true;
	ctld_case_write(d, "job_state", "");
	json_t *ask = ctld_case_expect_request(d, 0, "shrink", 2);
	for (int i = 0; i < 4; i++) {
		ctld_case_set_state(d, 1, 1000 + 100 * i); /* a new fact, so that hspmdctld decides */
		json_t *none = ctld_case_next_request(d, 1, 1.2);
		if (none)
			fail_msg("job 8 was asked as well: %s", json_string_value(json_object_get(none, "reason")));
	}
	/* On a machine so busy that the next decision takes seconds, job 7 gets the request again, ever later. */
	json_t *given = NULL;
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; !given && hspmd_now() < until; given = ctld_case_next_request(d, 1, 0.1)) {
		if (ask)
			answer(d, 0, ask, false);
		ask = ctld_case_next_request(d, 0, 0.1);
	}
	json_decref(ask);
	if (!given)
		fail_msg("job 8 was asked nothing; it said:\n%s", d->said);
	assert_int_equal(json_array_size(json_object_get(given, "names")), 2);
	assert_true(ctld_case_count_said(d, "declined: shrink by 2: declined: not now") >= 1);
	/* Carried out, but Slurm does not show it yet: no job gets a further request. */
	int asks = ctld_case_count_said(d, ": shrink: ");
	answer(d, 1, given, true);
	assert_null(ctld_case_next_request(d, 0, 3));
	assert_null(ctld_case_next_request(d, 1, 1));
	assert_int_equal(ctld_case_count_said(d, ": shrink: "), asks);
}

static int start_dry(void **state)
{
	ctld_case_dry_run = true;
	int rc = ctld_case_start(state);
	ctld_case_dry_run = false;
	return rc;
}

/* A dry run says once whom it would ask, and why, and asks nobody; and says something again only when it changes its mind. */
static void test_a_dry_run_asks_nobody(void **state)
{
	struct ctld_case *d = *state;
	ctld_case_call(d, 0, 100);
	ctld_case_call(d, 1, 1000);
	d->world->waits = true;
	ctld_case_write(d, "job_state", "");
	ctld_case_wait_said(d, "job 7: would_shrink: shrink by 2: ");
	for (int i = 0; i < 3; i++) {
		int decided = d->world->polls;
		ctld_case_set_state(d, 1, 1000 + 100 * i);
		ctld_case_write(d, "job_state", "more");
		for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; d->world->polls == decided && hspmd_now() < until;)
			ctld_case_turn(d, 20);
		assert_null(ctld_case_next_request(d, 0, 0.3));
		assert_null(ctld_case_next_request(d, 1, 0.3));
	}
	assert_int_equal(ctld_case_count_said(d, "would_"), 1);
	assert_int_equal(ctld_case_count_said(d, ": shrink: "), 0);
}

/* Polls that take long, as when libslurm waits because slurmctld limits its rate (rl_enable): however much changes meanwhile, no poll
 * follows for five times as long. */
static void test_a_slow_slurmctld_is_left_in_peace(void **state)
{
	struct ctld_case *d = *state;
	struct ctld_case_world *w = d->world;
	ctld_case_call(d, 0, 100);
	w->slow_s = 1.05;
	int first = w->polls + 1; /* a fast one may be under way */
	for (double until = hspmd_now() + 2 * CTLD_CASE_PATIENCE_S; w->polls < first + 3 && hspmd_now() < until; ctld_case_turn(d, 20))
		ctld_case_write(d, "job_state", "");
	assert_true(w->polls >= first + 3);
	for (int i = first; i < first + 2; i++) {
		double took = w->ended[i] - w->began[i], rest = w->began[i + 1] - w->ended[i];
		if (rest < 5 * took - 0.1)
			fail_msg("a poll took %.2f s, and the next came %.2f s later", took, rest);
	}
	w->slow_s = 0;
	int now = w->polls;
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; w->polls < now + 4 && hspmd_now() < until; ctld_case_turn(d, 20))
		ctld_case_write(d, "job_state", "");
	assert_true(w->polls >= now + 4);
}

/* The view may be old: the last poll of a slow slurmctld is more than five seconds ago when job 7 lowers its min_nodes. Another poll
 * precedes the request for its nodes. */
static void test_no_request_on_an_old_view(void **state)
{
	struct ctld_case *d = *state;
	struct ctld_case_world *w = d->world;
	ctld_case_call_with(d, 0, 3, 100);
	w->waits = true;
	ctld_case_write(d, "job_state", "");
	int before = w->polls;
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; w->polls < before + 2 && hspmd_now() < until;)
		ctld_case_turn(d, 20);
	w->slow_s = 1.6; /* then no poll for eight seconds */
	before = w->polls;
	ctld_case_write(d, "job_state", "");
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S;
	     hspmd_now() < until && (w->polls < before + 2 || hspmd_now() < w->ended[w->polls - 1] + 5.3);)
		ctld_case_turn(d, 20);
	before = w->polls;
	assert_null(ctld_client_next_request(d->line[0]));
	ctld_case_set_limits(d, 0, 1, 100);
	json_decref(ctld_case_expect_request(d, 0, "shrink", 2));
	assert_true(w->polls > before);
}

/* Some node is always completing: job 8 gets the idle one nevertheless. */
static void test_a_wait_for_further_nodes_ends(void **state)
{
	struct ctld_case *d = *state;
	ctld_case_call(d, 1, 1000);
	d->world->completing = true;
	ctld_case_write(d, "job_state", "");
	json_t *ask = ctld_case_expect_request(d, 1, "grow", 1);
	assert_int_equal(json_integer_value(json_object_get(ask, "by")), 1);
	json_decref(ask);
}

static int start_seldom(void **state)
{
	ctld_case_completing = true;
	ctld_case_poll_min_s = 100 * CTLD_CASE_PATIENCE_S;
	int rc = ctld_case_start(state);
	ctld_case_completing = false;
	ctld_case_poll_min_s = 0.2;
	return rc;
}

/* The same, and Slurm is polled so seldom that the next poll would never come: one comes when the wait ends. */
static void test_a_wait_ends_between_polls(void **state)
{
	struct ctld_case *d = *state;
	ctld_case_call(d, 1, 1000);
	json_decref(ctld_case_expect_request(d, 1, "grow", 1));
	assert_in_range(d->world->polls, 2, 4); /* the clocks of waits and of polls are not quite the same */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_that_thinks_and_one_that_declines, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_a_dry_run_asks_nobody, start_dry, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_a_slow_slurmctld_is_left_in_peace, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_no_request_on_an_old_view, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_a_wait_for_further_nodes_ends, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_a_wait_ends_between_polls, start_seldom, ctld_case_stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
