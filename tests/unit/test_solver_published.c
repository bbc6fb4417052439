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

/* Our plan must not be slower than the one in the file, both timed by the same model. */
static void expect_no_slower(const struct problem *p, const char *file, int batch, int seq_len)
{
	struct hspmd_error err = { "" };
	int layers = p->profile ? p->profile->layer_count : p->facts->layer_count;
	struct hspmd_plan *theirs = hspmd_plan_read(file, p->cluster, layers, &err);
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
		expect_no_slower(&p, best, (int)json_integer_value(json_object_get(value, "global_batch")),
		                 (int)json_integer_value(json_object_get(value, "seq_len")));
		free_problem(&p);
		free(cluster);
		free(profile);
		free(best);
	}
	json_decref(list);
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
		expect_no_slower(&p, plan, 64, 4096);
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
		cmocka_unit_test(published_hspmd_plans_are_not_faster_than_ours),
	};
	return cmocka_run_group_tests(tests, read_cases, free_cases);
}
