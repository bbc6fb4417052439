/* SPDX-License-Identifier: Apache-2.0 */
/* Logits computed token by token, with the keys and values of earlier tokens kept, are those of the forward pass of training over the whole
 * sequence: for every type of model (contrib/examples/models), for rotations that depend on the length, and for a net without a cache. And
 * the choice of tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>

#include "common/fnv.h"
#include "runtime/device/random.h"
#include "runtime/inference/inference.h"
#include "runtime/inference/token_choice.h"
#include "runtime/model/build.h"
#include "tests/unit/draw.h"
#include "tests/unit/op_case.h"

#define MODELS HSPMD_SRCDIR "/contrib/examples/models"
#define LENGTH 90 /* beyond the windows of the examples, 64 */
#define PROMPT 70
#define CLOSE 1e-5

static void must(bool good, const struct hspmd_error *err)
{
	if (!good)
		fail_msg("%s", err->text);
}

static int32_t token_at(int64_t i, int64_t vocab)
{
	return (int32_t)((7 * i * i + 3 * i + 1) % vocab);
}

/* ---- parameters: a function of their names */

static void fill(const char *name, const struct hspmd_shape *shape, float *data)
{
	uint64_t stream = hspmd_fnv1a(name, strlen(name));
	bool gain = shape->rank == 1 && strstr(name, "weight");
	for (int64_t i = 0; i < hspmd_shape_elements(shape); i++)
		data[i] = (float)(0.1 * hspmd_random_normal(5, stream, (uint64_t)i)) + (float)gain;
}

static int read_parameter(void *context, const char *name, const struct hspmd_shape *shape, float *data, struct hspmd_error *err)
{
	(void)context;
	(void)err;
	fill(name, shape, data);
	return 0;
}

/* ---- the forward pass of training */

static int logits_of(const struct hspmd_graph *g)
{
	int logits = -1;
	for (size_t i = 0; i < g->op_count; i++)
		if (g->ops[i].opcode == HSPMD_OP_VOCAB_STATS)
			logits = g->ops[i].in[0];
	assert_true(logits >= 0);
	return logits;
}

static float *trained_logits(const struct hspmd_model *m, int64_t length)
{
	struct hspmd_error err = { "" };
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = length, .vocab_parts = 1, .loss_scale = 1, .forward_only = true };
	struct hspmd_graph *g = hspmd_model_graph(m, &how, &err);
	must(g, &err);
	struct op_values v;
	op_values_open(&v, g, 2);
	for (size_t t = 0; t < g->tensor_count; t++) {
		if (g->tensors[t].role == HSPMD_TENSOR_PARAMETER)
			fill(g->tensors[t].name, &g->tensors[t].shape, v.data[t]);
		for (int64_t i = 0; g->tensors[t].role == HSPMD_TENSOR_INPUT && i < length; i++)
			op_value_set(v.data[t], HSPMD_I32, i, token_at(i, m->vocab));
	}
	op_values_run(&v, false);
	size_t bytes = (size_t)(length * m->vocab) * sizeof(float);
	float *logits = malloc(bytes);
	assert_non_null(logits);
	memcpy(logits, v.data[logits_of(g)], bytes);
	op_values_close(&v);
	hspmd_graph_destroy(g);
	return logits;
}

/* ---- token by token */

static void check_row(const char *name, int64_t token, const float *got, const float *want, int64_t vocab)
{
	double most = 0;
	for (int64_t i = 0; i < vocab; i++)
		most = fmax(most, fabs((double)want[i]));
	assert_true(most > 0);
	for (int64_t i = 0; i < vocab; i++)
		if (!(fabs((double)got[i] - (double)want[i]) <= CLOSE * most))
			fail_msg("%s: logit %ld after token %ld is %.9g, training's is %.9g", name, (long)i, (long)token, (double)got[i],
			         (double)want[i]);
}

/* Devices with unequal shares; with more devices than layers, some get none. */
static void open_devices(struct hspmd_inference_devices *d, int count)
{
	struct hspmd_error err = { "" };
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	*d = (struct hspmd_inference_devices){ .count = count };
	for (int i = 0; i < count; i++) {
		must(ops && !ops->open(&d->device[i], 0, 1, &err), &err);
		d->share[i] = 1 + i % 3;
	}
}

static void close_devices(const struct hspmd_inference_devices *d)
{
	for (int i = 0; i < d->count; i++)
		d->device[i]->ops->close(d->device[i]);
}

/* Every layer is on one device, in order, and with few devices each has some. */
static void check_layers(const struct hspmd_inference *s, int count, int layers)
{
	int before = 0, first, end;
	for (int i = 0; i < count; i++) {
		hspmd_inference_layers(s, i, &first, &end);
		assert_int_equal(first, before);
		assert_true(end > first || count > 2);
		before = end;
	}
	assert_int_equal(before, layers);
}

/* The prompt in one part, or token by token; then further tokens; then the same sequence again, in the memory of the first. */
static void check_model_on(const char *name, const struct hspmd_model *m, int64_t length, bool cached, int device_count, const float *want)
{
	struct hspmd_error err = { "" };
	struct hspmd_inference_devices devices;
	struct hspmd_parameter_source source = { read_parameter, NULL };
	float *got = malloc((size_t)m->vocab * sizeof *got);
	int32_t *tokens = calloc((size_t)length, sizeof *tokens);
	assert_non_null(got);
	assert_non_null(tokens);
	for (int64_t i = 0; i < length; i++)
		tokens[i] = token_at(i, m->vocab);
	open_devices(&devices, device_count);
	struct hspmd_inference *s = hspmd_inference_open(m, &source, &devices, false, &err);
	must(s, &err);
	check_layers(s, device_count, hspmd_model_layers(m));
	if (cached != !hspmd_inference_uncached(s))
		fail_msg("%s: %s", name, cached ? hspmd_inference_uncached(s) : "keys and values are kept");
	for (int round = 0; round < 2; round++) {
		int64_t prompt = round ? 1 : length < PROMPT ? length / 2 : PROMPT;
		must(!hspmd_inference_begin(s, length, &err), &err);
		for (int64_t i = 0, n = prompt; i < length; i += n, n = 1) {
			must(!hspmd_inference_append(s, tokens + i, n, got, &err), &err);
			check_row(name, i + n - 1, got, want + (i + n - 1) * m->vocab, m->vocab);
		}
		assert_int_equal(hspmd_inference_append(s, tokens, 1, got, &err), -1);
	}
	hspmd_inference_close(s);
	close_devices(&devices);
	free(got);
	free(tokens);
}

/* On one device, two, or more than it has layers, which differs from model to model and from draw to draw; with HSPMD_LONG on all. */
static void check_model(const char *name, const struct hspmd_model *m, int64_t length, bool cached)
{
	static const int counts[] = { 1, 2, 9 };
	float *want = trained_logits(m, length);
	for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
		if (draw_takes((unsigned)strlen(name) + i, 3))
			check_model_on(name, m, length, cached, counts[i], want);
	free(want);
}

static void check_config(const char *config, int64_t length)
{
	struct hspmd_error err = { "" };
	json_t *value = json_loads(config, 0, NULL);
	assert_non_null(value);
	struct hspmd_model *m = hspmd_model_from_json(value, "config", &err);
	must(m, &err);
	check_model(config, m, length, true);
	hspmd_model_destroy(m);
	json_decref(value);
}

static void test_all_types(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	DIR *d = opendir(MODELS);
	int count = 0;
	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));) {
		char path[512];
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, MODELS "/%s", e->d_name);
		struct hspmd_model *m = hspmd_model_read(path, &err);
		must(m, &err);
		check_model(e->d_name, m, LENGTH, true);
		hspmd_model_destroy(m);
		count++;
	}
	closedir(d);
	int types = 0;
	while (hspmd_model_type_name(types))
		types++;
	assert_int_equal(count, types);
}

#define SIZES                                                                                                                              \
	"\"hidden_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":40,"         \
	"\"max_position_embeddings\":64,\"vocab_size\":259"

/* The rotation is that of the whole sequence from the first token on. */
static void test_rotations_by_length(void **state)
{
	(void)state;
	check_config("{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4,"
	             "\"original_max_position_embeddings\":16}}",
	             40);
	check_config("{\"model_type\":\"phi3\"," SIZES ",\"original_max_position_embeddings\":16,\"rope_scaling\":{\"type\":\"longrope\","
	             "\"short_factor\":[1,1,1],\"long_factor\":[1,2,3]}}",
	             40);
	check_config("{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":1}", 20);
}

static void test_refusals(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_inference_devices devices;
	struct hspmd_parameter_source source = { read_parameter, NULL };
	struct hspmd_model *m = hspmd_model_read(MODELS "/gpt2", &err);
	must(m, &err);
	open_devices(&devices, 1);
	struct hspmd_inference *s = hspmd_inference_open(m, &source, &devices, false, &err);
	must(s, &err);
	assert_int_equal(hspmd_inference_begin(s, m->max_positions + 1, &err), -1);
	assert_non_null(strstr(err.text, "256 positions"));
	must(!hspmd_inference_begin(s, 3, &err), &err);
	assert_int_equal(hspmd_inference_append(s, (int32_t[]){ 256 }, 1, NULL, &err), -1);
	assert_non_null(strstr(err.text, "token 256"));
	assert_int_equal(hspmd_inference_append(s, (int32_t[]){ 1, 2, 3, 4 }, 4, NULL, &err), -1);
	must(!hspmd_inference_append(s, (int32_t[]){ 1, 2, 3 }, 3, NULL, &err), &err);
	hspmd_inference_close(s);
	close_devices(&devices);
	hspmd_model_destroy(m);
}

/* ---- the choice of tokens */

static int32_t choose(const struct hspmd_token_choice *how, const float *logits, int64_t vocab, uint64_t index)
{
	struct hspmd_error err = { "" };
	int32_t token = hspmd_choose_token(how, logits, vocab, 1, index, &err);
	must(token >= 0, &err);
	return token;
}

/* How often each of the four tokens is drawn. */
static void count_draws(const struct hspmd_token_choice *how, double share[4])
{
	static const float logits[4] = { 0, 2, 1, 2 }; /* in the order of likelihood: 1, 3, 2, 0 */
	const int draws = 20000;
	memset(share, 0, 4 * sizeof *share);
	for (int i = 0; i < draws; i++)
		share[choose(how, logits, 4, (uint64_t)i)] += 1.0 / draws;
}

static void check_shares(const struct hspmd_token_choice *how, double t, int kept)
{
	static const double logits[4] = { 2, 2, 1, 0 };
	static const int order[4] = { 1, 3, 2, 0 };
	double share[4], sum = 0;
	count_draws(how, share);
	for (int i = 0; i < kept; i++)
		sum += exp(logits[i] / t);
	for (int i = 0; i < 4; i++) {
		double want = i < kept ? exp(logits[i] / t) / sum : 0;
		if (fabs(share[order[i]] - want) > (i < kept ? 0.015 : 0)) /* four standard deviations */
			fail_msg("token %d is drawn with probability %.4f, expected %.4f", order[i], share[order[i]], want);
	}
}

static void test_choice(void **state)
{
	(void)state;
	check_shares(&(struct hspmd_token_choice){ 1, 0, 1, 7 }, 1, 4);
	check_shares(&(struct hspmd_token_choice){ 0.5, 0, 1, 7 }, 0.5, 4);
	check_shares(&(struct hspmd_token_choice){ 2, 3, 1, 7 }, 2, 3);
	check_shares(&(struct hspmd_token_choice){ 1, 1, 1, 7 }, 1, 1);
	/* of 1, the two most likely have 0.399 each, the third 0.147 */
	check_shares(&(struct hspmd_token_choice){ 1, 0, 0.79, 7 }, 1, 2);
	check_shares(&(struct hspmd_token_choice){ 1, 0, 0.81, 7 }, 1, 3);
	check_shares(&(struct hspmd_token_choice){ 1, 0, 1e-9, 7 }, 1, 1);
	/* top-p counts among those that top-k leaves: 0.5 of 2 */
	check_shares(&(struct hspmd_token_choice){ 1, 2, 0.5, 7 }, 1, 1);
}

static void test_choice_is_repeated(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_token_choice greedy = { 0, 0, 1, 1 }, one = { 1, 0, 1, 1 }, two = { 1, 0, 1, 2 };
	float flat[64] = { 0 }, bad[3] = { NAN, NAN, NAN }, some[3] = { NAN, 1, 0 };
	int differ = 0;
	assert_int_equal(choose(&greedy, flat, 64, 0), 0);
	assert_int_equal(choose(&greedy, some, 3, 0), 1);
	assert_int_equal(hspmd_choose_token(&one, bad, 3, 0, 0, &err), -1);
	for (uint64_t i = 0; i < 64; i++) {
		assert_int_equal(choose(&one, flat, 64, i), choose(&one, flat, 64, i));
		differ += choose(&one, flat, 64, i) != choose(&two, flat, 64, i);
	}
	assert_true(differ > 48);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_types), cmocka_unit_test(test_rotations_by_length), cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_choice),    cmocka_unit_test(test_choice_is_repeated),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
