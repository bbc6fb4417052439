/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/scale/problem.h"

#include <stdio.h>

#include "common/alloc.h"

#define BLOCKS 80
#define NODE_DEVICES 8

/* Pipelines of one shape, in every 1,024 devices. */
static const struct shape {
	int pipelines, degree, stages;
} four[] = { { 5, 8, 8 }, { 4, 4, 16 }, { 4, 8, 7 }, { 4, 2, 28 } };

static json_t *make_pipeline(const struct shape *shape, int *device)
{
	json_t *stages = json_array();
	for (int s = 0; s < shape->stages; s++) {
		char name[64];
		int node = *device / NODE_DEVICES, first = *device % NODE_DEVICES, layers = BLOCKS + 2;
		snprintf(name, sizeof name, "n%d:%d-%d", node, first, first + shape->degree - 1);
		json_array_append_new(stages, json_pack("{s:[ii], s:[s]}", "layers", layers * s / shape->stages,
		                                        layers * (s + 1) / shape->stages, "devices", name));
		*device += shape->degree;
	}
	return json_pack("{s:i, s:o}", "micro_batches", 32, "stages", stages);
}

struct hspmd_plan *scale_plan(const struct hspmd_cluster *cluster, int devices, enum scale_shapes shapes, struct hspmd_error *err)
{
	static const struct shape one = { 1, 8, 8 };
	json_t *pipelines = json_array();
	int device = 0;
	if (shapes == SCALE_ALIKE) {
		while (device < devices)
			json_array_append_new(pipelines, make_pipeline(&one, &device));
	} else {
		for (size_t k = 0; k < sizeof four / sizeof *four; k++)
			for (int i = 0; i < four[k].pipelines * (devices / 1024); i++)
				json_array_append_new(pipelines, make_pipeline(&four[k], &device));
	}
	json_t *value = json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch",
	                          32 * (int)json_array_size(pipelines), "micro_batch", 1, "seq_len", 4096, "schedule", "1f1b", "zero_stage",
	                          1, "pipelines", pipelines);
	struct hspmd_plan *plan = hspmd_plan_from_json(value, "plan", cluster, BLOCKS + 2, err);
	json_decref(value);
	return plan;
}

static const struct type {
	const char *name;
	double memory, gbytes_per_s, tflops;
} types[SCALE_TYPES] = { { "H100", 80e9, 3350, 989 }, { "A100", 80e9, 2039, 312 }, { "H20", 96e9, 4000, 148 }, { "L40", 48e9, 864, 181 } };

json_t *scale_cluster(int devices, int type_count, int lost)
{
	json_t *described = json_object(), *nodes = json_array();
	for (int t = 0, count = devices / NODE_DEVICES / type_count; t < type_count; t++) {
		char name[64];
		if (t == 0 && lost >= 0)
			snprintf(name, sizeof name, "n[0-%d,%d-%d]", lost - 1, lost + 1, count - 1);
		else
			snprintf(name, sizeof name, "n[%d-%d]", t * count, (t + 1) * count - 1);
		json_object_set_new(described, types[t].name,
		                    json_pack("{s:s, s:f, s:f, s:{s:f}}", "kind", "cuda", "memory_bytes", types[t].memory, "gbytes_per_s",
		                              types[t].gbytes_per_s, "peak_tflops", "bf16", types[t].tflops));
		json_array_append_new(
		        nodes, json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "devices", "type", types[t].name, "count", NODE_DEVICES));
	}
	return json_pack("{s:s, s:o, s:o, s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}", "format", HSPMD_CLUSTER_FORMAT, "device_types", described,
	                 "nodes", nodes, "links", "scope", "node", "alpha_s", 5e-6, "gbytes_per_s", 200.0, "scope", "cluster", "alpha_s",
	                 1e-5, "gbytes_per_s", 50.0);
}

static struct hspmd_cluster *make_cluster(int devices, struct hspmd_error *err)
{
	json_t *value = scale_cluster(devices, 1, -1);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", err);
	json_decref(value);
	return c;
}

struct hspmd_model *scale_model(struct hspmd_error *err)
{
	json_t *value = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "hidden_size", 8192,
	                          "intermediate_size", 28672, "num_hidden_layers", BLOCKS, "num_attention_heads", 64, "num_key_value_heads",
	                          8, "vocab_size", 32000, "max_position_embeddings", 4096);
	struct hspmd_model *m = hspmd_model_from_json(value, "model", err);
	json_decref(value);
	return m;
}

int scale_problem_create(int devices, enum scale_shapes shapes, struct scale_problem *out, struct hspmd_error *err)
{
	*out = (struct scale_problem){ .cluster = make_cluster(devices, err) };
	out->model = out->cluster ? scale_model(err) : NULL;
	out->plan = out->model ? scale_plan(out->cluster, devices, shapes, err) : NULL;
	if (out->plan)
		return 0;
	scale_problem_clear(out);
	return -1;
}

void scale_problem_clear(struct scale_problem *p)
{
	hspmd_plan_destroy(p->plan);
	hspmd_model_destroy(p->model);
	hspmd_cluster_destroy(p->cluster);
}
