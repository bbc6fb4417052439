/* SPDX-License-Identifier: Apache-2.0 */
/* Policy files: what is accepted, what is refused with which message, whose files are trusted, and which rule applies to a job. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/format/policy.h"
#include "policies/limits.h"
#include "policies/match.h"
#include "tests/unit/own_folder.h"

static const char site[] = "{\"format\": \"hspmd-policy-1\", \"defaults\": {\"limits\": {\"max_nodes\": 64}, \"share\": {\"weight\": 2}}}";
static const char spot[] =
        "{\"format\": \"hspmd-policy-1\", \"about\": \"cheap nodes\", \"rules\": [{\"name\": \"spot\","
        "\"match\": {\"partition\": [\"spot*\"], \"account\": [\"*\"], \"policy\": [\"default\", \"spot\"]},"
        "\"limits\": {\"max_nodes\": 8, \"max_devices\": 64, \"device_types\": [\"H20\", \"H800\"], \"max_price_per_hour\": 200},"
        "\"grow\": {\"into_idle\": true, \"reserve_nodes\": 2, \"after_idle_s\": 60, \"cooldown_s\": 120, \"min_gain\": 0.05,"
        "\"qos\": \"scavenger\", \"partition\": \"spot\", \"time_min_s\": 600},"
        "\"shrink\": {\"for_pending\": \"higher_priority\", \"yield_before_preemption\": true, \"cooldown_s\": 60},"
        "\"straggler\": {\"slower_than\": 1.2, \"for_s\": 30, \"back_below\": 1.1},"
        "\"checkpoint\": {\"local\": \"/scratch/hspmd\", \"shared\": \"/gpfs/$USER\", \"max_interval_s\": 600, \"min_replicas\": 1},"
        "\"share\": {\"weight\": 1.5}}, {\"name\": \"big\", \"match\": {\"user\": [\"ann\"], \"policy\": [\"big\"]}}]}";

static int add(struct hspmd_policy *p, const char *text, const char *name, struct hspmd_error *err)
{
	return hspmd_policy_add_text(p, text, strlen(text), name, err);
}

static struct hspmd_policy *both(void)
{
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = hspmd_policy_create(&err);
	assert_non_null(p);
	if (add(p, site, "00-site.json", &err) < 0 || add(p, spot, "20-spot.json", &err) < 0)
		fail_msg("%s", err.text);
	return p;
}

static void test_read(void **state)
{
	(void)state;
	struct hspmd_policy *p = both();
	assert_int_equal(p->rule_count, 2);
	const struct hspmd_policy_terms *t = &p->rules[0].terms;
	assert_string_equal(p->rules[0].name, "spot");
	assert_int_equal(t->max_nodes, 8);
	assert_string_equal(t->device_types.items[1], "H800");
	assert_true(t->into_idle);
	assert_int_equal(t->reserve_nodes, 2);
	assert_float_equal(t->min_gain, 0.05, 0);
	assert_string_equal(t->grow_qos, "scavenger");
	assert_string_equal(t->grow_partition, "spot");
	assert_float_equal(t->time_min_s, 600, 0);
	assert_int_equal(t->for_pending, HSPMD_PENDING_HIGHER);
	assert_string_equal(t->shared, "/gpfs/$USER");
	assert_false(t->given >> hspmd_policy_field("limits", "max_jobs_per_user") & 1);
	hspmd_policy_destroy(p);
}

static void test_write_reads_back(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = both(), *q = hspmd_policy_create(&err);
	json_t *out = hspmd_policy_to_json(p);
	assert_non_null(out);
	if (hspmd_policy_add_json(q, out, "again", &err) < 0)
		fail_msg("%s", err.text);
	json_t *again = hspmd_policy_to_json(q);
	assert_true(json_equal(out, again));
	json_decref(out);
	json_decref(again);
	hspmd_policy_destroy(p);
	hspmd_policy_destroy(q);
}

/* Each text is refused with a message that contains `said`, and the policy stays as it was. */
static void test_refused(void **state)
{
	(void)state;
#define RULE(text) "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"x\", " text "}]}"
	static const struct {
		const char *text, *said;
	} bad[] = {
		{ "{\"format\": \"hspmd-policy-2\"}", "format" },
		{ "[]", "object" },
		{ "{\"format\": \"hspmd-policy-1\", \"rulez\": []}", "rulez" },
		{ RULE("\"limits\": {\"max_nods\": 3}"), "rules[0].limits.max_nods" },
		{ RULE("\"limits\": {\"max_nodes\": 0}"), "rules[0].limits.max_nodes" },
		{ RULE("\"limits\": {\"max_nodes\": \"3\"}"), "rules[0].limits.max_nodes" },
		{ RULE("\"limits\": {\"device_types\": [\"A\", \"A\"]}"), "named twice" },
		{ RULE("\"limits\": {\"max_nodes\": 9, \"max_devices\": 8}"),
		  "rules[0].limits.max_devices: expected at least limits.max_nodes (9)" },
		{ RULE("\"straggler\": {\"slower_than\": 1.1, \"back_below\": 1.2}"),
		  "rules[0].straggler.back_below: expected less than straggler.slower_than (1.1)" },
		{ RULE("\"shrink\": {\"for_pending\": \"none\", \"yield_before_preemption\": true}"),
		  "rules[0].shrink.yield_before_preemption: contradicts" },
		{ RULE("\"shrink\": {\"for_pending\": \"lower\"}"), "higher_priority" },
		{ RULE("\"limits\": {\"max_nodes\": 2}, \"checkpoint\": {\"min_replicas\": 2}"),
		  "rules[0].checkpoint.min_replicas: expected less than limits.max_nodes (2)" },
		{ RULE("\"checkpoint\": {\"local\": \"scratch\"}"), "absolute" },
		{ RULE("\"share\": {\"weight\": -1}"), "rules[0].share.weight" },
		{ RULE("\"match\": {\"partitions\": [\"a\"]}"), "rules[0].match.partitions" },
		{ "{\"format\": \"hspmd-policy-1\", \"rules\": [{}]}", "name" },
		{ "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"a b\"}]}", "rules[0].name" },
		{ "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"a\"}, {\"name\": \"a\"}]}", "rules[1].name" },
		{ "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"spot\"}]}", "20-spot.json already" },
		{ "{\"format\": \"hspmd-policy-1\", \"defaults\": {\"limits\": {\"max_nodes\": 32}}}",
		  "defaults.limits.max_nodes: differs from what 00-site.json gives" },
		{ "{\"format\": \"hspmd-policy-1\", \"format\": \"hspmd-policy-1\"}", "" },
	};
	struct hspmd_policy *p = both();
	json_t *before = hspmd_policy_to_json(p);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		if (add(p, bad[i].text, "bad.json", &err) == 0)
			fail_msg("taken: %s", bad[i].text);
		if (!strstr(err.text, bad[i].said) || !strstr(err.text, "bad.json"))
			fail_msg("%s\n  said: %s\n  not: %s", bad[i].text, err.text, bad[i].said);
		json_t *after = hspmd_policy_to_json(p);
		assert_true(json_equal(before, after));
		json_decref(after);
	}
	json_decref(before);
	hspmd_policy_destroy(p);
}

/* Each document alone is valid; both together are not. */
static void test_places_that_contradict_one_another(void **state)
{
	(void)state;
#define DEFAULTS(text) "{\"format\": \"hspmd-policy-1\", \"defaults\": {" text "}}"
#define SECOND(text) "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"first\"}, {\"name\": \"second\", " text "}]}"
	static const struct {
		const char *defaults, *rules, *said; /* said NULL: valid */
	} cases[] = {
		{ DEFAULTS("\"limits\": {\"max_devices\": 8}"), SECOND("\"limits\": {\"max_nodes\": 9}"),
		  "b.json: rules[1].limits.max_nodes: rule second: 9 nodes have at least as many devices: more than limits.max_devices "
		  "(8), which site default (a.json) gives" },
		{ DEFAULTS("\"limits\": {\"max_devices\": 8}"), SECOND("\"limits\": {\"max_nodes\": 8}"), NULL },
		{ DEFAULTS("\"limits\": {\"max_nodes\": 64}"), SECOND("\"limits\": {\"max_devices\": 8}"), NULL },
		{ DEFAULTS("\"limits\": {\"max_devices\": 8}"), SECOND("\"limits\": {\"max_nodes\": 9, \"max_devices\": 72}"), NULL },
		{ DEFAULTS("\"straggler\": {\"back_below\": 1.5, \"slower_than\": 2}"), SECOND("\"straggler\": {\"slower_than\": 1.5}"),
		  "b.json: rules[1].straggler.slower_than: rule second: back_below (1.5) must be less than slower_than (1.5), which site "
		  "default (a.json) gives" },
		{ DEFAULTS(""), SECOND("\"straggler\": {\"slower_than\": 1.05}"), "which built-in default gives" },
		{ DEFAULTS(""), SECOND("\"straggler\": {\"back_below\": 1.3}"), "rules[1].straggler.back_below: rule second: " },
		{ DEFAULTS("\"straggler\": {\"slower_than\": 9, \"back_below\": 8}"), SECOND("\"share\": {\"weight\": 2}"), NULL },
		{ DEFAULTS(""), SECOND("\"shrink\": {\"yield_before_preemption\": true}"),
		  "rules[1].shrink.yield_before_preemption: rule second: contradicts shrink.for_pending" },
		{ DEFAULTS("\"shrink\": {\"for_pending\": \"any\"}"), SECOND("\"shrink\": {\"yield_before_preemption\": true}"), NULL },
		{ DEFAULTS("\"shrink\": {\"yield_before_preemption\": true, \"for_pending\": \"any\"}"),
		  SECOND("\"shrink\": {\"for_pending\": \"none\"}"), "rules[1].shrink.for_pending: rule second: " },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_error err = { "" };
		struct hspmd_policy *p = hspmd_policy_create(&err);
		if (add(p, cases[i].defaults, "a.json", &err) < 0 || add(p, cases[i].rules, "b.json", &err) < 0)
			fail_msg("case %zu: %s", i, err.text);
		int rc = hspmd_policy_check(p, &err);
		if (rc != (cases[i].said ? -1 : 0) || (rc && !strstr(err.text, cases[i].said)))
			fail_msg("case %zu: %s\n  not: %s", i, rc ? err.text : "taken", cases[i].said ? cases[i].said : "taken");
		hspmd_policy_destroy(p);
	}
}

static void test_same_default_twice_is_fine(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = both();
	assert_int_equal(add(p, "{\"format\": \"hspmd-policy-1\", \"defaults\": {\"limits\": {\"max_nodes\": 64, \"max_devices\": 99}}}",
	                     "30.json", &err),
	                 0);
	assert_int_equal(p->defaults.max_devices, 99);
	hspmd_policy_destroy(p);
}

/* ---- trusted owners */

static void put(const char *name, const char *text, mode_t mode)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	assert_int_equal(chmod(path, mode), 0);
}

static void drop(const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(unlink(path), 0);
}

static void link_to(const char *target, const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(symlink(target, path), 0);
}

static void expect_refused(uid_t owner, const char *said)
{
	struct hspmd_policy_trust trust = { owner };
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = hspmd_policy_read(folder, &trust, &err);
	if (p || !strstr(err.text, said))
		fail_msg("expected \"%s\", got \"%s\"", said, p ? "(taken)" : err.text);
}

static struct hspmd_policy *expect_read(uid_t owner)
{
	struct hspmd_policy_trust trust = { owner };
	struct hspmd_error err = { "" };
	struct hspmd_policy *p = hspmd_policy_read(folder, &trust, &err);
	if (!p)
		fail_msg("%s", err.text);
	return p;
}

static void test_folder_order(void **state)
{
	(void)state;
	put("20-spot.json", spot, 0644);
	put("00-site.json", site, 0644);
	put(".hidden.json", "nonsense", 0644);
	put("README", "nonsense", 0644);
	struct hspmd_policy *p = expect_read(getuid());
	assert_int_equal(p->file_count, 2);
	assert_string_equal(p->files[0], "00-site.json");
	assert_string_equal(p->files[1], "20-spot.json");
	hspmd_policy_destroy(p);
}

static void test_folder_trust(void **state)
{
	(void)state;
	put("00-site.json", site, 0666);
	expect_refused(getuid(), "everybody may write it");
	put("00-site.json", site, 0644);
	if (getuid() == 0) {
		char path[256];
		snprintf(path, sizeof path, "%s/00-site.json", folder);
		assert_int_equal(chown(path, 12345, 12345), 0);
		expect_refused(0, "owned by uid 12345");
		hspmd_policy_destroy(expect_read(12345));
		assert_int_equal(chmod(path, 0664), 0);
		expect_refused(12345, "its group (gid 12345) may write it");
	} else {
		expect_refused(0, "expected root");
	}
	drop("00-site.json");
	assert_int_equal(chmod(folder, 0777), 0);
	expect_refused(getuid(), "everybody may write it");
}

static void test_folder_links(void **state)
{
	(void)state;
	put("site", site, 0644);
	link_to("site", "00-site.json");
	hspmd_policy_destroy(expect_read(getuid()));
	link_to("/etc/passwd", "10-else.json");
	expect_refused(getuid(), "leads out of the folder");
	drop("10-else.json");
	link_to("00-site.json", "10-loop.json");
	expect_refused(getuid(), "10-loop.json");
	drop("10-loop.json");
	char path[256];
	snprintf(path, sizeof path, "%s/10-pipe.json", folder);
	assert_int_equal(mkfifo(path, 0644), 0);
	expect_refused(getuid(), "not a regular file");
}

/* The reader of a folder gets the reason. */
static void test_folder_that_contradicts_itself(void **state)
{
	(void)state;
	put("00-site.json", "{\"format\": \"hspmd-policy-1\", \"defaults\": {\"limits\": {\"max_devices\": 8}}}", 0644);
	put("10-bad.json", "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"x\", \"limits\": {\"max_nodes\": 9}}]}", 0644);
	expect_refused(getuid(), "10-bad.json: rules[0].limits.max_nodes: rule x: ");
}

/* The shipped policies are valid, each alone and all together, and each file describes itself. */
static void test_what_ships(void **state)
{
	static const char *const names[] = { "conservative", "fair-share", "fill-idle", "spot" };
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct hspmd_error err = { "" };
		char path[512];
		snprintf(path, sizeof path, "%s/policies/%s.json", HSPMD_SRCDIR, names[i]);
		struct hspmd_policy *p = hspmd_policy_read(path, NULL, &err);
		if (!p)
			fail_msg("%s", err.text);
		assert_int_equal(p->rule_count, 1);
		assert_string_equal(p->rules[0].name, names[i]);
		assert_non_null(p->rules[0].about);
		struct hspmd_policy_terms t = hspmd_policy_effective(p, 0);
		assert_true(t.into_idle && t.yield_before_preemption);
		/* Each rule sets every field of these sections, so that no default of a site changes what its description promises; but
		 * not how members are submitted. */
		for (int f = hspmd_policy_field("grow", "into_idle"); f < hspmd_policy_field("checkpoint", "local"); f++)
			assert_true((f >= hspmd_policy_field("grow", "qos") && f <= hspmd_policy_field("grow", "budget_days")) ||
			            p->rules[0].terms.given >> f & 1);
		hspmd_policy_destroy(p);
	}
	char path[512];
	snprintf(path, sizeof path, "%s/policies", HSPMD_SRCDIR);
	struct hspmd_policy *all = hspmd_policy_read(path, NULL, NULL);
	assert_non_null(all);
	assert_int_equal(all->rule_count, 4);
	hspmd_policy_destroy(all);
}

static void test_folder_error_names_file(void **state)
{
	(void)state;
	put("00-site.json", site, 0644);
	put("10-bad.json", "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"x\", \"limits\": {\"max_nodes\": 0}}]}", 0644);
	expect_refused(getuid(), "10-bad.json: rules[0].limits.max_nodes");
}

/* ---- which rule */

static int rule_of(const struct hspmd_policy *p, struct hspmd_policy_subject subject, struct hspmd_error *err)
{
	int rule = -2;
	return hspmd_policy_decide_rule(p, &subject, &rule, err) < 0 ? -2 : rule;
}

static void test_match(void **state)
{
	(void)state;
	struct hspmd_policy *p = both();
	struct hspmd_error err = { "" };
	struct hspmd_policy_subject subject = { .user = "bob", .account = "a", .partition = "spot1", .qos = "normal" };
	assert_int_equal(rule_of(p, subject, &err), 0);
	subject.partition = "main";
	assert_int_equal(rule_of(p, subject, &err), HSPMD_POLICY_NO_RULE);
	subject.policy = "spot";
	assert_int_equal(rule_of(p, subject, &err), -2);
	assert_string_equal(err.text, "policy spot (20-spot.json) is not for this job: partition \"main\" is not one of: spot*");
	subject.policy = "big";
	assert_int_equal(rule_of(p, subject, &err), -2);
	subject.user = "ann";
	assert_int_equal(rule_of(p, subject, &err), 1);
	subject.policy = "nope";
	assert_int_equal(rule_of(p, subject, &err), -2);
	assert_string_equal(err.text, "there is no policy \"nope\"; the site has: spot, big");
	hspmd_policy_destroy(p);
}

static void test_unknown_partition_leaves_candidates(void **state)
{
	(void)state;
	struct hspmd_policy *p = both();
	struct hspmd_policy_subject subject = { .user = "bob" };
	int rules[4];
	assert_int_equal(hspmd_policy_candidates(p, &subject, rules, 4, NULL), 2);
	assert_int_equal(rules[0], 0);
	assert_int_equal(rules[1], HSPMD_POLICY_NO_RULE);
	hspmd_policy_destroy(p);
}

static void test_effective_and_limits(void **state)
{
	(void)state;
	struct hspmd_policy *p = both();
	struct hspmd_error err = { "" };
	struct hspmd_policy_terms t = hspmd_policy_effective(p, 1);
	assert_int_equal(t.max_nodes, 64);
	assert_float_equal(t.weight, 2, 0);
	assert_false(t.into_idle);
	assert_int_equal(t.max_jobs_per_user, INT_MAX);
	struct hspmd_policy_request request = { .nodes = 12 };
	assert_int_equal(hspmd_policy_check_limits(p, 0, &request, &err), -1);
	assert_string_equal(err.text, "policy spot (20-spot.json) allows at most 8 nodes; 12 asked");
	assert_int_equal(hspmd_policy_check_limits(p, 1, &request, &err), 0);
	request.nodes = 65;
	assert_int_equal(hspmd_policy_check_limits(p, 1, &request, &err), -1);
	assert_string_equal(err.text, "site default (00-site.json) allows at most 64 nodes; 65 asked");
	const char *types[] = { "H20", "A100" };
	request = (struct hspmd_policy_request){ .nodes = 8, .devices = 64, .price_per_hour = 200, .types = types, .type_count = 1 };
	assert_int_equal(hspmd_policy_check_limits(p, 0, &request, &err), 0);
	request.type_count = 2;
	assert_int_equal(hspmd_policy_check_limits(p, 0, &request, &err), -1);
	assert_string_equal(err.text, "policy spot (20-spot.json) allows devices of type H20, H800; A100 asked");
	hspmd_policy_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_write_reads_back),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_places_that_contradict_one_another),
		cmocka_unit_test(test_same_default_twice_is_fine),
		cmocka_unit_test(test_what_ships),
		cmocka_unit_test_setup_teardown(test_folder_order, make_folder, drop_folder),
		cmocka_unit_test_setup_teardown(test_folder_trust, make_folder, drop_folder),
		cmocka_unit_test_setup_teardown(test_folder_links, make_folder, drop_folder),
		cmocka_unit_test_setup_teardown(test_folder_error_names_file, make_folder, drop_folder),
		cmocka_unit_test_setup_teardown(test_folder_that_contradicts_itself, make_folder, drop_folder),
		cmocka_unit_test(test_match),
		cmocka_unit_test(test_unknown_partition_leaves_candidates),
		cmocka_unit_test(test_effective_and_limits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
