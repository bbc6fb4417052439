/* SPDX-License-Identifier: Apache-2.0 */
/* The policy engine, rule by rule, on small clusters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policies/curve.h"
#include "policies/decision_state_internal.h"
#include "tests/unit/snapshot_maker.h"

/* ---- growing */

static void test_node_goes_where_it_brings_most(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	int slow = maker_elastic(&m, 100, 0.5), fast = maker_elastic(&m, 100, 0.9);
	maker_nodes(&m, c, 1, slow, 0);
	maker_nodes(&m, c, 1, fast, 0);
	maker_nodes(&m, c, 1, -1, 100);
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, fast), 1);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, slow), 0);
	hspmd_decision_clear(&d);
	m.elastic[slow].terms.weight = 3;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, slow), 1);
	hspmd_decision_clear(&d);
}

/* A policy that no longer allows a type: its nodes are reclaimed, except the job's first node and down to min_nodes. */
static void test_nodes_of_forbidden_types_are_asked_back(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	static char good[] = "good";
	char *allowed[] = { good };
	maker_start(&m);
	m.types[0] = "good";
	m.types[1] = "bad";
	int a = maker_class(&m, 0, 1), b = maker_class(&m, 1, 1);
	int j = maker_elastic(&m, 100, 0.9);
	m.snapshot.type_count = 2;
	maker_nodes(&m, a, 2, j, 0);
	maker_nodes(&m, b, 2, j, 0);
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, j), 0);
	hspmd_decision_clear(&d);
	m.elastic[j].terms.device_types = (struct hspmd_policy_list){ 1, allowed };
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, j), 2);
	assert_int_equal(m.nodes[d.actions[0].nodes[0]].class, b);
	assert_non_null(strstr(d.actions[0].reason, "not of the types"));
	hspmd_decision_clear(&d);
}

static void test_relative_share_ignores_scale(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	int tiny = maker_elastic(&m, 1e6, 0.5), large = maker_elastic(&m, 100, 0.9); /* a small model trains more tokens on the same node */
	m.elastic[tiny].terms.by = m.elastic[large].terms.by = HSPMD_SHARE_RELATIVE;
	maker_nodes(&m, c, 1, tiny, 0);
	maker_nodes(&m, c, 1, large, 0);
	maker_nodes(&m, c, 1, -1, 100);
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, large), 1);
	hspmd_decision_clear(&d);
}

/* Two jobs on one node each and 14 idle nodes: how many the first gets under this rule if it claims this rate and power, while the other
 * scales as n^0.8. */
static int taken(enum hspmd_share_by by, double rate, double power)
{
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	int liar = maker_elastic(&m, rate, power), honest = maker_elastic(&m, 100, 0.8);
	m.elastic[liar].terms.by = m.elastic[honest].terms.by = by;
	maker_nodes(&m, c, 1, liar, 0);
	maker_nodes(&m, c, 1, honest, 0);
	maker_nodes(&m, c, 14, -1, 100);
	maker_decide(&m, &d);
	int n = maker_moved(&d, HSPMD_RESIZE_GROW, liar);
	assert_int_equal(n + maker_moved(&d, HSPMD_RESIZE_GROW, honest), 14);
	hspmd_decision_clear(&d);
	return n;
}

/* hspmdctld cannot check a job's rate, nor its claim to scale linearly (more than that is cut). With proportional shares a false rate gains
 * nothing, and false scaling at most the inverse of the power with which the others scale: here 8.9 nodes to 7.1. */
static void test_a_liar_gains_little_where_shares_are_proportional(void **state)
{
	(void)state;
	assert_int_equal(taken(HSPMD_SHARE_PROPORTIONAL, 100, 0.8), 7);
	assert_int_equal(taken(HSPMD_SHARE_PROPORTIONAL, 1e9, 0.8), 7);
	assert_int_equal(taken(HSPMD_SHARE_PROPORTIONAL, 1e9, 1), 8);
	assert_int_equal(taken(HSPMD_SHARE_TOKENS, 1e9, 1), 14);
	assert_int_equal(taken(HSPMD_SHARE_RELATIVE, 1e9, 0.8), 7);
	assert_int_equal(taken(HSPMD_SHARE_RELATIVE, 100, 1), 14);
}

/* One case per rule: one thing differs, and no node may be taken. */
static void test_growth_rules(void **state)
{
	(void)state;
	struct maker m, base;
	maker_start(&base);
	int c = maker_class(&base, 0, 8);
	maker_elastic(&base, 100, 0.9);
	maker_nodes(&base, c, 2, 0, 0);
	maker_nodes(&base, c, 4, -1, 50);
	base.classes[c].price_per_hour = 10;
	maker_start(&m);
#define CASE(expected, why, change)                                                                                                        \
	do {                                                                                                                               \
		m = base;                                                                                                                  \
		m.snapshot.classes = m.classes;                                                                                            \
		m.snapshot.nodes = m.nodes;                                                                                                \
		m.snapshot.elastic = m.elastic;                                                                                            \
		m.snapshot.pending = m.pending;                                                                                            \
		m.elastic[0].usable = m.elastic_usable[0];                                                                                 \
		m.elastic[0].tokens_per_s = m.curves[0];                                                                                   \
		struct hspmd_policy_terms *t = &m.elastic[0].terms;                                                                        \
		(void)t;                                                                                                                   \
		change;                                                                                                                    \
		assert_int_equal(maker_grown(&m, why), expected);                                                                          \
	} while (0)
	CASE(4, NULL, (void)0);
	CASE(0, "policy does not let it", t->into_idle = false);
	CASE(0, NULL, t->after_idle_s = 51);
	CASE(4, NULL, t->after_idle_s = 50);
	CASE(1, NULL, t->reserve_nodes = 3);
	CASE(0, NULL, t->reserve_nodes = 4);
	CASE(1, NULL, t->max_nodes = 3);
	CASE(0, "as many nodes", m.elastic[0].max_nodes = 2);
	CASE(2, NULL, t->max_devices = 39);
	CASE(1, NULL, t->max_price_per_hour = 35);
	CASE(0, NULL, m.elastic_usable[0][0] = 0);
	CASE(0, "not long ago", (t->grow_cooldown_s = 120, m.elastic[0].resized_s = m.snapshot.now_s - 119));
	CASE(4, NULL, (t->grow_cooldown_s = 120, m.elastic[0].resized_s = m.snapshot.now_s - 120));
	CASE(0, "declined", m.elastic[0].declined_grow_until_s = m.snapshot.now_s + 1);
	CASE(0, "under way", m.elastic[0].request_pending = true);
	CASE(0, "does not answer", m.elastic[0].reachable = false);
	CASE(0, "no scaling curve", m.elastic[0].curve_count = 0);
	CASE(0, "min_gain", t->min_gain = 2); /* 6 nodes are 2.7 times 2 nodes: +169 % */
	CASE(4, NULL, t->min_gain = 1.5);
	CASE(0, "pause", (m.elastic[0].pause_s = 110, t->grow_cooldown_s = 60)); /* +169 % for 60 s do not earn back a pause of 110 s */
	CASE(4, NULL, (m.elastic[0].pause_s = 90, t->grow_cooldown_s = 60));
	CASE(0, "pause", (m.elastic[0].pause_s = 60, m.elastic[0].remaining_s = 30));
	/* It has kept its nodes for long, and is likely to keep the next as long. */
	CASE(4, NULL, (m.elastic[0].pause_s = 110, t->grow_cooldown_s = 60, m.elastic[0].resized_s = m.snapshot.now_s - 70));
	CASE(0, "pause", (m.elastic[0].pause_s = 110, t->grow_cooldown_s = 60, m.elastic[0].resized_s = m.snapshot.now_s - 61));
	CASE(0, NULL, for (int i = 2; i < 6; i++) m.nodes[i].reserved_for = 7);
	CASE(4, NULL,
	     (t->after_idle_s = 1000,
	      m.nodes[2].reserved_for = m.nodes[3].reserved_for = m.nodes[4].reserved_for = m.nodes[5].reserved_for = 100));
#undef CASE
}

static void test_device_types_limit(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	char *allowed[] = { "t1" };
	maker_start(&m);
	int a = maker_class(&m, 0, 1), b = maker_class(&m, 1, 1);
	maker_elastic(&m, 100, 0.9);
	m.elastic[0].terms.device_types = (struct hspmd_policy_list){ 1, allowed };
	maker_nodes(&m, b, 1, 0, 0);
	maker_nodes(&m, a, 2, -1, 100);
	int ok = maker_nodes(&m, b, 1, -1, 100);
	maker_decide(&m, &d);
	assert_int_equal(d.count, 1);
	assert_int_equal(d.actions[0].node_count, 1);
	assert_int_equal(d.actions[0].nodes[0], ok);
	hspmd_decision_clear(&d);
}

static void test_plateau_is_looked_over_and_trimmed(void **state)
{
	(void)state;
	struct maker m;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	maker_elastic(&m, 100, 1);
	for (int i = 0; i < MAKER_CURVE; i++)
		m.curves[0][i] = 100 * (1 << (int)log2(i + 1)); /* 1, 2, 2, 4, 4, 4, 4, 8 */
	maker_nodes(&m, c, 2, 0, 0);
	maker_nodes(&m, c, 3, -1, 100);
	assert_int_equal(maker_grown(&m, NULL), 2); /* 4 nodes; the fifth gains nothing */
}

static void test_losses_make_growth_not_worth_it(void **state)
{
	(void)state;
	struct maker m;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	maker_elastic(&m, 100, 0.5);
	m.elastic[0].pause_s = 1;
	m.elastic[0].lost_s = 59;
	maker_nodes(&m, c, 2, 0, 0);
	maker_nodes(&m, c, 20, -1, 100);
	m.elastic[0].terms.grow_cooldown_s = 1000;
	assert_int_equal(maker_grown(&m, NULL), 20);
	m.classes[c].losses_per_s = 1.0 / 600; /* sqrt(n) / (1 + 60 n / 600) is greatest at n = 10 */
	assert_int_equal(maker_grown(&m, NULL), 8);
}

/* ---- shrinking */

static void test_gives_what_the_waiting_job_lacks(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	maker_elastic(&m, 100, 0.9);
	maker_nodes(&m, c, 4, 0, 0);
	m.nodes[0].fixed = true;
	maker_nodes(&m, c, 1, -1, 100);
	maker_pending(&m, 3, 20);
	maker_decide(&m, &d);
	assert_int_equal(d.count, 1);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, 0), 2);
	assert_int_equal(d.actions[0].nodes[0], 3);
	assert_int_equal(d.actions[0].nodes[1], 2);
	assert_int_equal(d.actions[0].for_pending, 0);
	hspmd_decision_clear(&d);
}

/* A job whose rates are unknown counts as a mean one: it shrinks after jobs that need their nodes less, and before those that need them
 * more. */
static void test_unknown_rates_count_as_the_mean(void **state)
{
	(void)state;
	for (int need = 2; need <= 8; need += 2) {
		struct maker m;
		struct hspmd_decision d;
		maker_start(&m);
		int c = maker_class(&m, 0, 1), job[3];
		for (int i = 0; i < 3; i++) {
			job[i] = maker_elastic(&m, i == 0 ? 300 : 100, 1);
			m.elastic[job[i]].curve_count = i == 1 ? 0 : MAKER_CURVE;
			m.elastic[job[i]].terms.by = HSPMD_SHARE_TOKENS;
			maker_nodes(&m, c, 4, job[i], 0);
		}
		maker_pending(&m, need, 20);
		maker_decide(&m, &d);
		int given[3], expected[3] = { need > 6 ? need - 6 : 0, need > 6 ? 3 : need > 3 ? need - 3 : 0, need > 3 ? 3 : need };
		for (int i = 0; i < 3; i++) {
			given[i] = maker_moved(&d, HSPMD_RESIZE_SHRINK, job[i]);
			if (given[i] != expected[i])
				fail_msg("of %d nodes job %d gives %d instead of %d", need, i, given[i], expected[i]);
		}
		hspmd_decision_clear(&d);
	}
}

static void test_giving_rules(void **state)
{
	(void)state;
	struct maker m, base;
	maker_start(&base);
	int c = maker_class(&base, 0, 1);
	maker_elastic(&base, 100, 0.9);
	maker_nodes(&base, c, 4, 0, 0);
	maker_pending(&base, 2, 20);
	maker_start(&m);
#define CASE(expected, change)                                                                                                             \
	do {                                                                                                                               \
		m = base;                                                                                                                  \
		m.snapshot.classes = m.classes;                                                                                            \
		m.snapshot.nodes = m.nodes;                                                                                                \
		m.snapshot.elastic = m.elastic;                                                                                            \
		m.snapshot.pending = m.pending;                                                                                            \
		m.elastic[0].usable = m.elastic_usable[0];                                                                                 \
		m.pending[0].usable = m.pending_usable[0];                                                                                 \
		m.pending[1].usable = m.pending_usable[1];                                                                                 \
		struct hspmd_policy_terms *t = &m.elastic[0].terms;                                                                        \
		(void)t;                                                                                                                   \
		change;                                                                                                                    \
		assert_int_equal(maker_given(&m), expected);                                                                               \
	} while (0)
	CASE(2, (void)0);
	CASE(0, t->for_pending = HSPMD_PENDING_NONE);
	CASE(0, m.pending[0].priority = 10);
	CASE(2, (m.pending[0].priority = 10, t->for_pending = HSPMD_PENDING_ANY));
	CASE(0, m.pending_usable[0][0] = 0);
	CASE(0, m.elastic[0].min_nodes = 3); /* one node would not be enough, so none */
	CASE(2, m.elastic[0].min_nodes = 2);
	CASE(0, (t->shrink_cooldown_s = 60, m.elastic[0].resized_s = m.snapshot.now_s - 59));
	CASE(0, (t->shrink_cooldown_s = 60, m.elastic[0].resized_s = m.snapshot.now_s - 59, m.pending[0].preempts = true));
	CASE(2, (t->shrink_cooldown_s = 60, m.elastic[0].resized_s = m.snapshot.now_s - 59,
	         m.pending[0].preempts = t->yield_before_preemption = true));
	CASE(0, (m.nodes[3].leaving = m.nodes[2].leaving = true)); /* enough are leaving already */
	CASE(1, m.nodes[3].leaving = true);
	CASE(0, m.elastic[0].request_pending = true);
	CASE(0, m.elastic[0].declined_shrink_until_s = m.snapshot.now_s + 1);
	CASE(2, m.elastic[0].declined_shrink_until_s = m.snapshot.now_s);
	CASE(0, m.pending[0].nodes = 5);
	CASE(0, m.pending[0].nodes = 4); /* it keeps its last node ... */
	CASE(3, (m.pending[0].nodes = 4,
	         m.pending[0].preempts = true)); /* ... but if it will be preempted anyway, the others are returned before */
	CASE(2, (m.pending[0].nodes = 5, maker_pending(&m, 2, 20), m.pending[1].usable = m.pending_usable[1], m.pending_usable[0][0] = 0));
	/* The first job waits for two busy nodes. Slurm does not start a job that would delay it, but does start one that ends before or
	 * uses only nodes that are left over. */
#define BEHIND(n)                                                                                                                          \
	m.pending[0].nodes = (n), maker_nodes(&m, c, 2, -2, 0), maker_pending(&m, 2, 20), m.pending[1].usable = m.pending_usable[1]
	CASE(0, (BEHIND(5)));
	CASE(2, (BEHIND(5), m.pending[1].run_s = 900));
	CASE(0, (BEHIND(5), m.pending[1].run_s = 1100));
	CASE(2, (BEHIND(5), maker_nodes(&m, c, 3, -2, 0)));
	CASE(2, (BEHIND(7))); /* it cannot start whichever job ends: no node is kept for it */
#undef BEHIND
#undef CASE
}

/* A job has not carried out a request yet, or has declined it: in the first case no other job gets a request in its place, in the second
 * one does. */
static void test_who_was_asked_and_who_declined(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1), a = maker_elastic(&m, 100, 0.5), b = maker_elastic(&m, 100, 0.9);
	int first = maker_nodes(&m, c, 3, a, 0);
	maker_nodes(&m, c, 3, b, 0);
	maker_pending(&m, 2, 20);
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, a), 2);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, b), 0);
	hspmd_decision_clear(&d);
	m.elastic[a].request_pending = m.nodes[first + 1].leaving = m.nodes[first + 2].leaving = true;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	hspmd_decision_clear(&d);
	m.elastic[a].request_pending = m.nodes[first + 1].leaving = m.nodes[first + 2].leaving = false;
	m.elastic[a].declined_shrink_until_s = m.snapshot.now_s + 1;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, a), 0);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, b), 2);
	hspmd_decision_clear(&d);
}

static void test_idle_nodes_are_promised_not_grown_into(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	maker_elastic(&m, 100, 0.9);
	maker_nodes(&m, c, 2, 0, 0);
	maker_nodes(&m, c, 3, -1, 100);
	maker_pending(&m, 2, 1);
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, 0), 1);
	assert_float_equal(d.eligible_since_s[0], m.snapshot.now_s, 0);
	hspmd_decision_clear(&d);
	/* It could have started long ago and did not: nodes are kept for it no longer. */
	m.pending[0].eligible_since_s = m.snapshot.now_s - HSPMD_STALE_PENDING_S;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, 0), 3);
	hspmd_decision_clear(&d);
	/* It cannot start: the nodes may be used meanwhile, but only by a job that would return them. */
	m.pending[0] = (struct hspmd_snapshot_pending){
		.id = 1, .nodes = 50, .run_s = INFINITY, .priority = 1, .eligible_since_s = NAN, .usable = m.pending_usable[0]
	};
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, 0), 3);
	hspmd_decision_clear(&d);
	m.elastic[0].terms.for_pending = HSPMD_PENDING_NONE;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, 0), 0);
	hspmd_decision_clear(&d);
}

static void test_over_its_limit_gives_back(void **state)
{
	(void)state;
	struct maker m;
	maker_start(&m);
	int c = maker_class(&m, 0, 4);
	maker_elastic(&m, 100, 0.9);
	maker_nodes(&m, c, 5, 0, 0);
	m.elastic[0].terms.max_nodes = 3;
	assert_int_equal(maker_given(&m), 2);
	m.elastic[0].terms.max_devices = 8;
	assert_int_equal(maker_given(&m), 3);
	m.elastic[0].min_nodes = 4;
	assert_int_equal(maker_given(&m), 1);
}

/* ---- moving between elastic jobs */

static void test_rebalance(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1);
	int a = maker_elastic(&m, 100, 0.8), b = maker_elastic(&m, 100, 0.8);
	maker_nodes(&m, c, 7, a, 0);
	maker_nodes(&m, c, 1, b, 0);
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	hspmd_decision_clear(&d);
	m.elastic[a].terms.rebalance = m.elastic[b].terms.rebalance = true;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, a), 3);
	assert_int_equal(d.actions[0].for_job, b);
	hspmd_decision_clear(&d);
	/* Nobody gains if both pause for longer than the new sizes are kept; a minute at least, as long as both jobs run. */
	m.elastic[a].pause_s = m.elastic[b].pause_s = 1;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, a), 3);
	hspmd_decision_clear(&d);
	m.elastic[a].pause_s = m.elastic[b].pause_s = 60;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	hspmd_decision_clear(&d);
	m.elastic[a].terms.grow_cooldown_s = 3600;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, a), 3);
	hspmd_decision_clear(&d);
	m.elastic[b].remaining_s = 60;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	hspmd_decision_clear(&d);
	m.elastic[b].remaining_s = INFINITY;
	m.elastic[a].terms.weight = 3; /* the marginal gains are equal at 7 : 1 */
	maker_decide(&m, &d);
	assert_true(maker_moved(&d, HSPMD_RESIZE_SHRINK, a) == 0);
	hspmd_decision_clear(&d);
}

/* ---- curves */

static void test_curve_bound(void **state)
{
	(void)state;
	double curve[] = { 100, 1000, 1000, 1e9, NAN };
	const struct hspmd_curve_sample seen[] = { { 2, 200 }, { 4, 380 } };
	hspmd_curve_bound(curve, 5, seen, 2, 1.0);
	const double expected[] = { 100, 200, 300, 380, 380 };
	for (int i = 0; i < 5; i++)
		assert_float_equal(curve[i], expected[i], 1e-9);
}

static void test_curve_scale(void **state)
{
	(void)state;
	/* A prediction that is wrong by half everywhere, then one that is less wrong on more nodes. */
	double half[] = { 50, 95, 140, 180 }, less[] = { 50, 95, 140, 180 }, silent[] = { NAN, 0, 3, 4 };
	const struct hspmd_curve_sample one[] = { { 2, 190 }, { 9, 1 } }, two[] = { { 3, 140 }, { 1, 100 } };
	hspmd_curve_scale(half, 4, one, 2);
	hspmd_curve_scale(less, 4, two, 2);
	const double twice[] = { 100, 190, 280, 360 }, between[] = { 100, 142.5, 140, 180 };
	for (int i = 0; i < 4; i++) {
		assert_float_equal(half[i], twice[i], 1e-9);
		assert_float_equal(less[i], between[i], 1e-9);
	}
	hspmd_curve_scale(silent, 4, one, 2);
	assert_float_equal(silent[3], 4, 0);
}

static void test_curve_hull(void **state)
{
	(void)state;
	const double curve[] = { 10, 20, 20, 40, 41 };
	double hull[5];
	hspmd_curve_hull(curve, 5, hull);
	const double expected[] = { 10, 20, 30, 40, 41 };
	for (int i = 0; i < 5; i++)
		assert_float_equal(hull[i], expected[i], 1e-9);
	assert_float_equal(hspmd_curve_at(curve, 5, 0.5), 5, 1e-9);
	assert_float_equal(hspmd_curve_at(curve, 5, 3.5), 30, 1e-9);
	assert_float_equal(hspmd_curve_at(curve, 5, 9), 41, 1e-9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_node_goes_where_it_brings_most),
		cmocka_unit_test(test_relative_share_ignores_scale),
		cmocka_unit_test(test_nodes_of_forbidden_types_are_asked_back),
		cmocka_unit_test(test_a_liar_gains_little_where_shares_are_proportional),
		cmocka_unit_test(test_growth_rules),
		cmocka_unit_test(test_device_types_limit),
		cmocka_unit_test(test_plateau_is_looked_over_and_trimmed),
		cmocka_unit_test(test_losses_make_growth_not_worth_it),
		cmocka_unit_test(test_gives_what_the_waiting_job_lacks),
		cmocka_unit_test(test_giving_rules),
		cmocka_unit_test(test_unknown_rates_count_as_the_mean),
		cmocka_unit_test(test_who_was_asked_and_who_declined),
		cmocka_unit_test(test_idle_nodes_are_promised_not_grown_into),
		cmocka_unit_test(test_over_its_limit_gives_back),
		cmocka_unit_test(test_rebalance),
		cmocka_unit_test(test_curve_bound),
		cmocka_unit_test(test_curve_scale),
		cmocka_unit_test(test_curve_hull),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
