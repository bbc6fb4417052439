/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a model with the weights of a checkpoint: logits FOLDER TOKENS prints the logits after each of the tokens (numbers separated by
 * commas), one row per token, as JSON. FOLDER contains one complete checkpoint, whose manifest holds the model's config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/model/build.h"
#include "runtime/state/checkpoint.h"
#include "tests/unit/op_case.h"

static const char *folder, *token_list;

static void must(bool good, const struct hspmd_error *err)
{
	if (!good)
		fail_msg("%s", err->text);
}

static void load(struct op_values *v, const struct hspmd_manifest *m)
{
	struct hspmd_error err = { "" };
	struct hspmd_reader *r = hspmd_reader_create(m, NULL, &folder, 1, &err);
	must(r, &err);
	for (size_t t = 0; t < v->g->tensor_count; t++) {
		const struct hspmd_tensor *p = &v->g->tensors[t];
		if (p->role != HSPMD_TENSOR_PARAMETER)
			continue;
		struct hspmd_state_need need = { p->name, HSPMD_STATE_PARAM, HSPMD_F32, hspmd_box_full(&p->shape), v->data[t] };
		must(!hspmd_reader_load(r, &need, 1, NULL, NULL, NULL, &err), &err);
	}
	hspmd_reader_destroy(r);
}

static int logits_of(const struct hspmd_graph *g)
{
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].opcode == HSPMD_OP_VOCAB_STATS)
			return g->ops[i].in[0];
	fail_msg("the model has no head");
	return -1;
}

static void test_logits(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	char path[4096];
	snprintf(path, sizeof path, "%s/" HSPMD_MANIFEST_FILE, folder);
	struct hspmd_manifest *manifest = hspmd_manifest_read(path, &err);
	must(manifest, &err);
	struct hspmd_model *m = hspmd_model_from_json(json_object_get(manifest->job, "model"), "model", &err);
	must(m, &err);
	int64_t count = 1;
	for (const char *at = token_list; (at = strchr(at, ',')); at++)
		count++;
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = count, .vocab_parts = 1, .loss_scale = 1, .forward_only = true };
	struct hspmd_graph *g = hspmd_model_graph(m, &how, &err);
	must(g, &err);
	struct op_values v;
	op_values_open(&v, g, 1);
	load(&v, manifest);
	int tokens = hspmd_graph_find(g, HSPMD_TENSOR_TOKENS), targets = hspmd_graph_find(g, HSPMD_TENSOR_TARGETS), logits = logits_of(g);
	const char *at = token_list;
	for (int64_t i = 0; i < count; i++) {
		op_value_set(v.data[tokens], HSPMD_I32, i, strtol(at, (char **)&at, 10));
		op_value_set(v.data[targets], HSPMD_I32, i, 0);
		at += *at == ',';
	}
	op_values_run(&v, false);
	int64_t vocab = g->tensors[logits].shape.dim[2];
	for (int64_t i = 0; i < count * vocab; i++)
		printf("%s%.9g", i == 0 ? "[[" : i % vocab ? "," : "],\n[", op_value_get(v.data[logits], HSPMD_F32, i));
	puts("]]");
	op_values_close(&v);
	hspmd_graph_destroy(g);
	hspmd_model_destroy(m);
	hspmd_manifest_destroy(manifest);
}

/* A cmocka group only so that the helpers' own checks have somewhere to fail; its report goes to standard error. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_logits) };
	if (argc != 3)
		return 2;
	folder = argv[1];
	token_list = argv[2];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
