/* SPDX-License-Identifier: Apache-2.0 */
/* The nets of contrib/examples/nets: the number of parameters of their papers; loss and gradients of a small one as PyTorch computes them
 * (tests/data/nets, written by tests/golden/generate); the same losses under unlike plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

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
#include "runtime/facts/facts.h"
#include "runtime/lib/net.h"
#include "tests/unit/draw.h"
#include "tests/unit/golden.h"
#include "tests/unit/op_case.h"

#define STEPS 4
#define SAMPLES 4 /* of the global batch */

static const struct vgg19 small_vgg19 = { { 32, 5 }, 2, 12 };
static const struct vit small_vit = { { 8, 5 }, 4, 16, 4, 24, 2, 0 };
static const struct bert small_bert = { 23, 16, 4, 24, 2, 0, 0, 0, 0 }, small_experts = { 23, 16, 4, 8, 2, 0, 4, 2, 0.01 };
static const struct t5 small_t5 = { 23, 16, 4, 5, 24, 9, 6, 2, 8, 16, 0 };

/* ---- samples: functions of the input's name and the sample's number, as in tests/golden/nets.py */

static uint64_t sample_of(const char *input, int64_t number)
{
	char name[64];
	snprintf(name, sizeof name, "%s %lld", input, (long long)number);
	return golden_name(name);
}

static const struct {
	const char *name;
	int64_t below; /* integers; 0: reals, whose values are given by `kind` */
	int64_t each;  /* elements per position */
	enum { UNITS, BITS, PADDING, CAUSAL, DISTANCE, BOTH_DISTANCES } kind;
} inputs[] = {
	{ "label", 5, 1, BITS },
	{ "tokens", 23, 1, BITS },
	{ "targets", 23, 1, BITS },
	{ "types", 2, 1, BITS },
	{ "source", 23, 1, BITS },
	{ "follows", 2, 1, BITS },
	{ "weights", 0, 1, BITS },
	{ "decoder_distance", 8, 6, DISTANCE },
	{ "encoder_distance", 8, 9, BOTH_DISTANCES },
	{ "causal", 0, 6, CAUSAL },
	{ "mask", 0, 1, PADDING },
	{ "image", 0, 0, UNITS },
};

/* Side of the image, positions of the mask. */
struct sizes {
	int64_t side, length;
};

static double element(size_t input, const struct sizes *sizes, int64_t number, int64_t each, int64_t i)
{
	uint64_t sample = sample_of(inputs[input].name, number);
	switch (inputs[input].kind) {
	case UNITS:
		return golden_unit(sample, i);
	case BITS:
		return (double)(golden_bits(sample, i) % (inputs[input].below ? inputs[input].below : 2));
	case PADDING: /* the last three positions of every second sample */
		return number % 2 && i >= sizes->length - 3 ? -1e9 : 0;
	case CAUSAL:
		return i % each > i / each ? -1e9 : 0;
	default:
		return (double)t5_distance(&small_t5, i / each, i % each, inputs[input].kind == BOTH_DISTANCES);
	}
}

static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to)
{
	const struct sizes *sizes = context;
	size_t input = 0;
	while (input < sizeof inputs / sizeof *inputs && strcmp(inputs[input].name, name))
		input++;
	if (input == sizeof inputs / sizeof *inputs)
		return -1;
	int64_t each = inputs[input].each ? inputs[input].each : sizes->side * sizes->side;
	for (int64_t i = 0; i < count * each; i++) {
		double value = element(input, sizes, number, each, start * each + i);
		if (inputs[input].below)
			((int32_t *)to)[i] = (int32_t)value;
		else
			((float *)to)[i] = (float)value;
	}
	return 0;
}

/* ---- the nets */

static const struct net {
	const char *name;
	void (*build)(void *context, struct hspmd_net *net);
	const void *how;
	int layers;
	int64_t length; /* positions */
	struct sizes sizes;
	const void *published;
	int64_t published_length, parameters;
} nets[] = {
	/* torchvision's vgg19 */
	{ "vgg19", vgg19_build, &small_vgg19, VGG19_LAYERS, 1, { 32, 0 }, &vgg19_imagenet, 1, 143667240 },
	/* torchvision's vit_b_16 */
	{ "vit", vit_build, &small_vit, 4, 1, { 8, 0 }, &vit_base, 1, 86567656 },
	/* transformers' BertForPreTraining of bert-base-uncased */
	{ "bert", bert_build, &small_bert, 4, 7, { 0, 7 }, &bert_base, 512, 110106428 },
	{ "bert with experts", bert_build, &small_experts, 4, 7, { 0, 7 }, NULL, 0, 0 },
	/* transformers' t5-small */
	{ "t5", t5_build, &small_t5, 7, 6, { 0, 9 }, &t5_small, 128, 60506624 },
};
#define NETS (sizeof nets / sizeof *nets)

static struct hspmd_graph *graph_of(const struct net *n, const void *how, int layers, int64_t length, bool forward_only)
{
	struct hspmd_error err = { "" };
	struct hspmd_net_source source = { n->build, (void *)how, layers };
	struct hspmd_graph_source graphs = hspmd_net_graph_source(&source);
	struct hspmd_model_build_options options = {
		.batch = SAMPLES, .seq_len = length, .vocab_parts = 1, .widest = 1, .loss_scale = 1.0 / (double)(SAMPLES * length)
	};
	options.forward_only = forward_only;
	struct hspmd_graph *g = graphs.build(graphs.context, &options, &err);
	if (!g)
		fail_msg("%s: %s", n->name, err.text);
	return g;
}

static void test_published_sizes(void **state)
{
	(void)state;
	assert_int_equal(vit_layers(&small_vit), 4);
	assert_int_equal(bert_layers(&small_bert), 4);
	assert_int_equal(t5_layers(&small_t5), 7);
	for (size_t i = 0; i < NETS; i++) {
		if (!nets[i].published)
			continue;
		struct hspmd_graph *g = graph_of(&nets[i], nets[i].published, 64, nets[i].published_length, true);
		int64_t count = 0;
		for (size_t t = 0; t < g->tensor_count; t++)
			count += g->tensors[t].role == HSPMD_TENSOR_PARAMETER ? hspmd_shape_elements(&g->tensors[t].shape) : 0;
		if (count != nets[i].parameters)
			fail_msg("%s has %lld parameters, not %lld", nets[i].name, (long long)count, (long long)nets[i].parameters);
		hspmd_graph_destroy(g);
	}
}

/* ---- one step, against PyTorch */

static void fill(struct op_values *v, const struct net *n)
{
	for (size_t t = 0; t < v->g->tensor_count; t++) {
		const struct hspmd_tensor *tensor = &v->g->tensors[t];
		int64_t count = hspmd_shape_elements(&tensor->shape), each = count / SAMPLES;
		size_t letters = strlen(tensor->name);
		bool gain = tensor->shape.rank == 1 && letters >= 6 && !strcmp(tensor->name + letters - 6, "weight");
		for (int64_t i = 0; tensor->role == HSPMD_TENSOR_PARAMETER && i < count; i++)
			op_value_set(v->data[t], HSPMD_F32, i, golden_unit(golden_name(tensor->name), i) / 4 + gain);
		for (int64_t b = 0; tensor->role == HSPMD_TENSOR_INPUT && b < SAMPLES; b++)
			assert_int_equal(
			        read_sample((void *)&n->sizes, tensor->name, b, 0, tensor->shape.dim[1], (char *)v->data[t] + 4 * b * each),
			        0);
	}
}

/* What is 0 exactly, such as the gradient of a key's bias, is only known to rounding. */
static void check_gradient(const struct net *n, const struct hspmd_tensor *t, const json_t *digest, const float *gradient)
{
	int64_t count = hspmd_shape_elements(&t->shape);
	if (json_number_value(json_array_get(digest, 0)) > 1e-12) {
		golden_check(n->name, t->name, digest, gradient, HSPMD_F32, count, 1e-5);
		return;
	}
	for (int64_t i = 0; i < count; i++)
		assert_true(fabsf(gradient[i]) < 1e-7f);
}

static void test_step(void **state)
{
	(void)state;
	json_error_t why;
	json_t *file = json_load_file(HSPMD_SRCDIR "/tests/data/nets/nets.json", 0, &why);
	assert_non_null(file);
	assert_int_equal(json_object_size(file), NETS);
	for (size_t i = 0; i < NETS; i++) {
		const struct net *n = &nets[i];
		struct hspmd_graph *g = graph_of(n, n->how, n->layers, n->length, false);
		const json_t *want = json_object_get(file, n->name), *gradients = json_object_get(want, "gradients");
		struct op_values v;
		size_t checked = 0;
		double loss = 0;
		op_values_open(&v, g, 2);
		fill(&v, n);
		op_values_run(&v, true);
		for (size_t t = 0; t < g->tensor_count; t++) {
			const struct hspmd_tensor *tensor = &g->tensors[t];
			loss += tensor->role == HSPMD_TENSOR_LOSS ? op_value_get(v.data[t], tensor->dtype, 0) : 0;
			if (tensor->role != HSPMD_TENSOR_PARAMETER)
				continue;
			const json_t *digest = json_object_get(gradients, tensor->name);
			if (!digest || tensor->grad < 0)
				fail_msg("%s: %s has no gradient %s", n->name, tensor->name, digest ? "here" : "in PyTorch");
			check_gradient(n, tensor, digest, v.data[tensor->grad]);
			checked++;
		}
		assert_int_equal(checked, json_object_size(gradients));
		golden_check_number(n->name, 0, json_number_value(json_object_get(want, "loss")), loss, 1e-5);
		op_values_close(&v);
		hspmd_graph_destroy(g);
	}
	json_decref(file);
}

/* ---- training under unlike plans */

static const char cluster[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":6}]}],"
        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";

static void take_loss(void *context, int64_t step, double loss)
{
	((double *)context)[step] = loss;
}

/* `more`: further members of the plan, each with a comma after it. */
static void train(const struct net *n, const char *devices, const char *more, const char *pipelines, double *losses)
{
	struct hspmd_error err = { "" };
	char plan[1024];
	snprintf(plan, sizeof plan,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":%d,\"micro_batch\":1,\"seq_len\":%lld,%s\"pipelines\":%s}", SAMPLES,
	         (long long)n->length, more, pipelines);
	struct hspmd_training *t = hspmd_training_create(n->build, (void *)n->how, n->layers);
	assert_non_null(t);
	hspmd_training_samples(t, read_sample, (void *)&n->sizes);
	hspmd_training_on_loss(t, take_loss, losses);
	if (hspmd_training_cluster(t, devices, &err) || hspmd_training_plan(t, plan, &err) ||
	    hspmd_training_optimizer(t, "{\"lr\":0.003,\"schedule\":\"constant\"}", &err) || hspmd_training_run(t, STEPS, &err))
		fail_msg("%s, %s: %s", n->name, pipelines, err.text);
	hspmd_training_destroy(t);
}

static void train_alone(const struct net *n, double *losses)
{
	char pipelines[512];
	snprintf(pipelines, sizeof pipelines, "[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0\"]}]}]", n->layers);
	train(n, cluster, "", pipelines, losses);
}

/* One device; two pipelines: one of two stages, of which the first splits weights unevenly, and a device alone that computes everything
 * again for the backward pass. */
static void test_plans(void **state)
{
	(void)state;
	for (size_t i = 0; i < NETS; i++) {
		const struct net *n = &nets[i];
		double alone[STEPS], together[STEPS];
		char pipelines[512];
		int cut = n->layers / 2;
		train_alone(n, alone);
		snprintf(pipelines, sizeof pipelines,
		         "[{\"micro_batches\":3,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0-1\"],\"shard_ratio\":[3,1]},"
		         "{\"layers\":[%d,%d],\"devices\":[\"n:2-3\"]}]},{\"micro_batches\":1,\"stages\":[{\"layers\":[0,%d],"
		         "\"devices\":[\"n:4\"],\"recompute\":\"full\"}]}]",
		         cut, cut, n->layers, n->layers);
		train(n, cluster, "", pipelines, together);
		assert_true(fabs(alone[STEPS - 1] - alone[0]) > 1e-4 * alone[0]);
		for (int s = 0; s < STEPS; s++)
			if (!(fabs(together[s] - alone[s]) <= 1e-6 * alone[s]))
				fail_msg("%s, step %d: %.9g and %.9g", n->name, s, alone[s], together[s]);
	}
}

/* Three unequal devices whose work is divided by search: links on which one would divide samples, or widths. */
static void test_synthesis(void **state)
{
	(void)state;
	static const struct {
		double alpha, rate;
	} links[] = { { 1e-7, 0.5 }, { 1e-9, 50 }, { 2e-5, 2 } };
	const unsigned all = NETS + 2, count = draw_count(3, all), first = draw_first(count, all);
	for (unsigned i = first; i < first + count; i++) {
		const struct net *n = &nets[i < NETS ? i : 2]; /* BERT with all links */
		double alone[STEPS], together[STEPS];
		char pipelines[512], devices[1024];
		train_alone(n, alone);
		snprintf(devices, sizeof devices,
		         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
		         "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}},\"d\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
		         "\"gbytes_per_s\":5,\"peak_tflops\":{\"fp32\":0.006}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\","
		         "\"count\":1},{\"type\":\"d\",\"count\":2}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":%g,"
		         "\"gbytes_per_s\":%g}]}",
		         links[i % 3].alpha, links[i % 3].rate);
		snprintf(pipelines, sizeof pipelines,
		         "[{\"micro_batches\":1,\"micro_batch\":4,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0-2\"]}]}]", n->layers);
		train(n, devices, "\"synthesis\":true,", pipelines, together);
		for (int s = 0; s < STEPS; s++)
			if (!(fabs(together[s] - alone[s]) <= 1e-6 * alone[s]))
				fail_msg("%s, links %u, step %d: %.9g and %.9g", n->name, i % 3, s, alone[s], together[s]);
	}
}

/* Windows that the CPU device lays out: of both convolutions of the first group, and backward also for the gradient of the second's
 * input. */
static void test_windows(void **state)
{
	struct hspmd_error err = { "" };
	struct hspmd_net_source source = { vgg19_build, (void *)&small_vgg19, VGG19_LAYERS };
	struct hspmd_graph_source graphs = hspmd_net_graph_source(&source);
	struct hspmd_model_facts *f = hspmd_model_facts_build(&graphs, "vgg19", 1, &err);
	(void)state;
	if (!f)
		fail_msg("%s", err.text);
	const struct hspmd_layer_facts *first = hspmd_model_layer_facts(f, 0), *last = hspmd_model_layer_facts(f, VGG19_LAYERS - 1);
	const struct hspmd_facts_work *forward = &first->forward[HSPMD_FACTS_FP32].windows,
	                              *backward = &first->backward[HSPMD_FACTS_FP32].windows;
	assert_true(forward->replicated + forward->sharded == (3 + 2) * 9 * 32 * 32 * 4.0);
	assert_true(backward->replicated + backward->sharded == (3 + 2 + 2) * 9 * 32 * 32 * 4.0);
	assert_true(last->forward[HSPMD_FACTS_FP32].windows.replicated == 0 && last->forward[HSPMD_FACTS_FP32].windows.sharded == 0);
	hspmd_model_facts_destroy(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_sizes), cmocka_unit_test(test_windows),   cmocka_unit_test(test_step),
		cmocka_unit_test(test_plans),           cmocka_unit_test(test_synthesis),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
