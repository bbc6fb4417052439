/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule is part of the search: schedules other than 1F1B are chosen if they are faster and memory allows, and only schedules that
 * are allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "tests/unit/solver_inputs.h"

#define LAYERS 24
#define PARAMS 1e6 /* per layer: 16 bytes each */
#define FORWARD_S 1e-3
#define KEPT 1e6   /* bytes per layer and micro-batch */
#define BIT(schedule) (1u << HSPMD_SCHEDULE_##schedule)

/* Equal layers of forward_s, and 2.1 ms backward. */
static struct hspmd_profile *layers_alike(double forward_s)
{
	struct hspmd_error err = { "" };
	json_t *layers = json_array(), *forward = json_array(), *backward = json_array();
	for (int l = 0; l < LAYERS; l++) {
		json_array_append_new(layers, json_pack("{s:s, s:f, s:f, s:f}", "name", "layer", "params", PARAMS, "output_elems", 1000.0,
		                                        "activation_bytes", KEPT));
		json_array_append_new(forward, json_real(forward_s));
		json_array_append_new(backward, json_real(2.1e-3));
	}
	json_t *value = json_pack("{s:s, s:s, s:i, s:i, s:o, s:[{s:s, s:i, s:i, s:o, s:o, s:n}]}", "format", HSPMD_PROFILE_FORMAT, "model",
	                          "alike", "seq_len", 16, "dtype_bytes", 4, "layers", layers, "times", "device_type", "a", "tp", 1,
	                          "micro_batch", 1, "forward_s", forward, "backward_s", backward, "optimizer_s");
	struct hspmd_profile *p = hspmd_profile_from_json(value, "profile", &err);
	json_decref(value);
	if (!p)
		fail_msg("%s", err.text);
	return p;
}

/* Four devices with `bytes` of memory each. */
static struct hspmd_cluster *four(double bytes)
{
	char *text = hspmd_asprintf(
	        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"a\": {\"kind\": \"cpu\", \"memory_bytes\": %.0f, \"gbytes_per_s\": "
	        "100,"
	        "\"peak_tflops\": {\"fp32\": 1}}}, \"nodes\": [{\"name\": \"n\", \"devices\": [{\"type\": \"a\", \"count\": 4}]}],"
	        "\"links\": [{\"scope\": \"node\", \"alpha_s\": 1e-7, \"gbytes_per_s\": 50}]}",
	        bytes);
	struct hspmd_cluster *c = cluster_from(text);
	free(text);
	return c;
}

static struct hspmd_plan *solve(const struct hspmd_cluster *c, const struct hspmd_profile *p, unsigned schedules, struct hspmd_error *err)
{
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	caps.recompute = 1u << HSPMD_RECOMPUTE_NONE;
	if (schedules)
		caps.schedules = schedules;
	struct hspmd_solve_request r = { .global_batch = 8, .micro_batch = 1, .caps = &caps };
	return hspmd_solve(c, NULL, p, &r, NULL, err);
}

/* Seconds of the fastest plan with these schedules; *schedule is the plan's. Fails unless the plan fits and reads back. */
static double step_of(double forward_s, double bytes, unsigned schedules, enum hspmd_schedule *schedule)
{
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = four(bytes);
	struct hspmd_profile *p = layers_alike(forward_s);
	struct hspmd_plan *plan = solve(c, p, schedules, &err);
	if (!plan)
		fail_msg("%s", err.text);
	check_plan(plan, c, LAYERS);
	for (int i = 0; i < plan->predicted.device_count; i++)
		assert_true(plan->predicted.memory_bytes[i] <= bytes);
	for (int i = 0; i < plan->pipeline_count; i++)
		for (int k = 0; k < plan->pipelines[i].stage_count; k++)
			assert_int_equal(plan->pipelines[i].stages[k].recompute, HSPMD_RECOMPUTE_NONE);
	double step = plan->predicted.step_s;
	*schedule = plan->schedule;
	hspmd_plan_destroy(plan);
	hspmd_profile_destroy(p);
	hspmd_cluster_destroy(c);
	return step;
}

static double step_with(double bytes, unsigned schedules, enum hspmd_schedule *schedule)
{
	return step_of(FORWARD_S, bytes, schedules, schedule);
}

/* The model takes 384 MB, so there is one pipeline of four stages, in which 1F1B idles 3 rounds of 11. */
static void the_fastest_order_is_chosen(void **state)
{
	(void)state;
	const double room = 1.6e8;
	enum hspmd_schedule chosen, plain, split, rounds;
	double best = step_with(room, 0, &chosen), fifo = step_with(room, BIT(1F1B), &plain);
	double split_s = step_with(room, BIT(1F1B) | BIT(ZB_H1), &split),
	       interleaved_s = step_with(room, BIT(1F1B) | BIT(INTERLEAVED), &rounds);
	assert_int_equal(plain, HSPMD_SCHEDULE_1F1B);
	assert_int_equal(split, HSPMD_SCHEDULE_ZB_H1);
	assert_int_equal(rounds, HSPMD_SCHEDULE_INTERLEAVED);
	assert_int_not_equal(chosen, HSPMD_SCHEDULE_1F1B);
	assert_true(split_s < 0.9 * fifo);
	assert_true(interleaved_s < 0.9 * fifo);
	assert_true(best <= split_s && best <= interleaved_s);
	/* Lower bound: every device works all the time. */
	assert_true(best > 8 * LAYERS * 3.1e-3 / 4);
}

/* In the least memory in which 1F1B runs, more micro-batches in flight do not fit. */
static void memory_decides(void **state)
{
	(void)state;
	enum hspmd_schedule schedule;
	double least = 0, room;
	struct hspmd_error err = { "" };
	for (room = 1.2e8; least == 0 && room < 4e8; room += 1e6) {
		struct hspmd_cluster *c = four(room);
		struct hspmd_profile *p = layers_alike(FORWARD_S);
		struct hspmd_plan *plan = solve(c, p, BIT(1F1B), &err);
		least = plan ? room : 0;
		hspmd_plan_destroy(plan);
		hspmd_profile_destroy(p);
		hspmd_cluster_destroy(c);
	}
	assert_true(least > 0);
	step_with(least, 0, &schedule);
	assert_int_equal(schedule, HSPMD_SCHEDULE_1F1B);
	/* Not even with recomputation, which is not allowed here, if it costs next to nothing. */
	step_of(FORWARD_S / 100, least, 0, &schedule);
	assert_int_equal(schedule, HSPMD_SCHEDULE_1F1B);
}

static void interleaving_alone_is_an_error(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = four(1e9);
	struct hspmd_profile *p = layers_alike(FORWARD_S);
	assert_null(solve(c, p, BIT(INTERLEAVED), &err));
	assert_non_null(strstr(err.text, "interleaved"));
	hspmd_profile_destroy(p);
	hspmd_cluster_destroy(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_fastest_order_is_chosen),
		cmocka_unit_test(memory_decides),
		cmocka_unit_test(interleaving_alone_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
