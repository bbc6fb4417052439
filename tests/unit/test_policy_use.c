/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy lets jobs use by time: times of the week, fairshare, budgets of node hours, the least life of a node that was added, and
 * Slurm's own limits; in the engine, and in the simulation of a trace. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/format/week_times.h"
#include "policies/budget.h"
#include "policies/match.h"
#include "policies/shadow.h"
#include "policies/simulate.h"
#include "tests/unit/snapshot_maker.h"

enum { MON, TUE, WED, THU, FRI, SAT, SUN };
#define AT(day, hour, minute) (((day)*24 + (hour)) * 60 + (minute))

static struct hspmd_policy *policy_of(const char *text, struct hspmd_error *err)
{
	struct hspmd_policy *p = hspmd_policy_create(err);
	assert_non_null(p);
	if (hspmd_policy_add_text(p, text, strlen(text), "p.json", err) == 0 && hspmd_policy_check(p, err) == 0)
		return p;
	hspmd_policy_destroy(p);
	return NULL;
}

static void expect_refused(const char *rule, const char *words)
{
	char text[1000];
	struct hspmd_error err = { "" };
	snprintf(text, sizeof text, "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"night\", %s}]}", rule);
	assert_null(policy_of(text, &err));
	if (!strstr(err.text, words))
		fail_msg("expected \"%s\", got \"%s\"", words, err.text);
}

static void test_times_of_the_week(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int minute;
		bool included;
	} cases[] = {
		{ "mon-fri", AT(FRI, 23, 59), true },
		{ "mon-fri", AT(SAT, 0, 0), false },
		{ "sat-mon", AT(SUN, 12, 0), true },
		{ "sat-mon", AT(MON, 12, 0), true },
		{ "sat-mon", AT(TUE, 0, 0), false },
		{ "tue", AT(TUE, 0, 0), true },
		{ "08:00-18:00", AT(WED, 8, 0), true },
		{ "08:00-18:00", AT(WED, 18, 0), false },
		{ "08:00-18:00", AT(WED, 7, 59), false },
		{ "fri 22:00-06:00", AT(FRI, 22, 0), true },
		{ "fri 22:00-06:00", AT(SAT, 5, 59), true },
		{ "fri 22:00-06:00", AT(SAT, 6, 0), false },
		{ "fri 22:00-06:00", AT(FRI, 5, 0), false },
		{ "sun 22:00-06:00", AT(MON, 1, 0), true },
		{ "mon-fri 18:00-24:00", AT(FRI, 23, 59), true },
		{ "mon-fri 18:00-24:00", AT(SAT, 0, 0), false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (hspmd_week_times_include(cases[i].text, cases[i].minute) != cases[i].included)
			fail_msg("%s at minute %d: %d", cases[i].text, cases[i].minute, !cases[i].included);
	static const char *const wrong[] = { "",
		                             "monday",
		                             "mon-",
		                             "mon 8:00-9:00",
		                             "25:00-26:00",
		                             "08:00-08:00",
		                             "24:00-08:00",
		                             "mon-fri  08:00-09:00",
		                             "08:00",
		                             "08:60-09:00",
		                             "mon 08:00-09:00 " };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (!hspmd_week_times_check(wrong[i]))
			fail_msg("\"%s\" is accepted", wrong[i]);
	assert_int_equal(hspmd_week_minute_read("sat 03:00"), AT(SAT, 3, 0));
	assert_int_equal(hspmd_week_minute_read("sat"), -1);
	/* 1970-01-01 was a Thursday. */
	setenv("TZ", "UTC", 1);
	tzset();
	assert_int_equal(hspmd_week_minute(3 * 3600), AT(THU, 3, 0));
	setenv("TZ", "UTC-2", 1);
	tzset();
	assert_int_equal(hspmd_week_minute(23 * 3600), AT(FRI, 1, 0));
}

static void test_refusals_name_rule_and_key(void **state)
{
	(void)state;
	expect_refused(
	        "\"match\": {\"times\": [\"sat-sun\", \"at night\"]}",
	        "p.json: rules[0].match.times[1]: expected days (mon-fri), hours (18:00-08:00), or both, as in \"mon-fri 18:00-08:00\", "
	        "got \"at night\"");
	expect_refused("\"match\": {\"times\": \"sat\"}", "rules[0].match.times");
	expect_refused("\"share\": {\"weight\": \"fair\"}", "rules[0].share.weight: expected a number or \"fairshare\", got \"fair\"");
	expect_refused("\"share\": {\"weight\": 0}", "rules[0].share.weight");
	expect_refused("\"grow\": {\"budget_node_hours\": -1}", "rules[0].grow.budget_node_hours");
	expect_refused("\"grow\": {\"budget_days\": 7}",
	               "p.json: rules[0].grow.budget_days: rule night: there is no grow.budget_node_hours that it would be for");
	expect_refused("\"grow\": {\"min_life_s\": -1}", "rules[0].grow.min_life_s");
}

static void test_a_rule_for_the_night(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = policy_of("{\"format\": \"hspmd-policy-1\", \"rules\": ["
	                                   "{\"name\": \"night\", \"match\": {\"times\": [\"22:00-06:00\", \"sat-sun\"]}, "
	                                   "\"share\": {\"weight\": \"fairshare\"}},"
	                                   "{\"name\": \"day\"}, {\"name\": \"more\"}]}",
	                                   &err);
	assert_non_null(p);
	struct hspmd_policy_subject subject = { .user = "ann", .account = "lab", .partition = "p", .qos = "q" };
	int rules[4], by = 0;
	/* At submission nobody knows when the job will run. */
	assert_int_equal(hspmd_policy_candidates(p, &subject, rules, 4, &err), 2);
	subject.week_minute = 1 + AT(WED, 12, 0);
	assert_int_equal(hspmd_policy_decide_rule(p, &subject, &rules[0], &err), 0);
	assert_int_equal(rules[0], 1);
	subject.week_minute = 1 + AT(MON, 0, 0);
	assert_int_equal(hspmd_policy_decide_rule(p, &subject, &rules[0], &err), 0);
	assert_int_equal(rules[0], 0);
	/* The rule for the night leaves the days to the next, which leaves nothing. */
	assert_int_equal(hspmd_policy_find_shadow(p, 1, &by), HSPMD_POLICY_REACHED);
	assert_int_equal(hspmd_policy_find_shadow(p, 2, &by), HSPMD_POLICY_BY_NAME_ONLY);
	/* Written and read back, the word stays the word. */
	json_t *doc = hspmd_policy_to_json(p);
	const json_t *rule = json_array_get(json_object_get(doc, "rules"), 0);
	assert_string_equal(json_string_value(json_object_get(json_object_get(rule, "share"), "weight")), "fairshare");
	assert_int_equal(json_array_size(json_object_get(json_object_get(rule, "match"), "times")), 2);
	json_decref(doc);
	hspmd_policy_destroy(p);
}

static void test_hours_are_counted_by_days(void **state)
{
	(void)state;
	const double day = 86400, now = 20000 * day + 100;
	struct hspmd_budget b = { 0 }, again;
	struct hspmd_error err;
	assert_int_equal(hspmd_budget_add(&b, "night", now - 7 * day, 3600), 0);
	assert_int_equal(hspmd_budget_add(&b, "night", now - 6 * day, 2 * 3600), 0);
	assert_int_equal(hspmd_budget_add(&b, "night", now, 4 * 3600), 0);
	assert_int_equal(hspmd_budget_add(&b, NULL, now, 1800), 0);
	assert_float_equal(hspmd_budget_spent_hours(&b, "night", now, 7), 6, 1e-9);
	assert_float_equal(hspmd_budget_spent_hours(&b, "night", now, 8), 7, 1e-9);
	assert_float_equal(hspmd_budget_spent_hours(&b, "night", now, 1), 4, 1e-9);
	assert_float_equal(hspmd_budget_spent_hours(&b, "night", now + day, 1), 0, 0);
	assert_float_equal(hspmd_budget_spent_hours(&b, "other", now, 30), 0, 0);
	/* A year later the same place is another day's. */
	assert_int_equal(hspmd_budget_add(&b, "night", now + 366 * day, 3600), 0);
	assert_float_equal(hspmd_budget_spent_hours(&b, "night", now + 366 * day, 366), 1, 1e-9);
	json_t *doc = hspmd_budget_to_json(&b);
	assert_int_equal(hspmd_budget_from_json(&again, doc, &err), 0);
	assert_float_equal(hspmd_budget_spent_hours(&again, NULL, now, 1), 0.5, 1e-9);
	assert_float_equal(hspmd_budget_spent_hours(&again, "night", now, 8), 3, 1e-9);
	hspmd_budget_clear(&again);
	json_object_set_new(json_object_get(json_object_get(doc, "rules"), "night"), "yesterday", json_real(1));
	assert_int_equal(hspmd_budget_from_json(&again, doc, &err), -1);
	assert_non_null(strstr(err.text, "rules.night.yesterday"));
	json_decref(doc);
	hspmd_budget_clear(&b);
}

/* ---- the engine */

static void test_a_young_node_is_left_alone(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1), j = maker_elastic(&m, 100, 0.9);
	int first = maker_nodes(&m, c, 4, j, 0);
	m.elastic[j].terms.min_life_s = 600;
	for (int i = 1; i < 4; i++)
		m.nodes[first + i].held_since_s = m.snapshot.now_s - 100 * i - 400;
	/* Nodes 2 and 3 have been there for 600 s and 700 s; node 0 since the start. */
	m.nodes[first].fixed = true;
	maker_pending(&m, 2, 20);
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, j), 2);
	for (int i = 0; i < 2; i++)
		assert_int_not_equal(d.actions[0].nodes[i], first + 1);
	hspmd_decision_clear(&d);
	m.pending[0].nodes = 3;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, j), 0);
	hspmd_decision_clear(&d);
	/* Slurm would take all of them. */
	m.elastic[j].terms.yield_before_preemption = m.pending[0].preempts = true;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, j), 3);
	hspmd_decision_clear(&d);
	/* Nor is a node added for less than it must stay. */
	m.snapshot.pending_count = 0;
	maker_nodes(&m, c, 1, -1, 1000);
	m.elastic[j].remaining_s = 599;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	assert_non_null(strstr(d.why[j], "min_life_s"));
	hspmd_decision_clear(&d);
	m.elastic[j].remaining_s = 600;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, j), 1);
	hspmd_decision_clear(&d);
}

static void test_a_young_node_goes_to_no_other_job(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1), poor = maker_elastic(&m, 1, 0.5), rich = maker_elastic(&m, 100, 1);
	int first = maker_nodes(&m, c, 2, poor, 0);
	maker_nodes(&m, c, 1, rich, 0);
	m.elastic[poor].terms.rebalance = m.elastic[rich].terms.rebalance = true;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, poor), 1);
	hspmd_decision_clear(&d);
	m.elastic[poor].terms.min_life_s = 50;
	m.nodes[first].held_since_s = m.nodes[first + 1].held_since_s = m.snapshot.now_s - 49;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	hspmd_decision_clear(&d);
}

static void test_a_spent_budget(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	maker_start(&m);
	int c = maker_class(&m, 0, 1), j = maker_elastic(&m, 100, 0.9);
	maker_nodes(&m, c, 4, j, 0);
	maker_nodes(&m, c, 2, -1, 1000);
	m.elastic[j].terms.budget_node_hours = 100;
	m.elastic[j].fewest_nodes = 3;
	m.elastic[j].spent_node_hours = 99;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, j), 2);
	hspmd_decision_clear(&d);
	m.elastic[j].spent_node_hours = 100;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 1);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, j), 1);
	assert_non_null(strstr(d.actions[0].reason, "the budget of node hours of its policy is spent, and 1 of its 4 nodes were added"));
	hspmd_decision_clear(&d);
	/* What was not added stays. */
	m.elastic[j].fewest_nodes = 4;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	assert_non_null(strstr(d.why[j], "budget_node_hours"));
	hspmd_decision_clear(&d);
}

static void test_limits_of_slurm(void **state)
{
	(void)state;
	struct maker m;
	struct hspmd_decision d;
	struct hspmd_snapshot_limit limits[2] = { { "GrpTRES cpu of account lab", 20 }, { "GrpTRES node of QOS scavenger", 4 } };
	double cost_a[2] = { 8, 1 }, cost_b[2] = { 0, 1 };
	maker_start(&m);
	m.snapshot.limit_count = 2;
	m.snapshot.limits = limits;
	int c = maker_class(&m, 0, 1), a = maker_elastic(&m, 100, 1), b = maker_elastic(&m, 50, 1);
	maker_nodes(&m, c, 1, a, 0);
	maker_nodes(&m, c, 1, b, 0);
	maker_nodes(&m, c, 10, -1, 1000);
	m.elastic[a].limit_cost = cost_a;
	m.elastic[b].limit_cost = cost_b;
	/* Two nodes of 8 CPUs fit into 20; of the QOS's four nodes two are left for the other job. */
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, a), 2);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, b), 2);
	hspmd_decision_clear(&d);
	limits[0].left = 7;
	limits[1].left = 11;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, a), 0);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_GROW, b), 10);
	assert_string_equal(d.why[a], "Slurm's limit leaves no room for another node: GrpTRES cpu of account lab");
	hspmd_decision_clear(&d);
	/* A node may move between jobs that are under the same limit, but not into one that has no room. */
	m.snapshot.node_count = 2;
	maker_nodes(&m, c, 3, b, 0);
	m.elastic[a].terms.rebalance = m.elastic[b].terms.rebalance = true;
	limits[0].left = 16;
	limits[1].left = 0;
	maker_decide(&m, &d);
	assert_int_equal(maker_moved(&d, HSPMD_RESIZE_SHRINK, b), 2);
	hspmd_decision_clear(&d);
	limits[0].left = 0;
	maker_decide(&m, &d);
	assert_int_equal(d.count, 0);
	hspmd_decision_clear(&d);
}

/* ---- simulation */

#define ADD "{\"time_s\": 0, \"event\": \"add\", \"nodes\": [\"n[0-3]\"]}, "
#define JOB(id, min, user)                                                                                                                 \
	"{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": " id ", \"elastic\": true, \"user\": \"" user "\", \"min_nodes\": " min  \
	", \"max_nodes\": 4, \"pause_s\": 0, \"tokens_per_s\": [1, 2, 3, 4]}}"
#define GROW "\"grow\": {\"into_idle\": true, \"after_idle_s\": 0, \"cooldown_s\": 0, \"min_gain\": 0"

static struct hspmd_policy_sim_result simulate(const char *rules, const char *head, const char *events)
{
	char policy[1000], trace[2000];
	struct hspmd_error err = { "" };
	struct hspmd_policy_sim_options options = hspmd_policy_sim_defaults;
	struct hspmd_policy_sim_result r = { 0 };
	snprintf(policy, sizeof policy, "{\"format\": \"hspmd-policy-1\", \"rules\": [%s]}", rules);
	snprintf(trace, sizeof trace, "{\"format\": \"hspmd-trace-1\", %s, \"events\": [%s]}", head, events);
	struct hspmd_policy *p = policy_of(policy, &err);
	json_t *value = json_loads(trace, JSON_REJECT_DUPLICATES, NULL);
	struct hspmd_trace *t = p && value ? hspmd_trace_from_json(value, "t.json", &err) : NULL;
	options.leave_s = 0;
	if (!t || hspmd_policy_simulate(p, t, &options, &r, &err) < 0)
		fail_msg("%s", err.text);
	json_decref(value);
	hspmd_trace_destroy(t);
	hspmd_policy_destroy(p);
	return r;
}

static void test_simulated_night(void **state)
{
	(void)state;
	static const char rules[] = "{\"name\": \"night\", \"match\": {\"times\": [\"18:00-06:00\"]}, " GROW "}},"
	                            "{\"name\": \"day\", \"limits\": {\"max_nodes\": 1}}";
	/* From Monday 00:00: 6 h of four nodes, 12 h of one, 6 h of four. */
	struct hspmd_policy_sim_result r = simulate(rules, "\"end_s\": 86400", ADD JOB("1", "1", "ann"));
	assert_float_equal(r.tokens, 3600 * (6 * 4 + 12 * 1 + 6 * 4), 500);
	assert_int_equal(r.grows, 2);
	assert_int_equal(r.shrinks, 1);
	/* The same from 12:00 of a day in 2025. */
	setenv("TZ", "UTC", 1);
	tzset();
	r = simulate(rules, "\"began_s\": 1736942400, \"end_s\": 86400", ADD JOB("1", "1", "ann"));
	assert_float_equal(r.tokens, 3600 * (6 * 1 + 12 * 4 + 6 * 1), 500);
	assert_int_equal(r.grows, 1);
}

static void test_simulated_budget(void **state)
{
	(void)state;
	/* Three nodes are added to one: 30 node hours last for ten hours. On the next day they are free again. */
	struct hspmd_policy_sim_result r = simulate("{\"name\": \"b\", " GROW ", \"budget_node_hours\": 30, \"budget_days\": 1}}",
	                                            "\"end_s\": 86400", ADD JOB("1", "1", "ann"));
	assert_float_equal(r.tokens, 3600 * (10 * 4 + 14 * 1), 4 * 600);
	r = simulate("{\"name\": \"b\", " GROW ", \"budget_node_hours\": 30, \"budget_days\": 1}}", "\"end_s\": 108000",
	             ADD JOB("1", "1", "ann"));
	assert_float_equal(r.tokens, 3600 * (10 * 4 + 14 * 1 + 6 * 4), 8 * 600);
}

/* Two users with a job each and two idle nodes: by weights, the first job gets both; by fairshare, the one whose user has used less. */
static void test_simulated_fairshare(void **state)
{
	(void)state;
	static const char events[] =
	        "{\"time_s\": 0, \"event\": \"add\", \"nodes\": [\"n[0-3]\"]},"
	        "{\"time_s\": 0, \"event\": \"submit\", \"job\": {\"id\": 9, \"user\": \"ann\", \"nodes\": 3, \"run_s\": 36000}},"
	        "{\"time_s\": 36000, \"event\": \"add\", \"nodes\": [\"m[0-1]\"]},"
	        "{\"time_s\": 36000, \"event\": \"submit\", \"job\": {\"id\": 1, \"elastic\": true, \"user\": \"ann\", \"max_nodes\": 3,"
	        "\"nodes\": 3, \"min_nodes\": 3, \"tokens_per_s\": [1, 1, 1]}},"
	        "{\"time_s\": 36000, \"event\": \"submit\", \"job\": {\"id\": 2, \"elastic\": true, \"user\": \"ann\", \"max_nodes\": 4,"
	        "\"pause_s\": 0, \"tokens_per_s\": [100, 200, 300, 400]}},"
	        "{\"time_s\": 36000, \"event\": \"submit\", \"job\": {\"id\": 3, \"elastic\": true, \"user\": \"bob\", \"max_nodes\": 4,"
	        "\"pause_s\": 0, \"tokens_per_s\": [60, 120, 180, 240]}}";
	struct hspmd_policy_sim_result even = simulate("{\"name\": \"f\", " GROW "}}", "\"end_s\": 37000", events);
	struct hspmd_policy_sim_result fair =
	        simulate("{\"name\": \"f\", " GROW "}, \"share\": {\"weight\": \"fairshare\"}}", "\"end_s\": 37000", events);
	/* The sixth node: 100 tokens a second with ann's job, or 60 with bob's. */
	assert_float_equal(even.tokens - fair.tokens, 1000 * 40, 500);
}

/* It grows at 10 s; a more important job needs two of the four nodes at 100 s. */
static void test_simulated_life(void **state)
{
	(void)state;
	static const char events[] = ADD "{\"time_s\": 10, \"event\": \"submit\", \"job\": {\"id\": 1, \"elastic\": true, \"max_nodes\": 4,"
	                                 "\"pause_s\": 0, \"tokens_per_s\": [1, 2, 3, 4]}},"
	                                 "{\"time_s\": 100, \"event\": \"submit\", \"job\": {\"id\": 2, \"nodes\": 2, \"run_s\": 50,"
	                                 "\"priority\": 5}}";
	static const char give[] = "}, \"shrink\": {\"for_pending\": \"higher_priority\", \"cooldown_s\": 0}}";
	char rules[400];
	snprintf(rules, sizeof rules, "{\"name\": \"r\", " GROW "%s", give);
	struct hspmd_policy_sim_result r = simulate(rules, "\"end_s\": 100.5", events);
	assert_int_equal(r.nodes_given, 2);
	/* Only the node with which it began is not young. */
	snprintf(rules, sizeof rules, "{\"name\": \"r\", " GROW ", \"min_life_s\": 900%s", give);
	r = simulate(rules, "\"end_s\": 100.5", events);
	assert_int_equal(r.nodes_given, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_times_of_the_week),
		cmocka_unit_test(test_refusals_name_rule_and_key),
		cmocka_unit_test(test_a_rule_for_the_night),
		cmocka_unit_test(test_hours_are_counted_by_days),
		cmocka_unit_test(test_a_young_node_is_left_alone),
		cmocka_unit_test(test_a_young_node_goes_to_no_other_job),
		cmocka_unit_test(test_a_spent_budget),
		cmocka_unit_test(test_limits_of_slurm),
		cmocka_unit_test(test_simulated_night),
		cmocka_unit_test(test_simulated_budget),
		cmocka_unit_test(test_simulated_fairshare),
		cmocka_unit_test(test_simulated_life),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
