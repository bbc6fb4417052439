/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a job get a checkpoint's manifest: few of many, and such that what the copies survive leaves one of them. And what the
 * controller remembers of committed checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/losses.h"
#include "controller/core/controller_internal.h"

#define MOST 2000

static struct {
	struct hspmd_cluster *cluster;
	struct bound_plan of;
	struct worker worker[MOST], *one[MOST];
	struct node place[MOST];
	struct hspmd_job job;
	struct run_config config;
	struct hspmd_controller m;
} s;

/* Nodes with a device each; their racks are i / wide, or i % -wide if that is negative; 0: not known. Those after the first `own` are of
 * a member job. */
static void lay_out(int nodes, int wide, int own, int copies)
{
	struct hspmd_error err = { "" };
	json_t *list = json_array();
	hspmd_cluster_destroy(s.cluster);
	memset(&s, 0, sizeof s);
	for (int i = 0; i < nodes; i++) {
		int rack = wide > 0 ? i / wide : wide < 0 ? i % -wide : 0;
		json_array_append_new(list, json_pack("{s:o, s:[{s:s, s:i}], s:o*, s:o*}", "name", json_sprintf("n%04d", i), "devices",
		                                      "type", "c", "count", 1, "rack", wide ? json_sprintf("r%d", rack) : NULL, "member",
		                                      i < own ? NULL : json_integer(7)));
	}
	json_t *value = json_pack("{s:s, s:{s:{s:s, s:f, s:f, s:{s:f}}}, s:o, s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}", "format",
	                          "hspmd-cluster-1", "device_types", "c", "kind", "cpu", "memory_bytes", 1e9, "gbytes_per_s", 10.0,
	                          "peak_tflops", "fp32", 0.01, "nodes", list, "links", "scope", "node", "alpha_s", 1e-6, "gbytes_per_s",
	                          5.0, "scope", "cluster", "alpha_s", 1e-6, "gbytes_per_s", 1.0);
	s.cluster = hspmd_cluster_from_json(value, "cluster", &err);
	if (!s.cluster)
		fail_msg("%s", err.text);
	json_decref(value);
	s.of = (struct bound_plan){ .cluster = s.cluster, .copies = copies, .keep = 1 };
	for (int i = 0; i < nodes; i++) {
		s.place[i].name = s.cluster->nodes[i].name;
		s.worker[i].node = &s.place[i];
		s.worker[i].process = PROC_UP;
		hspmd_cluster_device_address(s.cluster, i, s.worker[i].address, sizeof s.worker[i].address);
		s.one[nodes - 1 - i] = &s.worker[i]; /* the plan's order is not Slurm's */
	}
}

/* The holders: each once, the lowest node first, and no loss that the copies survive takes all. Returns their number. */
static int holders(void)
{
	static int node[MOST];
	struct hspmd_losses losses;
	struct hspmd_error err;
	int count = manifest_holders(&s.m, &s.of, s.one, s.cluster->node_count);
	assert_true(count > 0 && !s.m.failed);
	for (int i = 0; i < count; i++) {
		node[i] = (int)(s.one[i] - s.worker);
		for (int k = 0; k < i; k++)
			assert_int_not_equal(node[k], node[i]);
	}
	assert_int_equal(node[0], 0);
	assert_int_equal(hspmd_losses_make(s.cluster, NULL, s.of.copies, s.of.keep, &losses, &err), 0);
	assert_int_equal(hspmd_losses_lack(&losses, node, count), 0);
	hspmd_losses_free(&losses);
	return count;
}

static void test_holders(void **state)
{
	(void)state;
	static const struct {
		int nodes, wide, copies, holders;
	} jobs[] = {
		{ 1, 0, 1, 1 },    { 32, 8, 1, 32 },   { 33, 0, 1, 8 },     { 33, 0, 0, 8 },
		{ 64, 8, 2, 8 },   { 64, -8, 1, 9 }, /* those that are spread are all in one rack */
		{ 64, 0, 10, 11 }, { 1280, 32, 1, 8 }, { 1280, 0, 20, 21 }, { 2000, 1, 3, 8 },
	};
	for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
		lay_out(jobs[i].nodes, jobs[i].wide, jobs[i].nodes, jobs[i].copies);
		int count = holders();
		if (count != jobs[i].holders)
			fail_msg("%d nodes, %d copies: %d have the manifest", jobs[i].nodes, jobs[i].copies, count);
	}
	/* The first node is all of the first job; the others' job may end. */
	lay_out(100, 0, 1, 1);
	assert_int_equal(holders(), 8);
}

static json_t *text(const char *of)
{
	json_t *v = json_loads(of, 0, NULL);
	assert_non_null(v);
	return v;
}

static void expect_committed(const char *list, bool known)
{
	json_t *want = text(list);
	if (!json_equal(s.m.committed, want))
		fail_msg("%s: %s", list, json_dumps(s.m.committed, 0));
	assert_int_equal(committed_known(&s.m), known);
	json_decref(want);
}

/* A controller that knows of fewer checkpoints than there may be says so. */
static void test_found(void **state)
{
	(void)state;
	json_t *journal = text("{\"committed\": [[120, 3], [100, 3], [300, 2]]}"), *none = text("{}");
	json_t *found = text("{\"n0000\": [{\"place\": \"local\", \"sum\": \"a\", \"step\": 90, \"generation\": 2},"
	                     "{\"place\": \"shared\", \"sum\": \"b\", \"step\": 110, \"generation\": 2},"
	                     "{\"place\": \"local\", \"step\": 105, \"generation\": 2, \"shards\": []},"
	                     "{\"place\": \"local\", \"sum\": \"c\", \"step\": 80, \"generation\": 3}],"
	                     "\"n0001\": [{\"place\": \"local\", \"sum\": \"a\", \"step\": 90, \"generation\": 2},"
	                     "{\"place\": \"local\", \"sum\": \"d\", \"step\": 200, \"generation\": 1},"
	                     "{\"place\": \"local\", \"sum\": \"e\", \"step\": 100, \"generation\": 1}]}"),
	       *chosen = text("{\"step\": 110, \"generation\": 2}");
	struct node *nodes[] = { &s.place[0], &s.place[1], &s.place[2] };
	lay_out(3, 0, 3, 1);
	s.job.checkpoint.keep = 2;
	s.config.job = &s.job;
	s.m.config = &s.config;
	committed_restore(&s.m, none);
	assert_null(s.m.committed);
	assert_false(committed_known(&s.m));
	committed_restore(&s.m, journal);
	expect_committed("[[120, 3], [100, 3]]", true);
	/* By what nodes have listed: those on disks, up to the one that is taken up. */
	s.m.checkpoint_search.found = found;
	s.m.node = nodes;
	s.m.nodes = 3;
	committed_found(&s.m, chosen);
	expect_committed("[[90, 2], [200, 1]]", true);
	s.job.checkpoint.keep = 4;
	committed_found(&s.m, chosen);
	expect_committed("[[90, 2], [200, 1], [100, 1]]", true);
	nodes[2]->held = true;
	nodes[2]->agent = PROC_UP;
	committed_found(&s.m, chosen); /* a node has not answered */
	expect_committed("[[90, 2], [200, 1], [100, 1]]", false);
	json_decref(s.m.committed);
	json_decref(found);
	json_decref(chosen);
	json_decref(journal);
	json_decref(none);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_holders), cmocka_unit_test(test_found) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
