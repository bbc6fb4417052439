/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations with unequal subgroups on a user's net, and weights that many stages share: the parts on the devices differ, losses and
 * trained parameters do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/error.h"
#include "runtime/lib/hspmd.h"

#define STEPS 20
#define WORDS 24
#define WIDTH 16
#define INNER 24
#define HEAD 4

#define CLUSTER(devices)                                                                                                                   \
	"{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"       \
	"\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":" devices "}]}],"             \
	"\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}"
static const char cluster[] = CLUSTER("6"), wide_cluster[] = CLUSTER("20");

/* NULL: as the stage annotates it. */
struct lies {
	const char *tokens, *query, *up, *down, *table; /* query: for everything that is split by heads */
};

static int annotated(struct hspmd_net *net, int tensor, const char *how)
{
	if (how)
		hspmd_net_annotate(net, tensor, how);
	return tensor;
}

static int matrix(struct hspmd_net *net, const char *name, int64_t out, int64_t in, const char *how)
{
	return annotated(net, hspmd_net_parameter(net, name, 2, (int64_t[]){ out, in }, 0, 0.1), how);
}

static int norm(struct hspmd_net *net, const char *name, int x)
{
	return hspmd_net_rms_norm(net, x, hspmd_net_parameter(net, name, 1, (int64_t[]){ WIDTH }, 1, 0), 1e-5);
}

/* Embedding, one block of attention and a gated MLP, and the embedding again as the head. */
static void build(void *context, struct hspmd_net *net)
{
	const struct lies *l = context;
	int tokens = annotated(net, hspmd_net_integers(net, "tokens"), l->tokens),
	    targets = annotated(net, hspmd_net_integers(net, "targets"), l->tokens);
	int table = matrix(net, "table", WORDS, WIDTH, l->table), x = hspmd_net_embed(net, tokens, table);
	hspmd_net_layer(net, 1);
	int a = norm(net, "norm1", x), q = hspmd_net_linear(net, a, matrix(net, "q", WIDTH, WIDTH, l->query), -1);
	int k = hspmd_net_linear(net, a, matrix(net, "k", WIDTH, WIDTH, l->query), -1),
	    v = hspmd_net_linear(net, a, matrix(net, "v", WIDTH, WIDTH, l->query), -1);
	q = hspmd_net_rope(net, q, HEAD, 1e4);
	k = hspmd_net_rope(net, k, HEAD, 1e4);
	int o = hspmd_net_attention(net, q, k, v, -1, HEAD);
	x = hspmd_net_add(net, x, hspmd_net_linear(net, o, matrix(net, "o", WIDTH, WIDTH, NULL), -1));
	int m = norm(net, "norm2", x), gate = hspmd_net_linear(net, m, matrix(net, "gate", INNER, WIDTH, l->up), -1);
	int inner = hspmd_net_swiglu(net, gate, hspmd_net_linear(net, m, matrix(net, "up", INNER, WIDTH, l->up), -1));
	x = hspmd_net_add(net, x, hspmd_net_linear(net, inner, matrix(net, "down", WIDTH, INNER, l->down), -1));
	hspmd_net_layer(net, 2);
	hspmd_net_loss(net, hspmd_net_linear(net, norm(net, "norm3", x), table, -1), targets);
}

static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to)
{
	(void)context;
	int64_t shift = start + !strcmp(name, "targets");
	for (int64_t i = 0; i < count; i++)
		((int32_t *)to)[i] = (int32_t)((number * 5 + (shift + i) * (shift + i)) % WORDS);
	return 0;
}

static void take_loss(void *context, int64_t step, double loss)
{
	((double *)context)[step] = loss;
}

struct trained {
	double losses[STEPS];
	float table[WORDS * WIDTH], up[INNER * WIDTH];
};

static int train(const struct lies *lies, const char *pipelines, struct trained *out, struct hspmd_error *err)
{
	char plan[1024];
	snprintf(plan, sizeof plan,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":4,\"seq_len\":12,\"zero_stage\":1,\"pipelines\":%s}",
	         pipelines);
	struct hspmd_training *t = hspmd_training_create(build, (void *)lies, 3);
	assert_non_null(t);
	hspmd_training_samples(t, read_sample, NULL);
	hspmd_training_on_loss(t, take_loss, out->losses);
	int status = hspmd_training_cluster(t, cluster, err) || hspmd_training_plan(t, plan, err) ||
	                             hspmd_training_optimizer(t, "{\"lr\":0.01,\"warmup_steps\":2,\"schedule\":\"constant\"}", err) ||
	                             hspmd_training_run(t, STEPS, err) ||
	                             hspmd_training_parameter(t, "table", out->table, WORDS * WIDTH, err) ||
	                             hspmd_training_parameter(t, "up", out->up, INNER * WIDTH, err)
	                     ? -1
	                     : 0;
	hspmd_training_destroy(t);
	return status;
}

#define ALL(devices) "[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,3],\"devices\":[\"" devices "\"]}]}]"
#define TWICE(first, second)                                                                                                               \
	"[{\"micro_batches\":1,\"stages\":[{\"layers\":[0,3],\"devices\":[\"" first                                                        \
	"\"]}]},{\"micro_batches\":1,\"stages\":[{\"layers\":[0,3],\"devices\":[\"" second "\"]}]}]"

static const struct {
	const char *name, *pipelines;
	struct lies lies;
} cases[] = {
	{ "samples and widths, unequally",
	  ALL("n:0-2"),
	  { "{[0,1]: -1:2 | [2]} h0(3:1)", "{[0,1]: 0:2/4(3:1) | [2]}", "{[0,1]: 0:2(5:3) | [2]}", "{[0,1]: 1:2(5:3) | [2]}", NULL } },
	{ "a parameter cut across subgroups",
	  ALL("n:0-2"),
	  { NULL, NULL, "{[0,1]: 0:2 | [2]} h0(2:1)", "{[0,1]: 1:2 | [2]} h1(2:1)", NULL } },
	{ "cut across and otherwise within",
	  ALL("n:0-2"),
	  { NULL, NULL, "{[0,1]: 1:2 | [2]} h0(2:1)", "{[0,1]: 0:2 | [2]} h1(2:1)", NULL } },
	{ "a sequence cut across subgroups",
	  ALL("n:0-2"),
	  { "{[0,1]: -1:2 | [2]} h1(1:2)", NULL, "{[0,1]: 0:2(1:2) | [2]}", "{[0,1]: 1:2(1:2) | [2]}", NULL } },
	{ "vocabulary, one part of two subgroups",
	  ALL("n:0-4"),
	  { "{[0,1]: -1:2 | [2,3]: -1:2 | [4]} h0(1:2:1)", NULL, "{[0,1]: 0:2 | [2,3]: 0:2(1:2) | [4]}", NULL,
	    "{[0,1]: 0:2 | [2,3]: 0:2 | [4]}" } },
	{ "vocabulary, both subgroups alike",
	  ALL("n:0-3"),
	  { "{[0,1]: -1:2 | [2,3]: -1:2} h0(1:3)", NULL, NULL, NULL, "{[0,1]: 0:2 | [2,3]: 0:2}" } },
	{ "three subgroups of one each", ALL("n:3-5"), { "{[2] | [0] | [1]} h0(2:1:1)", NULL, NULL, NULL, NULL } },
	{ "in two pipelines, the state cut",
	  TWICE("n:0-2", "n:3-5"),
	  { "{[0,1]: -1:2 | [2]} h0(3:1)", NULL, "{[0,1]: 0:2(5:3) | [2]}", "{[0,1]: 1:2(5:3) | [2]}", NULL } },
};

static double worst(const struct trained *got, const struct trained *want)
{
	double most = 0;
	for (int s = 0; s < STEPS; s++)
		most = fmax(most, fabs(got->losses[s] - want->losses[s]) / want->losses[s]);
	return most;
}

static void same_whatever_the_subgroups(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct trained want, got;
	if (train(&(struct lies){ NULL, NULL, NULL, NULL, NULL }, ALL("n:0"), &want, &err))
		fail_msg("%s", err.text);
	if (!(want.losses[STEPS - 1] < 0.95 * want.losses[0]))
		fail_msg("it does not learn: %g, %g", want.losses[0], want.losses[STEPS - 1]);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (train(&cases[i].lies, cases[i].pipelines, &got, &err))
			fail_msg("%s: %s", cases[i].name, err.text);
		if (!(worst(&got, &want) < 1e-5))
			fail_msg("%s: losses differ by %g", cases[i].name, worst(&got, &want));
		for (int k = 0; k < INNER * WIDTH; k++)
			if (!(fabsf(got.up[k] - want.up[k]) < 1e-3f))
				fail_msg("%s: up[%d] is %g, not %g", cases[i].name, k, (double)got.up[k], (double)want.up[k]);
		for (int k = 0; k < WORDS * WIDTH; k++)
			if (!(fabsf(got.table[k] - want.table[k]) < 1e-3f))
				fail_msg("%s: table[%d] is %g, not %g", cases[i].name, k, (double)got.table[k], (double)want.table[k]);
	}
}

static void refuse(const struct lies *lies, const char *pipelines, const char *reason)
{
	struct hspmd_error err = { "" };
	struct trained got;
	assert_int_equal(train(lies, pipelines, &got, &err), -1);
	if (!strstr(err.text, reason))
		fail_msg("got \"%s\", expected \"%s\"", err.text, reason);
}

static void what_does_not_fit(void **state)
{
	(void)state;
	refuse(&(struct lies){ .up = "{[0,1]: 0:2 | [3]}" }, ALL("n:0-2"),
	       "parameter gate: annotation {[0,1]: 0:2 | [3]} is not over the 3 devices of its stage");
	refuse(&(struct lies){ .up = "{[0,1]: 0:2}" }, ALL("n:0-2"),
	       "pipelines[0].stages[0]: parameter gate: annotation {[0,1]: 0:2} is not over the 3 devices");
	refuse(&(struct lies){ .up = "{[0,1]: 0:2 | [2]} h0(200:1)" }, ALL("n:0-2"),
	       "tensor gate: annotation {[0,1]: 0:2 | [2]} h0(200:1)");
	refuse(&(struct lies){ .tokens = "{[0,1]: -1:2 | [2]} h-2" }, ALL("n:0-2"),
	       "tensor tokens is annotated as {[0,1]: -1:2 | [2]} h-2, expected nothing partial");
	refuse(&(struct lies){ .up = "{[0,1]: 0:2 | [2]} h0(2:1)", .down = "{[0,1]: 1:2 | [2]} h1(2:1)" }, TWICE("n:0-2", "n:3-5"),
	       "pipelines[0].stages[0]: parameter gate: the subgroups of {[0,1]: 0:2 | [2]} h0(2:1) are not copies of one another, so no "
	       "other stage can use it");
}

/* ---- one weight in many stages */

#define SHARING 18 /* stages that use one weight, between one with the embedding and one with the loss */

static void build_deep(void *context, struct hspmd_net *net)
{
	(void)context;
	int x = hspmd_net_embed(net, hspmd_net_integers(net, "tokens"), matrix(net, "words", WORDS, WIDTH, NULL)),
	    same = matrix(net, "table", WORDS, WIDTH, NULL);
	int back = matrix(net, "up", WIDTH, WORDS, NULL);
	for (int l = 1; l <= SHARING; l++) {
		hspmd_net_layer(net, l);
		x = hspmd_net_add(net, x, hspmd_net_linear(net, hspmd_net_linear(net, x, same, -1), back, -1));
	}
	hspmd_net_layer(net, SHARING + 1);
	hspmd_net_loss(net, hspmd_net_linear(net, x, matrix(net, "out", WORDS, WIDTH, NULL), -1), hspmd_net_integers(net, "targets"));
}

/* Two micro-batches through that many stages, on as many devices. */
static int train_deep(int stages, int layers_each, struct trained *out, struct hspmd_error *err)
{
	char text[4096];
	size_t n = (size_t)snprintf(text, sizeof text,
	                            "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":12,\"pipelines\":"
	                            "[{\"micro_batches\":2,\"stages\":[");
	for (int s = 0; s < stages; s++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s{\"layers\":[%d,%d],\"devices\":[\"n:%d\"]}", s ? "," : "",
		                      s * layers_each, (s + 1) * layers_each, s);
	snprintf(text + n, sizeof text - n, "]}]}");
	struct hspmd_training *t = hspmd_training_create(build_deep, NULL, SHARING + 2);
	assert_non_null(t);
	hspmd_training_samples(t, read_sample, NULL);
	hspmd_training_on_loss(t, take_loss, out->losses);
	int status = hspmd_training_cluster(t, wide_cluster, err) || hspmd_training_plan(t, text, err) ||
	                             hspmd_training_optimizer(t, "{\"lr\":0.01,\"warmup_steps\":2,\"schedule\":\"constant\"}", err) ||
	                             hspmd_training_run(t, STEPS, err) ||
	                             hspmd_training_parameter(t, "table", out->table, WORDS * WIDTH, err) ||
	                             hspmd_training_parameter(t, "up", out->up, WORDS * WIDTH, err)
	                     ? -1
	                     : 0;
	hspmd_training_destroy(t);
	return status;
}

static void a_weight_in_many_stages(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct trained want, got;
	if (train_deep(1, SHARING + 2, &want, &err) || train_deep(SHARING + 2, 1, &got, &err))
		fail_msg("%s", err.text);
	if (!(want.losses[STEPS - 1] < 0.95 * want.losses[0]))
		fail_msg("it does not learn: %g, %g", want.losses[0], want.losses[STEPS - 1]);
	if (!(worst(&got, &want) < 1e-5))
		fail_msg("losses differ by %g", worst(&got, &want));
	for (int k = 0; k < WORDS * WIDTH; k++)
		if (!(fabsf(got.table[k] - want.table[k]) < 1e-3f))
			fail_msg("table[%d] is %g, not %g", k, (double)got.table[k], (double)want.table[k]);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(same_whatever_the_subgroups), cmocka_unit_test(what_does_not_fit),
		                            cmocka_unit_test(a_weight_in_many_stages) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
