/* SPDX-License-Identifier: Apache-2.0 */
/* The policy engine, decision after decision: a quiet site comes to rest, growth waits for further nodes; and the policies that ship. */
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

/* ---- repeated decisions */

/* Carries out a decision at once: returned nodes are idle, and reserved for the job for which they were reclaimed. */
static int carry_out(struct maker *m, const struct hspmd_decision *d)
{
	for (int i = 0; i < d->count; i++) {
		const struct hspmd_resize_action *a = &d->actions[i];
		for (int n = 0; n < a->node_count; n++) {
			struct hspmd_snapshot_node *node = &m->nodes[a->nodes[n]];
			node->state = a->kind == HSPMD_RESIZE_GROW ? HSPMD_SNAPSHOT_HELD : HSPMD_SNAPSHOT_IDLE;
			node->holder = a->kind == HSPMD_RESIZE_GROW ? a->job : -1;
			node->since_s = m->snapshot.now_s;
			node->reserved_for = a->kind == HSPMD_RESIZE_SHRINK && a->for_job >= 0 ? m->elastic[a->for_job].id : 0;
		}
		m->elastic[a->job].resized_s = m->snapshot.now_s;
	}
	return d->count;
}

/* No flapping: nodes become idle one by one, and measured rates vary by one percent. After the last change the engine soon stops resizing
 * for good. No job is resized before its cooldown has passed. */
static void test_a_quiet_site_comes_to_rest(void **state)
{
	(void)state;
	uint64_t seed = 17;
	int cases = getenv("HSPMD_LONG") ? 2000 : 100, resizes = 0;
	for (int i = 0; i < cases; i++) {
		struct maker m;
		maker_start(&m);
		for (int c = 0; c < 2; c++)
			maker_class(&m, c, 1);
		m.snapshot.type_count = 2;
		m.types[1] = "t1";
		for (int j = 0; j < 4; j++) {
			maker_elastic(&m, 50 + 1000 * maker_random(&seed), 0.2 + 0.8 * maker_random(&seed));
			struct hspmd_snapshot_elastic *e = &m.elastic[j];
			e->terms.rebalance = true;
			e->terms.by = (enum hspmd_share_by)(i % 3);
			e->terms.min_gain = 0.05;
			e->terms.grow_cooldown_s = e->terms.shrink_cooldown_s = 30;
			e->pause_s = 1;
			m.relative_speed[j][0] = 1;
			m.relative_speed[j][1] = 0.3 + 2 * maker_random(&seed);
			e->relative_speed = m.relative_speed[j];
			int first = maker_nodes(&m, 0, 1 + (int)(5 * maker_random(&seed)), j, 0);
			m.nodes[first].fixed = true;
		}
		int busy = maker_nodes(&m, 0, 8, -2, 0);
		maker_nodes(&m, 1, 8, -2, 0);
		struct maker still = m;
		for (int round = 0; round < 400; round++) {
			struct hspmd_decision d;
			if (round % 3 == 0 && round / 3 < 16)
				m.nodes[busy + round / 3].state = HSPMD_SNAPSHOT_IDLE;
			for (int j = 0; j < 4; j++) {
				double waver = 0.99 + 0.02 * maker_random(&seed);
				for (int n = 0; n < MAKER_CURVE; n++)
					m.curves[j][n] = waver * still.curves[j][n];
			}
			maker_decide(&m, &d);
			for (int k = 0; k < d.count; k++)
				if (m.snapshot.now_s - m.elastic[d.actions[k].job].resized_s < 30)
					fail_msg("case %d, round %d: job %d was resized not long ago", i, round, d.actions[k].job);
			if (d.count && round > 300)
				fail_msg("case %d: still in round %d: %s", i, round, d.actions[0].reason);
			resizes += carry_out(&m, &d);
			hspmd_decision_clear(&d);
			m.snapshot.now_s += 5;
		}
	}
	assert_true(resizes > 2 * cases);
}

/* A cluster under the terms of a policy that is shipped: job 0 has 8 nodes, and `idle` more have been idle for this time. */
static struct hspmd_policy *shipped(const char *name, struct maker *m, int idle, double idle_s)
{
	char path[512];
	snprintf(path, sizeof path, "%s/policies/%s.json", HSPMD_SRCDIR, name);
	struct hspmd_policy *p = hspmd_policy_read(path, NULL, NULL);
	assert_non_null(p);
	maker_start(m);
	int c = maker_class(m, 0, 1);
	for (int j = 0; j < 2; j++) {
		maker_elastic(m, 100, 0.9);
		m->elastic[j].terms = hspmd_policy_effective(p, 0);
		m->nodes[maker_nodes(m, c, j ? 1 : 8, j, 0)].fixed = true;
	}
	m->elastic[1].max_nodes = 1;
	maker_nodes(m, c, idle, -1, idle_s);
	return p;
}

static int shipped_grows(const char *name, int idle, double idle_s)
{
	struct maker m;
	struct hspmd_policy *p = shipped(name, &m, idle, idle_s);
	int n = maker_grown(&m, NULL);
	hspmd_policy_destroy(p);
	return n;
}

/* Nodes that it returns for a pending job that needs three, this long after its last resize. */
static int shipped_gives(const char *name, double priority, bool preempts, double resized_s)
{
	struct maker m;
	struct hspmd_policy *p = shipped(name, &m, 0, 0);
	maker_pending(&m, 3, priority);
	m.pending[0].preempts = preempts;
	m.elastic[0].resized_s = m.snapshot.now_s - resized_s;
	int n = maker_given(&m);
	hspmd_policy_destroy(p);
	return n;
}

static void test_policies_that_ship_do_what_they_say(void **state)
{
	(void)state;
	assert_int_equal(shipped_grows("conservative", 6, 599), 0);
	assert_int_equal(shipped_grows("conservative", 6, 600), 4);       /* two stay idle */
	assert_int_equal(shipped_gives("conservative", 1, false, 61), 3); /* for any job */
	assert_int_equal(shipped_gives("conservative", 1, false, 59), 0);
	assert_int_equal(shipped_grows("fill-idle", 6, 5), 6);
	assert_int_equal(shipped_grows("fill-idle", 6, 4), 0);
	assert_int_equal(shipped_gives("fill-idle", 1, false, 0), 3);
	assert_int_equal(shipped_grows("spot", 12, 30), 8); /* at most 16 */
	assert_int_equal(shipped_gives("spot", 1, false, 1000), 0);
	assert_int_equal(shipped_gives("spot", 20, false, 1000), 3);
	assert_int_equal(shipped_gives("spot", 20, false, 1), 0);
	assert_int_equal(shipped_gives("spot", 20, true, 1), 3); /* otherwise it would be preempted */
	assert_int_equal(shipped_grows("fair-share", 6, 30), 6);
	assert_int_equal(shipped_gives("fair-share", 1, false, 1000), 0);
	/* Fair shares: with the same curve ten thousand times as high a job gets no more of the next six nodes; and a job on eight nodes
	 * returns some for one on a single node. */
	struct maker m;
	struct hspmd_decision d;
	struct hspmd_policy *p = shipped("fair-share", &m, 0, 0);
	m.elastic[1].max_nodes = MAKER_CURVE;
	m.elastic[1].resized_s = m.elastic[0].resized_s = m.snapshot.now_s - 1000;
	for (int i = 0; i < MAKER_CURVE; i++)
		m.curves[0][i] *= 1e4;
	maker_decide(&m, &d);
	assert_in_range(maker_moved(&d, HSPMD_RESIZE_SHRINK, 0), 3, 4);
	assert_int_equal(d.actions[0].for_job, 1);
	hspmd_decision_clear(&d);
	hspmd_policy_destroy(p);
}

/* ---- waiting for further nodes */

/* A job on one node, one node idle for 62 s, two of an ended job. */
static void ended_job(struct maker *m, double idle_s)
{
	maker_start(m);
	int c = maker_class(m, 0, 1);
	maker_elastic(m, 100, 0.9);
	m->elastic[0].terms.after_idle_s = 60;
	m->elastic[0].wait_until_s = NAN;
	maker_nodes(m, c, 1, 0, 0);
	maker_nodes(m, c, 1, -1, 62);
	int first = maker_nodes(m, c, 2, -1, idle_s);
	for (int i = first; i < first + 2 && idle_s < 0; i++) {
		m->nodes[i].state = HSPMD_SNAPSHOT_HELD;
		m->nodes[i].leaving = true;
	}
}

/* Nodes of an ended job become idle one by one, and a job that takes them one by one pauses for each. */
static void test_growth_waits_for_further_nodes(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	ended_job(&m, -1);
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	assert_non_null(strstr(d.why[0], "waits a few seconds"));
	assert_float_equal(d.wait_until_s[0], m.snapshot.now_s + HSPMD_GATHER_S, 0);
	m.elastic[0].wait_until_s = d.wait_until_s[0];
	hspmd_decision_clear(&d);
	m.snapshot.now_s += 1;
	assert_int_equal(maker_grown(&m, "waits a few seconds"), 0);
	for (int i = 2; i < 4; i++) {
		m.nodes[i].state = HSPMD_SNAPSHOT_IDLE;
		m.nodes[i].since_s = m.snapshot.now_s - 60;
	}
	assert_int_equal(maker_grown(&m, NULL), 3);
	/* Nodes that are idle, but not for long enough. */
	ended_job(&m, 55);
	assert_int_equal(maker_grown(&m, "waits a few seconds"), 0);
	ended_job(&m, 54);
	assert_int_equal(maker_grown(&m, NULL), 1);
}

static void test_growth_does_not_wait(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	ended_job(&m, -1);
	m.elastic[0].max_nodes = 2; /* it could not use more */
	assert_int_equal(maker_grown(&m, NULL), 1);
	ended_job(&m, -1);
	for (int i = 2; i < MAKER_CURVE; i++)
		m.curves[0][i] = m.curves[0][1]; /* more bring it nothing */
	assert_int_equal(maker_grown(&m, NULL), 1);
	ended_job(&m, -1);
	m.nodes[2].class = m.nodes[3].class = maker_class(&m, 0, 1); /* it may not use them */
	m.elastic_usable[0][1] = 0;
	assert_int_equal(maker_grown(&m, NULL), 1);
	ended_job(&m, -1);
	m.nodes[2].reserved_for = m.nodes[3].reserved_for = 7;
	assert_int_equal(maker_grown(&m, NULL), 1);
	/* Where some node is always completing, the wait ends nevertheless, and does not begin again before the job has grown. */
	ended_job(&m, -1);
	m.elastic[0].wait_until_s = m.snapshot.now_s;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, 0), 1);
	assert_float_equal(d.wait_until_s[0], m.snapshot.now_s, 0);
	hspmd_decision_clear(&d);
	m.nodes[1].state = HSPMD_SNAPSHOT_BUSY;
	maker_decide(&m, &d);
	assert_true(isnan(d.wait_until_s[0]));
	hspmd_decision_clear(&d);
	/* A clock that was set back. */
	m.nodes[1].state = HSPMD_SNAPSHOT_IDLE;
	m.elastic[0].wait_until_s = m.snapshot.now_s + 1e6;
	maker_decide(&m, &d);
	assert_float_equal(d.wait_until_s[0], m.snapshot.now_s + HSPMD_GATHER_S, 0);
	hspmd_decision_clear(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_quiet_site_comes_to_rest),
		cmocka_unit_test(test_policies_that_ship_do_what_they_say),
		cmocka_unit_test(test_growth_waits_for_further_nodes),
		cmocka_unit_test(test_growth_does_not_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
