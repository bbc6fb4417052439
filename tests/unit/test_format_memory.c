/* SPDX-License-Identifier: Apache-2.0 */
/* Shortage of memory during reading, writing and copying, in our own allocations and in jansson's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"
#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/plan.h"
#include "common/format/profile.h"
#include "common/hostlist.h"
#include "common/json.h"
#include "runtime/model/model.h"
#include "tests/unit/failing_alloc.h"

#define DATA HSPMD_SRCDIR "/tests/data/"

/* ---- functions to try: each returns whether it succeeded, and frees everything that it made */

static struct hspmd_error err;
static struct hspmd_cluster *cluster;
static struct hspmd_plan *plan;
static struct hspmd_profile *profile;
static struct hspmd_job *job;

static bool read_cluster(void)
{
	struct hspmd_cluster *c = hspmd_cluster_read(DATA "cluster/mixed.json", &err);
	hspmd_cluster_destroy(c);
	return c != NULL;
}

static bool read_plan(void)
{
	struct hspmd_plan *p = hspmd_plan_read(DATA "plan/mixed.json", cluster, 24, &err);
	hspmd_plan_destroy(p);
	return p != NULL;
}

static bool read_profile(void)
{
	struct hspmd_profile *p = hspmd_profile_read(DATA "profile/opt.json", &err);
	hspmd_profile_destroy(p);
	return p != NULL;
}

static bool read_model(void)
{
	struct hspmd_model *m = hspmd_model_read(DATA "model/mixtral.json", &err);
	hspmd_model_destroy(m);
	return m != NULL;
}

static bool read_job(void)
{
	struct hspmd_job *j = hspmd_job_read(DATA "job/full.json", NULL, &err);
	hspmd_job_destroy(j);
	return j != NULL;
}

static bool kept(json_t *value)
{
	json_decref(value);
	return value != NULL;
}

static bool write_cluster(void)
{
	return kept(hspmd_cluster_to_json(cluster));
}

static bool write_plan(void)
{
	return kept(hspmd_plan_to_json(plan, cluster));
}

static bool write_profile(void)
{
	return kept(hspmd_profile_to_json(profile));
}

static bool write_job(void)
{
	return kept(hspmd_job_to_json(job));
}

static bool copy_plan(void)
{
	struct hspmd_plan *copy = hspmd_plan_copy(plan);
	hspmd_plan_destroy(copy);
	return copy != NULL;
}

static bool print_plan(void)
{
	char *line = hspmd_plan_summary(plan, cluster);
	free(line);
	return line != NULL;
}

static bool index_cluster(void)
{
	return !hspmd_cluster_reindex(cluster);
}

static bool expand_hosts(void)
{
	char **names = NULL;
	int n = hspmd_hostlist_expand("a[1-3],b-[08-11]x", 100, &names, &err);
	hspmd_hostlist_free(names, n);
	return n >= 0;
}

static bool fill_path(void)
{
	char *path = hspmd_job_expand_path("/x/$JOB/$USER/${HOME}", "7", &err);
	free(path);
	return path != NULL;
}

static bool save_text(void)
{
	json_t *value = hspmd_plan_to_json(plan, cluster);
	int rc = value ? hspmd_json_save(value, "/dev/null", &err) : -1;
	json_decref(value);
	return !rc;
}

/* An error that is found must be reported even if there is no memory for its full text. */
static bool refuse_cluster(void)
{
	static const char text[] =
	        "{\"format\": \"hspmd-cluster-1\", \"odd key\": {\"a\": 1}, \"device_types\": {\"X\": {\"kind\": \"x\\ny\"}}}";
	struct hspmd_json_doc doc;
	if (hspmd_json_parse(&doc, "c.json", text, strlen(text), &err))
		return false;
	struct hspmd_cluster *c = hspmd_cluster_from_json(doc.root, "c.json", &err);
	hspmd_json_close(&doc);
	assert_null(c);
	assert_true(!strncmp(err.text, "c.json: device_types.X.kind: ", 29) || strstr(err.text, "memory"));
	return !failing_alloc_failed();
}

/* ---- the tests */

static int make_inputs(void **state)
{
	(void)state;
	json_set_alloc_funcs(failing_alloc_jansson, failing_alloc_free);
	cluster = hspmd_cluster_read(DATA "cluster/mixed.json", &err);
	plan = cluster ? hspmd_plan_read(DATA "plan/mixed.json", cluster, 24, &err) : NULL;
	profile = hspmd_profile_read(DATA "profile/opt.json", &err);
	job = hspmd_job_read(DATA "job/full.json", NULL, &err);
	return cluster && plan && profile && job ? 0 : -1;
}

static int drop_inputs(void **state)
{
	(void)state;
	hspmd_cluster_destroy(cluster);
	hspmd_plan_destroy(plan);
	hspmd_profile_destroy(profile);
	hspmd_job_destroy(job);
	return 0;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	static const struct failing_alloc_call calls[] = {
		{ "read cluster", read_cluster, true }, { "read plan", read_plan, true },
		{ "read profile", read_profile, true }, { "read model", read_model, true },
		{ "read job", read_job, true },         { "write cluster", write_cluster, false },
		{ "write plan", write_plan, false },    { "write profile", write_profile, false },
		{ "write job", write_job, false },      { "copy plan", copy_plan, false },
		{ "print plan", print_plan, false },    { "index cluster", index_cluster, false },
		{ "expand hosts", expand_hosts, true }, { "fill path", fill_path, true },
		{ "save text", save_text, false },      { "refuse cluster", refuse_cluster, true },
	};
	failing_alloc_try(calls, sizeof calls / sizeof *calls, &err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests_name("format memory", tests, make_inputs, drop_inputs);
}
