/* SPDX-License-Identifier: Apache-2.0 */
/* Which program the search finds for a model of which every token also goes to a shared expert: the same model and step where different
 * programs are the best, and what is said of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/model.h"
#include "runtime/program/program.h"
#include "runtime/synthesis/synthesis.h"

/* The weights of the shared expert are four times those of the eight others. */
static const char qwen[] = "{\"model_type\":\"qwen2_moe\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":1,"
                           "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"max_position_embeddings\":64,\"vocab_size\":64,"
                           "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
                           "\"shared_expert_intermediate_size\":1024}";

/* Two devices with this memory and the latency of the link between them. */
static struct hspmd_cluster *two_devices(long memory, double alpha_s)
{
	char text[512];
	struct hspmd_error err = { "" };
	snprintf(
	        text, sizeof text,
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":{\"kind\":\"cpu\",\"memory_bytes\":%ld,\"gbytes_per_s\":20,"
	        "\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n[1-2]\",\"devices\":[{\"type\":\"x\",\"count\":1}]}],\"links\":[{"
	        "\"scope\":\"cluster\",\"alpha_s\":%g,\"gbytes_per_s\":1}]}",
	        memory, alpha_s);
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "devices", &err);
	json_decref(value);
	if (!c)
		fail_msg("%s", err.text);
	return c;
}

/* The explanation of the program that is found. The caller frees it. */
static char *search(const struct hspmd_graph *g, long memory, double alpha_s, double *seconds)
{
	static const int devices[] = { 0, 1 };
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = two_devices(memory, alpha_s);
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = 2, .devices = devices, .micro_batches = 8, .state_bytes = 16 };
	struct hspmd_synthesis_result result;
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	char *text = NULL;
	size_t size;
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s", err.text);
	FILE *f = open_memstream(&text, &size);
	assert_int_equal(hspmd_synthesis_explain(s, f, &err), 0);
	assert_int_equal(fclose(f), 0);
	*seconds = result.seconds;
	hspmd_synthesis_destroy(s);
	hspmd_cluster_destroy(c);
	return text;
}

/* Fails unless the paragraph about the operator with this weight says so. */
static void expect_said(const char *text, const char *weight, const char *words)
{
	char title[128];
	snprintf(title, sizeof title, "model.layers.0.mlp.%s.weight): ", weight);
	const char *at = strstr(text, title), *end = at ? strchr(at, '\n') : NULL, *said = at ? strstr(at, words) : NULL;
	if (!said || !end || said > end)
		fail_msg("expected \"%s\" of %s in:\n%s", words, weight, text);
}

static void each_way_to_divide_them_is_found(void **state)
{
	(void)state;
	static const char *const names[] = { "shared_expert.gate_proj", "shared_expert.down_proj" };
	static const char everywhere[] = "computing all of it on every device", whole[] = "is kept whole on every device",
	                  sent[] = "sending only rows that chose a device's experts";
	struct hspmd_error err = { "" };
	json_t *value = json_loads(qwen, 0, NULL);
	struct hspmd_model *m = hspmd_model_from_json(value, "model", &err);
	json_decref(value);
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	struct hspmd_model_build_options how = { .batch = 8, .seq_len = 16, .vocab_parts = 1, .widest = 1, .loss_scale = 0.1 };
	struct hspmd_graph *g = source.build(source.context, &how, &err);
	if (!g)
		fail_msg("%s", err.text);
	double slow_s, fast_s, small_s;
	/* A message takes longer than computing everything twice: all experts are on both devices. */
	char *slow = search(g, 1000000000, 1e-3, &slow_s);
	/* Messages are cheap: each device has a half of the shared expert, and four of the others, to which rows are sent. */
	char *fast = search(g, 1000000000, 1e-7, &fast_s);
	/* The slow link again, and no room for all: what is largest is divided, the shared expert, and the others are not. */
	char *small = search(g, 5000000, 1e-3, &small_s);
	for (int i = 0; i < 2; i++) {
		char divided[128];
		snprintf(divided, sizeof divided, "dividing dimension %d of model.layers.0.mlp.%s.weight (1024)", i, names[i]);
		expect_said(slow, names[i], everywhere);
		expect_said(slow, names[i], whole);
		expect_said(fast, names[i], divided);
		expect_said(small, names[i], divided);
	}
	expect_said(slow, "experts.gate_proj", everywhere);
	expect_said(fast, "experts.gate_proj", sent);
	expect_said(small, "experts.gate_proj", everywhere);
	assert_true(fast_s < slow_s && slow_s < small_s);
	free(slow);
	free(fast);
	free(small);
	hspmd_graph_destroy(g);
	hspmd_model_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(each_way_to_divide_them_is_found) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
