/* SPDX-License-Identifier: Apache-2.0 */
/* The search for programs on the nets of contrib/examples/nets at their published sizes: how long it takes, and what it finds against
 * divisions made by hand, under one cost model. tests/bench/RESULTS.md has the figures. Usage: bench_synthesis [NET] */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/error.h"
#include "runtime/lib/hspmd.h"

#define hspmd_model hspmd_model_of_bert
#include "contrib/examples/nets/bert.c"
#undef hspmd_model
#define hspmd_model hspmd_model_of_t5
#include "contrib/examples/nets/t5.c"
#undef hspmd_model
#define hspmd_model hspmd_model_of_vgg19
#include "contrib/examples/nets/vgg19.c"
#undef hspmd_model
#define hspmd_model hspmd_model_of_vit
#include "contrib/examples/nets/vit.c"
#undef hspmd_model
#include "runtime/lib/net.h"
#include "runtime/synthesis/synthesis.h"
#include "tests/bench/processor_time.h"

#define MAX_DEVICES 64

static const struct bert bert_experts_base = { 30522, 768, 12, 3072, 12, 0.1, 16, 1, 0.01 };
static const struct bert bert_block1 = { 30522, 768, 12, 3072, 1, 0.1, 0, 0, 0 };

static const struct {
	const char *name;
	void (*build)(void *context, struct hspmd_net *net);
	const void *how;
	int64_t length;
	int per_device; /* samples */
} nets[] = {
	{ "vgg19", vgg19_build, &vgg19_imagenet, 1, 32 }, { "vit", vit_build, &vit_base, 1, 32 },
	{ "bert", bert_build, &bert_base, 128, 32 },      { "bert-moe", bert_build, &bert_experts_base, 128, 32 },
	{ "t5", t5_build, &t5_small, 128, 16 },           { "bert-block", bert_build, &bert_block1, 128, 32 },
};

/* Machines of HAP's evaluation (arXiv 2401.05965, section 7): of V100 and of P100 GPUs, 10.4 Gbit/s between machines. */
static const struct {
	const char *name;
	int fast, slow, each; /* machines, GPUs per machine */
} clusters[] = {
	{ "1 V100 + 1 P100 machine of 1", 1, 1, 1 },
	{ "1 V100 + 1 P100 machine of 4", 1, 1, 4 },
	{ "2 V100 + 2 P100 machines of 4", 2, 2, 4 },
	{ "2 V100 + 6 P100 machines of 4", 2, 6, 4 },
};

static struct hspmd_cluster *make_cluster(size_t number)
{
	char text[4096];
	struct hspmd_error err = { "" };
	snprintf(
	        text, sizeof text,
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"V100\":{\"kind\":\"cuda\",\"memory_bytes\":16000000000,"
	        "\"gbytes_per_s\":900,\"peak_tflops\":{\"fp32\":15.7}},\"P100\":{\"kind\":\"cuda\",\"memory_bytes\":16000000000,"
	        "\"gbytes_per_s\":732,\"peak_tflops\":{\"fp32\":9.3}}},\"nodes\":[{\"name\":\"v[1-%d]\",\"network_gbytes_per_s\":1.3,"
	        "\"devices\":[{\"type\":\"V100\",\"count\":%d}]},{\"name\":\"p[1-%d]\",\"network_gbytes_per_s\":1.3,\"devices\":[{\"type\":"
	        "\"P100\",\"count\":%d}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":12},{\"scope\":\"cluster\","
	        "\"alpha_s\":3e-5,\"gbytes_per_s\":1.3}]}",
	        clusters[number].fast, clusters[number].each, clusters[number].slow, clusters[number].each);
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "bench", &err);
	json_decref(value);
	if (!c) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	return c;
}

/* At least as many as the net has. */
static int most_layers(void)
{
	return vit_layers(&vit_base) + bert_layers(&bert_base) + t5_layers(&t5_small) + VGG19_LAYERS;
}

static struct hspmd_graph *graph_of(size_t net, int devices, int parts)
{
	struct hspmd_error err = { "" };
	struct hspmd_net_source source = { nets[net].build, (void *)nets[net].how, most_layers() };
	struct hspmd_graph_source graphs = hspmd_net_graph_source(&source);
	int64_t batch = (int64_t)nets[net].per_device * devices;
	struct hspmd_model_build_options how = { .batch = batch,
		                                 .seq_len = nets[net].length,
		                                 .vocab_parts = parts,
		                                 .widest = 1,
		                                 .loss_scale = 1.0 / (double)(batch * nets[net].length) };
	struct hspmd_graph *g = graphs.build(graphs.context, &how, &err);
	if (!g) {
		fprintf(stderr, "%s: %s\n", nets[net].name, err.text);
		exit(1);
	}
	return g;
}

/* ---- divisions made by hand */

enum by_hand { EVEN, BY_SPEED, EXPERTS, MEGATRON };

/* `outer` parts along `outer_dim`, each in `inner` along inner_dim. */
static struct hspmd_annotation *grid(int n, int outer_dim, int outer, const int64_t *weights, int inner_dim, int inner, int64_t unit)
{
	int numbers[MAX_DEVICES];
	for (int d = 0; d < n; d++)
		numbers[d] = d;
	struct hspmd_annotation *a = hspmd_annotation_single(numbers, n);
	if (outer > 1)
		hspmd_annotation_split(a, 0, outer_dim, outer, 1, outer_dim >= 0 ? weights : NULL);
	if (inner > 1)
		hspmd_annotation_split(a, 0, inner_dim, inner, inner_dim >= 0 ? unit : 1, NULL);
	return a;
}

/* Annotates inputs and parameters; the rest is deduced. each: devices per machine. */
static void divide_by_hand(struct hspmd_graph *g, enum by_hand how, int n, int each, const int64_t *weights)
{
	int inner = how == MEGATRON ? each : 1, outer = n / inner;
	for (size_t i = 0; i < g->tensor_count; i++) {
		struct hspmd_tensor *t = &g->tensors[i];
		int dim = t->split_dim;
		if (t->role == HSPMD_TENSOR_INPUT)
			t->annotation = grid(n, 0, outer, how == BY_SPEED ? weights : NULL, HSPMD_DUPLICATE, inner, 1);
		else if (t->role == HSPMD_TENSOR_PARAMETER && how == EXPERTS && t->shape.rank == 3 && dim == 0)
			t->annotation =
			        t->shape.dim[0] >= n ? grid(n, 0, n, NULL, 0, 1, 1) : grid(n, HSPMD_DUPLICATE, n / each, NULL, 0, each, 1);
		else if (t->role == HSPMD_TENSOR_PARAMETER)
			t->annotation = grid(n, HSPMD_DUPLICATE, outer, NULL, dim >= 0 ? dim : HSPMD_DUPLICATE, inner, t->split_unit);
	}
}

static double cost_of(const struct hspmd_graph *g, const struct hspmd_synthesis_stage *stage)
{
	struct hspmd_error err = { "" };
	struct hspmd_spmd_stage view = { .device_count = stage->device_count, .devices = stage->devices, .context = 1 };
	int stage_of_layer[64] = { 0 };
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(stage->cluster);
	cost.cache = hspmd_resolve_cache_create();
	struct hspmd_spmd *spmd = hspmd_spmd_build(g, &view, stage_of_layer, &cost, &err);
	double seconds = spmd ? hspmd_synthesis_cost(spmd, stage, &cost, NULL, &err) : -1;
	if (seconds < 0)
		fprintf(stderr, "(%s)\n", err.text);
	hspmd_spmd_destroy(spmd);
	hspmd_resolve_cache_destroy(cost.cache);
	return seconds;
}

static double by_hand(size_t net, enum by_hand how, const struct hspmd_synthesis_stage *stage, int each)
{
	int64_t weights[MAX_DEVICES];
	for (int d = 0; d < stage->device_count; d++)
		weights[d] = (int64_t)(1e3 * stage->cluster->types[stage->cluster->devices[d].type].peak_tflops[HSPMD_PRECISION_FP32]);
	struct hspmd_graph *g = graph_of(net, stage->device_count, how == MEGATRON ? each : 1);
	divide_by_hand(g, how, stage->device_count, each, weights);
	double seconds = cost_of(g, stage);
	hspmd_graph_destroy(g);
	return seconds;
}

static void bench(size_t net, size_t cluster)
{
	struct hspmd_cluster *c = make_cluster(cluster);
	int devices[MAX_DEVICES];
	for (int d = 0; d < c->device_count; d++)
		devices[d] = d;
	struct hspmd_synthesis_stage stage = {
		.cluster = c, .device_count = c->device_count, .devices = devices, .micro_batches = 1, .state_bytes = 16
	};
	struct hspmd_error err = { "" };
	struct hspmd_synthesis_result found = { 0 };
	double start = processor_time();
	struct hspmd_graph *g = graph_of(net, c->device_count, 1);
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &found, &err) || hspmd_synthesis_apply(s, g, &err))
		printf("%s: %s\n", nets[net].name, err.text);
	double took = processor_time() - start, made = s ? cost_of(g, &stage) : 0;
	printf("| %s | %s |", nets[net].name, clusters[cluster].name);
	for (int how = EVEN; how <= MEGATRON; how++) {
		double seconds = how == EXPERTS && strcmp(nets[net].name, "bert-moe")
		                         ? -2
		                         : by_hand(net, (enum by_hand)how, &stage, clusters[cluster].each);
		printf(seconds < 0 ? " - |" : " %.4f |", seconds);
	}
	printf(" %.4f | %.4f | bound %.4f, first %.4f | %ld | %.2f s |\n", found.seconds, made, found.bound, found.first_bound,
	       found.expanded, took);
	fflush(stdout);
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
}

int main(int argc, char **argv)
{
	for (size_t n = 0; n < sizeof nets / sizeof *nets; n++)
		for (size_t c = 0; c < sizeof clusters / sizeof *clusters; c++)
			if ((argc < 2 || !strcmp(argv[1], nets[n].name)) && (argc < 3 || (size_t)atoi(argv[2]) == c))
				bench(n, c);
	return 0;
}
