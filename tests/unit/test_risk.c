/* SPDX-License-Identifier: Apache-2.0 */
/* What losses of nodes that were seen make of a job: its copies, its plan, and that it follows when they change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "controller/run/risk.h"
#include "tests/unit/solver_inputs.h"
#include "tests/unit/world.h"

#define MOVES 100000

static int copies(int asked, int nodes, double losses, double together)
{
	struct hspmd_job job = { .checkpoint = { .every_s = 60, .replicas = asked } };
	struct hspmd_model *model = small_gpt2(8);
	json_t *v = json_pack("{s:f, s:f}", "losses_per_node_s", losses, "together", together);
	struct hspmd_risk risk = run_risk_read(v);
	int n = run_risk_copies(&job, model, nodes, &risk);
	json_decref(v);
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
	struct hspmd_risk none = run_risk_read(NULL); /* hspmdctld is not there */
	assert_float_equal(none.losses_per_s, 0, 0);
	json_t *wild = json_pack("{s:f, s:f}", "losses_per_node_s", 1e9, "together", -5.0);
	assert_float_equal(run_risk_read(wild).losses_per_s, 0, 0);
	assert_float_equal(run_risk_read(wild).together, 0, 0);
	json_decref(wild);
}

/* A plan that is a hundredth faster and loses a part of the state with each worker: worth it where nodes are seldom lost, not where they often are. */
static void test_plans_are_weighed_by_what_they_commit(void **state)
{
	(void)state;
	struct hspmd_job job = { .global_batch = 64, .seq_len = 128, .checkpoint = { .every_s = 60 } };
	struct hspmd_model *model = small_gpt2(8);
	struct hspmd_plan whole = { .pipeline_count = 4, .predicted = { .step_s = 1 } }, sharded = { .pipeline_count = 4, .zero_stage = 1, .predicted = { .step_s = 0.99 } };
	struct hspmd_risk seldom = { 1e-7, 0 }, often = { 1e-4, 0 };
	assert_true(run_risk_prefers(&job, model, 4, 0, &seldom, &whole, &sharded));
	assert_false(run_risk_prefers(&job, model, 4, 0, &often, &whole, &sharded));
	assert_false(run_risk_prefers(&job, model, 4, 0, &seldom, &sharded, &whole));
	/* With copies in other nodes' memory little is undone. */
	assert_true(run_risk_prefers(&job, model, 4, 2, &often, &whole, &sharded));
	hspmd_model_destroy(model);
}

static void run(struct world *w, int generations)
{
	int status = -1;
	for (int i = 0; i < MOVES && world_generations(w) < generations && !world_ended(w, &status); i++)
		if (!world_move(w))
			world_wait(w);
	assert_true(world_generations(w) >= generations);
}

/* A job that trains hears that nodes are lost often: it goes on in a new generation, with more copies and no step lost; the same again changes nothing. */
static void test_a_running_job_follows_the_risk(void **state)
{
	(void)state;
	struct hspmd_model *model = small_gpt2(8);
	struct world *w = world_create(&(struct world_options){ .seed = 5, .nodes = 4, .devices_per_node = 1, .held = 4, .steps = 100000, .checkpoints = true, .model = model });
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
	hspmd_model_destroy(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_plans_are_weighed_by_what_they_commit),
		cmocka_unit_test(test_a_running_job_follows_the_risk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
