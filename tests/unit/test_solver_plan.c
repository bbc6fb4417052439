/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for small clusters are valid, reasonable and predicted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/only.h"
#include "tests/unit/solver_inputs.h"

static struct hspmd_plan *solve(const struct hspmd_cluster *c, const struct hspmd_model_facts *m, int batch, struct hspmd_error *err)
{
	struct hspmd_solve_request r = { .global_batch = batch, .seq_len = 128, .precision = HSPMD_PRECISION_FP32 };
	return hspmd_solve(c, m, NULL, &r, NULL, err);
}

static void equal_devices_share_equally(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cpu_cluster((double[]){ 50, 50, 50, 50 }, 1.2);
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_plan *p = solve(c, m, 16, &err);
	assert_non_null(p);
	check_plan(p, c, 6);
	assert_int_equal(p->pipeline_count, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(p->pipelines[i].micro_batches, p->pipelines[0].micro_batches);
	double parts = p->predicted.compute_s + p->predicted.bubble_s + p->predicted.communication_s + p->predicted.sync_s;
	assert_true(fabs(parts - p->predicted.step_s) < 1e-6 * p->predicted.step_s);
	assert_int_equal(p->predicted.device_count, 4);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

static void faster_devices_get_more(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cpu_cluster((double[]){ 100, 100, 50, 50 }, 1.2);
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_plan *p = solve(c, m, 24, &err);
	assert_non_null(p);
	check_plan(p, c, 6);
	struct hspmd_cluster *slow = cpu_cluster((double[]){ 50, 50, 50, 50 }, 1.2);
	struct hspmd_plan *q = solve(slow, m, 24, &err);
	assert_non_null(q);
	assert_true(p->predicted.step_s < 0.8 * q->predicted.step_s);
	hspmd_plan_destroy(p);
	hspmd_plan_destroy(q);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
	hspmd_cluster_destroy(slow);
}

/* The fastest nodes within the limit are used, named as in the whole cluster; and one more device would help. */
static void limits_are_kept_and_explained(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cpu_cluster((double[]){ 50, 100, 50, 100 }, 1.2);
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_solve_request r = { .global_batch = 16, .seq_len = 128, .precision = HSPMD_PRECISION_FP32, .limits.max_devices = 2 };
	struct hspmd_plan *p = hspmd_solve(c, m, NULL, &r, NULL, &err);
	assert_non_null(p);
	assert_in_range(hspmd_plan_device_count(p), 1, 2);
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			assert_int_equal(p->pipelines[i].stages[s].devices[0] % 2, 1);
	char *text = hspmd_plan_explain(c, m, NULL, HSPMD_PRECISION_FP32, &r, p);
	assert_non_null(text);
	assert_non_null(strstr(text, "The fullest device"));
	/* Nodes n1 and n3 are used completely: no device of their types is spare. */
	for (int t = 0; t < c->type_count; t++) {
		char more[128];
		snprintf(more, sizeof more, t % 2 ? "\nOne more %s would " : "\n1 of the 1 %s is spare", c->types[t].name);
		assert_non_null(strstr(text, more));
	}
	assert_non_null(strstr(text, "within the limits."));
	free(text);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

/* A batch of 2 keeps two devices busy: the others are spare, and one more would be spare too. */
static void spare_devices_are_reported(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c =
	        cluster_from("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":{\"kind\":\"cpu\",\"memory_bytes\":4000000000,"
	                     "\"gbytes_per_s\":400,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n[0-4]\",\"devices\":[{\"type\":"
	                     "\"x\",\"count\":1}]}],\"links\":[{\"scope\":\"cluster\",\"alpha_s\":1e-2,\"gbytes_per_s\":0.1}]}");
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_solve_request r = { .global_batch = 2, .seq_len = 128, .precision = HSPMD_PRECISION_FP32 };
	struct hspmd_plan *p = hspmd_solve(c, m, NULL, &r, NULL, &err);
	assert_non_null(p);
	int used = hspmd_plan_device_count(p);
	assert_in_range(used, 1, 2);
	char *text = hspmd_plan_explain(c, m, NULL, HSPMD_PRECISION_FP32, &r, p), spare[128];
	assert_non_null(text);
	snprintf(spare, sizeof spare, "\n%d of the 5 x are spare: one more x would bring nothing.\n", 5 - used);
	if (!strstr(text, spare))
		fail_msg("expected '%s' in: %s", spare, text);
	free(text);
	hspmd_plan_destroy(p);
	/* With enough work no device is spare, and one more would help. */
	r.global_batch = 1024;
	p = hspmd_solve(c, m, NULL, &r, NULL, &err);
	assert_non_null(p);
	assert_int_equal(hspmd_plan_device_count(p), 5);
	text = hspmd_plan_explain(c, m, NULL, HSPMD_PRECISION_FP32, &r, p);
	assert_non_null(strstr(text, "\nOne more x would make a step "));
	assert_null(strstr(text, "spare"));
	free(text);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

/* Two stages, of which the second is half as fast and has most of the layers; two copies, so that gradients have to be summed. */
static void the_limiting_stage_is_named(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cpu_cluster((double[]){ 100, 50, 100, 50 }, 0.05);
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	static const char text[] =
	        "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":128,\"pipelines\":["
	        "{\"micro_batches\":5,\"stages\":[{\"layers\":[0,2],\"devices\":[\"%1$s\"]},{\"layers\":[2,6],\"devices\":[\"%2$s\"]}]},"
	        "{\"micro_batches\":3,\"stages\":[{\"layers\":[0,2],\"devices\":[\"%3$s\"]},{\"layers\":[2,6],\"devices\":[\"%4$s\"]}]}]}";
	char name[4][64], whole[1024];
	for (int d = 0; d < 4; d++)
		hspmd_cluster_device_address(c, d, name[d], sizeof name[d]);
	snprintf(whole, sizeof whole, text, name[0], name[1], name[2], name[3]);
	json_t *value = json_loads(whole, 0, NULL);
	assert_non_null(value);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, 6, &err);
	json_decref(value);
	if (!p || hspmd_evaluate(c, m, NULL, HSPMD_PRECISION_FP32, p, NULL, &err))
		fail_msg("%s", err.text);
	char *said = hspmd_plan_explain(c, m, NULL, HSPMD_PRECISION_FP32, NULL, p), limit[256];
	assert_non_null(said);
	snprintf(limit, sizeof limit, "Pipeline 0 ends last; its limit is stage 1 (layers 2-5 on %s, ", name[1]);
	assert_non_null(strstr(said, limit));
	assert_non_null(strstr(said, "messages to its neighbours; its 5 micro-batches are "));
	assert_non_null(strstr(said, "Stage 0 has the least to do"));
	assert_non_null(strstr(said, "Gradients are synchronised "));
	free(said);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

static void a_batch_that_cannot_be_divided_is_told(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cpu_cluster((double[]){ 50, 50, 50, 50 }, 1.2);
	struct hspmd_model_facts *m = small_gpt2(4, 128);
	struct hspmd_solve_request r = { .global_batch = 10, .seq_len = 128, .micro_batch = 3 };
	assert_null(hspmd_solve(c, m, NULL, &r, NULL, &err));
	assert_non_null(strstr(err.text, "10"));
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

/* A block that fits into the memory of four devices only, with two heads of keys and values: each device gets both. */
static void few_heads_are_replicated(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c =
	        cluster_from("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cpu\",\"memory_bytes\":9600000,"
	                     "\"gbytes_per_s\":20,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"d\","
	                     "\"count\":4}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":5}]}");
	struct hspmd_model *m = model_from("{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":1024,"
	                                   "\"num_hidden_layers\":1,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
	                                   "\"max_position_embeddings\":128,\"vocab_size\":256,\"tie_word_embeddings\":true}");
	struct hspmd_model_facts *f = facts_of(m, 128);
	struct hspmd_solve_report report = { 0 };
	struct hspmd_plan *p = solve(c, f, 4, &err);
	if (!p)
		fail_msg("%s", err.text);
	check_plan(p, c, 3);
	assert_int_equal(hspmd_plan_widest_group(p), 4);
	double step = p->predicted.step_s, bytes = p->predicted.memory_bytes[0];
	assert_int_equal(hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_FP32, p, NULL, &err), 0);
	assert_true(p->predicted.step_s == step && p->predicted.memory_bytes[0] == bytes);
	/* The search finds it again from itself, and nothing moves. */
	struct hspmd_solve_request r = { .global_batch = 4, .seq_len = 128, .precision = HSPMD_PRECISION_FP32, .current = p };
	struct hspmd_plan *again = hspmd_solve(c, f, NULL, &r, &report, &err);
	if (!again)
		fail_msg("%s", err.text);
	assert_true(report.moved_bytes == 0);
	assert_int_equal(hspmd_plan_widest_group(again), 4);
	assert_true(again->predicted.step_s == step && again->predicted.memory_bytes[0] == bytes);
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(again);
	hspmd_plan_destroy(p);
	/* Without facts about that there is no plan. */
	hspmd_model_facts_destroy(f->wide);
	f->wide = NULL;
	assert_null(solve(c, f, 4, &err));
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_devices_share_equally),   cmocka_unit_test(faster_devices_get_more),
		cmocka_unit_test(limits_are_kept_and_explained), cmocka_unit_test(spare_devices_are_reported),
		cmocka_unit_test(the_limiting_stage_is_named),   cmocka_unit_test(a_batch_that_cannot_be_divided_is_told),
		cmocka_unit_test(few_heads_are_replicated),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
