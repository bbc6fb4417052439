/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for shorter steps: where they are worth it, on which devices, in what memory, and what is said of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/solver_inputs.h"

#define LAYERS 34

/* 16 devices each of two types. */
static const char two_types[] = "{\"format\":\"hspmd-cluster-1\",\"device_types\":{"
                                "\"H800\":{\"kind\":\"cuda\",\"memory_bytes\":85899345920,\"gbytes_per_s\":3350,\"peak_tflops\":{\"bf16\":"
                                "989},\"tflops\":{\"bf16\":600}},"
                                "\"A100\":{\"kind\":\"cuda\",\"memory_bytes\":42949672960,\"gbytes_per_s\":1555,\"peak_tflops\":{\"bf16\":"
                                "312},\"tflops\":{\"bf16\":230}}},"
                                "\"nodes\":[{\"name\":\"h[0-1]\",\"devices\":[{\"type\":\"H800\",\"count\":8}]},"
                                "{\"name\":\"a[0-1]\",\"devices\":[{\"type\":\"A100\",\"count\":8}]}],"
                                "\"links\":[{\"scope\":\"node\",\"types\":[\"H800\",\"H800\"],\"alpha_s\":5e-6,\"gbytes_per_s\":160},"
                                "{\"scope\":\"node\",\"types\":[\"A100\",\"A100\"],\"alpha_s\":5e-6,\"gbytes_per_s\":230},"
                                "{\"scope\":\"cluster\",\"alpha_s\":1e-5,\"gbytes_per_s\":40}]}";
static const char llama_8b[] =
        "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
        "\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"vocab_size\":128256,\"tie_word_embeddings\":false}";

struct scene {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_step_share shares[4];
	int count;
	struct hspmd_plan *plan;
	struct hspmd_length_report report;
};

/* Solves for steps of these lengths (ascending) and shares. */
static void solve(struct scene *s, const int *lengths, const double *shares, int count)
{
	struct hspmd_error err = { "" };
	struct hspmd_solve_request request = { .global_batch = 64, .precision = HSPMD_PRECISION_BF16 };
	*s = (struct scene){ .cluster = cluster_from(two_types), .model = model_from(llama_8b), .count = count };
	for (int i = 0; i < count; i++)
		s->shares[i] = (struct hspmd_step_share){ lengths[i], shares[i], facts_of(s->model, lengths[i]) };
	request.seq_len = lengths[count - 1];
	s->plan = hspmd_solve(s->cluster, s->shares[count - 1].facts, NULL, &request, NULL, &err);
	if (!s->plan || hspmd_search_shorter_plans(s->cluster, &request, s->shares, count, &s->plan, &s->report, &err))
		fail_msg("%s", err.text);
	check_plan(s->plan, s->cluster, LAYERS);
}

static void clear(struct scene *s)
{
	for (int i = 0; i < s->count; i++)
		hspmd_model_facts_destroy((struct hspmd_model_facts *)s->shares[i].facts);
	hspmd_length_report_clear(&s->report);
	hspmd_plan_destroy(s->plan);
	hspmd_model_destroy(s->model);
	hspmd_cluster_destroy(s->cluster);
}

static void check_set(const struct scene *s, double gain)
{
	const struct hspmd_length_report *r = &s->report;
	double set = 0, without = 0, shares = 0;
	assert_int_equal(r->count, s->count);
	for (int i = 0; i < r->count; i++) {
		set += r->uses[i].share * r->uses[i].step_s;
		without += r->uses[i].share * r->uses[i].without_s;
		shares += r->uses[i].share;
		assert_int_equal(r->uses[i].which, hspmd_plan_for_length(s->plan, s->shares[i].seq_len));
		assert_true(r->uses[i].step_s <= r->uses[i].without_s);
	}
	assert_true(fabs(shares - 1) < 1e-9 && fabs(set - r->set_s) < 1e-9 * set && fabs(without - r->without_s) < 1e-9 * without);
	assert_true(r->single_s <= r->without_s);
	assert_true(r->set_s * gain <= r->single_s);
	for (int i = 0; i < s->plan->shorter_count; i++)
		for (int d = 0; d < s->plan->shorter[i]->predicted.device_count; d++) {
			int device = s->plan->shorter[i]->predicted.devices[d];
			assert_true(s->plan->shorter[i]->predicted.memory_bytes[d] <=
			            (double)s->cluster->types[s->cluster->devices[device].type].memory_bytes);
		}
}

/* Half of the tokens in samples of two thousand, half in samples of 32 thousand, which do not fit without tensor parallelism. */
static void two_lengths(void **state)
{
	(void)state;
	struct scene s;
	solve(&s, (const int[]){ 2048, 32768 }, (const double[]){ 16, 1 }, 2);
	check_set(&s, 1.3);
	assert_int_equal(s.plan->shorter_count, 1);
	char *text = hspmd_plan_explain_lengths(s.plan, &s.report);
	assert_non_null(text);
	assert_non_null(strstr(text, "Steps of 2048 tokens (94.1% of all"));
	assert_non_null(strstr(text, "recomputation: none instead of selective"));
	free(text);
	/* The plan must hold samples that no step has. */
	double share = s.report.uses[1].share;
	s.report.uses[1].share = 0;
	text = hspmd_plan_explain_lengths(s.plan, &s.report);
	assert_non_null(strstr(text, "Steps of 32768 tokens run the plan itself; none is expected."));
	assert_null(strstr(text, "nan"));
	free(text);
	s.report.uses[1].share = share;
	/* Solved again from the set, as at a change of nodes: its shorter plans are not taken along, but found anew. */
	struct hspmd_error err = { "" };
	struct hspmd_solve_request request = { .global_batch = 64, .seq_len = 32768, .precision = HSPMD_PRECISION_BF16, .current = s.plan };
	struct hspmd_plan *next = hspmd_solve(s.cluster, s.shares[1].facts, NULL, &request, NULL, &err);
	assert_non_null(next);
	assert_int_equal(next->shorter_count, 0);
	hspmd_length_report_clear(&s.report);
	assert_int_equal(hspmd_search_shorter_plans(s.cluster, &request, s.shares, 2, &next, &s.report, &err), 0);
	hspmd_plan_destroy(s.plan);
	s.plan = next;
	check_set(&s, 1.25);
	hspmd_length_report_clear(&s.report);
	assert_int_equal(hspmd_search_shorter_plans(s.cluster, &request, s.shares, 2, &s.plan, &s.report, &err), 0);
	assert_int_equal(s.plan->shorter_count, 1);
	clear(&s);
}

/* Most samples are short, few are as long as they may be. */
static void a_long_tail(void **state)
{
	(void)state;
	struct scene s;
	if (!getenv("HSPMD_LONG"))
		skip();
	solve(&s, (const int[]){ 2048, 8192, 16384, 32768 }, (const double[]){ 315, 30, 22, 10 }, 4);
	check_set(&s, 1.3);
	assert_in_range(s.plan->shorter_count, 1, 3);
	clear(&s);
}

/* Solves for steps that mix samples of these lengths. The caller clears *r. */
static void solve_mixed(struct scene *s, const int *lengths, const double *shares, int count, struct hspmd_mixed_report *r)
{
	struct hspmd_error err = { "" };
	struct hspmd_runtime_caps caps = hspmd_mixed_caps(NULL);
	struct hspmd_solve_request request = {
		.global_batch = 64, .seq_len = lengths[count - 1], .precision = HSPMD_PRECISION_BF16, .caps = &caps
	};
	*s = (struct scene){ .cluster = cluster_from(two_types), .model = model_from(llama_8b), .count = count };
	for (int i = 0; i < count; i++)
		s->shares[i] = (struct hspmd_step_share){ lengths[i], shares[i], facts_of(s->model, lengths[i]) };
	s->plan = hspmd_solve(s->cluster, s->shares[count - 1].facts, NULL, &request, NULL, &err);
	if (!s->plan || hspmd_search_mixed_plan(s->cluster, &request, s->shares, count, &s->plan, r, &err))
		fail_msg("%s", err.text);
	check_plan(s->plan, s->cluster, LAYERS);
}

/* Steps that mix the same two lengths: the plan for the longest samples gives way to pipelines for some of the lengths, which hold what
 * they are said to, and are divided among as the report says. */
static void mixed_lengths(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_mixed_report r;
	struct scene s;
	solve_mixed(&s, (const int[]){ 2048, 32768 }, (const double[]){ 16, 1 }, 2, &r);
	assert_true(r.mixed_s == s.plan->predicted.step_s && r.mixed_s * 1.3 <= r.given_s);
	assert_int_equal(r.pipeline_count, s.plan->pipeline_count);
	bool takes_all = false, takes_short = false;
	double parts[2] = { 0 };
	for (int i = 0; i < s.plan->pipeline_count; i++) {
		const struct hspmd_pipeline *p = &s.plan->pipelines[i];
		assert_in_range(p->length_count, 1, 2);
		takes_all |= p->length_count == 2;
		takes_short |= p->length_count == 1;
		for (int l = 0; l < 2; l++) {
			double part = r.parts[i * 2 + l];
			assert_true(part == 0 || l < p->length_count);
			parts[l] += part;
		}
	}
	assert_true(takes_all && takes_short);
	assert_true(fabs(parts[0] - 1) < 1e-9 && fabs(parts[1] - 1) < 1e-9);
	for (int d = 0; d < s.plan->predicted.device_count; d++) {
		int device = s.plan->predicted.devices[d];
		assert_true(s.plan->predicted.memory_bytes[d] <= (double)s.cluster->types[s.cluster->devices[device].type].memory_bytes);
	}
	char *text = hspmd_plan_explain_mixed(s.plan, &r);
	assert_non_null(strstr(text, "Samples of 2048 tokens (94.1% of all, 50% of the tokens)"));
	free(text);
	/* The plan as a file says the same. */
	json_t *json = hspmd_plan_to_json(s.plan, s.cluster);
	struct hspmd_plan *again = hspmd_plan_from_json(json, "plan", s.cluster, LAYERS, &err);
	if (!again)
		fail_msg("%s", err.text);
	struct hspmd_mixed_report same;
	assert_int_equal(hspmd_evaluate_mixed(s.cluster, HSPMD_PRECISION_BF16, s.shares, 2, again, &same, &err), 0);
	assert_true(fabs(same.mixed_s - r.mixed_s) < 1e-9 * r.mixed_s);
	hspmd_mixed_report_clear(&same);
	hspmd_mixed_report_clear(&r);
	hspmd_plan_destroy(again);
	json_decref(json);
	clear(&s);
}

/* Most samples are short, and a step has some of all lengths. With every sequence of stages tried the search takes 50 times as long, and
 * finds a step of 2.818 s. */
static void a_mixed_tail(void **state)
{
	(void)state;
	struct hspmd_mixed_report r;
	struct scene s;
	solve_mixed(&s, (const int[]){ 2048, 8192, 16384, 32768 }, (const double[]){ 315, 30, 22, 10 }, 4, &r);
	assert_true(r.mixed_s <= 1.005 * 2.818);
	hspmd_mixed_report_clear(&r);
	clear(&s);
}

/* Where the longest steps need nothing of the kind, one plan is enough. */
static void like_lengths(void **state)
{
	(void)state;
	struct scene s;
	solve(&s, (const int[]){ 1024, 1280 }, (const double[]){ 1, 1 }, 2);
	check_set(&s, 1);
	char *text = hspmd_plan_explain_lengths(s.plan, &s.report);
	if (!s.plan->shorter_count)
		assert_non_null(strstr(text, "would not make shorter ones faster"));
	free(text);
	clear(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(two_lengths), cmocka_unit_test(a_long_tail), cmocka_unit_test(mixed_lengths),
		                            cmocka_unit_test(a_mixed_tail), cmocka_unit_test(like_lengths) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
