/* SPDX-License-Identifier: Apache-2.0 */
/* Traces, and the simulated cluster: small cases computed by hand, invented days, and recorded ones if available. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policies/simulate.h"
#include "tests/bench/policy/trace_maker.h"

static const char fill[] =
        "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"fill\", \"grow\": {\"into_idle\": true, \"after_idle_s\": 0,"
        "\"cooldown_s\": 0, \"min_gain\": 0}, \"shrink\": {\"for_pending\": \"higher_priority\", \"cooldown_s\": 0,"
        "\"yield_before_preemption\": true}}]}";

#define ELASTIC(min)                                                                                                                       \
	"{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": 1, \"elastic\": true, \"min_nodes\": " min                               \
	", \"max_nodes\": 4, \"pause_s\": 0,"                                                                                              \
	"\"tokens_per_s\": [100, 200, 300, 400]}}"
#define ADD "{\"time_s\": 0, \"event\": \"add\", \"nodes\": [\"n[0-3]\"]}, "
#define RIGID(at, n, run)                                                                                                                  \
	"{\"time_s\": " at ", \"event\": \"submit\", \"job\": {\"id\": 2, \"nodes\": " n ", \"run_s\": " run ", \"priority\": 5}}"
#define TRACE(events) "{\"format\": \"hspmd-trace-1\", \"end_s\": 1000, \"events\": [" events "]}"

static struct hspmd_trace *trace_of(const char *text, struct hspmd_error *err)
{
	json_t *value = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(value);
	struct hspmd_trace *t = hspmd_trace_from_json(value, "trace.json", err);
	json_decref(value);
	return t;
}

static struct hspmd_policy *policy_of(const char *text)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = hspmd_policy_create(&err);
	if (hspmd_policy_add_text(p, text, strlen(text), "policy.json", &err) < 0)
		fail_msg("%s", err.text);
	return p;
}

static struct hspmd_policy_sim_result simulate(const char *policy, const char *trace, enum hspmd_policy_sim_mode mode)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = policy_of(policy);
	struct hspmd_trace *t = trace_of(trace, &err);
	struct hspmd_policy_sim_options options = hspmd_policy_sim_defaults;
	struct hspmd_policy_sim_result r = { 0 };
	options.mode = mode;
	if (!t || hspmd_policy_simulate(p, t, &options, &r, &err) < 0)
		fail_msg("%s", err.text);
	hspmd_trace_destroy(t);
	hspmd_policy_destroy(p);
	return r;
}

static void test_alone(void **state)
{
	(void)state;
	struct hspmd_policy_sim_result r = simulate(fill, TRACE(ADD ELASTIC("1")), HSPMD_POLICY_SIM_POLICY);
	assert_float_equal(r.tokens, 400e3, 1);
	assert_int_equal(r.grows, 1);
	r = simulate(fill, TRACE(ADD ELASTIC("1")), HSPMD_POLICY_SIM_WITHOUT);
	assert_float_equal(r.tokens, 100e3, 1);
	r = simulate(fill, TRACE(ADD ELASTIC("1")), HSPMD_POLICY_SIM_PREEMPT);
	assert_float_equal(r.tokens, 400e3, 1);
}

/* A simulated job observes the cooldown as a real one does: it grows into the first node that is added, and into the second when
 * that is over. */
static void test_cooldown(void **state)
{
	(void)state;
	static const char patient[] =
	        "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"fill\", \"grow\": {\"into_idle\": true, \"after_idle_s\": 0,"
	        "\"cooldown_s\": 300, \"min_gain\": 0}}]}";
	struct hspmd_policy_sim_result r = simulate(patient,
	                                            TRACE("{\"time_s\": 0, \"event\": \"add\", \"nodes\": [\"n0\"]}, " ELASTIC(
	                                                    "1") ", "
	                                                         "{\"time_s\": 10, \"event\": \"add\", \"nodes\": [\"n1\"]}, {\"time_s\": "
	                                                         "50, \"event\": \"add\", \"nodes\": [\"n2\"]}"),
	                                            HSPMD_POLICY_SIM_POLICY);
	assert_int_equal(r.grows, 2);
	assert_float_equal(r.tokens, 100 * 10 + 200 * 300 + 300 * 690, 5000);
}

static void test_gives_way_and_comes_back(void **state)
{
	(void)state;
	struct hspmd_policy_sim_result r = simulate(fill, TRACE(ADD ELASTIC("1") ", " RIGID("100", "2", "50")), HSPMD_POLICY_SIM_POLICY);
	assert_float_equal(r.rigid_wait_s, 2, 1e-3);
	assert_float_equal(r.tokens, 400 * 100 + 200 * 52 + 400 * 848, 1);
	assert_float_equal(r.used_node_s, 4000, 0.1);
	assert_int_equal(r.preemptions, 0);
	assert_float_equal(r.lost_node_s, 0, 0);
	assert_int_equal(r.rigid_done, 1);
	assert_int_equal(r.shrinks, 1);
	assert_int_equal(r.nodes_given, 2);
	/* No resizes: it stays on its one node, and the other job starts at once. */
	r = simulate(fill, TRACE(ADD ELASTIC("1") ", " RIGID("100", "2", "50")), HSPMD_POLICY_SIM_WITHOUT);
	assert_float_equal(r.rigid_wait_s, 0, 1e-3);
	assert_float_equal(r.tokens, 100e3, 1);
	/* Preempted whole: 100 s of four nodes are lost; two of them stay idle for it to restart on, the others when the job is done. */
	r = simulate(fill, TRACE(ADD ELASTIC("1") ", " RIGID("100", "2", "50")), HSPMD_POLICY_SIM_PREEMPT);
	assert_int_equal(r.preemptions, 1);
	assert_float_equal(r.rigid_wait_s, 2, 1e-3);
	assert_float_equal(r.lost_node_s, 400, 0.1);
	assert_float_equal(r.lost_tokens, 40e3, 1);
	assert_float_equal(r.tokens, 200 * 898, 1);
}

static void test_keeps_its_fewest_and_is_preempted_only_then(void **state)
{
	(void)state;
	struct hspmd_policy_sim_result r = simulate(fill, TRACE(ADD ELASTIC("3") ", " RIGID("100", "1", "50")), HSPMD_POLICY_SIM_POLICY);
	assert_int_equal(r.preemptions, 0);
	assert_int_equal(r.nodes_given, 1);
	r = simulate(fill, TRACE(ADD ELASTIC("3") ", " RIGID("100", "2", "50")), HSPMD_POLICY_SIM_POLICY);
	assert_int_equal(r.preemptions, 1);
	assert_float_equal(r.lost_node_s, 0, 0);
}

static void test_backfill_in_order(void **state)
{
	(void)state;
	/* 3 of 4 nodes are busy for 100 s, and a job of 4 nodes waits: of two small jobs only the one that ends before may start. */
	static const char text[] = TRACE(ADD "{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": 1, \"nodes\": 3, \"run_s\": 100}},"
	                                     "{\"time_s\": 1, \"event\": \"submit\", \"job\": {\"id\": 2, \"nodes\": 4, \"run_s\": 10}},"
	                                     "{\"time_s\": 2, \"event\": \"submit\", \"job\": {\"id\": 3, \"nodes\": 1, \"run_s\": 200}},"
	                                     "{\"time_s\": 3, \"event\": \"submit\", \"job\": {\"id\": 4, \"nodes\": 1, \"run_s\": 97}}");
	struct hspmd_policy_sim_result r = simulate(fill, text, HSPMD_POLICY_SIM_POLICY);
	assert_float_equal(r.rigid_wait_s * 4, 0 + 99 + 108 + 0, 1e-3);
	assert_float_equal(r.rigid_wait_max_s, 108, 1e-3);
}

static void test_lost_nodes(void **state)
{
	(void)state;
#define GONE ", {\"time_s\": 500, \"event\": \"remove\", \"nodes\": [\"n0\"]}"
	struct hspmd_policy_sim_result r = simulate(fill, TRACE(ADD ELASTIC("1") GONE), HSPMD_POLICY_SIM_POLICY);
	assert_int_equal(r.node_losses, 1);
	assert_int_equal(r.requeues, 0);
	assert_float_equal(r.tokens, 400 * 500 + 300 * 500, 1);
	assert_float_equal(r.node_s, 3500, 1e-3);
	r = simulate(fill, TRACE(ADD ELASTIC("1") GONE), HSPMD_POLICY_SIM_PREEMPT);
	assert_int_equal(r.requeues, 1);
	assert_float_equal(r.tokens, 300 * 498, 1);
	r = simulate(fill, TRACE(ADD RIGID("0", "4", "600") GONE), HSPMD_POLICY_SIM_POLICY);
	assert_int_equal(r.rigid_done, 0);
	assert_float_equal(r.lost_node_s, 2000, 1e-3);
#undef GONE
}

static void test_trace_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text, *said;
	} bad[] = {
		{ TRACE(ADD ADD "{}"), "n0 is there already" },
		{ TRACE("{\"time_s\": 0, \"event\": \"remove\", \"nodes\": [\"x\"]}"), "x is not there" },
		{ TRACE("{\"time_s\": 1001, \"event\": \"add\", \"nodes\": [\"x\"]}"), "events[0].time_s" },
		{ TRACE("{\"time_s\": 5, \"event\": \"add\", \"nodes\": [\"x\"]}, {\"time_s\": 4, \"event\": \"add\", \"nodes\": [\"y\"]}"),
		  "events[1].time_s" },
		{ TRACE("{\"time_s\": 0, \"event\": \"explode\"}"), "events[0].event" },
		{ TRACE(RIGID("0", "1", "1") ", " RIGID("0", "1", "1")), "two jobs have id 2" },
		{ TRACE(RIGID("0", "0", "1")), "job.nodes" },
		{ TRACE("{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": 1, \"elastic\": true, \"max_nodes\": 4}}"),
		  "tokens_per_s" },
		{ TRACE("{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": 1, \"elastic\": true, \"min_nodes\": 5, \"max_nodes\": "
		        "4, \"tokens_per_s\": [1]}}"),
		  "max_nodes" },
		{ TRACE("{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": 1, \"nodes\": 1, \"run_s\": 1, \"user\": 7}}"),
		  "job.user" },
		{ TRACE("{\"time_s\": 0, \"event\": \"add\", \"nodes\": [\"n[3-\"]}"), "nodes[0]" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		struct hspmd_trace *t = trace_of(bad[i].text, &err);
		if (t || !strstr(err.text, bad[i].said))
			fail_msg("%s\n  said: %s\n  not: %s", bad[i].text, t ? "(taken)" : err.text, bad[i].said);
	}
}

static void test_trace_reads_back(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_trace *t = trace_of(
	        TRACE(ADD ELASTIC("2") ", " RIGID("100", "2", "50") ", {\"time_s\": 500, \"event\": \"remove\", \"nodes\": [\"n0\"]}"),
	        &err);
	json_t *out = hspmd_trace_to_json(t);
	struct hspmd_trace *u = hspmd_trace_from_json(out, "again", &err);
	json_t *again = hspmd_trace_to_json(u);
	assert_true(json_equal(out, again));
	json_decref(out);
	json_decref(again);
	hspmd_trace_destroy(t);
	hspmd_trace_destroy(u);
}

/* Invariants of every result. */
static void check_sane(const struct hspmd_policy_sim_result *r)
{
	assert_true(r->used_node_s <= r->node_s * (1 + 1e-9));
	assert_true(r->stalled_node_s <= r->used_node_s);
	assert_true(r->rigid_started <= r->rigid && r->rigid_done <= r->rigid_started);
	assert_true(r->elastic_done <= r->elastic_started && r->elastic_started <= r->elastic);
	assert_true(r->tokens >= 0 && r->lost_tokens >= 0 && r->lost_node_s >= 0);
}

/* An invented day, compared with the same day without the policy, and with preemption of whole jobs. */
static void test_made_up_days(void **state)
{
	(void)state;
	struct hspmd_policy *p = policy_of(fill);
	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct trace_recipe recipe = {
			.nodes = 128, .rigid = 200, .elastic = 12, .hours = 24, .load = 0.5, .elastic_nodes = 32, .seed = seed
		};
		struct hspmd_error err = { "" };
		struct hspmd_trace *t = trace_make(&recipe, &err);
		struct hspmd_policy_sim_result r[3], again;
		assert_non_null(t);
		for (int m = 0; m < 3; m++) {
			struct hspmd_policy_sim_options options = hspmd_policy_sim_defaults;
			options.mode = (enum hspmd_policy_sim_mode)m;
			assert_int_equal(hspmd_policy_simulate(p, t, &options, &r[m], &err), 0);
			check_sane(&r[m]);
			assert_int_equal(hspmd_policy_simulate(p, t, &options, &again, &err), 0);
			assert_memory_equal(&again, &r[m], sizeof again);
		}
		double used[3];
		for (int m = 0; m < 3; m++)
			used[m] = r[m].used_node_s / r[m].node_s;
		assert_true(used[0] >= used[1] + 0.15);
		assert_true(r[0].lost_node_s <= 0.01 * r[2].lost_node_s);
		assert_true(r[0].tokens > r[2].tokens && r[0].tokens > r[1].tokens);
		assert_true(r[0].rigid_wait_s <= 1.1 * r[2].rigid_wait_s + 2);
		hspmd_trace_destroy(t);
	}
	hspmd_policy_destroy(p);
}

static void test_recorded_traces(void **state)
{
	(void)state;
	static const char *const names[] = { "parcae-hh-55-65", "parcae-hl-15-25", "parcae-lh-80-90", "parcae-ll-10-11" };
	const char *folder = getenv("HSPMD_VALIDATION");
	if (!folder)
		skip();
	for (int i = 0; i < 4; i++) {
		struct hspmd_error err = { "" };
		char path[4096];
		snprintf(path, sizeof path, "%s/traces/%s.json", folder, names[i]);
		struct hspmd_trace *t = hspmd_trace_read(path, &err);
		if (!t)
			fail_msg("%s", err.text);
		assert_true(t->event_count > 3 && t->node_count > 10);
		hspmd_trace_destroy(t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_cooldown),
		cmocka_unit_test(test_gives_way_and_comes_back),
		cmocka_unit_test(test_keeps_its_fewest_and_is_preempted_only_then),
		cmocka_unit_test(test_backfill_in_order),
		cmocka_unit_test(test_lost_nodes),
		cmocka_unit_test(test_trace_refused),
		cmocka_unit_test(test_trace_reads_back),
		cmocka_unit_test(test_made_up_days),
		cmocka_unit_test(test_recorded_traces),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
