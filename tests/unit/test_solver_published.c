/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model and the search compared with published measurements and plans. Skipped if the validation folder does not exist. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/json.h"
#include "controller/solver/solver.h"
#include "runtime/model/model.h"
#include "tests/bench/solver/figures.h"
#include "runtime/facts/facts.h"

static struct validation_case *cases;
static int count;

static int read_cases(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	char *path = hspmd_asprintf("%s/cases.json", validation_folder());
	bool there = path && !access(path, R_OK);
	free(path);
	if (!there)
		return 0;
	count = validation_read(validation_folder(), &cases, &err);
	if (count < 0)
		fprintf(stderr, "%s\n", err.text);
	return count < 0;
}

static int free_cases(void **state)
{
	(void)state;
	validation_free(cases, count);
	return 0;
}

static struct validation_figures figures(const char *group)
{
	if (!count)
		skip();
	return validation_figures(group, cases, count);
}

static void mixed_gpus_within_six_percent(void **state)
{
	(void)state;
	assert_true(figures("sailor-mit").mean_error <= 0.06);
}

static void gh200_within_six_percent(void **state)
{
	(void)state;
	assert_true(figures("sailor-clariden").mean_error <= 0.06);
}

static void alike_gpus_are_ranked(void **state)
{
	(void)state;
	struct validation_figures f = figures("amp-homo");
	assert_true(f.spearman >= 0.95);
	assert_true(f.spearman_small >= 0.95);
	assert_true(f.mean_error <= 0.06);
	assert_true(f.first_loss <= 0.03);
	assert_int_equal(f.failed_predicted, f.failed);
	assert_int_equal(f.ran_predicted_not, 0);
}

/* Four configurations, those with tensor parallelism and more micro-batches than stages, were measured 1.25 to 1.8 times as slow as
 * predicted, and nothing in their description explains it: with tp 2 and 8 stages 16 micro-batches of 2 took 3.36 s, 8 of 4 took 1.79 s.
 * The others are within 15 %. */
static void mixed_gpus_are_ranked(void **state)
{
	(void)state;
	struct validation_figures f = figures("amp-het");
	assert_true(f.spearman >= 0.75);
	assert_true(f.spearman_small >= 0.78);
	assert_true(f.mean_error <= 0.11);
	assert_true(f.first_loss <= 0.03);
	assert_int_equal(f.failed_predicted, f.failed);
	assert_int_equal(f.ran_bare, 0); /* so memory is not the reason why those did not run */
	assert_int_equal(f.ran_predicted_not, 0);
}

/* ---- planning */

struct problem {
	struct hspmd_cluster *cluster;
	struct hspmd_profile *profile;
	struct hspmd_model_facts *facts;
};

static char *in_folder(const char *part, const char *file)
{
	char *path = hspmd_asprintf("%s/%s%s", validation_folder(), part, file);
	assert_non_null(path);
	return path;
}

static void free_problem(struct problem *p)
{
	hspmd_cluster_destroy(p->cluster);
	hspmd_profile_destroy(p->profile);
	hspmd_model_facts_destroy(p->facts);
}

static int layers_of(const struct problem *p)
{
	return p->profile ? p->profile->layer_count : p->facts->layer_count;
}

/* Our plan must not be slower than theirs, which comes from `file`, both timed by the same model. Destroys theirs. */
static void expect_no_slower(const struct problem *p, struct hspmd_plan *theirs, const char *file, int batch, int seq_len)
{
	struct hspmd_error err = { "" };
	assert_non_null(theirs);
	assert_int_equal(hspmd_evaluate(p->cluster, p->facts, p->profile, HSPMD_PRECISION_BF16, theirs, NULL, &err), 0);
	struct hspmd_solve_request r = { .global_batch = batch, .seq_len = seq_len, .precision = HSPMD_PRECISION_BF16 };
	struct hspmd_plan *ours = hspmd_solve(p->cluster, p->facts, p->profile, &r, NULL, &err);
	if (!ours)
		fail_msg("%s: %s", file, err.text);
	if (ours->predicted.step_s > theirs->predicted.step_s * (1 + 1e-9))
		fail_msg("%s: %g s, ours %g s", file, theirs->predicted.step_s, ours->predicted.step_s);
	hspmd_plan_destroy(ours);
	hspmd_plan_destroy(theirs);
}

/* Skip the test if the folder does not exist. */
static json_t *read_list(const char *folder, const char *name)
{
	char *path = in_folder(folder, name);
	bool there = !access(path, R_OK);
	json_t *list = there ? json_load_file(path, 0, NULL) : NULL;
	free(path);
	if (!there)
		skip();
	assert_non_null(list);
	return list;
}

static void planning_problems_no_slower_than_the_best_known(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	json_t *list = read_list("planning/", "problems.json");
	size_t i;
	json_t *value;
	json_array_foreach(list, i, value) {
		struct problem p = { 0 };
		char *cluster = in_folder("planning/", json_string_value(json_object_get(value, "cluster")));
		char *profile = in_folder("planning/", json_string_value(json_object_get(value, "profile")));
		char *best = in_folder("planning/", json_string_value(json_object_get(json_object_get(value, "plans"), "best")));
		p.cluster = hspmd_cluster_read(cluster, &err);
		p.profile = hspmd_profile_read(profile, &err);
		assert_non_null(p.cluster);
		assert_non_null(p.profile);
		expect_no_slower(&p, hspmd_plan_read(best, p.cluster, layers_of(&p), &err), best,
		                 (int)json_integer_value(json_object_get(value, "global_batch")),
		                 (int)json_integer_value(json_object_get(value, "seq_len")));
		free_problem(&p);
		free(cluster);
		free(profile);
		free(best);
	}
	json_decref(list);
}

/* Sets the number of the cluster's nodes whose names begin with `type`. */
static void set_nodes(json_t *cluster, const char *type, int nodes)
{
	size_t i;
	json_t *node;
	char name[32];
	snprintf(name, sizeof name, "%s-[0-%d]", type, nodes - 1);
	json_array_foreach(json_object_get(cluster, "nodes"), i, node)
		if (!strncmp(json_string_value(json_object_get(node, "name")), type, strlen(type)))
			json_object_set_new(node, "name", json_string(name));
}

static void add_stage(json_t *stages, int first, int end, const char *type, int node, int from, int to)
{
	char devices[32];
	snprintf(devices, sizeof devices, "%s-%d:%d-%d", type, node, from, to);
	json_array_append_new(stages, json_pack("{s:[i,i], s:[s], s:s}", "layers", first, end, "devices", devices, "recompute", "none"));
}

/* The stages of the best plan known for 128 devices, in `pipelines` pipelines under ZB-H1. */
static json_t *known_plan(int pipelines, int batch)
{
	json_t *list = json_array();
	for (int i = 0, left = batch / 2; i < pipelines; i++) {
		int half = i % 2 * 2, parts = left / (pipelines - i);
		json_t *stages = json_array();
		add_stage(stages, 0, 5, "v100", i / 2, half, half + 1);
		add_stage(stages, 5, 12, "v100", pipelines / 2 + i, 0, 3);
		add_stage(stages, 12, 26, "a100", i / 2, half, half + 1);
		json_array_append_new(list, json_pack("{s:i, s:o}", "micro_batches", parts, "stages", stages));
		left -= parts;
	}
	return json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch", batch, "micro_batch", 2,
	                 "seq_len", 2048, "schedule", "zb-h1", "zero_stage", 1, "pipelines", list);
}

/* Deep pipelines whose slow messages ZB-H1 hides: few of them do well under 1F1B. */
static void hundreds_of_devices_no_slower_than_the_best_known(void **state)
{
	(void)state;
	json_decref(read_list("planning/", "problems.json"));
	static const int pipelines[] = { 32, 40 }; /* 256 and 320 devices */
	for (size_t k = 0; k < sizeof pipelines / sizeof *pipelines; k++) {
		struct hspmd_error err = { "" };
		char *file = in_folder("planning/", "clusters/a32-v96.json"), *profile = in_folder("planning/", "opt-350m.json");
		json_t *cluster = json_load_file(file, 0, NULL), *plan = known_plan(pipelines[k], 1024);
		set_nodes(cluster, "a100", pipelines[k] / 2);
		set_nodes(cluster, "v100", pipelines[k] * 3 / 2);
		struct problem p = { .cluster = hspmd_cluster_from_json(cluster, file, &err),
			             .profile = hspmd_profile_read(profile, &err) };
		assert_non_null(p.cluster);
		assert_non_null(p.profile);
		expect_no_slower(&p, hspmd_plan_from_json(plan, "plan", p.cluster, layers_of(&p), &err), "the known plan", 1024, 2048);
		free_problem(&p);
		json_decref(plan);
		json_decref(cluster);
		free(file);
		free(profile);
	}
}

static void published_hspmd_plans_are_not_faster_than_ours(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	json_t *list = read_list("", "cases.json");
	size_t i;
	json_t *value;
	json_array_foreach(list, i, value) {
		if (strncmp(json_string_value(json_object_get(value, "name")), "hspmd", 5))
			continue;
		struct problem p = { 0 };
		char *cluster = in_folder("", json_string_value(json_object_get(value, "cluster")));
		char *model = in_folder("", json_string_value(json_object_get(value, "model")));
		char *plan = in_folder("", json_string_value(json_object_get(value, "plan")));
		p.cluster = hspmd_cluster_read(cluster, &err);
		struct hspmd_model *m = hspmd_model_read(model, &err);
		assert_non_null(p.cluster);
		assert_non_null(m);
		p.facts = hspmd_model_facts_of(m, 4096, &err);
		assert_non_null(p.facts);
		hspmd_model_destroy(m);
		expect_no_slower(&p, hspmd_plan_read(plan, p.cluster, layers_of(&p), &err), plan, 64, 4096);
		free_problem(&p);
		free(cluster);
		free(model);
		free(plan);
	}
	json_decref(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mixed_gpus_within_six_percent),
		cmocka_unit_test(gh200_within_six_percent),
		cmocka_unit_test(alike_gpus_are_ranked),
		cmocka_unit_test(mixed_gpus_are_ranked),
		cmocka_unit_test(planning_problems_no_slower_than_the_best_known),
		cmocka_unit_test(hundreds_of_devices_no_slower_than_the_best_known),
		cmocka_unit_test(published_hspmd_plans_are_not_faster_than_ours),
	};
	return cmocka_run_group_tests(tests, read_cases, free_cases);
}
