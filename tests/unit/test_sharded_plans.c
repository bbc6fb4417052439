/* SPDX-License-Identifier: Apache-2.0 */
/* Plans under ZeRO-2 and 3 (search/sharded_plans.c): chosen where nothing else fits, with what the devices' memory allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "controller/solver/report/explain.h"
#include "controller/solver/sim/predict.h"
#include "controller/solver/solver.h"
#include "tests/unit/solver_inputs.h"

/* Devices of two types that can hold nothing but parts of the model: four of the one, `more` of the other. */
static struct hspmd_cluster *small_devices(long memory, int more)
{
	char text[700];
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"a\":{\"kind\":\"cpu\",\"memory_bytes\":%ld,\"gbytes_per_s\":20,"
	         "\"peak_tflops\":{\"fp32\":0.2}},\"b\":{\"kind\":\"cpu\",\"memory_bytes\":%ld,\"gbytes_per_s\":20,\"peak_tflops\":{"
	         "\"fp32\":0.1}}},\"nodes\":[{\"name\":\"x\",\"devices\":[{\"type\":\"a\",\"count\":4}]},{\"name\":\"y\",\"devices\":[{"
	         "\"type\":\"b\",\"count\":%d}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":5},{\"scope\":"
	         "\"cluster\","
	         "\"alpha_s\":1e-5,\"gbytes_per_s\":2}]}",
	         memory, memory, more);
	return cluster_from(text);
}

static const char large_layers[] = "{\"model_type\":\"llama\",\"hidden_size\":1024,\"intermediate_size\":2816,\"num_hidden_layers\":2,"
                                   "\"num_attention_heads\":1,\"num_key_value_heads\":1,\"max_position_embeddings\":256,\"vocab_size\":"
                                   "1000,\"tie_word_embeddings\":false,\"rms_norm_eps\":1e-5}";

static struct hspmd_plan *expect_parts(const struct hspmd_cluster *c, const struct hspmd_model_facts *f,
                                       const struct hspmd_solve_request *request)
{
	struct hspmd_error err = { "" };
	struct hspmd_plan *p = hspmd_solve(c, f, NULL, request, NULL, &err);
	if (!p)
		fail_msg("%d devices, at most %d nodes: %s", c->device_count, request->limits.max_nodes, err.text);
	assert_int_equal(p->zero_stage, 3);
	assert_int_equal(p->pipeline_count, c->device_count);
	assert_true(hspmd_plan_in_step(p));
	return p;
}

/* ZeRO-3 is chosen where nothing else fits, with samples by speed in as many micro-batches; also for a job, which always has a limit on
 * nodes. */
static void parts_are_chosen_where_nothing_else_fits(void **unused)
{
	(void)unused;
	struct hspmd_cluster *c = small_devices(206000000, 4);
	struct hspmd_model *m = model_from(large_layers);
	struct hspmd_model_facts *f = facts_of(m, 64);
	for (int most = 0; most <= 2; most += 2)
		hspmd_plan_destroy(
		        expect_parts(c, f, &(struct hspmd_solve_request){ .global_batch = 32, .seq_len = 64, .limits.max_nodes = most }));
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

/* The other form of the plan is slower, or the fullest device has no room for it; the plan says which it is. */
static void check_prefetch(const struct hspmd_cluster *c, const struct hspmd_model_facts *f, struct hspmd_plan *p)
{
	struct hspmd_error err = { "" };
	double step_s = p->predicted.step_s, memory = (double)c->types[0].memory_bytes, most = 0;
	char *why = hspmd_plan_explain(c, f, NULL, HSPMD_PRECISION_FP32, NULL, p);
	if (!strstr(why, p->no_prefetch ? "gathered when a pass comes to it" : "gathered while the layer before it computes"))
		fail_msg("%s", why);
	free(why);
	p->no_prefetch = !p->no_prefetch;
	assert_int_equal(hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_FP32, p, NULL, &err), 0);
	for (int d = 0; d < p->predicted.device_count; d++)
		most = p->predicted.memory_bytes[d] > most ? p->predicted.memory_bytes[d] : most;
	p->no_prefetch = !p->no_prefetch;
	assert_true(p->no_prefetch ? most > memory && p->predicted.step_s < step_s : most < memory && p->predicted.step_s > step_s);
}

/* Weights are gathered ahead, for a shorter step, unless there is no room for those of two layers. A vocabulary is so large that no device
 * could have all of its state. */
static void prefetch_is_left_out_where_memory_is_short(void **unused)
{
	(void)unused;
	struct hspmd_error ignored;
	struct hspmd_cluster *c = small_devices(100000000, 12);
	c->types[0].gbytes_per_s = c->types[1].gbytes_per_s = 200; /* cores that soon have copied what they send and receive */
	struct hspmd_model *m =
	        model_from("{\"model_type\":\"llama\",\"hidden_size\":512,\"intermediate_size\":1408,\"num_hidden_layers\":2,"
	                   "\"num_attention_heads\":1,\"num_key_value_heads\":1,\"max_position_embeddings\":256,"
	                   "\"vocab_size\":20000,\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-5}");
	struct hspmd_model_facts *f = facts_of(m, 64);
	int seen[2] = { 0 };
	for (double memory = 80e6; memory < 250e6; memory *= 1.04) {
		c->types[0].memory_bytes = c->types[1].memory_bytes = (int64_t)memory;
		struct hspmd_plan *p =
		        hspmd_solve(c, f, NULL, &(struct hspmd_solve_request){ .global_batch = 32, .seq_len = 64 }, NULL, &ignored);
		if (p && p->zero_stage == 3 && !p->has_zero_shares) {
			seen[p->no_prefetch]++;
			check_prefetch(c, f, p);
		}
		hspmd_plan_destroy(p);
	}
	if (!seen[0] || !seen[1])
		fail_msg("%d plans gather ahead, %d do not", seen[0], seen[1]);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

/* A step of ZeRO-3 on the first devices of the first node, or `apart` of two nodes, with a link of `gbytes_per_s` and this slowdown: what
 * gathering ahead saves of the gatherings, as a part of them. *last: what of it is that the last layer's weights stay for its backward
 * pass. */
static double saved_by_prefetch(const struct hspmd_model_facts *f, bool apart, double gbytes_per_s, double slowdown, double *last)
{
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = small_devices(8000000000, 1);
	const struct hspmd_facts_work *head = &hspmd_model_layer_facts(f, f->layer_count - 1)->params;
	double step_s[2];
	char text[512];
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":1,\"seq_len\":64,\"schedule\":\"1f1b\","
	         "\"zero_stage\":3,\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,4],\"devices\":["
	         "\"x:0\"]}]},{\"micro_batches\":2,\"stages\":[{\"layers\":[0,4],\"devices\":[\"%s\"]}]}]}",
	         apart ? "y:0" : "x:1");
	c->nodes[0].slowdown = c->nodes[1].slowdown = slowdown;
	c->links[0].gbytes_per_s = c->links[1].gbytes_per_s = gbytes_per_s;
	c->types[1].peak_tflops[HSPMD_PRECISION_FP32] = c->types[0].peak_tflops[HSPMD_PRECISION_FP32];
	for (int late = 0; late < 2; late++) {
		json_t *value = json_loads(text, 0, NULL);
		struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, f->layer_count, &err);
		json_decref(value);
		if (!p)
			fail_msg("%s", err.text);
		p->no_prefetch = late;
		if (hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_FP32, p, NULL, &err))
			fail_msg("%s", err.text);
		step_s[late] = p->predicted.step_s;
		hspmd_plan_destroy(p);
	}
	/* In two passes of two micro-batches, each layer in a message of its own. */
	double alpha = c->links[0].alpha_s, rate = gbytes_per_s * 1e9;
	double gatherings = 2 * 2 * (f->layer_count * alpha + 4 * f->params / 2 / rate);
	*last = 2 * (alpha + 4 * (head->replicated + head->sharded) / 2 / rate) / gatherings;
	hspmd_cluster_destroy(c);
	return (step_s[1] - step_s[0]) / gatherings;
}

/* The cores that compute copy messages, too: by a fast link weights are there no earlier if they are gathered ahead, by a slow one between
 * nodes as far as the cores have nothing to copy. Within a node nothing but cores moves them. */
static void cores_hide_no_copies_of_their_own(void **unused)
{
	(void)unused;
	struct hspmd_model *m = model_from(large_layers);
	struct hspmd_model_facts *f = facts_of(m, 64);
	/* 20 GB/s of memory, of which streams reach 0.76, move a byte four times */
	double last, copies_gbytes_per_s = 20 * 0.76 / 4, saved = saved_by_prefetch(f, true, copies_gbytes_per_s * 1.1, 1, &last);
	assert_float_equal(saved, last, 1e-6);
	saved = saved_by_prefetch(f, true, copies_gbytes_per_s / 2, 1, &last);
	assert_true(saved > last + 0.2 && saved < last + 0.5);
	saved = saved_by_prefetch(f, true, copies_gbytes_per_s / 2, 2.2, &last);
	assert_float_equal(saved, last, 1e-6);
	saved = saved_by_prefetch(f, false, copies_gbytes_per_s / 2, 1, &last);
	assert_float_equal(saved, last, 1e-6);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* Devices of the second type have too little memory for an equal part, but the others have more to spare. */
static void parts_follow_free_memory(void **unused)
{
	(void)unused;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = small_devices(206000000, 4);
	struct hspmd_model *m = model_from(large_layers);
	struct hspmd_model_facts *f = facts_of(m, 64);
	struct hspmd_solve_request r = { .global_batch = 32, .seq_len = 64 };
	c->types[0].memory_bytes = 270000000;
	c->types[1].memory_bytes = 160000000;
	struct hspmd_plan *p = hspmd_solve(c, f, NULL, &r, NULL, &err);
	if (!p)
		fail_msg("%s", err.text);
	assert_true(p->zero_stage > 0 && p->has_zero_shares);
	for (int d = 0; d < p->predicted.device_count; d++) {
		int type = c->devices[p->predicted.devices[d]].type;
		assert_true(p->predicted.memory_bytes[d] <= (double)c->types[type].memory_bytes);
	}
	for (int i = 0; i < p->pipeline_count; i++) {
		double part = hspmd_plan_zero_part(p, i, 0), even = 1.0 / p->pipeline_count;
		assert_true(c->devices[p->pipelines[i].stages[0].devices[0]].type ? part < even : part > even);
	}
	char *why = hspmd_plan_explain(c, f, NULL, HSPMD_PRECISION_FP32, NULL, p);
	if (!strstr(why, "by what their devices have free"))
		fail_msg("%s", why);
	free(why);
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

/* Devices come and go: the search begins with the plan of the others, to which it must not add a stage. (Of 32 samples, the eighth device
 * would not make a step shorter.) */
static void parts_follow_the_devices(void **unused)
{
	(void)unused;
	static const int more[] = { 3, 4, 4, 3 };
	struct hspmd_model *m = model_from(large_layers);
	struct hspmd_model_facts *f = facts_of(m, 64);
	struct hspmd_cluster *before = NULL;
	struct hspmd_plan *plan = NULL;
	for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
		struct hspmd_cluster *now = small_devices(210000000, more[i]);
		struct hspmd_plan *next = expect_parts(
		        now, f,
		        &(struct hspmd_solve_request){ .global_batch = 36, .seq_len = 64, .current = plan, .current_cluster = before });
		hspmd_plan_destroy(plan);
		hspmd_cluster_destroy(before);
		plan = next;
		before = now;
	}
	hspmd_plan_destroy(plan);
	hspmd_cluster_destroy(before);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_are_chosen_where_nothing_else_fits),
		cmocka_unit_test(prefetch_is_left_out_where_memory_is_short),
		cmocka_unit_test(cores_hide_no_copies_of_their_own),
		cmocka_unit_test(parts_follow_free_memory),
		cmocka_unit_test(parts_follow_the_devices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
