/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/model/model.h"
#include "tests/unit/solver_inputs.h"

static json_t *parse(const char *text)
{
	json_error_t e;
	json_t *value = json_loads(text, 0, &e);
	if (!value)
		fail_msg("%s", e.text);
	return value;
}

struct hspmd_cluster *cluster_from(const char *text)
{
	struct hspmd_error err = { "" };
	json_t *value = parse(text);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", &err);
	json_decref(value);
	if (!c)
		fail_msg("%s", err.text);
	return c;
}

struct hspmd_cluster *cpu_cluster(const double gflops[4], double gbytes_per_s)
{
	char *text = hspmd_asprintf("{\"format\": \"hspmd-cluster-1\", \"device_types\": {"
	                            "\"a\": {\"kind\": \"cpu\", \"memory_bytes\": 4000000000, \"gbytes_per_s\": 400, \"peak_tflops\": "
	                            "{\"fp32\": 1}, \"tflops\": {\"fp32\": %g}},"
	                            "\"b\": {\"kind\": \"cpu\", \"memory_bytes\": 4000000000, \"gbytes_per_s\": 400, \"peak_tflops\": "
	                            "{\"fp32\": 1}, \"tflops\": {\"fp32\": %g}},"
	                            "\"c\": {\"kind\": \"cpu\", \"memory_bytes\": 4000000000, \"gbytes_per_s\": 400, \"peak_tflops\": "
	                            "{\"fp32\": 1}, \"tflops\": {\"fp32\": %g}},"
	                            "\"d\": {\"kind\": \"cpu\", \"memory_bytes\": 4000000000, \"gbytes_per_s\": 400, \"peak_tflops\": "
	                            "{\"fp32\": 1}, \"tflops\": {\"fp32\": %g}}},"
	                            "\"nodes\": [{\"name\": \"n0\", \"devices\": [{\"type\": \"a\", \"count\": 1}]}, {\"name\": \"n1\", "
	                            "\"devices\": [{\"type\": \"b\", \"count\": 1}]},"
	                            "{\"name\": \"n2\", \"devices\": [{\"type\": \"c\", \"count\": 1}]}, {\"name\": \"n3\", \"devices\": "
	                            "[{\"type\": \"d\", \"count\": 1}]}],"
	                            "\"links\": [{\"scope\": \"cluster\", \"alpha_s\": 5e-5, \"gbytes_per_s\": %g}]}",
	                            gflops[0] / 1e3, gflops[1] / 1e3, gflops[2] / 1e3, gflops[3] / 1e3, gbytes_per_s);
	assert_non_null(text);
	struct hspmd_cluster *c = cluster_from(text);
	free(text);
	return c;
}

struct hspmd_model *model_from(const char *text)
{
	struct hspmd_error err = { "" };
	json_t *value = parse(text);
	struct hspmd_model *m = hspmd_model_from_json(value, "model", &err);
	json_decref(value);
	if (!m)
		fail_msg("%s", err.text);
	return m;
}

struct hspmd_model_facts *facts_of(const struct hspmd_model *m, int seq_len)
{
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *f = hspmd_model_facts_of(m, seq_len, &err);
	if (!f)
		fail_msg("%s", err.text);
	return f;
}

struct hspmd_model_facts *small_gpt2(int blocks, int seq_len)
{
	char *text = hspmd_asprintf("{\"model_type\": \"gpt2\", \"n_embd\": 128, \"n_head\": 4, \"n_layer\": %d, \"n_positions\": 256,"
	                            " \"vocab_size\": 256, \"activation_function\": \"gelu_new\"}",
	                            blocks);
	assert_non_null(text);
	struct hspmd_model *m = model_from(text);
	struct hspmd_model_facts *f = facts_of(m, seq_len);
	hspmd_model_destroy(m);
	free(text);
	return f;
}

void check_plan(const struct hspmd_plan *p, const struct hspmd_cluster *c, int layers)
{
	struct hspmd_error err = { "" };
	json_t *value = hspmd_plan_to_json(p, c);
	assert_non_null(value);
	struct hspmd_plan *again = hspmd_plan_from_json(value, "plan", c, layers, &err);
	if (!again)
		fail_msg("%s", err.text);
	hspmd_plan_destroy(again);
	json_decref(value);
}
