/* SPDX-License-Identifier: Apache-2.0 */
/* The scaling curve that a job reports to hspmdctld: rates on nodes of its first class, and relative speeds of its other classes. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <limits.h>

#include "controller/run/scaling.h"
#include "tests/unit/draw.h"
#include "tests/unit/solver_inputs.h"

#define UNHURRIED_S 300 /* for a search that takes well under a second: what it finds must not depend on the machine's other load */

/* Two nodes of four fast devices, and two of four devices that are half as fast. */
static const char text[] =
        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {"
        "\"fast\": {\"kind\": \"cuda\", \"memory_bytes\": 8000000000, \"gbytes_per_s\": 2000, \"peak_tflops\": {\"fp32\": 10}},"
        "\"slow\": {\"kind\": \"cuda\", \"memory_bytes\": 8000000000, \"gbytes_per_s\": 1000, \"peak_tflops\": {\"fp32\": 5}}},"
        "\"nodes\": [{\"name\": \"f[0-1]\", \"devices\": [{\"type\": \"fast\", \"count\": 4}]}, {\"name\": \"s[0-1]\", \"devices\": "
        "[{\"type\": \"slow\", \"count\": 4}]}],"
        "\"links\": [{\"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 400}, {\"scope\": \"cluster\", \"alpha_s\": 1e-5, "
        "\"gbytes_per_s\": 50}]}";

static void test_curve_and_kinds(void **state)
{
	struct hspmd_job job = { .global_batch = 256, .seq_len = 256, .precision = HSPMD_PRECISION_FP32 };
	struct hspmd_error err = { "" };
	struct run_node_class kinds[4];
	double curve[8];
	(void)state;
	json_t *cluster = json_loads(text, 0, NULL);
	struct hspmd_model_facts *model = small_gpt2(8, 256);
	assert_non_null(cluster);
	const int nodes = (int)draw_count(8, 8);
	if (run_scaling_curve(cluster, model, &job, UNHURRIED_S, curve, nodes, &err) != nodes)
		fail_msg("%s", err.text);
	for (int i = 1; i < nodes; i++)
		assert_true(curve[i] > curve[i - 1]);
	/* The curve has nodes like the first, though the cluster has only two of them. */
	assert_true(curve[nodes - 1] > 0.625 * nodes * curve[0]);
	assert_int_equal(run_relative_speeds(cluster, model, &job, UNHURRIED_S, kinds, 4, &err), 2);
	assert_string_equal(kinds[0].node, "f0");
	assert_float_equal(kinds[0].relative_speed, 1, 0);
	assert_string_equal(kinds[1].node, "s0");
	assert_float_equal(kinds[1].relative_speed, 0.5, 0.1);
	assert_int_equal(run_relative_speeds(cluster, model, &job, UNHURRIED_S, kinds, 1, &err), 1);
	hspmd_model_facts_destroy(model);
	json_decref(cluster);
}

/* Nodes that a job gains may each equal several of those with which it began: the curve must not end where they do. */
static void test_faster_nodes_are_on_the_curve(void **state)
{
	const struct run_node_class slower[] = { { "a", 1 }, { "b", 0.3 } }, faster[] = { { "a", 1 }, { "b", 1.43 }, { "c", 1.2 } };
	(void)state;
	assert_int_equal(run_scaling_size(4, slower, 2), 4);
	assert_int_equal(run_scaling_size(4, faster, 3), 6);
	assert_int_equal(run_scaling_size(4, faster, 0), 4);
	assert_int_equal(run_scaling_size(INT_MAX, faster, 3), RUN_SCALING_MAX);
}

static void test_what_cannot_be_reckoned(void **state)
{
	struct hspmd_job job = { .global_batch = 8, .seq_len = 64, .precision = HSPMD_PRECISION_FP32 };
	struct hspmd_error err = { "" };
	struct run_node_class kinds[4];
	double curve[4];
	(void)state;
	json_t *none = json_pack("{s:[]}", "nodes");
	struct hspmd_model_facts *model = small_gpt2(2, 256);
	assert_int_equal(run_scaling_curve(none, model, &job, UNHURRIED_S, curve, 4, &err), -1);
	assert_int_equal(run_relative_speeds(none, model, &job, UNHURRIED_S, kinds, 4, &err), -1);
	hspmd_model_facts_destroy(model);
	json_decref(none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_curve_and_kinds),
		cmocka_unit_test(test_faster_nodes_are_on_the_curve),
		cmocka_unit_test(test_what_cannot_be_reckoned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
