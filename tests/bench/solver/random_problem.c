/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/solver/random_problem.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/facts/facts.h"
#include "tests/bench/solver/dice.h"

static const struct {
	const char *name;
	double memory, rate, tflops;
} types[] = {
	{ "H20", 96e9, 4000, 148 },     { "H800", 80e9, 3350, 990 }, { "A100", 80e9, 2039, 312 },
	{ "A100-40", 40e9, 1555, 312 }, { "L40", 48e9, 864, 181 },   { "V100", 32e9, 900, 125 },
};
#define TYPES ((int)(sizeof types / sizeof *types))

static json_t *random_cluster(struct dice *d)
{
	json_t *described = json_object(), *nodes = json_array(), *links = json_array();
	int count = pick(d, 1, 4), first = pick(d, 0, TYPES - 1), devices = (int)between(d, 64, 512);
	double left = 1;
	for (int t = 0; t < count; t++) {
		int type = (first + t) % TYPES, per_node = pick(d, 0, 2) ? 8 : 4;
		double part = t == count - 1 ? left : left * between(d, 0.2, 0.7);
		int n = (int)fmax(1, round(part * devices / per_node));
		char *name = hspmd_asprintf("%s-[0-%d]", types[type].name, n - 1);
		left -= part;
		json_object_set_new(described, types[type].name,
		                    json_pack("{s:s, s:I, s:f, s:{s:f}}", "kind", "cuda", "memory_bytes", (json_int_t)types[type].memory,
		                              "gbytes_per_s", types[type].rate, "peak_tflops", "bf16", types[type].tflops));
		json_array_append_new(
		        nodes, json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "devices", "type", types[type].name, "count", per_node));
		free(name);
	}
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "node", "alpha_s", 5e-6, "gbytes_per_s", between(d, 20, 300)));
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", between(d, 3, 100)));
	return json_pack("{s:s, s:o, s:o, s:o}", "format", HSPMD_CLUSTER_FORMAT, "device_types", described, "nodes", nodes, "links", links);
}

static json_t *random_model(struct dice *d)
{
	int heads = pick(d, 2, 8) * 8, width = heads * 128;
	int words = pick(d, 0, 1) ? 32000 : 128000, blocks = pick(d, 24, 80);
	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "hidden_size", width, "intermediate_size",
	                 width * 11 / 4, "num_hidden_layers", blocks, "num_attention_heads", heads, "num_key_value_heads", 8, "vocab_size",
	                 words, "max_position_embeddings", 4096);
}

int problem_new(unsigned seed, struct problem *p, struct hspmd_error *err)
{
	struct dice d = { seed * 7919u + 1 };
	json_t *cluster = random_cluster(&d), *model = random_model(&d);
	*p = (struct problem){ .cluster = hspmd_cluster_from_json(cluster, "cluster", err) };
	p->model = p->cluster ? hspmd_model_from_json(model, "model", err) : NULL;
	p->request =
	        (struct hspmd_solve_request){ .global_batch = 1 << pick(&d, 8, 11), .seq_len = 4096, .precision = HSPMD_PRECISION_BF16 };
	p->facts = p->model ? hspmd_model_facts_of(p->model, p->request.seq_len, err) : NULL;
	json_decref(cluster);
	json_decref(model);
	return p->facts ? 0 : -1;
}

void problem_free(struct problem *p)
{
	hspmd_model_facts_destroy(p->facts);
	hspmd_model_destroy(p->model);
	hspmd_cluster_destroy(p->cluster);
}
