/* SPDX-License-Identifier: Apache-2.0 */
/* Real workers between this test, which speaks for controller and agent, and each other: messages that come too early, twice or to nobody;
 * a stop and an abort between and within steps; the loss of a peer. Whatever happens, the losses are those of an undisturbed run. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/worker_scene.h"

static double undisturbed[STEPS];

static void finish(struct scene *s)
{
	for (int d = 0; d < 2; d++)
		expect_number(s, d, "finished", "step", STEPS);
	for (int i = 0; i < STEPS; i++)
		assert_float_equal(s->loss[i], undisturbed[i], 1e-6 * undisturbed[i]);
	for (int d = 0; d < 2; d++)
		quit(s, d);
}

/* ---- tests */

static void test_undisturbed(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "finished", "step", STEPS);
	for (int i = 0; i < STEPS; i++) {
		assert_true(s.loss[i] > 0);
		undisturbed[i] = s.loss[i];
	}
	assert_true(undisturbed[STEPS - 1] < undisturbed[0]);
	quit(&s, 0);
	end_worker(&s, 1, 1); /* whose agent is gone */
}

/* What comes before it can be done, or twice, is refused or answered, and changes nothing. */
static void test_odd_order(void **state)
{
	(void)state;
	struct scene s = { 0 };
	json_t *none = json_object(), *m;
	for (int d = 0; d < 2; d++)
		start_worker(&s, d);
	struct peer *p = &s.peer[0];
	tell(p, json_pack("{ss}", "no type", "at all"));
	tell(p, json_pack("{ss}", "type", "unheard of"));
	tell_prepare(&s, 0, 1, false, NULL);
	expect_fault(&s, 0, "prepare before job");
	tell_start(&s, 0, 1, none, 0, -1);
	expect_fault(&s, 0, "start of generation 1, which is not prepared");
	tell_number(&s, 0, "stop", 1); /* no answer: nothing trains */
	tell_number(&s, 0, "query", 1);
	m = next(&s, 0, "query_reply");
	assert_true(json_is_null(json_object_get(m, "holds")));
	assert_true(json_is_false(json_object_get(m, "training")));
	json_decref(m);
	tell(p, json_pack("{ss,si,sb}", "type", "abort", "generation", 1, "revive", 1));
	expect_number(&s, 0, "aborted", "holds", -1);
	tell(p, json_pack("{ss,si,si,s[ff]}", "type", "settle", "generation", 1, "apply", 0, "sums", 1.0, 1.0));
	expect_number(&s, 0, "settled", "step", 0);
	tell(p, json_pack("{ss,si,ss,ss}", "type", "checkpoint", "generation", 1, "id", "early", "local", folder));
	m = next(&s, 0, "checkpoint_written");
	assert_non_null(json_object_get(m, "error"));
	json_decref(m);
	tell(p, json_pack("{ss}", "type", "ping"));
	expect(&s, 0, "pong");
	for (int d = 0; d < 2; d++)
		tell(&s.peer[d], job_message(d));
	tell(p, job_message(0));
	expect_fault(&s, 0, "a second job message");
	tell_number(&s, 0, "preconnect", 1);
	expect_fault(&s, 0, "preconnect of generation 1, which is not prepared");
	/* A later generation replaces one that was prepared. */
	json_decref(prepare(&s, 1, true));
	json_t *addresses = prepare(&s, 2, false);
	tell_start(&s, 0, 1, addresses, 0, -1);
	expect_fault(&s, 0, "start of generation 1, which is not prepared");
	tell_number(&s, 1, "abort", 1);
	expect_number(&s, 1, "aborted", "holds", -1);
	start(&s, 2, addresses, 0, -1);
	finish(&s);
	json_decref(none);
}

static void stop_all(struct scene *s, int generation, int step)
{
	for (int d = 0; d < 2; d++)
		tell_number(s, d, "stop", generation);
	for (int d = 0; d < 2; d++)
		expect_number(s, d, "stopped", "step", step);
}

/* Moves that were planned while the generation was prepared are not planned again, unless the state comes from elsewhere. */
static void test_expected_moves(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	hold_steps(true);
	assert_false(start(&s, 1, prepare(&s, 1, false), 0, -1));
	expect_number(&s, 0, "step", "step", 0);
	json_t *addresses = prepare_expecting(&s, 2, true, live_under(false));
	stop_all(&s, 1, 2);
	assert_false(start(&s, 2, addresses, 2, AS_PREPARED));
	expect_number(&s, 0, "step", "step", 2);
	json_t *live = live_under(true); /* too little, so that it is not even a plan of moves */
	json_array_remove(json_object_get(json_array_get(live, 0), "holders"), 1);
	addresses = prepare_expecting(&s, 3, false, live);
	stop_all(&s, 2, 4);
	assert_true(start(&s, 3, addresses, 4, true));
	expect_number(&s, 0, "step", "step", 4);
	addresses = prepare(&s, 4, true); /* which says nothing of it */
	stop_all(&s, 3, 6);
	for (int d = 0; d < 2; d++)
		tell_start(&s, d, 4, addresses, 6, AS_PREPARED);
	for (int d = 0; d < 2; d++)
		expect_fault(&s, d, "live as in prepare");
	json_decref(addresses);
	live = live_under(false); /* enough, but not what happens */
	json_array_remove(json_object_get(json_array_get(live, 0), "holders"), 1);
	addresses = prepare_expecting(&s, 5, true, live);
	hold_steps(false);
	assert_true(start(&s, 5, addresses, 6, false));
	finish(&s);
}

/* Workers that are told to stop do so after one more step; a later generation of another shape goes on from there. */
static void test_stop(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	hold_steps(true);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	json_t *addresses = prepare(&s, 2, true); /* while the first trains */
	tell_number(&s, 1, "stop", 9);            /* another generation: nothing happens */
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 1);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(&s, d, "stopped");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), 2);
		assert_int_equal(json_array_size(json_object_get(m, "losses")), 2);
		json_decref(m);
		tell_number(&s, d, "stop", 1); /* once is enough */
		tell_number(&s, d, "query", 1);
		expect_number(&s, d, "query_reply", "holds", 1);
	}
	hold_steps(false);
	start(&s, 2, addresses, 2, false);
	finish(&s);
}

static void tell_preconnect(struct scene *s, int d, int generation, json_t *addresses)
{
	tell(&s->peer[d], json_pack("{ss,si,sO}", "type", "preconnect", "generation", generation, "addresses", addresses));
}

/* Addresses are exchanged before the start, if the controller says so. Meanwhile a worker that trains goes on: its peer may not hear of it
 * before both have made a step. */
static void test_preconnect(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	json_t *addresses = prepare(&s, 1, false);
	for (int d = 0; d < 2; d++)
		tell_preconnect(&s, d, 1, addresses);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "preconnected", "generation", 1);
	hold_steps(true);
	start(&s, 1, addresses, 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	json_decref(prepare(&s, 2, true));
	addresses = prepare(&s, 3, true);
	tell_preconnect(&s, 0, 3, addresses);
	tell_number(&s, 0, "query", 1);
	expect_number(&s, 0, "query_reply", "holds", 1);
	json_decref(addresses);
	addresses = prepare(&s, 4, true); /* which ends the exchange that nobody answers */
	for (int d = 0; d < 2; d++)
		tell_preconnect(&s, d, 4, addresses);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 1);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "stopped", "step", 2);
	hold_steps(false);
	start(&s, 4, addresses, 2, false);
	finish(&s);
}

/* Workers that wait between steps, and one that waits for a peer that does not start, hear an abort; the state stays. */
static void test_abort(void **state)
{
	(void)state;
	struct scene s;
	open_scene(&s);
	json_t *addresses = prepare(&s, 1, false);
	tell_start(&s, 0, 1, addresses, 0, -1);
	json_decref(addresses);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "abort", 1);
	expect(&s, 0, "fault");
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "aborted", "holds", -1);
	hold_steps(true);
	start(&s, 2, prepare(&s, 2, true), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "abort", 1); /* an old one: generation 2 keeps its connections */
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "aborted", "holds", 2);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "stop", 2);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "stopped", "step", 2);
	for (int d = 0; d < 2; d++)
		tell_number(&s, d, "abort", 2);
	for (int d = 0; d < 2; d++) {
		json_t *m = next(&s, d, "aborted");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), 2);
		assert_int_equal(json_integer_value(json_object_get(m, "applied")), 1);
		assert_true(json_is_null(json_object_get(m, "ready")));
		json_decref(m);
		tell(&s.peer[d], json_pack("{ss,si,sn}", "type", "settle", "generation", 2, "apply"));
		expect_number(&s, d, "settled", "step", 2);
	}
	hold_steps(false);
	start(&s, 3, prepare(&s, 3, false), 2, true);
	finish(&s);
}

/* A worker whose peer hangs and dies keeps its state, and goes on with another peer. */
static void test_lost_peer(void **state)
{
	(void)state;
	struct scene s;
	int status;
	open_scene(&s);
	hold_steps(true);
	start(&s, 1, prepare(&s, 1, false), 0, -1);
	expect_number(&s, 0, "step", "step", 0);
	/* The peer hangs: the other's step ends with the abort, not with the deadline of a message. */
	kill(s.peer[1].pid, SIGSTOP);
	tell_number(&s, 0, "stop", 1);
	tell_number(&s, 0, "abort", 1);
	expect_number(&s, 0, "aborted", "holds", 1);
	kill(s.peer[1].pid, SIGKILL);
	assert_int_equal(waitpid(s.peer[1].pid, &status, 0), s.peer[1].pid);
	close(s.peer[1].fd);
	hspmd_wire_reader_destroy(s.peer[1].reader);
	s.peer[1].pid = 0;
	start_worker(&s, 1);
	tell(&s.peer[1], job_message(1));
	hold_steps(false);
	json_t *addresses = prepare(&s, 2, false);
	for (int d = 0; d < 2; d++)
		tell(&s.peer[d],
		     json_pack("{ss,si,sO,si,s{s[{so,so,s[s]}]}}", "type", "start", "generation", 2, "addresses", addresses, "step", 1,
		               "state", "live", "cluster", json_loads(cluster_text, 0, NULL), "plan", plan_of(false), "holders", "n:0"));
	json_decref(addresses);
	for (int d = 0; d < 2; d++)
		expect_number(&s, d, "started", "step", 1);
	finish(&s);
}

int main(void)
{
	setenv("HSPMD_LOG", "error", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_undisturbed), /* first: the others compare losses with its */
		cmocka_unit_test(test_odd_order),      cmocka_unit_test(test_stop),  cmocka_unit_test(test_preconnect),
		cmocka_unit_test(test_expected_moves), cmocka_unit_test(test_abort), cmocka_unit_test(test_lost_peer),
	};
	return cmocka_run_group_tests(tests, worker_scene_make, worker_scene_remove);
}
