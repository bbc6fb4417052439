/* SPDX-License-Identifier: Apache-2.0 */
/* What hspmdctld believes of what job controllers say: rates, needs, pauses and answers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/gres.h"
#include "controller/ctld/snapshot.h"
#include "controller/ctld/poll_interval.h"
#include "controller/ctld/peers.h"
#include "controller/ctld/quote.h"

/* ---- peers */

static int say_at(struct ctld_peers *p, int at, int held, const char *text, double now_s, struct hspmd_error *err)
{
	json_t *m = json_loads(text, 0, NULL);
	assert_non_null(m);
	int rc = ctld_peers_state(p, at, m, held, held, now_s, err);
	json_decref(m);
	return rc;
}

static int say(struct ctld_peers *p, int at, int held, const char *text, struct hspmd_error *err)
{
	return say_at(p, at, held, text, 0, err);
}

static void test_claims_are_bounded_by_what_was_seen(void **state)
{
	(void)state;
	struct ctld_peers p = { 0 };
	struct hspmd_error err = { "" };
	int at = ctld_peers_hello(&p, 7, 1000);
	assert_int_equal(say(&p, at, 2,
	                     "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 2, \"tokens_per_s\": 200,"
	                     "\"curve\": [100, 200, 1e9, 1e9]}",
	                     &err),
	                 1);
	assert_float_equal(p.peers[at].curve[2], 315, 1e-9);
	assert_float_equal(p.peers[at].curve[3], 420, 1e-9);
	assert_int_equal(p.histories[at].claim, CTLD_CLAIM_CURVE);
	assert_string_equal(p.histories[at].claim_text,
	                    "claims 1e+09 tokens/s on 3 nodes; by what was measured no more than 315 are believed");
	ctld_peers_claim_logged(&p, at);
	/* A rate at a size that Slurm does not confirm is not a sample. */
	say(&p, at, 2,
	    "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 4, \"tokens_per_s\": 1e9, \"curve\": [100, 200, 300, "
	    "1e9]}",
	    &err);
	assert_float_equal(p.peers[at].curve[3], 420, 1e-9);
	/* The same state again changes nothing that decisions depend on. */
	assert_int_equal(say(&p, at, 2,
	                     "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 2, \"tokens_per_s\": 201,"
	                     "\"curve\": [100, 200, 300, 1e9]}",
	                     &err),
	                 0);
	assert_int_equal(p.histories[at].claim, CTLD_CLAIM_NONE); /* it was logged before */
	ctld_peers_clear(&p);
}

/* A job that was grown to eight nodes needs no more than the two on which it has run, whatever it claims; and its pause was no longer than
 * the time it took to answer. */
static void test_needs_and_pauses_are_bounded(void **state)
{
	(void)state;
	static const char before[] = "{\"type\": \"state\", \"min_nodes\": 3, \"max_nodes\": 8, \"nodes\": 2}",
	                  grown[] = "{\"type\": \"state\", \"min_nodes\": 8, \"max_nodes\": 8, \"nodes\": 8, \"pause_s\": 1e5}",
	                  honest[] = "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 8, \"nodes\": 8, \"pause_s\": 100}";
	struct ctld_peers p = { 0 };
	int at = ctld_peers_hello(&p, 7, 1000);
	say(&p, at, 2, before, NULL);
	assert_int_equal(p.peers[at].min_nodes, 2);
	assert_int_equal(p.histories[at].claim, CTLD_CLAIM_MIN_NODES);
	ctld_peers_claim_logged(&p, at);
	ctld_peers_request_sent(&p, at, 1, true, 6, 10);
	ctld_peers_answered(&p, at, 1, true, "", 110);
	say(&p, at, 8, grown, NULL);
	assert_int_equal(p.peers[at].min_nodes, 2);
	assert_float_equal(p.peers[at].pause_s, 100, 0);
	assert_int_equal(p.histories[at].claim, CTLD_CLAIM_PAUSE);
	say(&p, at, 1, "{\"type\": \"state\", \"min_nodes\": 2, \"max_nodes\": 8, \"nodes\": 1}", NULL); /* it has lost a node, and waits */
	assert_int_equal(p.peers[at].min_nodes, 2);
	say(&p, at, 8, honest, NULL);
	assert_int_equal(p.peers[at].min_nodes, 1);
	assert_float_equal(p.peers[at].pause_s, 100, 0);
	say(&p, at, 8, grown, NULL);
	assert_int_equal(p.peers[at].min_nodes, 1);
	/* Before Slurm and hspmdctld have observed it, its claims are accepted. */
	at = ctld_peers_hello(&p, 8, 1000);
	say(&p, at, 0, "{\"type\": \"state\", \"min_nodes\": 4, \"max_nodes\": 8, \"nodes\": 4, \"pause_s\": 50}", NULL);
	assert_int_equal(p.peers[at].min_nodes, 4);
	assert_float_equal(p.peers[at].pause_s, 50, 0);
	assert_int_equal(p.histories[at].claim, CTLD_CLAIM_NONE);
	ctld_peers_clear(&p);
}

static void claim_rate(struct ctld_peers *p, uint32_t job, const char *rate)
{
	char text[200];
	int at = ctld_peers_find(p, job);
	if (at < 0)
		at = ctld_peers_hello(p, job, 1000);
	snprintf(text, sizeof text, "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 8, \"nodes\": 1, \"curve\": [0, %s]}", rate);
	assert_true(say(p, at, 0, text, NULL) >= 0);
}

/* A rate is a claim of the job itself, but one far above the other jobs' rates per node is not accepted. */
static void test_rates_are_held_against_those_of_others(void **state)
{
	(void)state;
	struct ctld_peers p = { 0 };
	claim_rate(&p, 1, "1e12"); /* alone there is nothing to compare it with, and no job to take nodes from */
	ctld_peers_compare(&p);
	assert_true(p.peers[0].overclaim_factor <= 1);
	claim_rate(&p, 2, "200");
	claim_rate(&p, 3, "80000"); /* a small model */
	claim_rate(&p, 4, "0");     /* no plan yet */
	claim_rate(&p, 5, "100");
	ctld_peers_compare(&p); /* 50 and 100 per node are the lower half, and 100 is the median */
	assert_float_equal(p.peers[0].overclaim_factor, 5e11 / 1e5, 1);
	assert_int_equal(p.histories[0].claim, CTLD_CLAIM_SCALE);
	for (int i = 1; i < p.count; i++) {
		assert_true(p.peers[i].overclaim_factor <= 1);
		assert_int_equal(p.histories[i].claim, CTLD_CLAIM_NONE);
	}
	ctld_peers_claim_logged(&p, 0);
	claim_rate(&p, 1, "1e14");
	ctld_peers_compare(&p);
	assert_int_equal(p.histories[0].claim, CTLD_CLAIM_NONE);
	assert_float_equal(p.peers[0].overclaim_factor, 5e13 / 1e5, 100);
	ctld_peers_clear(&p);
}

/* Two rates that contradict each other: if a job has a rate of 100 on one node, more than twice that on two nodes is not accepted, in
 * whichever order the claims arrive. */
static void test_measured_rates_are_held_to_one_another(void **state)
{
	(void)state;
	struct ctld_peers p = { 0 };
	struct hspmd_error err = { "" };
	int at = ctld_peers_hello(&p, 7, 1000);
	/* The same holds for a claim without samples; sizes without a plan are no evidence. */
	say(&p, at, 0,
	    "{\"type\": \"state\", \"min_nodes\": 2, \"max_nodes\": 4, \"nodes\": 2, \"tokens_per_s\": 0, \"curve\": [0, 100, 1e6, 1e7]}",
	    &err);
	assert_float_equal(p.peers[at].curve[1], 100, 1e-9);
	assert_float_equal(p.peers[at].curve[2], 157.5, 1e-9);
	assert_float_equal(p.peers[at].curve[3], 210, 1e-9);
	say(&p, at, 1,
	    "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"tokens_per_s\": 100, \"curve\": [100, 200, 300, "
	    "400]}",
	    &err);
	say(&p, at, 2,
	    "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 2, \"tokens_per_s\": 1e6, \"curve\": [100, 1e6, 1e7, "
	    "1e8]}",
	    &err);
	assert_float_equal(p.peers[at].curve[0], 100, 1e-9);
	assert_float_equal(p.peers[at].curve[1], 210, 1e-9);
	assert_float_equal(p.peers[at].curve[3], 420, 1e-9);
	ctld_peers_clear(&p);
}

/* A job states this rate on so many nodes at a time. */
static int say_rate(struct ctld_peers *p, int nodes, double tokens_per_s, double now_s)
{
	char text[200];
	snprintf(text, sizeof text,
	         "{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": %d, \"tokens_per_s\": %g, "
	         "\"curve\": [100, 200, 300, 400]}",
	         nodes, tokens_per_s);
	return say_at(p, 0, nodes, text, now_s, NULL);
}

/* A job that was slow on three nodes, and lost one, would else never get the third again. */
static void test_old_rates_are_forgotten(void **state)
{
	(void)state;
	struct ctld_peers p = { 0 };
	ctld_peers_hello(&p, 7, 1000);
	say_rate(&p, 3, 150, 1000);
	say_rate(&p, 2, 200, 1010);
	say_rate(&p, 2, 200, 1000 + CTLD_SEEN_S);
	assert_float_equal(p.peers[0].curve[2], 200, 1e-9);
	assert_int_equal(say_rate(&p, 2, 200, 1001 + CTLD_SEEN_S), 1); /* decisions depend on it */
	assert_float_equal(p.peers[0].curve[2], 300, 1e-9);
	/* A job that does not say how fast it trains is still bounded by the newest rate. */
	say_rate(&p, 1, 10, 2000 + CTLD_SEEN_S);
	say_rate(&p, 1, 0, 2000 + 10 * CTLD_SEEN_S);
	assert_int_equal(p.histories[0].seen_count, 1);
	assert_float_equal(p.peers[0].curve[3], 40, 1e-9);
	ctld_peers_clear(&p);
}

/* Samples count reference nodes; if the relative speeds change, they are dropped. */
static void test_worth_counts_in_what_is_seen(void **state)
{
	(void)state;
	static const char *const words[] = {
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"tokens_per_s\": 300, \"worth\": "
		"{\"a\": 3}, \"curve\": [100, 200, 280, 350]}",
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"tokens_per_s\": 300, \"worth\": "
		"{\"a\": 9}, \"curve\": [100, 200, 280, 350]}",
	};
	struct ctld_peers p = { 0 };
	int at = ctld_peers_hello(&p, 7, 1000);
	for (int i = 0; i < 3; i++) {
		json_t *m = json_loads(words[i / 2], 0, NULL);
		assert_true(ctld_peers_state(&p, at, m, 1, 3, 0, NULL) >= 0);
		json_decref(m);
		assert_int_equal(p.histories[at].seen_count, i == 1);
	}
	ctld_peers_clear(&p);
}

static void test_ill_formed_states_change_nothing(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"[]",
		"{\"type\": \"state\"}",
		"{\"type\": \"state\", \"min_nodes\": 0, \"max_nodes\": 4, \"nodes\": 1}",
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"curve\": [\"x\"]}",
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"curve\": [-1]}",
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"members\": [0]}",
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"worth\": {\"n5\": -1}}",
		"{\"type\": \"state\", \"min_nodes\": 1, \"max_nodes\": 4, \"nodes\": 1, \"extra\": 1}",
	};
	struct ctld_peers p = { 0 };
	struct hspmd_error err = { "" };
	int at = ctld_peers_hello(&p, 7, 1000);
	say(&p, at, 0,
	    "{\"type\": \"state\", \"min_nodes\": 2, \"max_nodes\": 4, \"nodes\": 2, \"curve\": [1, 2], \"worth\": {\"n5\": 2.5}}", &err);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		if (say(&p, at, 0, bad[i], &err) != -1)
			fail_msg("taken: %s", bad[i]);
		assert_int_equal(p.peers[at].min_nodes, 2);
		assert_int_equal(p.peers[at].curve_count, 2);
		assert_string_equal(p.peers[at].kinds[0], "n5");
	}
	ctld_peers_clear(&p);
}

static void test_answers(void **state)
{
	(void)state;
	struct ctld_peers p = { 0 };
	int at = ctld_peers_hello(&p, 7, 1000);
	assert_int_equal(ctld_peers_answered(&p, at, 1, true, "", 10), -1);
	ctld_peers_request_sent(&p, at, 1, true, 2, 10);
	assert_int_equal(ctld_peers_answered(&p, at, 2, true, "", 10), -1);
	assert_true(p.peers[at].request_pending);
	assert_int_equal(ctld_peers_answered(&p, at, 1, false, "busy", 11), 0);
	assert_false(p.peers[at].request_pending);
	assert_float_equal(p.peers[at].declined_grow_until_s, 26, 0);
	assert_string_equal(p.histories[at].last_reply, "grow by 2: declined: busy");
	ctld_peers_request_sent(&p, at, 2, true, 2, 100);
	ctld_peers_answered(&p, at, 2, false, "busy", 100);
	assert_float_equal(p.peers[at].declined_grow_until_s, 130, 0);
	ctld_peers_request_sent(&p, at, 3, true, 2, 300);
	ctld_peers_answered(&p, at, 3, true, "", 300);
	assert_float_equal(p.peers[at].resized_s, 300, 0);
	assert_int_equal(p.histories[at].declined, 0);
	/* A job that declines to shrink gets the next request soon, and ever later if it keeps declining; requests to grow are counted
	 * separately. */
	for (int i = 0; i < 10; i++) {
		ctld_peers_request_sent(&p, at, 4 + i, false, 1, 1000);
		ctld_peers_answered(&p, at, 4 + i, false, "busy", 1000);
		assert_float_equal(p.peers[at].declined_shrink_until_s, 1000 + (i < 5 ? 2 << i : 60), 0);
	}
	assert_float_equal(p.peers[at].declined_grow_until_s, 130, 0);
	ctld_peers_clear(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_claims_are_bounded_by_what_was_seen),
		cmocka_unit_test(test_needs_and_pauses_are_bounded),
		cmocka_unit_test(test_rates_are_held_against_those_of_others),
		cmocka_unit_test(test_measured_rates_are_held_to_one_another),
		cmocka_unit_test(test_old_rates_are_forgotten),
		cmocka_unit_test(test_worth_counts_in_what_is_seen),
		cmocka_unit_test(test_ill_formed_states_change_nothing),
		cmocka_unit_test(test_answers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
