/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-plan-1: what is read, what is refused, copies and descriptions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"
#include "common/format/plan.h"
#include "common/format/recompute_sets.h"
#include "common/json.h"
#include "edit.h"

#define DATA HSPMD_SRCDIR "/tests/data/"

static struct hspmd_error err;
static struct hspmd_cluster *cluster;

static int read_cluster(void **state)
{
	(void)state;
	cluster = hspmd_cluster_read(DATA "cluster/mixed.json", &err);
	return cluster ? 0 : -1;
}

static int drop_cluster(void **state)
{
	(void)state;
	hspmd_cluster_destroy(cluster);
	return 0;
}

static struct hspmd_plan *read_plan(const char *name, int layers)
{
	char path[256];
	snprintf(path, sizeof path, DATA "plan/%s.json", name);
	struct hspmd_plan *p = hspmd_plan_read(path, cluster, layers, &err);
	if (!p)
		fail_msg("%s", err.text);
	return p;
}

static struct hspmd_plan *from_text(const char *text, int layers)
{
	struct hspmd_json_doc doc;
	err.text[0] = '\0';
	if (hspmd_json_parse(&doc, "p.json", text, strlen(text), &err))
		return NULL;
	struct hspmd_plan *p = hspmd_plan_from_json(doc.root, "p.json", cluster, layers, &err);
	hspmd_json_close(&doc);
	return p;
}

static void reads_everything(void **state)
{
	(void)state;
	struct hspmd_plan *p = read_plan("mixed", 24);
	assert_int_equal(p->global_batch, 256);
	assert_int_equal(p->seq_len, 2048);
	assert_int_equal(p->zero_stage, 1);
	assert_int_equal(p->virtual_stages, 1);
	assert_int_equal(p->pipeline_count, 2);
	const struct hspmd_stage *s = &p->pipelines[0].stages[1], *wide = &p->pipelines[1].stages[0];
	assert_int_equal(s->layers[0], 11);
	assert_int_equal(s->layers[1], 24);
	assert_int_equal(s->device_count, 2);
	assert_int_equal(s->devices[1], 9);
	assert_int_equal(s->recompute, HSPMD_RECOMPUTE_FULL);
	assert_true(s->shard_ratio[0] == 0.6 && s->shard_ratio[1] == 0.4);
	assert_int_equal(s->context, 1);
	assert_null(s->context_ratio);
	assert_null(p->pipelines[0].stages[0].shard_ratio);
	assert_true(p->pipelines[0].stages[0].sequence_parallel);
	assert_false(s->sequence_parallel);
	assert_int_equal(p->pipelines[0].micro_batch, 2);
	assert_int_equal(p->pipelines[1].micro_batch, 4);
	assert_int_equal(wide->device_count, 5);
	assert_int_equal(wide->devices[4], 6);
	assert_int_equal(wide->context, 5);
	assert_true(wide->context_ratio[4] == 5.5);
	assert_true(p->predicted.step_s == 1.91 && p->predicted.sync_s == 0.06);
	assert_int_equal(p->predicted.device_count, 2);
	assert_int_equal(p->predicted.devices[1], 9);
	assert_true(p->predicted.memory_bytes[1] == 1e9);
	assert_int_equal(hspmd_plan_device_count(p), 11);
	hspmd_plan_destroy(p);
	hspmd_plan_destroy(NULL);
	p = read_plan("interleaved", 8);
	assert_int_equal(p->virtual_stages, 2);
	assert_int_equal(p->pipelines[0].stages[0].recompute, HSPMD_RECOMPUTE_SELECTIVE);
	assert_int_equal(hspmd_plan_device_count(p), 3);
	hspmd_plan_destroy(p);
}

#define HEAD                                                                                                                               \
	"\"format\": \"hspmd-plan-1\", \"global_batch\": 12, \"micro_batch\": 2, \"seq_len\": 16, \"schedule\": \"1f1b\", "                \
	"\"zero_stage\": 0"

/* A plan of n stages of one layer on one device each, the i-th with list number list[i]. */
static struct hspmd_plan *plan_with_lists(const char *const *list, int n)
{
	char text[2048];
	int used = snprintf(text, sizeof text, "{" HEAD ",\"pipelines\":[{\"micro_batches\":6,\"stages\":[");
	for (int i = 0; i < n; i++)
		used += snprintf(text + used, sizeof text - (size_t)used, "%s{\"layers\":[%d,%d],\"devices\":[\"a:%d\"],\"recompute\":%s}",
		                 i ? "," : "", i, i + 1, i, list[i]);
	snprintf(text + used, sizeof text - (size_t)used, "]}]}");
	return from_text(text, n);
}

static void lists_of_operators(void **state)
{
	(void)state;
	static const char *const lists[] = { "[\"rope\",\"rmsnorm\"]", "\"full\"",    "[\"rmsnorm\",\"rope\"]", "[\"rope\"]", "[\"add\"]",
		                             "[\"attention\"]",        "[\"swiglu\"]" };
	struct hspmd_plan *p = plan_with_lists(lists, 6);
	if (!p)
		fail_msg("%s", err.text);
	static const enum hspmd_recompute want[] = { HSPMD_RECOMPUTE_SET,     HSPMD_RECOMPUTE_FULL,    HSPMD_RECOMPUTE_SET,
		                                     HSPMD_RECOMPUTE_SET + 1, HSPMD_RECOMPUTE_SET + 2, HSPMD_RECOMPUTE_SET + 3 };
	struct hspmd_plan *copy = hspmd_plan_copy(p);
	json_t *json = hspmd_plan_to_json(copy, cluster);
	struct hspmd_plan *again = hspmd_plan_from_json(json, "again", cluster, 6, &err);
	assert_non_null(again);
	for (int i = 0; i < 6; i++)
		assert_int_equal(again->pipelines[0].stages[i].recompute, want[i]);
	char *names = hspmd_recompute_set_text(hspmd_recompute_set(again->recompute_sets, want[0]));
	assert_string_equal(names, "rope and rmsnorm");
	free(names);
	/* A list that is not known becomes the longest known one that is part of it, or else the cheap operators. */
	json_t *known = json_pack("[[s],[s,s],[s,s]]", "rope", "rmsnorm", "rope", "attention", "add");
	enum hspmd_recompute kind_of[HSPMD_RECOMPUTE_FULL + 1];
	bool inexact;
	hspmd_recompute_sets_match(p->recompute_sets, known, kind_of, &inexact);
	assert_true(inexact && kind_of[HSPMD_RECOMPUTE_FULL] == HSPMD_RECOMPUTE_FULL);
	assert_int_equal(kind_of[HSPMD_RECOMPUTE_SET], HSPMD_RECOMPUTE_SET + 1);
	assert_int_equal(kind_of[HSPMD_RECOMPUTE_SET + 1], HSPMD_RECOMPUTE_SET);
	assert_int_equal(kind_of[HSPMD_RECOMPUTE_SET + 2], HSPMD_RECOMPUTE_SELECTIVE);
	hspmd_plan_take_recompute_sets(again, known);
	assert_int_equal(again->pipelines[0].stages[2].recompute, HSPMD_RECOMPUTE_SET + 1);
	json_decref(known);
	json_decref(json);
	hspmd_plan_destroy(p);
	hspmd_plan_destroy(copy);
	hspmd_plan_destroy(again);
	assert_null(plan_with_lists(lists, 7));
	assert_non_null(strstr(err.text, "stages[6].recompute: the plan has 4 other lists of operators already"));
}

static void round_trips(void **state)
{
	(void)state;
	static const char *const names[] = { "mixed", "interleaved" };
	for (int i = 0; i < 2; i++) {
		char path[256];
		snprintf(path, sizeof path, DATA "plan/%s.json", names[i]);
		struct hspmd_plan *p = read_plan(names[i], -1), *copy = hspmd_plan_copy(p);
		json_t *file = json_load_file(path, 0, NULL), *once = hspmd_plan_to_json(p, cluster);
		hspmd_plan_destroy(p);
		json_t *predicted = json_object_get(file, "predicted"); /* 1e9 is written as an integer */
		if (predicted)
			json_object_set_new(json_object_get(predicted, "memory_bytes"), "b-08:1", json_integer(1000000000));
		assert_true(json_equal(once, file));
		char *text = hspmd_json_text(once);
		p = from_text(text, -1);
		json_t *twice = hspmd_plan_to_json(p, cluster), *copied = hspmd_plan_to_json(copy, cluster);
		assert_true(json_equal(once, twice));
		assert_true(json_equal(once, copied));
		if (p->predicted.device_count) { /* bytes are whole: what a device needs at least */
			p->predicted.memory_bytes[0] = 1000.25;
			json_t *part = hspmd_plan_to_json(p, cluster);
			char address[300];
			hspmd_cluster_device_address(cluster, p->predicted.devices[0], address, sizeof address);
			json_t *bytes = json_object_get(json_object_get(json_object_get(part, "predicted"), "memory_bytes"), address);
			assert_int_equal(json_integer_value(bytes), 1001);
			json_decref(part);
		}
		hspmd_plan_destroy(p);
		hspmd_plan_destroy(copy);
		json_decref(file);
		json_decref(once);
		json_decref(twice);
		json_decref(copied);
		free(text);
	}
}

static void describes(void **state)
{
	(void)state;
	struct hspmd_plan *p = read_plan("mixed", -1);
	char *line = hspmd_plan_summary(p, cluster);
	assert_string_equal(line, "2 pipelines: [a:0-3 x4 L0-11 | b-08:0-1 x2 L11-24] 100 mb, [a:4-5,b-09:0-1,a:6 x5 L0-24] 14 mb");
	free(line);
	hspmd_plan_destroy(p);
}

static const char good[] = "{" HEAD ", \"pipelines\": [{\"micro_batches\": 2, \"stages\": [{\"layers\": [0, 3], \"devices\": [\"a:0-1\"],"
                           " \"recompute\": \"none\"}, {\"layers\": [3, 5], \"devices\": [\"a:2\"]}]}, {\"micro_batches\": 4, \"stages\": ["
                           "{\"layers\": [0, 5], \"devices\": [\"b-08:0\", \"b-09:1\"]}]}], \"predicted\": {\"step_s\": 1}}";

static const struct edit edits[] = {
	{ "hspmd-plan-1", "hspmd-job-1", "p.json: format: expected \"hspmd-plan-1\", got \"hspmd-job-1\"" },
	{ "\"schedule\"", "\"shcedule\"", "p.json: shcedule: unknown key; did you mean \"schedule\"?" },
	{ "1f1b", "2f2b", "p.json: schedule: expected \"1f1b\", \"gpipe\", \"interleaved\" or \"zb-h1\", got \"2f2b\"" },
	{ "\"zero_stage\": 0", "\"zero_stage\": 4", "p.json: zero_stage: expected 0..3, got 4" },
	{ "\"zero_stage\": 0", "\"zero_stage\": 2, \"prefetch\": false",
	  "p.json: prefetch: only under zero_stage 3 are parameters gathered in the passes" },
	{ "\"global_batch\": 12", "\"global_batch\": 13",
	  "p.json: pipelines: their micro_batches times micro_batch add up to 12, but global_batch is 13" },
	{ "\"micro_batches\": 4", "\"micro_batches\": 4, \"micro_batch\": 3", "add up to 16, but global_batch is 12" },
	{ "\"micro_batches\": 4", "\"micro_batches\": 1, \"micro_batch\": 8", "" },
	{ "\"micro_batches\": 4",
	  "\"micro_batches\": 4, \"lengths\": [{\"seq_len\": 4, \"micro_batch\": 2, \"micro_batch_s\": 0.5}, {\"seq_len\": 8, "
	  "\"micro_batch\": 1, \"micro_batch_s\": 1}]",
	  "" },
	{ "\"micro_batches\": 4", "\"micro_batches\": 4, \"lengths\": [{\"seq_len\": 17, \"micro_batch\": 2, \"micro_batch_s\": 0.5}]",
	  "p.json: pipelines[1].lengths[0].seq_len: expected 1..16, got 17" },
	{ "\"micro_batches\": 4",
	  "\"micro_batches\": 4, \"lengths\": [{\"seq_len\": 4, \"micro_batch\": 2, \"micro_batch_s\": 0.5}, {\"seq_len\": 4, "
	  "\"micro_batch\": 1, \"micro_batch_s\": 1}]",
	  "p.json: pipelines[1].lengths[1].seq_len: expected 5..16, got 4" },
	{ "\"micro_batches\": 4",
	  "\"micro_batches\": 4, \"lengths\": [{\"seq_len\": 4, \"micro_batch\": 3, \"micro_batch_s\": 0.5}, {\"seq_len\": 8, "
	  "\"micro_batch\": 1, \"micro_batch_s\": 1}]",
	  "p.json: pipelines[1].lengths[0].micro_batch: expected at most 2: as many tokens as" },
	{ "\"micro_batches\": 4", "\"micro_batches\": 4, \"lengths\": [{\"seq_len\": 4, \"micro_batch\": 2}]",
	  "p.json: pipelines[1].lengths[0].micro_batch_s: expected a number above 0" },
	{ "\"micro_batches\": 4", "\"micro_batches\": 0", "p.json: pipelines[1].micro_batches: expected 1..1073741824, got 0" },
	{ "\"global_batch\": 12", "\"global_batch\": 0", "p.json: global_batch: expected 1..1073741824, got 0" },
	{ "\"seq_len\": 16,", "", "p.json: seq_len: expected an integer in 1..67108864, but it is missing" },
	{ "[0, 3]", "[1, 3]", "p.json: pipelines[0].stages[0].layers[0]: expected 0, the first layer, got 1" },
	{ "[3, 5]", "[4, 5]", "p.json: pipelines[0].stages[1].layers[0]: expected 3, where the stage before ends, got 4" },
	{ "[3, 5]", "[2, 5]", "p.json: pipelines[0].stages[1].layers[0]: expected 3, where the stage before ends, got 2" },
	{ "[3, 5]", "[3, 3]", "p.json: pipelines[0].stages[1].layers: [3, 3) has no layer" },
	{ "[3, 5]", "[3, 6]", "p.json: pipelines[0].stages: the last stage ends at layer 6, but the model has 5" },
	{ "[0, 5]", "[0, 4]", "p.json: pipelines[1].stages: the last stage ends at layer 4, but the model has 5" },
	{ "[0, 3]", "[0, -3]", "p.json: pipelines[0].stages[0].layers[1]: expected 0..1048576, got -3" },
	{ "[\"a:2\"]", "[]", "p.json: pipelines[0].stages[1].devices: expected an array of at least 1 element, got an empty array" },
	{ "\"a:2\"", "\"a:1\"", "p.json: pipelines[0].stages[1].devices[0]: device a:1 is in pipelines[0].stages[0] already" },
	{ "\"b-09:1\"", "\"a:2\"", "p.json: pipelines[1].stages[0].devices[1]: device a:2 is in pipelines[0].stages[1] already" },
	{ "\"b-09:1\"", "\"b-08:0\"", "p.json: pipelines[1].stages[0].devices[1]: device b-08:0 is in this stage twice" },
	{ "\"a:2\"", "\"z:2\"", "p.json: pipelines[0].stages[1].devices[0]: z:2: there is no node \"z\"; nodes are a,b-[08-10],login,c" },
	{ "\"a:2\"", "\"a:9\"", "p.json: pipelines[0].stages[1].devices[0]: a:9: node a has devices 0..7 only" },
	{ "\"recompute\": \"none\"", "\"recompute\": \"some\"",
	  "stages[0].recompute: expected \"none\", \"selective\" or \"full\", got \"some\"" },
	{ "\"recompute\": \"none\"", "\"recompute\": [\"rope\", 1]", "stages[0].recompute[1]: expected a string that is not empty, got 1" },
	{ "\"recompute\": \"none\"", "\"recompute\": []",
	  "stages[0].recompute: expected an array of 1..1024 elements, got an empty array" },
	{ "\"recompute\": \"none\"", "\"recompute\": 3", "stages[0].recompute: expected \"none\", \"selective\" or \"full\", got 3" },
	{ "\"recompute\": \"none\"", "\"recompute\": [\"rope\", \"mlp.up_proj\"]", "" },
	{ "\"recompute\": \"none\"", "\"shard_ratio\": [1]", "stages[0].shard_ratio: expected an array of 2 elements, got an array of 1" },
	{ "\"recompute\": \"none\"", "\"shard_ratio\": [1, 0]", "stages[0].shard_ratio[1]: expected a number above 0" },
	{ "\"recompute\": \"none\"", "\"shard_ratio\": [5, 3]", "" },
	{ "\"recompute\": \"none\"", "\"sequence_parallel\": 1", "stages[0].sequence_parallel: expected true or false, got 1" },
	{ "\"recompute\": \"none\"", "\"zero_share\": 2", "stages[0].zero_share: nothing is divided in such parts under zero_stage 0" },
	{ "\"recompute\": \"none\"", "\"offload\": \"optimizer\"", "" },
	{ "\"recompute\": \"none\"", "\"offload\": \"all\"", "stages[0].offload: expected \"none\" or \"optimizer\", got \"all\"" },
	{ "[\"b-08:0\", \"b-09:1\"]", "[\"b-08:0\", \"b-09:1\"], \"offload\": \"optimizer\"",
	  "p.json: pipelines[1].stages[0].offload: the cluster's file does not say what b-08:0 may use of the host's memory; its type, "
	  "H800, "
	  "needs `host`" },
	{ "[\"b-08:0\", \"b-09:1\"]", "[\"b-08:4\"], \"offload\": \"optimizer\"",
	  "p.json: pipelines[1].stages[0].offload: b-08:4 computes in the host's memory, so that nothing of it can go there" },
	{ "\"recompute\": \"none\"", "\"offload_activations\": \"all\"", "" },
	{ "\"recompute\": \"none\"", "\"offload_activations\": [\"rope\", \"mlp.up_proj\"]", "" },
	{ "\"recompute\": \"none\"", "\"offload_activations\": \"optimizer\"",
	  "stages[0].offload_activations: expected \"none\" or \"all\", got \"optimizer\"" },
	{ "\"recompute\": \"none\"", "\"offload_activations\": [1]",
	  "stages[0].offload_activations[0]: expected a string that is not empty, got 1" },
	{ "[\"b-08:0\", \"b-09:1\"]", "[\"b-08:4\"], \"offload_activations\": \"all\"",
	  "p.json: pipelines[1].stages[0].offload_activations: b-08:4 computes in the host's memory, so that nothing of it can go there" },
	{ "\"recompute\": \"none\"", "\"context\": 3",
	  "p.json: pipelines[0].stages[0].context: 3 groups do not divide the stage's 2 devices" },
	{ "\"recompute\": \"none\"", "\"context\": 2, \"shard_ratio\": [1]", "" },
	{ "\"recompute\": \"none\"", "\"context\": 2, \"context_ratio\": [1]",
	  "stages[0].context_ratio: expected an array of 2 elements, got an array of 1" },
	{ "\"recompute\": \"none\"", "\"devcies\": 2", "p.json: pipelines[0].stages[0].devcies: unknown key; did you mean \"devices\"?" },
	{ "\"step_s\": 1", "\"step_s\": 0", "p.json: predicted.step_s: expected a number above 0" },
	{ "\"step_s\": 1", "\"step_s\": 1, \"memory_bytes\": {\"a:99\": 1}", "p.json: predicted.memory_bytes: a:99: node a has devices" },
	{ ", \"predicted\": {\"step_s\": 1}", "", "" },
	{ "\"1f1b\"", "\"1f1b\", \"virtual_stages\": 2", "p.json: virtual_stages: expected 1..1, got 2" },
	{ "\"1f1b\"", "\"interleaved\"", "p.json: virtual_stages: expected an integer in 2..1024, but it is missing" },
	{ "\"1f1b\"", "\"interleaved\", \"virtual_stages\": 2", "p.json: pipelines[0].stages[1]: expected the devices of stages[0]" },
	{ "\"1f1b\"", "\"interleaved\", \"virtual_stages\": 3",
	  "p.json: pipelines[0].stages: expected a multiple of virtual_stages (3), got 2" },
};

static void refuses(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
		char *text = edited(good, edits[i].find, edits[i].replace);
		assert_non_null(text);
		struct hspmd_plan *p = from_text(text, 5);
		if (*edits[i].error ? p != NULL || !strstr(err.text, edits[i].error) : !p)
			fail_msg("%s -> %s: expected \"%s\", got \"%s\"", edits[i].find, edits[i].replace, edits[i].error, err.text);
		hspmd_plan_destroy(p);
		free(text);
	}
	assert_null(hspmd_plan_read("/nowhere/p.json", cluster, -1, &err));
	assert_string_equal(err.text, "/nowhere/p.json: No such file or directory");
}

/* Plans for shorter steps have everything in common with the plan that their training state needs. */
static void shorter_plans(void **state)
{
	(void)state;
	static const char set[] =
	        "{" HEAD ", \"pipelines\": [{\"micro_batches\": 6, \"stages\": [{\"layers\": [0, 5], \"devices\": [\"a:0-1\"]}]}],"
	        "\"shorter\": [{\"format\": \"hspmd-plan-1\", \"global_batch\": 12, \"micro_batch\": 6, \"seq_len\": 4, \"pipelines\": ["
	        "{\"micro_batches\": 1, \"stages\": [{\"layers\": [0, 5], \"devices\": [\"a:0\"]}]},"
	        "{\"micro_batches\": 1, \"stages\": [{\"layers\": [0, 5], \"devices\": [\"a:1\"]}]}]},"
	        "{\"format\": \"hspmd-plan-1\", \"global_batch\": 12, \"micro_batch\": 12, \"seq_len\": 8, \"pipelines\": ["
	        "{\"micro_batches\": 1, \"stages\": [{\"layers\": [0, 5], \"devices\": [\"a:0\"]}]}]}]}";
	static const struct edit wrong[] = {
		{ "\"seq_len\": 4", "\"seq_len\": 7", "" },
		{ "\"seq_len\": 8", "\"seq_len\": 16", "p.json: shorter[1].seq_len: expected 5..15: shorter plans come in the order" },
		{ "\"seq_len\": 8", "\"seq_len\": 4", "p.json: shorter[1].seq_len: expected 5..15" },
		{ "\"micro_batch\": 12", "\"micro_batch\": 12, \"zero_stage\": 1",
		  "p.json: shorter[1].zero_stage: the training state lies" },
		{ "\"global_batch\": 12, \"micro_batch\": 12", "\"global_batch\": 6, \"micro_batch\": 6",
		  "p.json: shorter[1].global_batch: expected 12, as in the plan" },
		{ "\"devices\": [\"a:1\"]", "\"devices\": [\"a:2\"]", "p.json: shorter[0].pipelines: device a:2 is not in the plan" },
		{ "\"shorter\": [", "\"shorter\": [], \"n\": [",
		  "p.json: shorter: expected an array of 1..64 elements, got an empty array" },
		{ "\"seq_len\": 8", "\"seq_len\": 8, \"shorter\": []", "p.json: shorter[1].shorter: unknown key" },
		{ "\"seq_len\": 8", "\"seq_len\": 8, \"synthesis\": true",
		  "p.json: shorter[1].synthesis: plans with `synthesis` do not share" },
	};
	struct hspmd_plan *p = from_text(set, 5), *copy = p ? hspmd_plan_copy(p) : NULL;
	if (!copy)
		fail_msg("%s", err.text);
	hspmd_plan_destroy(p);
	const int expected[][2] = { { 1, 1 }, { 4, 1 }, { 5, 2 }, { 8, 2 }, { 9, 0 }, { 16, 0 } };
	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
		assert_int_equal(hspmd_plan_for_length(copy, expected[i][0]), expected[i][1]);
	assert_int_equal(hspmd_plan_of(copy, 2)->micro_batch, 12);
	json_t *written = hspmd_plan_to_json(copy, cluster), *read = json_loads(set, 0, NULL);
	assert_int_equal(json_array_size(json_object_get(written, "shorter")), 2);
	assert_true(json_equal(json_object_get(json_array_get(json_object_get(written, "shorter"), 1), "seq_len"),
	                       json_object_get(json_array_get(json_object_get(read, "shorter"), 1), "seq_len")));
	char *line = hspmd_plan_summary(copy, cluster);
	assert_string_equal(line, "1 pipeline: [a:0-1 x2 L0-5] 6 mb; steps of up to 8 tokens: 1 pipeline: [a:0 L0-5] 1 mb; "
	                          "steps of up to 4 tokens: 2 pipelines: [a:0 L0-5] 1 mb, [a:1 L0-5] 1 mb");
	free(line);
	json_decref(written);
	json_decref(read);
	hspmd_plan_destroy(copy);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		char *text = edited(set, wrong[i].find, wrong[i].replace);
		p = from_text(text, 5);
		if (*wrong[i].error ? p != NULL || !strstr(err.text, wrong[i].error) : !p)
			fail_msg("%s: expected \"%s\", got \"%s\"", wrong[i].replace, wrong[i].error, err.text);
		hspmd_plan_destroy(p);
		free(text);
	}
}

/* Chunks of an interleaved plan have the same devices, which split their layers alike. */
static void rounds_are_alike(void **state)
{
	(void)state;
	static const char rounds[] =
	        "{\"format\": \"hspmd-plan-1\", \"global_batch\": 2, \"micro_batch\": 1, \"seq_len\": 16, \"schedule\": \"interleaved\", "
	        "\"virtual_stages\": 2, \"zero_stage\": 0, \"pipelines\": [{\"micro_batches\": 2, \"stages\": ["
	        "{\"layers\": [0, 3], \"devices\": [\"a:0-1\"], \"shard_ratio\": [2, 1], \"recompute\": \"full\"},"
	        "{\"layers\": [3, 5], \"devices\": [\"a:0-1\"], \"shard_ratio\": [2, 1.0]}]}]}";
	static const char said[] =
	        "p.json: pipelines[0].stages[1]: expected shard_ratio, sequence_parallel, context and context_ratio of stages[0]";
	static const struct edit unlike[] = {
		{ "[2, 1.0]", "[2, 1]", "" },
		{ "[2, 1.0]", "[1, 2]", said },
		{ ", \"shard_ratio\": [2, 1.0]", "", said },
		{ "[2, 1.0]", "[2, 1], \"sequence_parallel\": true", said },
		{ "\"shard_ratio\": [2, 1.0]", "\"context\": 2", said },
	};
	for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++) {
		char *text = edited(rounds, unlike[i].find, unlike[i].replace);
		struct hspmd_plan *p = from_text(text, 5);
		if (*unlike[i].error ? p != NULL || !strstr(err.text, unlike[i].error) : !p)
			fail_msg("%s: %s", unlike[i].replace, err.text);
		hspmd_plan_destroy(p);
		free(text);
	}
}

/* Without the model's layer count the pipelines must still agree. */
static void pipelines_end_alike(void **state)
{
	(void)state;
	struct hspmd_plan *p = from_text(good, -1);
	assert_non_null(p);
	hspmd_plan_destroy(p);
	char *text = edited(good, "[0, 5]", "[0, 6]");
	assert_null(from_text(text, -1));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_everything), cmocka_unit_test(lists_of_operators),
		cmocka_unit_test(round_trips),      cmocka_unit_test(describes),
		cmocka_unit_test(refuses),          cmocka_unit_test(pipelines_end_alike),
		cmocka_unit_test(shorter_plans),    cmocka_unit_test(rounds_are_alike),
	};
	return cmocka_run_group_tests_name("plan", tests, read_cluster, drop_cluster);
}
