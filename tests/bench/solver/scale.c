/* SPDX-License-Identifier: Apache-2.0 */
/* Time and memory of the search as clusters grow: CPU seconds of one core for synthetic clusters of up to four GPU types in nodes of
 * eight, and a model of 60 or 80 blocks. Each problem is solved in a process of its own, so that its memory is measured alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "controller/solver/solver.h"
#include "runtime/facts/facts.h"
#include "runtime/model/model.h"

struct problem {
	int types, nodes, blocks, batch;
};

static const struct problem problems[] = {
	{ 2, 6, 60, 64 },     { 2, 16, 60, 512 },   { 4, 16, 80, 512 },     { 2, 64, 80, 2048 },
	{ 4, 128, 80, 2048 }, { 2, 512, 80, 4096 }, { 4, 2048, 80, 16384 },
};
#define PROBLEM_COUNT (sizeof problems / sizeof *problems)

static const struct {
	const char *name;
	double memory, rate, tflops;
} types[4] = {
	{ "H20", 103079215104.0, 4000, 148 },
	{ "H800", 85899345920.0, 3350, 990 },
	{ "A100", 85899345920.0, 2039, 312 },
	{ "L40", 51539607552.0, 864, 181 },
};

static struct hspmd_cluster *make_cluster(const struct problem *p, struct hspmd_error *err)
{
	json_t *described = json_object(), *nodes = json_array(), *links = json_array();
	for (int t = 0; t < p->types; t++) {
		/* Number of nodes of a type: equal parts, and one more for the first types if the nodes do not divide evenly. */
		int count = p->nodes / p->types + (t < p->nodes % p->types);
		char *name = hspmd_asprintf("%s-[0-%d]", types[t].name, count - 1);
		json_object_set_new(described, types[t].name,
		                    json_pack("{s:s, s:I, s:f, s:{s:f}}", "kind", "cuda", "memory_bytes", (json_int_t)types[t].memory,
		                              "gbytes_per_s", types[t].rate, "peak_tflops", "bf16", types[t].tflops));
		json_array_append_new(nodes,
		                      json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "devices", "type", types[t].name, "count", 8));
		free(name);
	}
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "node", "alpha_s", 5e-6, "gbytes_per_s", 200.0));
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", 100.0));
	json_t *value = json_pack("{s:s, s:o, s:o, s:o}", "format", HSPMD_CLUSTER_FORMAT, "device_types", described, "nodes", nodes,
	                          "links", links);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", err);
	json_decref(value);
	return c;
}

static struct hspmd_model *make_model(const struct problem *p, struct hspmd_error *err)
{
	json_t *value =
	        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "hidden_size", p->blocks == 80 ? 8192 : 6656,
	                  "intermediate_size", p->blocks == 80 ? 28672 : 17920, "num_hidden_layers", p->blocks, "num_attention_heads", 64,
	                  "num_key_value_heads", p->blocks == 80 ? 8 : 64, "vocab_size", 32000, "max_position_embeddings", 4096);
	struct hspmd_model *m = hspmd_model_from_json(value, "model", err);
	json_decref(value);
	return m;
}

static int solve(const struct problem *p)
{
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = make_cluster(p, &err);
	struct hspmd_model *m = c ? make_model(p, &err) : NULL;
	struct hspmd_solve_request r = { .global_batch = p->batch, .seq_len = 4096, .precision = HSPMD_PRECISION_BF16 };
	struct hspmd_solve_report report = { 0 };
	struct rusage before, after;
	getrusage(RUSAGE_SELF, &before);
	struct hspmd_model_facts *f = m ? hspmd_model_facts_of(m, r.seq_len, &err) : NULL;
	struct hspmd_plan *plan = f ? hspmd_solve(c, f, NULL, &r, &report, &err) : NULL;
	getrusage(RUSAGE_SELF, &after);
	double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
	                 1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
	                 (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
	                 1e-6 * (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec);
	if (plan)
		printf("%7d %5d %5d %6d %6d %8.3f s %6ld MB %9.4g s step, %d pipelines, %ld plans timed\n", c->device_count, p->types,
		       p->nodes, p->blocks + 2, p->batch, seconds, after.ru_maxrss / 1024, plan->predicted.step_s, plan->pipeline_count,
		       (long)report.evaluated);
	else
		printf("%7d devices: %s\n", p->nodes * 8, err.text);
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(plan);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
	fflush(stdout);
	return plan ? 0 : 1;
}

int main(int argc, char **argv)
{
	size_t most = argc > 1 ? (size_t)atoi(argv[1]) : PROBLEM_COUNT;
	int failed = 0;
	printf("devices types nodes layers  batch      CPU  memory\n");
	fflush(stdout);
	for (size_t i = 0; i < most && i < PROBLEM_COUNT; i++) {
		pid_t child = fork();
		int status = 1;
		if (child == 0)
			_exit(solve(&problems[i]));
		if (child < 0 || waitpid(child, &status, 0) < 0)
			perror("scale");
		failed |= status != 0;
	}
	return failed;
}
