/* SPDX-License-Identifier: Apache-2.0 */
/* How observed node losses affect a job: its copies, its plan, and its reaction when they change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "controller/core/controller_internal.h"
#include "controller/core/risk.h"
#include "controller/run/choose_plan.h"
#include "tests/unit/draw.h"
#include "tests/unit/solver_inputs.h"
#include "tests/unit/world.h"

#define MOVES 100000

static int copies_saved(int asked, int nodes, double losses, double correlated, struct run_intervals every)
{
	struct hspmd_job job = { .checkpoint = { .replicas = asked } };
	struct hspmd_model_facts *model = small_gpt2(8, 256);
	json_t *v = json_pack("{s:f, s:f}", "losses_per_node_s", losses, "together", correlated);
	struct hspmd_risk risk = run_risk_read(v);
	int n = run_risk_copies(&job, model, nodes, &every, &risk);
	json_decref(v);
	hspmd_model_facts_destroy(model);
	return n;
}

static int copies(int asked, int nodes, double losses, double correlated)
{
	return copies_saved(asked, nodes, losses, correlated, (struct run_intervals){ 60, 600 });
}

/* The less often shared storage is written, the more copies; the same for the interval between copies, for rare copies cost less. */
static void test_copies_follow_the_intervals(void **state)
{
	(void)state;
	int more = 0, many = 0;
	for (double losses = 1e-6; losses < 1e-2; losses *= 3) {
		int usual = copies_saved(0, 8, losses, 0.3, (struct run_intervals){ 0.01, 600 });
		int older = copies_saved(0, 8, losses, 0.3, (struct run_intervals){ 0.01, 60000 }),
		    cheaper = copies_saved(0, 8, losses, 0.3, (struct run_intervals){ 60, 600 });
		assert_true(older >= usual && cheaper >= usual);
		more += older > usual;
		many += cheaper > usual;
	}
	assert_true(more > 0 && many > 0);
}

/* Expected time per second of training, up to a factor, with random failures mean_s apart on average, and a checkpoint of cost_s after each
 * every_s: Daly 2006, equation 20. */
static double takes(double every_s, double cost_s, double mean_s)
{
	return expm1((every_s + cost_s) / mean_s) / every_s;
}

static void test_the_interval_is_the_best(void **state)
{
	(void)state;
	const double cost[] = { 0.001, 0.1, 1, 30 }, mean[] = { 100, 3600, 86400 };
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 3; k++) {
			double best = INFINITY, chosen = hspmd_checkpoint_interval(cost[i], mean[k]);
			for (double t = cost[i] / 10; t < 10 * mean[k]; t *= 1.02)
				best = fmin(best, takes(t, cost[i], mean[k]));
			assert_true(takes(chosen, cost[i], mean[k]) <= 1.002 * best);
		}
	/* Expensive checkpoints are written less often; more failures mean more checkpoints. */
	assert_true(hspmd_checkpoint_interval(2, 3600) > hspmd_checkpoint_interval(1, 3600));
	assert_true(hspmd_mean_time_between_failures(4, 1000, 0, 0) > hspmd_mean_time_between_failures(8, 1000, 0, 0));
	assert_true(hspmd_mean_time_between_failures(4, 1000, 1, 0) < hspmd_mean_time_between_failures(4, 1000, 0, 0));
	assert_float_equal(hspmd_mean_time_between_failures(4, 0, 0, 1e-4), 2500, 1e-6);
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
	struct hspmd_risk none = run_risk_read(NULL); /* there is no hspmdctld */
	assert_float_equal(none.losses_per_s, 0, 0);
	json_t *wild = json_pack("{s:f, s:f}", "losses_per_node_s", 1e9, "together", -5.0);
	assert_float_equal(run_risk_read(wild).losses_per_s, 0, 0);
	assert_float_equal(run_risk_read(wild).correlated, 0, 0);
	json_decref(wild);
}

/* A plan that is 1 % faster, but loses a part of the state with each worker, is better if nodes are rarely lost, and worse if they often
 * are. */
static void test_plans_are_weighed_by_what_they_commit(void **state)
{
	(void)state;
	struct hspmd_job job = { .global_batch = 64, .seq_len = 128 };
	struct hspmd_model_facts *model = small_gpt2(8, 256);
	struct hspmd_plan whole = { .pipeline_count = 4, .predicted = { .step_s = 1 } },
	                  sharded = { .pipeline_count = 4, .zero_stage = 1, .predicted = { .step_s = 0.99 } };
	struct hspmd_risk seldom = { 1e-7, 0 }, often = { 1e-4, 0 };
	struct run_intervals every = { 60, 600 }, rarely = { 60, 600000 };
	assert_true(run_risk_prefers(&job, model, 4, 0, &every, &seldom, &whole, &sharded));
	assert_false(run_risk_prefers(&job, model, 4, 0, &rarely, &seldom, &whole, &sharded));
	assert_false(run_risk_prefers(&job, model, 4, 0, &every, &often, &whole, &sharded));
	assert_false(run_risk_prefers(&job, model, 4, 0, &every, &seldom, &sharded, &whole));
	/* With copies in other nodes' memory little work is lost. */
	assert_true(run_risk_prefers(&job, model, 4, 2, &every, &often, &whole, &sharded));
	hspmd_model_facts_destroy(model);
}

static json_t *equal_nodes(int count)
{
	return json_pack("{s:s, s:{s:{s:s, s:f, s:f, s:{s:f}}}, s:[{s:o, s:[{s:s, s:i}]}], s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}", "format",
	                 HSPMD_CLUSTER_FORMAT, "device_types", "c", "kind", "cpu", "memory_bytes", 1e9, "gbytes_per_s", 10.0, "peak_tflops",
	                 "fp32", 0.01, "nodes", "name", json_sprintf("n[000-%03d]", count - 1), "devices", "type", "c", "count", 1, "links",
	                 "scope", "node", "alpha_s", 1e-6, "gbytes_per_s", 5.0, "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", 1.0);
}

/* The stage of ZeRO of the plan that is chosen; -1: there is none. */
static int zero_chosen(const struct run_planning *p, int nodes, double losses_per_node_s, double every_s)
{
	struct hspmd_error err = { "" };
	json_t *input =
	        json_pack("{s:o, s:n, s:i, s:f, s:f, s:{s:f, s:f}}", "cluster", equal_nodes(nodes), "current", "copies", 0, "every_s",
	                  every_s, "shared_every_s", 600.0, "risk", "losses_per_node_s", losses_per_node_s, "together", 0.1);
	json_t *answer = run_choose_plan(p, input, &err);
	if (!answer)
		fail_msg("%s", err.text);
	json_t *zero = json_object_get(json_object_get(answer, "plan"), "zero_stage");
	int stage = (int)json_integer_value(zero);
	json_decref(answer);
	json_decref(input);
	return stage;
}

/* Plans that shard the state are weighed against others once, and again when the number of nodes, the rate of losses or the intervals have
 * changed; until then only plans of the better kind are searched for. Of three decisions that are remembered, one (HSPMD_DRAW says which)
 * is compared with one that is made anew, with HSPMD_LONG all. */
static void test_what_was_decided_is_remembered(void **state)
{
	(void)state;
	struct hspmd_job job = { .global_batch = 132, .seq_len = 128, .elastic = { .min_nodes = 1, .max_nodes = 100 } };
	struct hspmd_model_facts *model = small_gpt2(1, 128);
	struct run_comparison compared = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct run_planning with = { .job = &job, .facts = model, .layers = 3, .compared = &compared }, without = with;
	without.compared = NULL;
	static const struct {
		int nodes;
		double losses, every_s;
		int made;
	} cases[] = {
		{ 66, 1e-9, 60, 1 }, { 65, 1e-9, 60, 1 }, { 66, 1.05e-9, 60, 1 },
		{ 65, 1e-9, 63, 1 }, { 64, 1e-9, 60, 2 }, /* 2 of 66 from the comparison, though one step from the last call */
		{ 64, 2e-9, 60, 3 }, { 64, 2e-9, 90, 4 }, { 63, 2e-9, 90, 4 },
		{ 66, 2e-9, 90, 5 }, { 66, 0, 90, 5 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int zero = zero_chosen(&with, cases[i].nodes, cases[i].losses, cases[i].every_s);
		assert_int_equal(compared.made, cases[i].made);
		if (i > 0 && i < 4 && draw_takes((unsigned)i, 3)) /* remembered */
			assert_int_equal(zero > 0, zero_chosen(&without, cases[i].nodes, cases[i].losses, cases[i].every_s) > 0);
	}
	/* What is remembered decides. */
	compared.sharded = false;
	assert_int_equal(zero_chosen(&with, 66, 2e-9, 90), 0);
	compared.sharded = true;
	assert_true(zero_chosen(&with, 66, 2e-9, 90) > 0);
	assert_int_equal(compared.made, 5);
	hspmd_model_facts_destroy(model);
}

static void run(struct world *w, int generations)
{
	int status = -1;
	for (int i = 0; i < MOVES && world_generations(w) < generations && !world_ended(w, &status); i++)
		if (!world_move(w))
			world_wait(w);
	assert_true(world_generations(w) >= generations);
}

/* However often nodes are lost: a checkpoint is written no more often than every ten seconds, for half of the time, and at least every half
 * hour. A job's own interval holds as it is. */
static void test_the_interval_is_bounded(void **state)
{
	(void)state;
	struct hspmd_job job = { 0 };
	struct run_config config = { .job = &job };
	struct hspmd_controller m = { .config = &config, .now = 1000, .risk = { .losses_per_s = 1 } };
	double before = checkpoint_interval_s(&m); /* none was measured */
	assert_true(before > 10 && before < 1800);
	m.checkpoint_seconds = 1;
	m.checkpoint_cost_s = 0.01;
	assert_float_equal(checkpoint_interval_s(&m), 10, 0);
	m.checkpoint_seconds = 400;
	assert_float_equal(checkpoint_interval_s(&m), 800, 0);
	m.checkpoint_seconds = 4000;
	assert_float_equal(checkpoint_interval_s(&m), 1800, 0);
	job.checkpoint.every_s = 3;
	assert_float_equal(checkpoint_interval_s(&m), 3, 0);
}

/* A training job learns that nodes are lost often: it continues in a new generation with more copies, and loses no step. The same report
 * again changes nothing. */
static void test_a_running_job_follows_the_risk(void **state)
{
	(void)state;
	struct hspmd_model_facts *model = small_gpt2(8, 256);
	struct world *w = world_create(&(struct world_options){ .seed = 5,
	                                                        .nodes = 4,
	                                                        .devices_per_node = 1,
	                                                        .held = 4,
	                                                        .steps = 100000,
	                                                        .checkpoints = true,
	                                                        .facts = model,
	                                                        .shared_every_s = 5 });
	run(w, 1);
	for (int i = 0; i < 2000; i++)
		if (!world_move(w))
			world_wait(w);
	assert_int_equal(world_copies(w), 1);
	int before = world_generations(w);
	world_risk(w, 0, 0);
	world_risk(w, 0.1, 0.9);
	run(w, before + 1);
	assert_true(world_copies(w) > 1);
	for (int i = 0; i < 2000; i++)
		if (!world_move(w))
			world_wait(w);
	int now = world_generations(w);
	world_risk(w, 0.1, 0.9);
	for (int i = 0; i < 2000; i++)
		if (!world_move(w))
			world_wait(w);
	assert_int_equal(world_generations(w), now);
	assert_int_equal(world_steps_lost(w), 0);
	world_destroy(w);
	hspmd_model_facts_destroy(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_copies_follow_the_intervals),
		cmocka_unit_test(test_the_interval_is_the_best),
		cmocka_unit_test(test_the_interval_is_bounded),
		cmocka_unit_test(test_plans_are_weighed_by_what_they_commit),
		cmocka_unit_test(test_what_was_decided_is_remembered),
		cmocka_unit_test(test_a_running_job_follows_the_risk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
