/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong or insufficient input gives one clear error, or a warning with the plan, but never a wrong plan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/job_plan.h"
#include "tests/unit/solver_inputs.h"

#define TYPE(memory) "\"a\": {\"kind\": \"cpu\", " memory "\"gbytes_per_s\": 20, \"peak_tflops\": {\"fp32\": 0.05}}"
#define CLUSTER(type, name, count, links)                                                                                                  \
	"{\"format\": \"hspmd-cluster-1\", \"device_types\": {" type "}, \"nodes\": [{\"name\": \"" name                                   \
	"\", \"devices\": [{\"type\": \"a\", \"count\": " count "}]}],"                                                                    \
	"\"links\": [" links "]}"
#define OTHER ": {\"kind\": \"cpu\", \"memory_bytes\": 4000000000, \"gbytes_per_s\": 20, \"peak_tflops\": {\"fp32\": 0.05}}"
#define GOOD TYPE("\"memory_bytes\": 4000000000, ")
#define LINKS                                                                                                                              \
	"{\"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 5}, {\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 1}"

/* Fail unless the text contains every part of `expected`, separated by '|'. */
static void expect_words(const char *text, const char *expected)
{
	char *copy = strdup(expected), *save = NULL;
	for (char *word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save))
		if (!strstr(text, word))
			fail_msg("expected '%s' in: %s", word, text);
	free(copy);
}

static void bad_clusters_are_refused(void **state)
{
	(void)state;
	const struct {
		const char *text, *says;
	} bad[] = {
		{ CLUSTER(GOOD, "n[0-1]", "2", LINKS ", {\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 2}"),
		  "links[2]|links[1]" },
		{ CLUSTER(TYPE(""), "n[0-1]", "2", LINKS), "device_types.a.memory_bytes" },
		{ CLUSTER(TYPE("\"memory_bytes\": 0, "), "n[0-1]", "2", LINKS), "device_types.a.memory_bytes|got 0" },
		{ CLUSTER(TYPE("\"memory_bytes\": -5, "), "n[0-1]", "2", LINKS), "device_types.a.memory_bytes|got -5" },
		{ CLUSTER(GOOD, "n[0-1]", "2", "{\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 0}"),
		  "links[0].gbytes_per_s" },
		{ CLUSTER(GOOD, "n[0-1]", "2", "{\"scope\": \"cluster\", \"alpha_s\": -1, \"gbytes_per_s\": 1}"), "links[0].alpha_s" },
		{ CLUSTER(GOOD, "n[0-1]", "2", "{\"scope\": \"cluster\", \"points\": [[1000, 1e-3], [2000, -1]]}"),
		  "links[0].points[1][1]" },
		{ CLUSTER(GOOD, "n[0-1]", "2", "{\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": -3}"),
		  "links[0].gbytes_per_s" },
		{ CLUSTER("\"a\": {\"kind\": \"cpu\", \"memory_bytes\": 1, \"gbytes_per_s\": 0, \"peak_tflops\": {\"fp32\": 1}}", "n", "2",
		          LINKS),
		  "device_types.a.gbytes_per_s" },
		{ CLUSTER("\"a\": {\"kind\": \"cpu\", \"memory_bytes\": 1, \"gbytes_per_s\": 1, \"peak_tflops\": {\"fp32\": -1}}", "n", "2",
		          LINKS),
		  "device_types.a.peak_tflops.fp32" },
		{ CLUSTER("\"a\": {\"kind\": \"cpu\", \"memory_bytes\": 1, \"gbytes_per_s\": 1, \"tflops\": {\"fp32\": 0}, "
		          "\"peak_tflops\": {\"fp32\": 1}}",
		          "n", "2", LINKS),
		  "device_types.a.tflops.fp32" },
		{ CLUSTER(GOOD, "n\", \"slowdown\": 0, \"rack\": \"r", "2", LINKS), "nodes[0].slowdown" },
		{ CLUSTER(GOOD, "n\", \"network_gbytes_per_s\": -1, \"rack\": \"r", "2", LINKS), "nodes[0].network_gbytes_per_s" },
		{ CLUSTER(GOOD, "n\", \"price_per_hour\": -1, \"rack\": \"r", "2", LINKS), "nodes[0].price_per_hour" },
		/* The same pair of types, of nodes, or of numbers of GPUs, given twice, once in each direction. */
		{ CLUSTER(GOOD ", \"b\"" OTHER, "n[0-1]", "2",
		          "{\"scope\": \"cluster\", \"types\": [\"a\", \"b\"], \"alpha_s\": 0, \"gbytes_per_s\": 1},"
		          "{\"scope\": \"cluster\", \"types\": [\"b\", \"a\"], \"alpha_s\": 0, \"gbytes_per_s\": 2}"),
		  "links[1]|links[0]" },
		{ CLUSTER(GOOD, "n[0-1]", "2",
		          "{\"scope\": \"cluster\", \"nodes\": [\"n0\", \"n1\"], \"alpha_s\": 0, \"gbytes_per_s\": 1},"
		          "{\"scope\": \"cluster\", \"nodes\": [\"n1\", \"n0\"], \"alpha_s\": 0, \"gbytes_per_s\": 2}"),
		  "links[1]|links[0]" },
		{ CLUSTER(GOOD, "n[0-1]", "2",
		          "{\"scope\": \"cluster\", \"types\": [\"a\", \"a\"], \"gpus\": [1, 2], \"alpha_s\": 0, \"gbytes_per_s\": 1},"
		          "{\"scope\": \"cluster\", \"types\": [\"a\", \"a\"], \"gpus\": [2, 1], \"alpha_s\": 0, \"gbytes_per_s\": 2}"),
		  "links[1]|links[0]" },
		{ CLUSTER(GOOD, "n[0-1]", "1000000", LINKS), "nodes[0].devices[0].count|1000000" },
		{ CLUSTER(GOOD, "n[0-999999]", "1", LINKS), "nodes[0].name|131072" },
		{ CLUSTER(GOOD, "n[0-1023]", "1024", LINKS), "131072" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		json_t *value = json_loads(bad[i].text, 0, NULL);
		assert_non_null(value);
		assert_null(hspmd_cluster_from_json(value, "cluster", &err));
		expect_words(err.text, bad[i].says);
		json_decref(value);
	}
}

#define PROFILE(forward, backward)                                                                                                         \
	"{\"format\": \"hspmd-profile-1\", \"model\": \"m\", \"seq_len\": 128, \"dtype_bytes\": 4, \"layers\": [{\"name\": \"e\", "        \
	"\"params\": 1000,"                                                                                                                \
	"\"output_elems\": 100, \"activation_bytes\": 100}, {\"name\": \"h\", \"params\": 1000, \"output_elems\": 100, "                   \
	"\"activation_bytes\": 100}],"                                                                                                     \
	"\"times\": [{\"device_type\": \"a\", \"tp\": 1, \"micro_batch\": 1, \"forward_s\": " forward ", \"backward_s\": " backward "}]}"

static void bad_profiles_are_refused(void **state)
{
	(void)state;
	const struct {
		const char *text, *says;
	} bad[] = {
		{ PROFILE("[0.1, -0.1]", "[0.2, 0.2]"), "times[0].forward_s[1]" },
		{ PROFILE("[0, 0]", "[0.2, 0.2]"), "times[0].forward_s|no layer takes any time" },
		{ PROFILE("[0.1, 0.1]", "[0.2, -1]"), "times[0].backward_s[1]" },
		{ PROFILE("[0.1]", "[0.2, 0.2]"), "times[0].forward_s" },
		{ PROFILE("null", "[0.2, 0.2]"), "times[0].forward_s" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		json_t *value = json_loads(bad[i].text, 0, NULL);
		assert_non_null(value);
		assert_null(hspmd_profile_from_json(value, "profile", &err));
		expect_words(err.text, bad[i].says);
		json_decref(value);
	}
}

static struct hspmd_plan *solve(const struct hspmd_cluster *c, struct hspmd_solve_request r, struct hspmd_error *err)
{
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	r.seq_len = 128;
	struct hspmd_plan *p = hspmd_solve(c, m, NULL, &r, NULL, err);
	hspmd_model_facts_destroy(m);
	return p;
}

static void requests_that_cannot_be_are_refused(void **state)
{
	(void)state;
	struct hspmd_cluster *c = cluster_from(CLUSTER(GOOD, "n[0-1]", "2", LINKS));
	const struct {
		struct hspmd_solve_request request;
		const char *says;
	} bad[] = {
		{ { .global_batch = 10, .micro_batch = 3 }, "10|3|divided" },
		{ { .global_batch = 0 }, "global batch" },
		{ { .global_batch = -4 }, "global batch" },
		{ { .global_batch = 1000000007 }, "1000000007|divided" },
		{ { .global_batch = 1024, .micro_batch = 512 }, "128" },
		{ { .global_batch = 8, .limits.cost_weight = 2 }, "cost" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		assert_null(solve(c, bad[i].request, &err));
		expect_words(err.text, bad[i].says);
	}
	hspmd_cluster_destroy(c);
}

static void devices_without_a_link_are_named(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cluster_from(CLUSTER(GOOD, "n[0-1]", "2", ""));
	assert_null(solve(c, (struct hspmd_solve_request){ .global_batch = 8 }, &err));
	expect_words(err.text, "no entry|n0:0|n0:1");
	hspmd_cluster_destroy(c);
	/* Nodes without a link between them: each could train alone, and a warning says why it has to. */
	c = cluster_from(CLUSTER(GOOD, "n[0-1]", "2", "{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":10}"));
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_solve_request r = { .global_batch = 8, .seq_len = 128 };
	struct hspmd_solve_report report = { 0 };
	struct hspmd_plan *p = hspmd_solve(c, m, NULL, &r, &report, &err);
	assert_non_null(p);
	assert_in_range(hspmd_plan_device_count(p), 1, 2);
	assert_int_equal(report.warning_count, 1);
	expect_words(report.warnings[0], "no link|n0:0|n1:0");
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

/* `count` nodes of one device with `memory` bytes each; `more`: further text of the nodes; `links`: the text of the links, may be
 * empty. */
static struct hspmd_cluster *row_of_nodes(int count, const char *memory, const char *more, const char *links)
{
	char *text = hspmd_asprintf("{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"a\": {\"kind\": \"cpu\", \"memory_bytes\": %s, "
	                            "\"gbytes_per_s\": 20,"
	                            "\"peak_tflops\": {\"fp32\": 0.05}}}, \"nodes\": [{\"name\": \"n[0-%d]\"%s, \"devices\": [{\"type\": "
	                            "\"a\", \"count\": 1}]}],"
	                            "\"links\": [%s]}",
	                            memory, count - 1, more, links);
	struct hspmd_cluster *c = cluster_from(text);
	free(text);
	return c;
}

/* The error says what is short, where, by how much, and which change would be enough, for each change that a user can make. */
static void shortages_are_explained(void **state)
{
	(void)state;
	static const char *const unknown[] = { "b", "c" };
	const struct {
		int nodes;
		const char *memory, *more, *links;
		struct hspmd_solve_request request;
		const char *says;
	} bad[] = {
		{ 2,
		  "8000000",
		  "",
		  LINKS,
		  { .global_batch = 8 },
		  "memory of the 2 devices: in the plan that comes nearest|most of all n|layers|GB short|nodes more like n1 (a) would do" },
		{ 2,
		  "14000000",
		  "",
		  LINKS,
		  { .global_batch = 8 },
		  "short of memory|; 1 node more like n1 (a) would do; or devices with 1." },
		/* A layer that fits on no device. */
		{ 2,
		  "100000",
		  "",
		  LINKS,
		  { .global_batch = 8 },
		  "GB short|neither smaller micro-batches nor more nodes like these would do; devices with|times the memory" },
		{ 8,
		  "8000000",
		  "",
		  LINKS,
		  { .global_batch = 8, .limits.max_nodes = 1 },
		  "no plan within the limits|GB short|without the limits|there is a plan" },
		{ 8,
		  "8000000",
		  "",
		  LINKS,
		  { .global_batch = 64, .micro_batch = 64 },
		  "GB short|with micro-batches of|instead of 64 there is a plan" },
		{ 8,
		  "8000000",
		  "",
		  "",
		  { .global_batch = 8 },
		  "GB short|no link covers n0:0 and n1:0: with one of scope \"cluster\" for all that have none there is a plan" },
		{ 2,
		  "3000000",
		  ", \"price_per_hour\": 7",
		  LINKS,
		  { .global_batch = 8, .limits.max_price_per_hour = 5 },
		  "no node costs at most 5 per hour: the cheapest of the 2, n0, costs 7" },
		{ 2,
		  "3000000",
		  "",
		  LINKS,
		  { .global_batch = 8, .limits.types = unknown, .limits.type_count = 2 },
		  "its types are a, and those allowed b, c" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		struct hspmd_cluster *c = row_of_nodes(bad[i].nodes, bad[i].memory, bad[i].more, bad[i].links);
		assert_null(solve(c, bad[i].request, &err));
		expect_words(err.text, bad[i].says);
		hspmd_cluster_destroy(c);
	}
}

/* The search alone reports that memory is the reason, without the explanation that hspmd_solve adds. */
static void the_search_alone_explains_nothing(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_solve_request r = { .global_batch = 8, .seq_len = 128 };
	struct hspmd_cluster *c = row_of_nodes(2, "3000000", "", LINKS);
	bool too_large = false;
	assert_null(hspmd_search_plan(c, m, NULL, &r, NULL, &too_large, &err));
	assert_true(too_large);
	assert_string_equal(err.text, "no plan fits into the memory of the 2 devices");
	r.global_batch = 0;
	assert_null(hspmd_search_plan(c, m, NULL, &r, NULL, &too_large, &err));
	assert_false(too_large);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(m);
}

/* A profile that was measured with one degree alone: a warning says what was derived from it. */
static void interpolation_is_reported(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cluster_from(CLUSTER(GOOD, "n[0-1]", "2", LINKS));
	json_t *value = json_loads(
	        "{\"format\": \"hspmd-profile-1\", \"model\": \"m\", \"seq_len\": 128, \"dtype_bytes\": 4, \"layers\": ["
	        "{\"name\": \"e\", \"params\": 1000, \"output_elems\": 100, \"activation_bytes\": 100},"
	        "{\"name\": \"h\", \"params\": 1000, \"output_elems\": 100, \"activation_bytes\": 100}],"
	        "\"times\": [{\"device_type\": \"a\", \"tp\": 1, \"micro_batch\": 1, \"forward_s\": [0.1, 0.1], \"backward_s\": [0.2, 0.2],"
	        "\"optimizer_s\": null}]}",
	        0, NULL);
	assert_non_null(value);
	struct hspmd_profile *profile = hspmd_profile_from_json(value, "profile", &err);
	assert_non_null(profile);
	json_t *plan = json_loads("{\"format\": \"hspmd-plan-1\", \"global_batch\": 8, \"micro_batch\": 2, \"seq_len\": 128,"
	                          "\"schedule\": \"1f1b\", \"zero_stage\": 0, \"pipelines\": [{\"micro_batches\": 4, \"stages\": ["
	                          "{\"layers\": [0, 2], \"devices\": [\"n0:0-1\"]}]}]}",
	                          0, NULL);
	struct hspmd_plan *p = hspmd_plan_from_json(plan, "plan", c, 2, &err);
	json_decref(plan);
	if (!p)
		fail_msg("%s", err.text);
	struct hspmd_solve_report report = { 0 };
	assert_int_equal(hspmd_evaluate(c, NULL, profile, HSPMD_PRECISION_FP32, p, &report, &err), 0);
	bool tp = false;
	for (int i = 0; i < report.warning_count; i++)
		tp = tp || (strstr(report.warnings[i], "tp 2") && strstr(report.warnings[i], "extrapolated"));
	assert_true(tp);
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(p);
	/* No plan uses a degree that was not measured. */
	struct hspmd_solve_request r = { .global_batch = 8, .micro_batch = 1 };
	p = hspmd_solve(c, NULL, profile, &r, NULL, &err);
	assert_non_null(p);
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			assert_int_equal(p->pipelines[i].stages[s].device_count, 1);
	hspmd_plan_destroy(p);
	hspmd_profile_destroy(profile);
	json_decref(value);
	hspmd_cluster_destroy(c);
}

/* The time limit has passed before the search begins: the first plan found is returned, and reported as such. */
static void the_best_so_far_is_returned(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cluster_from(CLUSTER(GOOD, "n[0-63]", "4", LINKS));
	struct hspmd_model_facts *m = small_gpt2(24, 128);
	struct hspmd_solve_request r = { .global_batch = 256, .seq_len = 128, .time_limit_s = 1e-9 };
	struct hspmd_solve_report report = { 0 };
	struct hspmd_plan *p = hspmd_solve(c, m, NULL, &r, &report, &err);
	if (!p)
		fail_msg("%s", err.text);
	check_plan(p, c, 26);
	assert_true(report.timed_out);
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

/* hspmd plan and hspmd run find the same plan if neither says for how long they search. */
static void a_jobs_searches_are_limited(void **state)
{
	static const double asked[] = { 0, 3, 1e6 }, given[] = { HSPMD_JOB_SEARCH_S, 3, 1e6 };
	const struct hspmd_job job = { .global_batch = 8, .seq_len = 64, .elastic = { .min_nodes = 1, .max_nodes = 4 } };
	(void)state;
	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
		struct hspmd_job_search s = { .job = &job, .request = { .time_limit_s = asked[i] } };
		hspmd_job_search_init(&s);
		assert_true(s.request.time_limit_s == given[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_clusters_are_refused),
		cmocka_unit_test(bad_profiles_are_refused),
		cmocka_unit_test(requests_that_cannot_be_are_refused),
		cmocka_unit_test(devices_without_a_link_are_named),
		cmocka_unit_test(shortages_are_explained),
		cmocka_unit_test(the_search_alone_explains_nothing),
		cmocka_unit_test(interpolation_is_reported),
		cmocka_unit_test(the_best_so_far_is_returned),
		cmocka_unit_test(a_jobs_searches_are_limited),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
