/* SPDX-License-Identifier: Apache-2.0 */
/* How the search for a stage's program divides experts: as people do, where that is best, and by samples where it is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/error.h"
#include "runtime/lib/hspmd.h"
#include "tests/unit/only.h"
#include "tests/unit/synthesis_case.h"

/* Beside a residual connection: of the parts of a gradient, one is a sum. */
static void build_experts(void *context, struct hspmd_net *net)
{
	(void)context;
	int x = hspmd_net_linear(net, hspmd_net_floats(net, "x", 32), case_weight(net, 0, 32, 32), -1), router = case_weight(net, 1, 4, 32),
	    parts[3];
	parts[0] = hspmd_net_parameter(net, "gate", 3, (int64_t[]){ 4, 256, 32 }, 0, 0.1);
	parts[1] = hspmd_net_parameter(net, "up", 3, (int64_t[]){ 4, 256, 32 }, 0, 0.1);
	parts[2] = hspmd_net_parameter(net, "down", 3, (int64_t[]){ 4, 32, 256 }, 0, 0.1);
	for (int i = 0; i < 3; i++)
		hspmd_net_split(net, parts[i], 0, 1);
	int y = hspmd_net_experts(net, x, router, parts, 1, 0, HSPMD_GATE_SILU);
	hspmd_net_mean_loss(
	        net, hspmd_net_layer_norm(net, hspmd_net_add(net, x, y), case_vector(net, 2, 'g', 32), case_vector(net, 2, 'b', 32), 1e-5),
	        1);
}

/* Data parallelism with whole experts per device, as people write it: each part of a gradient is scattered before it is added. */
static void test_experts(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	json_t *value = json_loads("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"a\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
	                           "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n[1-4]\",\"devices\":[{"
	                           "\"type\":\"a\",\"count\":1}]}],\"links\":[{\"scope\":\"cluster\",\"alpha_s\":1e-7,"
	                           "\"gbytes_per_s\":5}]}",
	                           0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "experts", &err);
	json_decref(value);
	assert_non_null(c);
	struct hspmd_graph *g = case_graph(build_experts, NULL, 1, 64, 16), *by_hand = case_graph(build_experts, NULL, 1, 64, 16);
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = 4, .devices = case_devices, .micro_batches = 1 };
	struct hspmd_synthesis_result result;
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err), hand = { .stage = stage };
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s", err.text);
	hand.cost = s->cost;
	for (size_t t = 0; t < by_hand->tensor_count; t++) {
		struct hspmd_tensor *what = &by_hand->tensors[t];
		if (what->role != HSPMD_TENSOR_INPUT && what->role != HSPMD_TENSOR_PARAMETER)
			continue;
		what->annotation = hspmd_annotation_single(case_devices, 4);
		bool split = what->role == HSPMD_TENSOR_INPUT || what->shape.rank == 3;
		assert_int_equal(hspmd_annotation_split(what->annotation, 0, split ? 0 : HSPMD_DUPLICATE, 4, 1, NULL), 0);
	}
	assert_true(result.seconds <= case_applied_cost(by_hand, &hand, "experts by hand") * (1 + 1e-9));
	assert_true(case_applied_cost(g, s, "experts") <= result.seconds * (1 + 1e-9));
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_graph_destroy(by_hand);
	hspmd_cluster_destroy(c);
}

/* ---- each way to divide experts where it is the best */

struct mixture {
	int64_t inner;
	int per_token;
	bool read_whole; /* another operator, whose weight is divided, reads the experts' input */
};

static void build_mixture(void *context, struct hspmd_net *net)
{
	const struct mixture *m = context;
	int x = hspmd_net_linear(net, hspmd_net_floats(net, "x", 64), case_weight(net, 0, 64, 64), -1);
	int y = hspmd_net_add(net, x, case_experts(net, x, 1, 64, m->inner, m->per_token));
	if (m->read_whole)
		y = hspmd_net_add(net, y,
		                  hspmd_net_linear(net, hspmd_net_linear(net, x, case_weight(net, 3, 4096, 64), -1),
		                                   case_weight(net, 4, 64, 4096), -1));
	hspmd_net_mean_loss(net, hspmd_net_layer_norm(net, y, case_vector(net, 2, 'g', 64), case_vector(net, 2, 'b', 64), 1e-5), 1);
}

/* Steps of a kind in a program of the sharding pass. */
static int steps_of(struct hspmd_graph *g, struct hspmd_synthesis *s, enum hspmd_comm_kind kind)
{
	struct hspmd_error err = { "" };
	struct hspmd_spmd_stage stage = { .device_count = s->stage.device_count, .devices = s->stage.devices, .context = 1 };
	int stage_of_layer[8] = { 0 }, count = 0;
	if (hspmd_synthesis_apply(s, g, &err))
		fail_msg("%s", err.text);
	struct hspmd_spmd *spmd = hspmd_spmd_build(g, &stage, stage_of_layer, &s->cost, &err);
	if (!spmd)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < spmd->node_count; i++)
		for (int k = 0; spmd->nodes[i].op < 0 && k < spmd->nodes[i].transfer->step_count; k++)
			count += spmd->nodes[i].transfer->steps[k].kind == kind;
	/* Where all rows are sent, all are known to be there. */
	for (size_t v = 0; kind == HSPMD_COMM_DISPATCH && !count && v < spmd->value_count; v++)
		assert_true(!spmd->values[v].annotation->rows || hspmd_annotation_is_partial(spmd->values[v].annotation));
	hspmd_spmd_destroy(spmd);
	return count;
}

/* The experts of each device as text, "3:3:1:1"; "": they are not divided. Fails unless so many steps dispatch and combine, and unless the
 * explanation contains `why`. */
static void check_mixture(const char *cluster, struct mixture m, int dispatches, int combines, const char *shares, const char *why)
{
	struct hspmd_error err = { "" };
	json_t *value = json_loads(cluster, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "mixture", &err);
	json_decref(value);
	assert_non_null(c);
	struct hspmd_graph *g = case_graph(build_mixture, &m, 1, 32, 16);
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = c->device_count, .devices = case_devices, .micro_batches = 1 };
	struct hspmd_synthesis_result result;
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s", err.text);
	struct hspmd_synthesis *t = case_travelled(s, result.seconds, shares);
	int dispatched = steps_of(g, t, HSPMD_COMM_DISPATCH), combined = steps_of(g, t, HSPMD_COMM_COMBINE), group = 0;
	char got[64] = "", *text = NULL;
	size_t size;
	while (g->ops[t->groups[group].op].opcode != HSPMD_OP_EXPERTS)
		group++;
	int segment = hspmd_synthesis_expert_segment(t, &g->ops[t->groups[group].op]);
	for (int d = 0; t->groups[group].choices[t->chosen[group]].segment == segment && d < c->device_count; d++) {
		int64_t lo, hi;
		hspmd_split_range(8, 1, c->device_count, t->segments[segment].weights, d, &lo, &hi);
		snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", d ? ":" : "", (int)(hi - lo));
	}
	FILE *f = open_memstream(&text, &size);
	assert_int_equal(hspmd_synthesis_explain(s, f, &err), 0);
	fclose(f);
	if (dispatched != dispatches || combined != combines || strcmp(got, shares) != 0 || !strstr(text, why))
		fail_msg("experts %s, not %s; %d dispatches, not %d; %d combines, not %d; or not \"%s\":\n%s", got, shares, dispatched,
		         dispatches, combined, combines, why, text);
	free(text);
	hspmd_synthesis_destroy(t);
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
}

#define MIXTURE_CLUSTER(kind, slow, alpha, rate)                                                                                           \
	"{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"a\":{\"kind\":\"" kind "\",\"memory_bytes\":1000000000,\"gbytes_per_s\":100," \
	"\"peak_tflops\":{\"fp32\":0.3}},\"b\":{\"kind\":\"" kind "\",\"memory_bytes\":1000000000,\"gbytes_per_s\":100,\"peak_tflops\":{"  \
	"\"fp32\":" slow                                                                                                                   \
	"}}},\"nodes\":[{\"name\":\"n[1-2]\",\"devices\":[{\"type\":\"a\",\"count\":1}]},{\"name\":\"m[1-2]\",\"devices\":[{"              \
	"\"type\":\"b\",\"count\":1}]}],\"links\":[{\"scope\":\"cluster\",\"alpha_s\":" alpha ",\"gbytes_per_s\":" rate "}]}"

static void test_mixtures(void **state)
{
	(void)state;
	static const char sent[] = ": only the rows of experts are sent, in ";
	/* Rows in both passes, sums in both; more experts for faster devices. */
	check_mixture(MIXTURE_CLUSTER("cpu", "0.3", "1e-7", "5"), (struct mixture){ 512, 1, false }, 2, 2, "2:2:2:2", sent);
	check_mixture(MIXTURE_CLUSTER("cpu", "0.1", "1e-7", "5"), (struct mixture){ 512, 1, false }, 2, 2, "3:3:1:1", sent);
	/* All rows choose all experts, or the choice costs a GPU more than it saves: experts are divided, all rows are sent. */
	check_mixture(MIXTURE_CLUSTER("cpu", "0.3", "1e-7", "5"), (struct mixture){ 512, 8, false }, 0, 0, "2:2:2:2", "");
	check_mixture(MIXTURE_CLUSTER("cuda", "0.3", "1e-7", "5"), (struct mixture){ 512, 1, false }, 0, 0, "2:2:2:2", "");
	/* Small experts: samples are divided, and gradients summed. */
	check_mixture(MIXTURE_CLUSTER("cpu", "0.3", "1e-5", "50"), (struct mixture){ 4, 1, false }, 0, 0, "", "dividing samples");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_experts), cmocka_unit_test(test_mixtures) };
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
