/* SPDX-License-Identifier: Apache-2.0 */
/* How the site's policy changes a job's checkpoints. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "controller/cli/checkpoint_policy.h"
#include "controller/cli/run_policy.h"

static void test_terms(void **state)
{
	char own[] = "/own", site[] = "/site/$USER";
	struct hspmd_job job = { .checkpoint = { .shared = own, .every_s = 3600, .replicas = 1 } };
	struct hspmd_policy_terms t = hspmd_policy_builtin;
	(void)state;
	t.local = t.shared = site;
	t.max_interval_s = 600;
	t.min_replicas = 2;
	assert_int_equal(checkpoint_policy_apply(&job, &t, NULL), 0);
	assert_string_equal(job.checkpoint.local, site);
	assert_string_equal(job.checkpoint.shared, own);
	assert_float_equal(job.checkpoint.every_s, 600, 0);
	assert_int_equal(job.checkpoint.replicas, 2);
	/* Settings within the bounds stay. */
	job.checkpoint.every_s = 30;
	job.checkpoint.replicas = 3;
	assert_int_equal(checkpoint_policy_apply(&job, &t, NULL), 0);
	assert_float_equal(job.checkpoint.every_s, 30, 0);
	assert_int_equal(job.checkpoint.replicas, 3);
	/* Left to the program: it chooses by the cost of a checkpoint. */
	job.checkpoint.every_s = 0;
	assert_int_equal(checkpoint_policy_apply(&job, &t, NULL), 0);
	assert_float_equal(job.checkpoint.every_s, 0, 0);
	job.checkpoint.every_steps = 100000;
	assert_int_equal(checkpoint_policy_apply(&job, &t, NULL), 0);
	assert_float_equal(job.checkpoint.every_s, 600, 0);
	free(job.checkpoint.local);
}

static void test_the_sites_policy_is_read(void **state)
{
	char file[] = "/tmp/hspmd-policy-XXXXXX";
	struct hspmd_job job = { .checkpoint = { .every_s = 3600, .replicas = 1 } };
	struct hspmd_policy_subject subject = { .partition = "normal" };
	struct run_policy terms = { 0 };
	struct hspmd_error err;
	(void)state;
	int fd = mkstemp(file);
	FILE *f = fdopen(fd, "w");
	fputs("{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"a\", \"match\": {\"partition\": [\"long\"]}, \"checkpoint\": "
	      "{\"max_interval_s\": 60}},"
	      "{\"name\": \"b\", \"checkpoint\": {\"max_interval_s\": 600, \"min_replicas\": 2, \"shared\": \"/gpfs/$USER\"}}]}",
	      f);
	fclose(f);
	assert_int_equal(run_policy_read(&terms, &job, file, &subject, &err), 0);
	run_policy_clear(&terms);
	assert_float_equal(job.checkpoint.every_s, 600, 0);
	assert_int_equal(job.checkpoint.replicas, 2);
	assert_string_equal(job.checkpoint.shared, "/gpfs/$USER");
	subject.partition = "long";
	assert_int_equal(run_policy_read(&terms, &job, file, &subject, &err), 0);
	run_policy_clear(&terms);
	assert_float_equal(job.checkpoint.every_s, 60, 0);
	/* A file of another user is not trusted. */
	char named[64];
	snprintf(named, sizeof named, "%u@%s", (unsigned)getuid() + 1, file);
	job.checkpoint.every_s = 3600;
	assert_int_equal(run_policy_read(&terms, &job, named, &subject, &err), getuid() ? -1 : 0); /* root's always is */
	run_policy_clear(&terms);
	assert_float_equal(job.checkpoint.every_s, getuid() ? 3600 : 60, 0);
	assert_int_equal(run_policy_read(&terms, NULL, NULL, &subject, &err), 0);
	run_policy_clear(&terms);
	unlink(file);
	free(job.checkpoint.shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_terms),
		cmocka_unit_test(test_the_sites_policy_is_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
