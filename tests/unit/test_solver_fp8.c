/* SPDX-License-Identifier: Apache-2.0 */
/* What products of FP8 operands are predicted to take on GPUs that multiply them with units for FP8, and on those that do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

#include "controller/solver/cost/costs.h"
#include "tests/unit/solver_inputs.h"

#define SEQ_LEN 64

/* The rates are those of `tflops`: memory is so fast, and the layers so large, that only products take time. */
#define CLUSTER                                                                                                                            \
	"{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":{\"kind\":\"%s\",\"memory_bytes\":8000000000,\"gbytes_per_s\":1e6,"       \
	"\"tflops\":{\"fp32\":0.001,\"bf16\":0.002,\"fp8\":0.008}%s}},\"nodes\":[{\"name\":\"a\",\"devices\":[{\"type\":\"x\",\"count\":"  \
	"1}]}],\"links\":[]}"
#define MODEL                                                                                                                              \
	"{\"model_type\":\"mixtral\",\"hidden_size\":128,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":8,"     \
	"\"intermediate_size\":%d,\"max_position_embeddings\":64,\"vocab_size\":96,\"num_local_experts\":4,\"num_experts_per_tok\":2}"

static const double bf16 = 0.002e12, fp8 = 0.008e12;

static double all(const struct hspmd_facts_work *w)
{
	return w->replicated + w->sharded;
}

static struct hspmd_model_facts *facts_in_fp8(const struct hspmd_model *m)
{
	struct hspmd_error err = { "" };
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	source.precision = HSPMD_PRECISION_FP8;
	struct hspmd_model_facts *f = hspmd_model_facts_build(&source, "mixtral", SEQ_LEN, &err);
	if (!f)
		fail_msg("%s", err.text);
	return f;
}

/* Seconds of the first block's backward pass. type: what else is said of the GPU. */
static double backward_of(const struct hspmd_model_facts *f, const char *type, bool fp32_elements)
{
	struct hspmd_error err = { "" };
	char text[1024];
	snprintf(text, sizeof text, CLUSTER, "cuda", type);
	struct hspmd_cluster *c = cluster_from(text);
	struct hspmd_costs *costs = hspmd_costs_with_elements(c, f, NULL, HSPMD_PRECISION_FP8, fp32_elements, 0, &err);
	const struct hspmd_layer_times *t = costs ? hspmd_costs_times(costs, 0, 1, false, 1, &err) : NULL;
	if (!t)
		fail_msg("%s", err.text);
	double seconds = t->backward[2] - t->backward[1];
	hspmd_costs_destroy(costs);
	hspmd_cluster_destroy(c);
	return seconds;
}

static void expect_saved(double slow, double fast, double flops)
{
	assert_float_equal(slow - fast, flops * (1 / bf16 - 1 / fp8), 5e-3 * slow);
}

/* As the CUDA device does (experts.h, linear_fp8.cu): experts' products are of FP8 units on compute capability 9.0 alone. */
static void experts_need_products_of_warp_groups(void **state)
{
	(void)state;
	for (int inner = 96; inner >= 88; inner -= 8) { /* 88: no rows of whole 16 codes */
		char text[512];
		snprintf(text, sizeof text, MODEL, inner);
		struct hspmd_model *m = model_from(text);
		struct hspmd_model_facts *f = facts_in_fp8(m);
		const struct hspmd_layer_pass *pass = &hspmd_model_layer_facts(f, 1)->backward[HSPMD_FACTS_BF16];
		double linear = 2 * 4 * 2.0 * SEQ_LEN * 128 * 128, experts = 8 * 2 * 2.0 * SEQ_LEN * 128 * inner;
		assert_float_equal(all(&pass->fp8_experts), (inner % 16 ? 0 : experts), 1e-3);
		double none = backward_of(f, "", false), hopper = backward_of(f, ",\"compute_capability\":9.0", false);
		assert_true(backward_of(f, ",\"compute_capability\":8.9", false) == none);
		assert_true(backward_of(f, ",\"compute_capability\":10.0", false) == none);
		expect_saved(all(&pass->flops) / bf16, none, linear);
		if (inner % 16)
			assert_true(hopper == none);
		else
			expect_saved(none, hopper, experts);
		hspmd_model_facts_destroy(f);
		hspmd_model_destroy(m);
	}
}

/* In FP32 there are no such products at all. */
static void fp32_elements_gain_nothing(void **state)
{
	(void)state;
	char text[512];
	snprintf(text, sizeof text, MODEL, 96);
	struct hspmd_model *m = model_from(text);
	struct hspmd_model_facts *f = facts_in_fp8(m);
	double seconds = backward_of(f, ",\"compute_capability\":9.0", true),
	       flops = all(&hspmd_model_layer_facts(f, 1)->backward[HSPMD_FACTS_FP32].flops);
	assert_float_equal(seconds, flops / 0.001e12, 5e-3 * seconds);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(experts_need_products_of_warp_groups),
		                            cmocka_unit_test(fp32_elements_gain_nothing) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
