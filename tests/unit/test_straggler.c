/* SPDX-License-Identifier: Apache-2.0 */
/* How many windows a verdict on a node takes, without a cluster: two devices with equal work report their times, window by window. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/core/controller_internal.h"
#include "tests/unit/solver_inputs.h"

#define DEVICES 3
#define EXPECTED_S 0.5

/* A controller that trains on three nodes of one device each, as far as stragglers are concerned. */
struct scene {
	struct hspmd_cluster *cluster, *part[DEVICES];
	struct hspmd_pipeline pipelines[DEVICES];
	struct hspmd_stage stages[DEVICES];
	int device_of_stage[DEVICES];
	struct hspmd_plan plan;
	struct worker worker[DEVICES], *workers[DEVICES];
	struct node node[DEVICES], *nodes[DEVICES];
	struct bound_plan bound_plan;
	struct hspmd_job job;
	struct run_config config;
	struct run_actions actions;
	struct hspmd_controller m;
};

static int equal_work(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, double *busy_s)
{
	(void)c, (void)plan, (void)cluster;
	for (int i = 0; i < DEVICES; i++)
		busy_s[i] = EXPECTED_S;
	return 0;
}

#define CLUSTER(nodes)                                                                                                                     \
	"{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"a\": {\"kind\": \"cpu\", \"memory_bytes\": 1e9, \"gbytes_per_s\": 9, "     \
	"\"peak_tflops\": {\"fp32\": 1}}}, \"nodes\": [" nodes "], \"links\": [{\"scope\": \"cluster\", \"alpha_s\": 1e-5, "            \
	"\"gbytes_per_s\": 1}]}"
#define NODE(name) "{\"name\": \"" name "\", \"devices\": [{\"type\": \"a\", \"count\": 1}]}"

static struct scene *scene_new(void)
{
	static char *const names[] = { "n0", "n1", "n2" };
	static const char *const parts[] = { CLUSTER(NODE("n0")), CLUSTER(NODE("n1")), CLUSTER(NODE("n2")) };
	struct scene *x = calloc(1, sizeof *x);
	assert_non_null(x);
	x->cluster = cluster_from(CLUSTER(NODE("n0") ", " NODE("n1") ", " NODE("n2")));
	for (int i = 0; i < DEVICES; i++) {
		x->part[i] = cluster_from(parts[i]);
		x->device_of_stage[i] = i;
		x->stages[i] = (struct hspmd_stage){ .layers = { 0, 4 }, .device_count = 1, .devices = &x->device_of_stage[i] };
		x->pipelines[i] =
		        (struct hspmd_pipeline){ .micro_batches = 4, .micro_batch = 1, .stage_count = 1, .stages = &x->stages[i] };
		x->worker[i] = (struct worker){ .node = &x->node[i] };
		x->workers[i] = &x->worker[i];
		x->node[i] = (struct node){ .name = names[i],
			                    .held = true,
			                    .agent = PROC_UP,
			                    .part = x->part[i],
			                    .base = 1,
			                    .slowdown = 1,
			                    .worker = &x->workers[i],
			                    .workers = 1,
			                    .known = 1 };
		x->nodes[i] = &x->node[i];
	}
	x->plan = (struct hspmd_plan){ .pipeline_count = DEVICES, .pipelines = x->pipelines, .virtual_stages = 1 };
	x->bound_plan = (struct bound_plan){
		.cluster = x->cluster, .plan = &x->plan, .device = x->workers, .devices = DEVICES, .nodes = DEVICES, .nodes_used = DEVICES
	};
	x->config.job = &x->job;
	x->config.expected_busy = equal_work;
	x->config.policy_terms.slower_than = 1.25;
	x->config.policy_terms.back_below = 1.1;
	x->config.policy_terms.slower_for_s = 3 * SLOW_WINDOWS;
	x->m = (struct hspmd_controller){ .config = &x->config,
		                          .actions = &x->actions,
		                          .node = x->nodes,
		                          .nodes = DEVICES,
		                          .events = json_array(),
		                          .current = { .phase = PHASE_TRAINING, .bound_plan = &x->bound_plan } };
	straggler_begin(&x->m);
	return x;
}

static void scene_free(struct scene *x)
{
	assert_false(x->m.failed);
	run_actions_clear(&x->actions);
	free(x->actions.list);
	json_decref(x->m.events);
	for (int i = 0; i < DEVICES; i++)
		hspmd_cluster_destroy(x->part[i]);
	hspmd_cluster_destroy(x->cluster);
	free(x);
}

/* One window in which node 1 takes `slower` times as long as the others. The plan in use is still the first: it does not know of node 1's
 * slowdown. */
static void window(struct scene *x, double slower)
{
	for (int i = 0; i < DEVICES; i++)
		for (int k = 0; k < 4; k++) {
			json_t *step = json_pack("{s:f}", "compute_s", EXPECTED_S * (i == 1 ? slower : 1));
			straggler_sample(&x->m, &x->worker[i], step);
			json_decref(step);
		}
	x->m.now = straggler_deadline(&x->m);
	assert_true(isfinite(x->m.now));
	straggler_tick(&x->m);
}

/* Windows of this slowdown until the node's slowdown changes; at most 9. */
static int windows_until_change(struct scene *x, double slower)
{
	double was = x->node[1].slowdown;
	for (int n = 1; n <= 9; n++) {
		window(x, slower);
		if (x->node[1].slowdown != was)
			return n;
	}
	return 0;
}

static void slow_after_three_windows(void **state)
{
	(void)state;
	struct scene *x = scene_new();
	assert_int_equal(windows_until_change(x, 2), SLOW_WINDOWS);
	assert_float_equal(x->node[1].slowdown, 2, 1e-9);
	assert_float_equal(x->part[1]->nodes[0].slowdown, 2, 1e-9);
	assert_true(x->m.change.wanted && x->m.change.optional);
	assert_float_equal(x->node[0].slowdown, 1, 0);
	assert_float_equal(x->node[2].slowdown, 1, 0);
	scene_free(x);
}

static void recovered_after_three_windows(void **state)
{
	(void)state;
	struct scene *x = scene_new();
	assert_int_equal(windows_until_change(x, 2), SLOW_WINDOWS);
	x->m.change.wanted = false;
	assert_int_equal(windows_until_change(x, 1), SLOW_WINDOWS);
	assert_float_equal(x->node[1].slowdown, 1, 0);
	assert_true(x->m.change.wanted);
	scene_free(x);
}

/* Windows that do not agree with the one before them begin a new count. */
static void only_windows_in_a_row_count(void **state)
{
	(void)state;
	struct scene *x = scene_new();
	for (int round = 0; round < 4; round++) {
		window(x, 2);
		window(x, 2);
		window(x, 1);
		assert_float_equal(x->node[1].slowdown, 1, 0);
	}
	assert_int_equal(windows_until_change(x, 2), SLOW_WINDOWS);
	for (int round = 0; round < 4; round++) {
		window(x, 1);
		window(x, 1);
		window(x, 3);
		assert_float_equal(x->node[1].slowdown, 2, 1e-9);
	}
	assert_int_equal(windows_until_change(x, 1), SLOW_WINDOWS);
	/* Within the hysteresis nothing changes. */
	assert_int_equal(windows_until_change(x, 1.2), 0);
	scene_free(x);
}

/* The cost model's times are of the plan itself: steps that run its shorter plans say nothing, however unequal they are. */
static void shorter_plans_do_not_count(void **state)
{
	(void)state;
	struct scene *x = scene_new();
	struct worker *w = &x->worker[1];
	json_t *of_plan = json_pack("{s:f, s:f}", "compute_s", 2.0, "plan_compute_s", 1.0), *shorter = json_pack("{s:f}", "compute_s", 5.0);
	x->plan.shorter_count = 1;
	straggler_sample(&x->m, w, shorter);
	assert_int_equal(w->busy_count, 0);
	straggler_sample(&x->m, w, of_plan);
	assert_int_equal(w->busy_count, 1);
	assert_float_equal(w->busy_s, 1, 0);
	x->plan.shorter_count = 0;
	straggler_sample(&x->m, w, shorter);
	assert_float_equal(w->busy_s, 6, 0);
	json_decref(of_plan);
	json_decref(shorter);
	scene_free(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shorter_plans_do_not_count),
		cmocka_unit_test(slow_after_three_windows),
		cmocka_unit_test(recovered_after_three_windows),
		cmocka_unit_test(only_windows_in_a_row_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
