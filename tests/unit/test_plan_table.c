/* SPDX-License-Identifier: Apache-2.0 */
/* The table of any plan fits 100 columns, with long names, many stages, devices and pipelines, or large numbers, and still names them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/cli/plan_table.h"
#include "tests/unit/solver_inputs.h"

#define LONG_NAME "accelerator-partition-a.rack-07.node-" /* and 3 digits: 40 characters */

/* A cluster of `nodes` nodes, alternately of two types of GPUs, and a plan of `pipelines` pipelines that have `stages` stages of `tp`
 * devices each. */
struct shape {
	const char *name, *types[2];
	int nodes, per_node, stages, tp, pipelines, layers_each;
	int micro_batches, seq_len;
	double step_s, memory; /* predicted; of the available memory */
	bool mixed;            /* a stage has devices of both types, on two nodes */
};

static const struct shape shapes[] = {
	{ "small", { "H20", "H800" }, 2, 8, 2, 4, 2, 10, 8, 4096, 1.5, 0.8, false },
	{ LONG_NAME, { "H20", "H800" }, 4, 8, 4, 8, 1, 10, 64, 4096, 12.25, 0.99, false },
	{ LONG_NAME,
	  { "NVIDIA-H200-NVL-141GB-profile-7g", "AMD-Instinct-MI300X-192GB" },
	  128,
	  8,
	  16,
	  8,
	  8,
	  5,
	  4096,
	  131072,
	  98765.4321,
	  0.5,
	  false },
	{ LONG_NAME,
	  { "NVIDIA-H200-NVL-141GB-profile-7g", "AMD-Instinct-MI300X-192GB" },
	  128,
	  8,
	  16,
	  8,
	  8,
	  5,
	  4096,
	  131072,
	  1.23456e-5,
	  1234,
	  true },
	{ "n", { "a", "b" }, 1024, 1, 1, 1, 1024, 100, 32768, 1 << 20, 1.23456e-5, 1, false },
	{ "n", { "\xc3\xa9t\xc3\xa9\xc3\xa9t\xc3\xa9\xc3\xa9t\xc3\xa9-\xc3\xa9t\xc3\xa9", "b" }, 4, 8, 2, 8, 2, 4, 8, 64, 1, 1, false },
};

static struct hspmd_cluster *make_cluster(const struct shape *x)
{
	struct hspmd_error err = { "" };
	json_t *types = json_object(), *nodes = json_array();
	for (int t = 0; t < 2; t++)
		json_object_set_new(types, x->types[t],
		                    json_pack("{s:s, s:I, s:f, s:{s:f}}", "kind", "cuda", "memory_bytes", (json_int_t)1 << (37 + 12 * t),
		                              "gbytes_per_s", 4000.0, "peak_tflops", "bf16", 148.0));
	for (int n = 0; n < x->nodes; n++) {
		char *name = hspmd_asprintf("%s%03d", x->name, n);
		json_array_append_new(
		        nodes, json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "devices", "type", x->types[n % 2], "count", x->per_node));
		free(name);
	}
	json_t *value = json_pack("{s:s, s:o, s:o, s:[]}", "format", HSPMD_CLUSTER_FORMAT, "device_types", types, "nodes", nodes, "links");
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", &err);
	json_decref(value);
	if (!c)
		fail_msg("%s", err.text);
	return c;
}

/* A stage's devices are consecutive or, mixed, alternate between one node and the next. */
static json_t *make_stage(const struct shape *x, const struct hspmd_cluster *c, int number, int s)
{
	json_t *devices = json_array();
	char at[256];
	for (int d = 0; d < x->tp; d++) {
		int place = number * x->tp + d;
		if (x->mixed)
			place = (number / 2 * 2 + d % 2) * x->tp + d / 2 * 2 + number % 2;
		json_array_append_new(devices, json_string(hspmd_cluster_device_address(c, place, at, sizeof at)));
	}
	return json_pack("{s:[i,i], s:o, s:s}", "layers", s * x->layers_each, (s + 1) * x->layers_each, "devices", devices, "recompute",
	                 s % 2 ? "selective" : "none");
}

static struct hspmd_plan *make_plan(const struct shape *x, const struct hspmd_cluster *c)
{
	struct hspmd_error err = { "" };
	json_t *pipelines = json_array(), *memory = json_object();
	for (int i = 0; i < x->pipelines; i++) {
		json_t *stages = json_array();
		for (int s = 0; s < x->stages; s++)
			json_array_append_new(stages, make_stage(x, c, i * x->stages + s, s));
		json_array_append_new(pipelines, json_pack("{s:i, s:o}", "micro_batches", x->micro_batches, "stages", stages));
	}
	for (int d = 0; d < c->device_count; d++) {
		char at[256];
		json_object_set_new(memory, hspmd_cluster_device_address(c, d, at, sizeof at),
		                    json_integer((json_int_t)(x->memory * (double)c->types[c->devices[d].type].memory_bytes)));
	}
	json_t *value = json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o, s:{s:f, s:f, s:f, s:f, s:f, s:o}}", "format", HSPMD_PLAN_FORMAT,
	                          "global_batch", x->pipelines * x->micro_batches, "micro_batch", 1, "seq_len", x->seq_len, "schedule",
	                          "zb-h1", "zero_stage", 1, "pipelines", pipelines, "predicted", "step_s", x->step_s, "compute_s",
	                          0.41 * x->step_s, "bubble_s", 0.29 * x->step_s, "communication_s", 0.17 * x->step_s, "sync_s",
	                          0.13 * x->step_s, "memory_bytes", memory);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, x->stages * x->layers_each, &err);
	json_decref(value);
	if (!p)
		fail_msg("%s", err.text);
	return p;
}

static int columns(const char *line)
{
	int n = 0;
	for (; *line; line++)
		n += ((unsigned char)*line & 0xc0) != 0x80;
	return n;
}

/* Checks that every line fits; returns their number. */
static int check_lines(const char *text)
{
	int lines = 0;
	char *copy = strdup(text), *save = NULL;
	for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++)
		if (columns(line) > 100)
			fail_msg("%d columns: %s", columns(line), line);
	free(copy);
	return lines;
}

static char *table_of(const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_solve_report *report)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	assert_non_null(f);
	hspmd_plan_table(f, p, c, report, true);
	assert_int_equal(fclose(f), 0);
	return text;
}

static void tables_fit(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		const struct shape *x = &shapes[i];
		struct hspmd_cluster *c = make_cluster(x);
		struct hspmd_plan *p = make_plan(x, c);
		struct hspmd_shortage shortages[HSPMD_SHORTAGE_MAX];
		struct hspmd_solve_report report = {
			.price_per_hour = 1234567.891, .moved_bytes = 9.87654321e15, .shortage_count = 1000, .shortages = shortages
		};
		for (int k = 0; k < HSPMD_SHORTAGE_MAX; k++)
			shortages[k] = (struct hspmd_shortage){ c->device_count - 1, 1023, 15, 9.9e17, 1e12, k % 2 };
		char *text = table_of(p, c, &report);
		int lines = check_lines(text);
		assert_true(lines >= 1 + x->stages + 4 + HSPMD_SHORTAGE_MAX);
		free(text);
		/* The usual form: a heading, one row per stage of each different pipeline, and the totals. */
		report.shortage_count = 0;
		text = table_of(p, c, &report);
		check_lines(text);
		assert_non_null(strstr(text, "tokens/s"));
		free(text);
		hspmd_plan_destroy(p);
		hspmd_cluster_destroy(c);
	}
}

/* A shortened cell still names the node and the devices, and numbers are not shortened. */
static void what_is_cut_can_be_told_apart(void **state)
{
	(void)state;
	const struct shape *x = &shapes[1];
	struct hspmd_cluster *c = make_cluster(x);
	struct hspmd_plan *p = make_plan(x, c);
	struct hspmd_solve_report report = { 0 };
	char *text = table_of(p, c, &report);
	for (int n = 0; n < x->nodes; n++) {
		char end[32];
		snprintf(end, sizeof end, "node-%03d:0-7 ", n);
		assert_non_null(strstr(text, end));
	}
	assert_non_null(strstr(text, "0: 64 x 1 "));
	assert_non_null(strstr(text, " 136.06 of 137.44\n"));
	assert_non_null(strstr(text, "557320 of 562950\n"));
	free(text);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
}

/* Returns true if the table of the plan shows its two pipelines in one row per stage. */
static bool are_joined(const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	struct hspmd_solve_report report = { 0 };
	char *text = table_of(p, c, &report);
	bool joined = strstr(text, "\n0-1: ") != NULL, apart = strstr(text, "\n0: ") && strstr(text, "\n1: ");
	assert_true(joined != apart);
	free(text);
	return joined;
}

/* Only equal pipelines share rows. */
static void pipelines_that_differ_have_their_own_rows(void **state)
{
	(void)state;
	static const struct shape two = { "n", { "a", "b" }, 4, 4, 2, 4, 2, 10, 8, 4096, 1.5, 0.8, false };
	struct hspmd_cluster *c = make_cluster(&two);
	struct hspmd_plan *p = make_plan(&two, c);
	struct hspmd_pipeline *a = &p->pipelines[0], *b = &p->pipelines[1];
	assert_true(are_joined(p, c)); /* each has a stage on type a and one on type b */
	b->micro_batches++;
	assert_false(are_joined(p, c));
	b->micro_batches = a->micro_batches;
	b->micro_batch++;
	assert_false(are_joined(p, c));
	b->micro_batch = a->micro_batch;
	b->stage_count--;
	assert_false(are_joined(p, c));
	b->stage_count = a->stage_count;
	for (int s = 0; s < 2; s++) {
		struct hspmd_stage *x = &b->stages[s], was = *x;
		x->layers[0]++;
		assert_false(are_joined(p, c));
		*x = was;
		x->layers[1]--;
		assert_false(are_joined(p, c));
		*x = was;
		x->device_count--;
		assert_false(are_joined(p, c));
		*x = was;
		x->recompute = HSPMD_RECOMPUTE_FULL;
		assert_false(are_joined(p, c));
		*x = was;
		x->devices = b->stages[!s].devices; /* of the other type */
		assert_false(are_joined(p, c));
		*x = was;
	}
	assert_true(are_joined(p, c));
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
}

/* The table says which stages have something in the host's memory, or sequence parallelism, and pipelines that differ in it have their own
 * rows. */
static void offload_is_named(void **state)
{
	(void)state;
	static const struct shape two = { "n", { "a", "b" }, 4, 4, 2, 4, 2, 10, 8, 4096, 1.5, 0.8, false };
	struct hspmd_cluster *c = make_cluster(&two);
	struct hspmd_plan *p = make_plan(&two, c);
	struct hspmd_solve_report report = { 0 };
	struct hspmd_stage *first = &p->pipelines[0].stages[1], *second = &p->pipelines[1].stages[1];
	char *text = table_of(p, c, &report);
	assert_null(strstr(text, "in the host's memory"));
	assert_null(strstr(text, "sequence parallelism"));
	free(text);
	first->sequence_parallel = true;
	assert_false(are_joined(p, c));
	text = table_of(p, c, &report);
	assert_non_null(strstr(text, "\nsequence parallelism: stage 1 of pipeline 0\n"));
	free(text);
	first->sequence_parallel = false;
	second->offload = HSPMD_OFFLOAD_OPTIMIZER;
	assert_false(are_joined(p, c));
	text = table_of(p, c, &report);
	assert_non_null(strstr(text, "\noptimizer in the host's memory: stage 1 of pipeline 1\n"));
	assert_null(strstr(text, "activations in the host's memory"));
	free(text);
	first->offload = HSPMD_OFFLOAD_OPTIMIZER;
	first->offload_activations = HSPMD_OFFLOAD_ALL;
	assert_false(are_joined(p, c));
	second->offload_activations = HSPMD_OFFLOAD_ALL;
	assert_true(are_joined(p, c));
	p->pipelines[0].stages[0].offload_activations = HSPMD_OFFLOAD_SET;
	text = table_of(p, c, &report);
	assert_non_null(strstr(text, "\noptimizer in the host's memory: stage 1 of pipeline 0, and 1 more\n"));
	assert_non_null(strstr(text, "\nactivations in the host's memory: stage 0 of pipeline 0, and 2 more\n"));
	check_lines(text);
	free(text);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
}

/* A stage with devices of two types names each of them once. */
static void a_type_is_named_once(void **state)
{
	(void)state;
	static const struct shape mixed = { "n", { "H20", "H800" }, 2, 4, 2, 4, 1, 10, 8, 4096, 1.5, 0.8, true };
	struct hspmd_cluster *c = make_cluster(&mixed);
	struct hspmd_plan *p = make_plan(&mixed, c);
	struct hspmd_solve_report report = { 0 };
	char *text = table_of(p, c, &report);
	assert_non_null(strstr(text, " H20+H800 "));
	assert_null(strstr(text, "H800+"));
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	free(text);
}

static void sentences_are_broken_between_words(void **state)
{
	(void)state;
	char *text = NULL, *broken = NULL, sentence[900];
	size_t size;
	for (int i = 0; i < 60; i++)
		snprintf(sentence + 11 * i, sizeof sentence - (size_t)(11 * i), "word-%04d, ", i);
	memset(sentence + 660, 'x', 230);
	snprintf(sentence + 890, 10, "\nlast\n");
	FILE *f = open_memstream(&text, &size);
	assert_non_null(f);
	hspmd_plan_wrap(f, sentence);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(check_lines(text), 7 + 3 + 1);
	assert_non_null(strstr(text, "word-0008,\n  word-0009, word-0010,"));
	assert_string_equal(text + strlen(text) - 6, "\nlast\n");
	/* Nothing is missing. */
	broken = strdup(text);
	size_t kept = 0;
	for (const char *at = broken; *at; at++)
		kept += *at != ' ' && *at != '\n';
	assert_int_equal(kept, 60 * 10 + 230 + 4);
	free(broken);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables_fit),
		cmocka_unit_test(what_is_cut_can_be_told_apart),
		cmocka_unit_test(pipelines_that_differ_have_their_own_rows),
		cmocka_unit_test(offload_is_named),
		cmocka_unit_test(a_type_is_named_once),
		cmocka_unit_test(sentences_are_broken_between_words),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
