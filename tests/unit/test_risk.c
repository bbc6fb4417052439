/* SPDX-License-Identifier: Apache-2.0 */
/* How observed node losses affect a job: its copies, its plan, and its reaction when they change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "controller/core/risk.h"
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

static void run(struct world *w, int generations)
{
	int status = -1;
	for (int i = 0; i < MOVES && world_generations(w) < generations && !world_ended(w, &status); i++)
		if (!world_move(w))
			world_wait(w);
	assert_true(world_generations(w) >= generations);
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
		cmocka_unit_test(test_plans_are_weighed_by_what_they_commit),
		cmocka_unit_test(test_a_running_job_follows_the_risk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
