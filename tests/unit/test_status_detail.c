/* SPDX-License-Identifier: Apache-2.0 */
/* What a live view is told of devices, steps and events, from what workers report. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/core/controller_internal.h"
#include "tests/unit/solver_inputs.h"

static const char cluster_text[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"g\":{\"kind\":\"cpu\",\"memory_bytes\":8000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n0\",\"devices\":[{\"type\":\"g\",\"count\":2}]},{\"name\":\"n1\","
        "\"devices\":[{\"type\":\"g\",\"count\":1}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5},{\"scope\":"
        "\"cluster\",\"alpha_s\":1e-5,\"gbytes_per_s\":1}]}";
static const char plan_text[] =
        "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":64,\"schedule\":\"1f1b\",\"zero_stage\":0,"
        "\"pipelines\":[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n0:0\"]},{\"layers\":[3,6],\"devices\":["
        "\"n1:0\"]}]}]}";

/* Node n0 has a device that the plan does not use. */
struct scene {
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct worker worker[3], *of_node[2][2], *of_plan[2];
	struct node node[2], *nodes[2];
	struct bound_plan bound_plan;
	struct hspmd_controller m;
};

static void scene_open(struct scene *x)
{
	static char names[2][4] = { "n0", "n1" };
	struct hspmd_error err;
	json_t *plan = json_loads(plan_text, 0, NULL);
	memset(x, 0, sizeof *x);
	x->cluster = cluster_from(cluster_text);
	x->plan = hspmd_plan_from_json(plan, "plan", x->cluster, -1, &err);
	if (!x->plan)
		fail_msg("%s", err.text);
	json_decref(plan);
	for (int w = 0; w < 3; w++) {
		x->worker[w] = (struct worker){ .node = &x->node[w / 2], .index = w % 2 };
		snprintf(x->worker[w].address, sizeof x->worker[w].address, "n%d:%d", w / 2, w % 2);
		x->of_node[w / 2][w % 2] = &x->worker[w];
	}
	for (int n = 0; n < 2; n++) {
		x->node[n] = (struct node){ .name = names[n], .held = true, .worker = x->of_node[n], .workers = 2 - n };
		x->node[n].part = hspmd_cluster_part(x->cluster, &n, 1, &err);
		assert_non_null(x->node[n].part);
		x->nodes[n] = &x->node[n];
	}
	x->of_plan[0] = &x->worker[0];
	x->of_plan[1] = &x->worker[2];
	x->bound_plan = (struct bound_plan){
		.generation = 4, .cluster = x->cluster, .plan = x->plan, .device = x->of_plan, .devices = 2, .nodes = 2
	};
	x->m = (struct hspmd_controller){ .node = x->nodes, .nodes = 2, .step_s = 2, .current = { .bound_plan = &x->bound_plan } };
}

static void scene_close(struct scene *x)
{
	for (int n = 0; n < 2; n++)
		hspmd_cluster_destroy(x->node[n].part);
	hspmd_plan_destroy(x->plan);
	hspmd_cluster_destroy(x->cluster);
}

static json_t *detail(struct scene *x)
{
	json_t *status = json_object();
	assert_int_equal(status_add_detail(&x->m, status), 0);
	return status;
}

static void report(struct worker *w, const char *text)
{
	json_t *message = json_loads(text, 0, NULL);
	assert_non_null(message);
	device_load_note(w, message);
	json_decref(message);
}

static void is(const json_t *got, const char *want)
{
	json_t *expected = json_loads(want, JSON_DECODE_ANY, NULL);
	char *text = json_dumps(got, JSON_ENCODE_ANY | JSON_SORT_KEYS);
	if (!json_equal(got, expected))
		fail_msg("%s\nis not\n%s", text, want);
	free(text);
	json_decref(expected);
}

static void devices(void **state)
{
	struct scene x;
	(void)state;
	scene_open(&x);
	/* A quarter of each step; four steps since the last report. What was reported under an earlier plan does not count. */
	report(&x.worker[0], "{\"generation\": 4, \"compute_s\": 0.5, \"steps\": 4, \"memory_bytes\": 1000, \"sent_bytes\": 800}");
	report(&x.worker[2], "{\"generation\": 3, \"compute_s\": 1.0, \"memory_bytes\": 2000, \"sent_bytes\": 10}");
	json_t *status = detail(&x), *list = json_object_get(status, "device_list");
	is(list, "[{\"device\": \"n0:0\", \"type\": \"g\", \"memory_total_bytes\": 8000000000, \"pipeline\": 0, \"stage\": 0, "
	         "\"layers\": [0, 3], \"memory_bytes\": 1000, \"busy\": 0.25, \"sent_per_s\": 100.0}, {\"device\": \"n1:0\", "
	         "\"type\": \"g\", \"memory_total_bytes\": 8000000000, \"pipeline\": 0, \"stage\": 1, \"layers\": [3, 6]}, "
	         "{\"device\": \"n0:1\", \"type\": \"g\", \"memory_total_bytes\": 8000000000}]");
	json_decref(status);
	/* Of a job that has no plan yet, what it holds. */
	x.m.current.bound_plan = NULL;
	status = detail(&x);
	assert_int_equal(json_array_size(json_object_get(status, "device_list")), 3);
	is(json_object_get(status, "history"), "[]");
	json_decref(status);
	scene_close(&x);
}

static void steps_and_events(void **state)
{
	struct scene x;
	(void)state;
	scene_open(&x);
	history_note(&x.m, 7, 1.5);
	history_note(&x.m, 8, NAN);
	x.m.events = json_array();
	for (int i = 1; i <= 40; i++)
		json_array_append_new(x.m.events, json_integer(i));
	json_t *status = detail(&x), *events = json_object_get(status, "events");
	is(json_object_get(status, "history"), "[[7, 1.5], [8, null]]");
	assert_int_equal(json_integer_value(json_array_get(events, 0)), 9);
	assert_int_equal(json_integer_value(json_array_get(events, 31)), 40);
	json_decref(status);
	for (int i = 0; i < 3 * HISTORY_STEPS; i++)
		history_note(&x.m, 100 + i, i);
	status = detail(&x);
	const json_t *history = json_object_get(status, "history");
	assert_int_equal(json_array_size(history), HISTORY_STEPS);
	is(json_array_get(history, 0), "[356, 256.0]");
	is(json_array_get(history, HISTORY_STEPS - 1), "[483, 383.0]");
	json_decref(status);
	json_decref(x.m.events);
	scene_close(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(devices), cmocka_unit_test(steps_and_events) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
