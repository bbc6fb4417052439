/* SPDX-License-Identifier: Apache-2.0 */
/* What the site's terms and the losses that were seen make of a job's checkpoints. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "controller/cli/run_checkpoint.h"
#include "controller/cli/run_terms.h"
#include "tests/unit/solver_inputs.h"

static void test_terms(void **state)
{
	char own[] = "/own", site[] = "/site/$USER";
	struct hspmd_job job = { .checkpoint = { .shared = own, .every_s = 3600, .replicas = 1 } };
	struct hspmd_policy_terms t = hspmd_policy_builtin;
	(void)state;
	t.local = t.shared = site;
	t.max_interval_s = 600;
	t.min_replicas = 2;
	assert_int_equal(run_checkpoint_terms(&job, &t, NULL), 0);
	assert_string_equal(job.checkpoint.local, site);
	assert_string_equal(job.checkpoint.shared, own);
	assert_float_equal(job.checkpoint.every_s, 600, 0);
	assert_int_equal(job.checkpoint.replicas, 2);
	/* What is within the bounds stays. */
	job.checkpoint.every_s = 30;
	job.checkpoint.replicas = 3;
	assert_int_equal(run_checkpoint_terms(&job, &t, NULL), 0);
	assert_float_equal(job.checkpoint.every_s, 30, 0);
	assert_int_equal(job.checkpoint.replicas, 3);
	/* Left to the program: it chooses by what a checkpoint costs. */
	job.checkpoint.every_s = 0;
	assert_int_equal(run_checkpoint_terms(&job, &t, NULL), 0);
	assert_float_equal(job.checkpoint.every_s, 0, 0);
	job.checkpoint.every_steps = 100000;
	assert_int_equal(run_checkpoint_terms(&job, &t, NULL), 0);
	assert_float_equal(job.checkpoint.every_s, 600, 0);
	free(job.checkpoint.local);
}

static void test_the_sites_policy_is_read(void **state)
{
	char file[] = "/tmp/hspmd-policy-XXXXXX";
	struct hspmd_job job = { .checkpoint = { .every_s = 3600, .replicas = 1 } };
	struct hspmd_policy_who who = { .partition = "normal" };
	struct run_terms terms;
	struct hspmd_error err;
	(void)state;
	int fd = mkstemp(file);
	FILE *f = fdopen(fd, "w");
	fputs("{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"a\", \"match\": {\"partition\": [\"long\"]}, \"checkpoint\": {\"max_interval_s\": 60}},"
	      "{\"name\": \"b\", \"checkpoint\": {\"max_interval_s\": 600, \"min_replicas\": 2, \"shared\": \"/gpfs/$USER\"}}]}", f);
	fclose(f);
	assert_int_equal(run_terms_read(&terms, &job, file, &who, &err), 0);
	assert_float_equal(job.checkpoint.every_s, 600, 0);
	assert_int_equal(job.checkpoint.replicas, 2);
	assert_string_equal(job.checkpoint.shared, "/gpfs/$USER");
	who.partition = "long";
	assert_int_equal(run_terms_read(&terms, &job, file, &who, &err), 0);
	assert_float_equal(job.checkpoint.every_s, 60, 0);
	/* A file of somebody else is not believed. */
	char named[64];
	snprintf(named, sizeof named, "%u@%s", (unsigned)getuid() + 1, file);
	job.checkpoint.every_s = 3600;
	assert_int_equal(run_terms_read(&terms, &job, named, &who, &err), getuid() ? -1 : 0); /* root's always is */
	assert_float_equal(job.checkpoint.every_s, getuid() ? 3600 : 60, 0);
	assert_int_equal(run_terms_read(&terms, NULL, NULL, &who, &err), 0);
	unlink(file);
	free(job.checkpoint.shared);
}

static int copies(int asked, int nodes, double losses, double together)
{
	struct hspmd_job job = { .checkpoint = { .every_s = 60, .replicas = asked } };
	struct hspmd_model *model = small_gpt2(8);
	json_t *cluster = json_pack("{s:{s:f, s:f}}", "risk", "losses_per_node_s", losses, "together", together);
	int n = run_checkpoint_copies(&job, model, nodes, cluster);
	json_decref(cluster);
	hspmd_model_destroy(model);
	return n;
}

static void test_copies(void **state)
{
	(void)state;
	assert_int_equal(copies(1, 8, 0, 0), 1);
	assert_int_equal(copies(0, 8, 0, 0), 0);
	assert_int_equal(copies(0, 8, 1e-4, 0), 1);
	assert_true(copies(1, 8, 1e-3, 0.5) > 1);
	assert_int_equal(copies(3, 2, 1e-3, 0.5), 3);
	assert_int_equal(copies(1, 1, 1e-3, 0.5), 1);
	struct hspmd_job job = { .checkpoint = { .replicas = 1 } };
	assert_int_equal(run_checkpoint_copies(&job, NULL, 1, NULL), 1); /* hspmdctld is not there */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_terms),
		cmocka_unit_test(test_the_sites_policy_is_read),
		cmocka_unit_test(test_copies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
