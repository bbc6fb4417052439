/* SPDX-License-Identifier: Apache-2.0 */
/* Effects on a predicted step, one at a time, compared with results computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/cost/cost_constants.h"
#include "controller/solver/cost/costs.h"
#include "controller/solver/sim/evaluate.h"
#include "controller/solver/solver.h"
#include "runtime/facts/facts.h"
#include "tests/unit/solver_inputs.h"

#define NEAR 1e-9
#define SUMS 2e-3 /* seconds of gradient sums over a free link, and of waiting for the slowest of several devices */
#define HEAD                                                                                                                               \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":64,\"schedule\":\"1f1b\",\"zero_stage\":0,"         \
	"\"pipelines\":["
#define TYPE(kind) "{\"kind\":\"" kind "\",\"memory_bytes\":8000000000,\"gbytes_per_s\":20,\"peak_tflops\":{\"fp32\":1}}"
#define CLUSTER(more, links) CLUSTER_OF("cpu", more, links)
#define CLUSTER_OF(kind, more, links)                                                                                                      \
	"{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":" TYPE(                                                                   \
	        kind) "},\"nodes\":[{\"name\":\"a\"" more ",\"devices\":[{\"type\":\"x\",\"count\":4}]},"                                  \
	              "{\"name\":\"b\",\"devices\":[{\"type\":\"x\",\"count\":4}]}],\"links\":[" links "]}"
#define FREE "{\"scope\":\"node\",\"alpha_s\":0,\"gbytes_per_s\":1e6},{\"scope\":\"cluster\",\"alpha_s\":0,\"gbytes_per_s\":1e6}"
/* 1 ms per message within a node, 3 ms between two nodes, for any size. */
#define LATENT "{\"scope\":\"node\",\"alpha_s\":1e-3,\"gbytes_per_s\":1e9},{\"scope\":\"cluster\",\"alpha_s\":3e-3,\"gbytes_per_s\":1e9}"

/* Four layers, each 1 ms forward and 2 ms backward; in a group of two half of that, plus 1 ms of all-reduces if `grouped`. */
static struct hspmd_profile *profile(bool grouped)
{
	char text[2048];
	struct hspmd_error err = { "" };
	snprintf(
	        text, sizeof text,
	        "{\"format\":\"hspmd-profile-1\",\"model\":\"m\",\"seq_len\":64,\"dtype_bytes\":4,\"layers\":["
	        "{\"name\":\"e\",\"params\":1000,\"output_elems\":64,\"activation_bytes\":256},{\"name\":\"b0\",\"params\":1000,\"output_"
	        "elems\":64,"
	        "\"activation_bytes\":4096},{\"name\":\"b1\",\"params\":1000,\"output_elems\":64,\"activation_bytes\":4096},"
	        "{\"name\":\"h\",\"params\":1000,\"output_elems\":64,\"activation_bytes\":256}],\"times\":[{\"device_type\":\"x\",\"tp\":1,"
	        "\"micro_batch\":1,"
	        "\"forward_s\":[1e-3,1e-3,1e-3,1e-3],\"backward_s\":[2e-3,2e-3,2e-3,2.5e-3],\"optimizer_s\":[0,0,0,0]},{\"device_type\":"
	        "\"x\",\"tp\":1,"
	        "\"micro_batch\":2,\"forward_s\":[2e-3,2e-3,2e-3,2e-3],\"backward_s\":[4e-3,4e-3,4e-3,5e-3],\"optimizer_s\":[0,0,0,0]}%s]}",
	        grouped ? ",{\"device_type\":\"x\",\"tp\":2,\"micro_batch\":1,\"forward_s\":[1.5e-3,1.5e-3,1.5e-3,1.5e-3],\"backward_s\":["
	                  "2e-3,2e-3,2e-3,"
	                  "2.25e-3],\"optimizer_s\":[0,0,0,0]}"
	                : "");
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_profile *p = value ? hspmd_profile_from_json(value, "profile", &err) : NULL;
	json_decref(value);
	if (!p)
		fail_msg("%s", err.text);
	return p;
}

static struct hspmd_predicted evaluate(const char *cluster, const struct hspmd_profile *p, const char *plan)
{
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cluster_from(cluster);
	json_t *value = json_loads(plan, 0, NULL);
	struct hspmd_plan *x = value ? hspmd_plan_from_json(value, "plan", c, p->layer_count, &err) : NULL;
	json_decref(value);
	if (!x || hspmd_evaluate(c, NULL, p, HSPMD_PRECISION_FP32, x, NULL, &err))
		fail_msg("%s", err.text);
	struct hspmd_predicted result = x->predicted;
	assert_float_equal(result.compute_s + result.bubble_s + result.communication_s + result.sync_s, result.step_s, NEAR);
	hspmd_plan_destroy(x);
	hspmd_cluster_destroy(c);
	result.devices = NULL;
	result.memory_bytes = NULL;
	return result;
}

static void a_straggler_takes_as_much_longer_as_it_is_slower(void **state)
{
	(void)state;
	static const char one[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]}]}";
	struct hspmd_profile *p = profile(false);
	double healthy = evaluate(CLUSTER("", FREE), p, one).step_s;
	assert_float_equal(healthy, 8 * 12.5e-3, NEAR);
	assert_float_equal(evaluate(CLUSTER(",\"slowdown\":1.4", FREE), p, one).step_s, 1.4 * healthy, NEAR);
	hspmd_profile_destroy(p);
}

/* Two micro-batches of 1 take the time of one of 2: pipelines that differ only in this are as fast as equal ones. */
static void a_pipeline_has_its_own_micro_batch(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double alike = evaluate(CLUSTER("", FREE), p,
	                        HEAD "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]},{\"micro_batches\":4,"
	                             "\"stages\":[{\"layers\":[0,4],\"devices\":[\"b:0\"]}]}]}")
	                       .step_s;
	double own = evaluate(CLUSTER("", FREE), p,
	                      HEAD "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]},{\"micro_batches\":2,"
	                           "\"micro_batch\":2,\"stages\":[{\"layers\":[0,4],\"devices\":[\"b:0\"]}]}]}")
	                     .step_s;
	assert_float_equal(own, alike, NEAR);
	hspmd_profile_destroy(p);
}

#define ONE(device, parts) "{\"micro_batches\":" #parts ",\"stages\":[{\"layers\":[0,4],\"devices\":[\"" device "\"]}]}"
#define TWO(first, second)                                                                                                                 \
	"{\"micro_batches\":4,\"stages\":[{\"layers\":[0,2],\"devices\":[\"" first "\"]},"                                                 \
	"{\"layers\":[2,4],\"devices\":[\"" second "\"]}]}"

/* Pipelines that are alike are simulated once; those that differ only in one thing are not alike: in the number of micro-batches, in the
 * speed of a node, in what their messages cross. */
static void the_pipeline_that_differs_decides(void **state)
{
	(void)state;
	static const char slow[] = CLUSTER(",\"slowdown\":1.4", FREE), latent[] = CLUSTER("", LATENT);
	struct hspmd_profile *p = profile(false);
	assert_float_equal(evaluate(slow, p, HEAD ONE("b:0", 2) "," ONE("b:1", 2) "," ONE("b:2", 4) "]}").step_s, 4 * 12.5e-3, SUMS);
	assert_float_equal(evaluate(slow, p, HEAD ONE("b:0", 4) "," ONE("b:1", 2) "," ONE("b:2", 2) "]}").step_s, 4 * 12.5e-3, SUMS);
	assert_float_equal(evaluate(slow, p, HEAD ONE("b:0", 4) "," ONE("a:1", 4) "]}").step_s, 4 * 1.4 * 12.5e-3, SUMS);
	double near = evaluate(latent, p, HEAD TWO("a:0", "a:1") "," TWO("a:2", "a:3") "]}").bubble_s,
	       first = evaluate(latent, p, HEAD TWO("a:0", "b:1") "," TWO("a:2", "a:3") "]}").bubble_s,
	       last = evaluate(latent, p, HEAD TWO("a:2", "a:3") "," TWO("a:0", "b:1") "]}").bubble_s;
	assert_true(first > near + 1e-3);
	assert_float_equal(first, last, NEAR);
	hspmd_profile_destroy(p);
}

static const char inside[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0-1\"]}]}]}";
static const char across[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\",\"b:0\"]}]}]}";

/* Measured in a group: the times contain its all-reduces once. Between nodes they take longer: layers with an input reduce twice per
 * pass, each time with two messages. */
static void groups_across_nodes_pay_what_is_longer_there(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(true);
	double within = evaluate(CLUSTER("", LATENT), p, inside).step_s, between = evaluate(CLUSTER("", LATENT), p, across).step_s;
	assert_float_equal(within, 8 * 14.25e-3, NEAR);
	assert_float_equal(between - within, 8 * 2 * 3 * 2 * 2 * 3e-3, 1e-6);
	hspmd_profile_destroy(p);
}

/* Measured alone: the other half is saved, and the all-reduces are added, also within a node. */
static void groups_that_were_not_measured_communicate(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double free = evaluate(CLUSTER("", FREE), p, inside).step_s, latent = evaluate(CLUSTER("", LATENT), p, inside).step_s;
	assert_true(free < 8 * 12.5e-3);
	assert_float_equal(latent - free, 8 * 2 * 3 * 2 * 2 * 1e-3, 1e-6);
	hspmd_profile_destroy(p);
}

/* A CPU launches nothing: a layer's whole time shrinks in proportion to what it reads, writes and computes. A GPU's time may be launches,
 * of which half a layer has as many; and at 0.7 TFLOP/s the few operations of these layers are negligible compared with their
 * milliseconds. */
static void what_is_not_work_shrinks_on_cpus_alone(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double cpu = evaluate(CLUSTER_OF("cpu", "", FREE), p, inside).step_s;
	assert_true(cpu > 8 * 12.5e-3 / 2 && cpu < 8 * 12.5e-3 * 0.6); /* norms and residuals are not divided */
	assert_true(evaluate(CLUSTER_OF("cuda", "", FREE), p, inside).step_s > 8 * 12.3e-3);
	hspmd_profile_destroy(p);
}

/* A forward pass over a micro-batch of the second layer; windows: bytes of its convolutions' windows. */
static double second_layer(const struct hspmd_model_facts *m, const char *more, int micro_batch, double windows)
{
	struct hspmd_error err = { "" };
	static const char text[] = CLUSTER_OF("cpu", "", FREE);
	const char *end = strstr(text, "\"peak_tflops\"");
	char *with = hspmd_asprintf("%.*s%s%s", (int)(end - text), text, more, end);
	struct hspmd_cluster *c = cluster_from(with);
	struct hspmd_costs *costs = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, m->seq_len, &err);
	assert_non_null(costs);
	costs->layers[1].forward.windows.replicated = windows;
	const struct hspmd_layer_times *t = hspmd_costs_times(costs, 0, 1, false, micro_batch, &err);
	assert_non_null(t);
	double seconds = t->forward[2] - t->forward[1];
	hspmd_costs_destroy(costs);
	hspmd_cluster_destroy(c);
	free(with);
	return seconds;
}

/* What each operator takes beside its work, and the weights that a device packs, are part of every micro-batch, of any size; windows are
 * work. */
static void small_micro_batches_cost_more(void **state)
{
	static const char packs[] = "\"product_blocks\":{\"depth\":384,\"columns\":1536,\"rows\":96},", slow[] = "\"operator_s\":1e-3,";
	struct hspmd_model_facts *m = small_gpt2(4, 64);
	const struct hspmd_layer_pass *pass = &hspmd_model_layer_facts(m, 1)->forward[HSPMD_FACTS_FP32];
	double rate = 20e9 * HSPMD_SUSTAINED_MEMORY, weights = (pass->weights.replicated + pass->weights.sharded) / rate;
	(void)state;
	assert_true(weights > 0 && pass->kernels > 5);
	for (int samples = 1; samples <= 4; samples *= 4) {
		double plain = second_layer(m, "", samples, 0);
		assert_true(plain > weights);
		assert_float_equal(second_layer(m, slow, samples, 0) - plain, 1e-3 * pass->kernels, NEAR);
		assert_float_equal(second_layer(m, packs, samples, 0) - plain, weights, NEAR);
		assert_float_equal(second_layer(m, packs, samples, 1e6) - plain, weights + samples * HSPMD_WINDOW_TRAFFIC * 1e6 / rate,
		                   NEAR);
		assert_float_equal(second_layer(m, "", samples, 1e6), plain, NEAR);
	}
	hspmd_model_facts_destroy(m);
}

/* A profile's times are used as they are, even twice the forward time; except those that no clock can have measured on the backward
 * pass. */
static void backward_times_are_believed(void **state)
{
	(void)state;
	static const char one[] = HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]}]}";
	struct hspmd_profile *p = profile(false);
	struct hspmd_profile_times *t = p->times;
	int count = p->times_count;
	t->backward_s[3] = 2e-3;
	assert_float_equal(evaluate(CLUSTER("", FREE), p, one).step_s, 8 * 12e-3, NEAR);
	p->times_count = 1;
	assert_float_equal(evaluate(CLUSTER("", FREE), p, one).step_s, 8 * 12e-3, NEAR);
	free(t->optimizer_s);
	t->optimizer_s = NULL;
	assert_float_equal(evaluate(CLUSTER("", FREE), p, one).step_s, 8 * 12e-3, 1e-4);
	t->forward_s[2] = 1.01e-3; /* b0 and b1 are equal layers, and a clock never gives the same time twice */
	t->backward_s[2] = 2.02e-3;
	assert_true(evaluate(CLUSTER("", FREE), p, one).step_s < 8 * 10e-3);
	p->times_count = count;
	assert_float_equal(evaluate(CLUSTER("", FREE), p, one).step_s, 8 * 12.03e-3, 1e-4);
	hspmd_profile_destroy(p);
}

/* Two chunks per device: the bubble of the last stage is that of one chunk, half of what it is with one stage per device. */
static void interleaving_pays(void **state)
{
	(void)state;
	struct hspmd_profile *p = profile(false);
	double plain = evaluate(CLUSTER("", FREE), p,
	                        HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"a:0\"]},{\"layers\":[2,4],"
	                             "\"devices\":[\"a:1\"]}]}]}")
	                       .step_s;
	double rounds = evaluate(CLUSTER("", FREE), p,
	                         "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":64,\"schedule\":"
	                         "\"interleaved\",\"virtual_stages\":2,"
	                         "\"pipelines\":[{\"micro_batches\":8,\"stages\":[{\"layers\":[0,1],\"devices\":[\"a:0\"]},{\"layers\":[1,"
	                         "2],\"devices\":[\"a:1\"]},"
	                         "{\"layers\":[2,3],\"devices\":[\"a:0\"]},{\"layers\":[3,4],\"devices\":[\"a:1\"]}]}]}")
	                        .step_s;
	assert_true(rounds < plain - 2e-3);
	assert_true(rounds > 8 * 6e-3);
	hspmd_profile_destroy(p);
}

/* ---- overlap of gradients and backward passes */

/* Seconds that summing gradients adds to the step, for two copies of a model on two nodes of `tflops` each, which are slower by
 * `slowdown`, with a network of `gbytes_per_s`. *whole: seconds of all transfers; *before: seconds of the last backward pass after that of
 * the last layer. */
static double summing(const char *kind, double tflops, double slowdown, double gbytes_per_s, const struct hspmd_model_facts *m,
                      double *whole, double *before)
{
	struct hspmd_error err = { "" };
	char *text = hspmd_asprintf(
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":{\"kind\":\"%s\",\"memory_bytes\":80000000000,\"gbytes_per_s\":"
	        "100,"
	        "\"peak_tflops\":{\"fp32\":%g}}},\"nodes\":[{\"name\":\"n[0-1]\",\"devices\":[{\"type\":\"x\",\"count\":1}]}],"
	        "\"links\":[{\"scope\":\"cluster\",\"alpha_s\":0,\"gbytes_per_s\":%g}]}",
	        kind, tflops, gbytes_per_s);
	struct hspmd_cluster *c = cluster_from(text);
	c->nodes[0].slowdown = c->nodes[1].slowdown = slowdown;
	int layers = m->layer_count;
	json_t *value = json_loads(HEAD "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n0:0\"]}]},"
	                                "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,6],\"devices\":[\"n1:0\"]}]}]}",
	                           0, NULL);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, layers, &err);
	if (!p || hspmd_evaluate(c, m, NULL, HSPMD_PRECISION_FP32, p, NULL, &err))
		fail_msg("%s", err.text);
	struct hspmd_costs *costs = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, p->seq_len, &err);
	const struct hspmd_layer_times *t = hspmd_costs_times(costs, 0, 1, false, 1, &err);
	assert_non_null(t);
	*before = slowdown * (t->backward[layers - 1] - t->backward[0]) * hspmd_variation(costs, 2, 1);
	*whole = 4 * m->params / (gbytes_per_s * 1e9);
	double sync = p->predicted.sync_s;
	hspmd_costs_destroy(costs);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	json_decref(value);
	free(text);
	return sync;
}

/* On CPUs gradients are sent layer after layer, concurrently with the passes: with a fast network all but the layers' own copies is
 * hidden, with a slow one the whole time of the passes is used. */
static void gradients_hide_behind_the_passes_before(void **state)
{
	(void)state;
	struct hspmd_model *model = model_from(
	        "{\"model_type\":\"llama\",\"hidden_size\":128,\"intermediate_size\":384,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
	        "\"num_key_value_heads\":4,\"max_position_embeddings\":64,\"vocab_size\":1000,\"tie_word_embeddings\":false,\"rms_norm_"
	        "eps\":1e-5}");
	struct hspmd_model_facts *m = facts_of(model, 0);
	double whole, before, layers = 6, copies = m->params * 4 * HSPMD_SUM_TRAFFIC / (100e9 * HSPMD_SUSTAINED_MEMORY);
	/* Slow network: it is busy from the first gradients on. */
	double sync = summing("cpu", 1, 1, 0.01, m, &whole, &before);
	assert_true(whole > 2 * before);
	assert_float_equal(sync, whole - before, 1e-9);
	/* Slow devices: what remains is the first layer's transfer, and the copies that delayed the passes on the cores. */
	for (int slowdown = 1; slowdown <= 2; slowdown++) {
		sync = summing("cpu", 1e-3, slowdown, 1, m, &whole, &before);
		assert_true(whole < before / 2 && slowdown * copies < whole);
		assert_float_equal(sync, whole / layers + slowdown * copies * (layers - 1) / layers, 1e-9);
	}
	/* GPUs' programs sum gradients after all passes. */
	sync = summing("cuda", 1e-3, 1, 1, m, &whole, &before);
	assert_float_equal(sync, whole, 1e-9);
	hspmd_model_facts_destroy(m);
	hspmd_model_destroy(model);
}

/* Devices that divide the sequence hold, per micro-batch in flight, that part of the layers' inputs and of what the next stage receives. */
static void activations_in_flight_are_cut_as_the_sequence_is(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *m = small_gpt2(4, 64);
	struct hspmd_cluster *c = cluster_from(CLUSTER("", FREE));
	struct hspmd_costs *costs = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, 64, &err);
	assert_non_null(costs);
	int devices[] = { 0, 1, 2, 3 };
	double quarters[] = { 0.75, 0.25 };
	struct hspmd_layer_copies copies = { .pipelines = 1 };
	struct hspmd_stage alone = { .layers = { 0, 3 },
		                     .devices = devices,
		                     .device_count = 1,
		                     .context = 1,
		                     .recompute = HSPMD_RECOMPUTE_FULL },
	                   four = alone, uneven = alone;
	four.device_count = four.context = 4;
	uneven.device_count = uneven.context = 2;
	uneven.context_ratio = quarters;
	double whole = hspmd_costs_memory(costs, &alone, 0, 1, false, &copies).in_flight;
	assert_true(whole > 0);
	assert_float_equal(hspmd_costs_memory(costs, &four, 3, 1, false, &copies).in_flight, whole / 4, 1e-6 * whole);
	assert_float_equal(hspmd_costs_memory(costs, &uneven, 0, 1, false, &copies).in_flight, whole * 0.75, 1e-6 * whole);
	assert_float_equal(hspmd_costs_memory(costs, &uneven, 1, 2, false, &copies).in_flight, whole * 0.25 * 2, 1e-6 * whole);
	hspmd_costs_destroy(costs);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(m);
}

/* Gradients of two copies on two nodes: each node sends half of them, and later half of the sums. The slower of the link and of the node's
 * whole network is what counts. */
static void sums_take_as_long_as_the_nodes_network(void **state)
{
	(void)state;
	static const char copies[] = HEAD "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"a:0\"]}]},"
	                                  "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,4],\"devices\":[\"b:0\"]}]}]}";
	const double all = 4 * 1000 * 4.0; /* bytes: four layers of 1000 parameters */
	struct hspmd_profile *p = profile(false);
	assert_float_equal(evaluate(CLUSTER("", FREE), p, copies).sync_s, all / 1e15, 1e-9);
	assert_float_equal(evaluate(CLUSTER(",\"network_gbytes_per_s\":1e-3", FREE), p, copies).sync_s, all / 1e6, 1e-9);
	assert_float_equal(evaluate(CLUSTER(",\"network_gbytes_per_s\":2e-3", FREE), p, copies).sync_s, all / 2e6, 1e-9);
	hspmd_profile_destroy(p);
}

/* Four devices have all of one head of keys and values, each with some query heads: at the step's end they sum the gradients of its two
 * projections, over a link that takes a second for a gigabyte. */
static void gradients_of_replicated_heads_are_summed(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_model *model =
	        model_from("{\"model_type\":\"llama\",\"hidden_size\":128,\"intermediate_size\":384,\"num_hidden_layers\":3,"
	                   "\"num_attention_heads\":4,\"num_key_value_heads\":1,\"max_position_embeddings\":64,\"vocab_size\":1000}");
	struct hspmd_model_facts *m = facts_of(model, 0);
	struct hspmd_cluster *c = cluster_from(CLUSTER("", "{\"scope\":\"node\",\"alpha_s\":0,\"gbytes_per_s\":1}"));
	json_t *value = json_loads(HEAD "{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"a:0-3\"]}]}]}", 0, NULL);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, m->layer_count, &err);
	if (!p || hspmd_evaluate(c, m, NULL, HSPMD_PRECISION_FP32, p, NULL, &err))
		fail_msg("%s", err.text);
	assert_float_equal(p->predicted.sync_s, 3 * 2 * 128 * 32 * 4 * (2 * 3 / 4.0) / 1e9, 1e-12);
	hspmd_plan_destroy(p);
	json_decref(value);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(m);
	hspmd_model_destroy(model);
}

/* Stages that differ from the stage of the pipeline before them in one respect each, and some that do not, cost what each costs alone. */
static void stages_cost_what_they_cost_alone(void **state)
{
	(void)state;
	static const char *const text = "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":" TYPE(
	        "cpu") ",\"y\":{\"kind\":\"cpu\",\"memory_bytes\":8000000000,"
	               "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.5}}},\"nodes\":["
	               "{\"name\":\"n[0-1,3-6]\",\"devices\":[{\"type\":\"x\",\"count\":2}]},{\"name\":\"s\",\"slowdown\":1.5,\"devices\":["
	               "{\"type\":\"x\",\"count\":2}]},{\"name\":\"y\",\"devices\":[{\"type\":\"y\",\"count\":2}]}],\"links\":[" LATENT
	               "%s]}";
	static const char *const named = ",{\"scope\":\"cluster\",\"nodes\":[\"n5\",\"n6\"],\"alpha_s\":9e-3,\"gbytes_per_s\":1e9}";
	/* Each differs from the one before: slowness, type, type, nodes; others, which a link may name; the same; recomputation. */
	static const char *const stages[] = { "\"s:0-1\"",         "\"n0:0-1\"",        "\"y:0-1\"",         "\"n1:0-1\"",
		                              "\"n3:0\",\"n4:0\"", "\"n5:0\",\"n6:0\"", "\"n5:1\",\"n6:1\"", "\"n3:1\",\"n4:1\"" };
	struct hspmd_model_facts *m = small_gpt2(4, 64);
	for (int with = 0; with < 2; with++) {
		struct hspmd_error err = { "" };
		char *one = hspmd_asprintf(text, with ? named : ""), *plan = hspmd_asprintf(HEAD);
		struct hspmd_cluster *c = cluster_from(one);
		for (int i = 0; i < 8; i++) {
			char *more = hspmd_asprintf("%s%s{\"micro_batches\":1,\"stages\":[{\"layers\":[0,6],\"devices\":[%s]%s}]}", plan,
			                            i ? "," : "", stages[i], i == 7 ? ",\"recompute\":\"full\"" : "");
			free(plan);
			plan = more;
		}
		char *whole = hspmd_asprintf("%s]}", plan);
		json_t *value = json_loads(whole, 0, NULL);
		struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, 6, &err);
		if (!p)
			fail_msg("%s", err.text);
		struct hspmd_costs *costs = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, 64, &err);
		struct hspmd_timing t;
		assert_int_equal(hspmd_timing_compute(costs, p, &t, &err), 0);
		for (int i = 0; i < 8; i++) {
			struct hspmd_stage_cost alone;
			assert_int_equal(hspmd_costs_stage(costs, &p->pipelines[i].stages[0], 1, &alone, &err), 0);
			double vary = hspmd_variation(costs, 16, 2);
			assert_true(
			        t.stages[i].cost.forward == alone.forward * vary && t.stages[i].cost.backward == alone.backward * vary &&
			        t.stages[i].cost.group_comm == alone.group_comm * vary && t.stages[i].cost.optimizer == alone.optimizer);
		}
		assert_true(t.stages[1].cost.forward == t.stages[3].cost.forward && t.stages[0].cost.forward > t.stages[1].cost.forward &&
		            t.stages[2].cost.forward > t.stages[1].cost.forward && t.stages[4].cost.forward > t.stages[1].cost.forward &&
		            (t.stages[5].cost.forward > t.stages[4].cost.forward) == (with == 1) &&
		            t.stages[7].cost.backward > t.stages[4].cost.backward);
		/* Only what is shorter than a limit is timed to its end, and as it is without a limit. */
		double step_s = t.step_s, passes_s = t.compute_end + t.optimizer_s;
		hspmd_timing_clear(&t);
		assert_int_equal(hspmd_timing_compute_below(costs, p, NULL, passes_s, &t, &err), 1);
		assert_null(t.stages);
		assert_int_equal(hspmd_timing_compute_below(costs, p, NULL, step_s * (1 + 1e-12), &t, &err), 0);
		assert_true(t.step_s == step_s);
		hspmd_timing_clear(&t);
		hspmd_costs_destroy(costs);
		hspmd_plan_destroy(p);
		hspmd_cluster_destroy(c);
		json_decref(value);
		free(whole);
		free(plan);
		free(one);
	}
	hspmd_model_facts_destroy(m);
}

static struct hspmd_stage_cost cost_of(struct hspmd_costs *costs, const struct hspmd_stage *stage, int micro_batch)
{
	struct hspmd_error err = { "" };
	struct hspmd_stage_cost cost;
	if (hspmd_costs_stage(costs, stage, micro_batch, &cost, &err))
		fail_msg("%s", err.text);
	return cost;
}

/* Costs that are kept are those of stages that are alike in all that they depend on. */
static void costs_are_kept_of_like_stages_alone(void **state)
{
	(void)state;
	static const char *const text =
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{"
	        "\"x\":{\"kind\":\"cuda\",\"memory_bytes\":8000000000,\"gbytes_per_s\":20,\"peak_tflops\":{\"fp32\":1},"
	        "\"host\":{\"memory_bytes\":8000000000,\"gbytes_per_s\":0.001}},"
	        "\"y\":{\"kind\":\"cuda\",\"memory_bytes\":8000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.5}}},"
	        "\"nodes\":[{\"name\":\"a\",\"devices\":[{\"type\":\"x\",\"count\":4}]},{\"name\":\"s\",\"slowdown\":1.5,"
	        "\"devices\":[{\"type\":\"x\",\"count\":4}]},{\"name\":\"y\",\"devices\":[{\"type\":\"y\",\"count\":4}]}],"
	        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-3,\"gbytes_per_s\":1},{\"scope\":\"cluster\",\"alpha_s\":3e-3,"
	        "\"gbytes_per_s\":0.5}]}";
	int near[] = { 0, 1, 2, 3 }, slow[] = { 4, 5 }, other[] = { 8, 9 }, far[] = { 0, 4 };
	double ratio[] = { 0.75, 0.25 };
	const struct hspmd_stage base = { .layers = { 1, 4 }, .devices = near, .device_count = 2, .context = 1 };
	struct hspmd_stage stages[13];
	for (int i = 0; i < 13; i++)
		stages[i] = base;
	stages[1].layers[0] = 2;
	stages[2].layers[1] = 5;
	stages[3].devices = slow;
	stages[4].devices = other;
	stages[5].devices = far;
	stages[6].device_count = 4;
	stages[7].context = 2;
	stages[8].recompute = HSPMD_RECOMPUTE_FULL;
	stages[9].sequence_parallel = true;
	stages[10].offload = HSPMD_OFFLOAD_OPTIMIZER;
	stages[11].offload_activations = HSPMD_OFFLOAD_ALL;
	stages[12].shard_ratio = ratio;
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *m = small_gpt2(4, 64);
	struct hspmd_cluster *c = cluster_from(text);
	struct hspmd_costs *kept = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, 64, &err);
	struct hspmd_stage_cost first = cost_of(kept, &base, 1);
	for (int i = 0; i < 2 * 14; i++) {
		/* The last one is the first with larger micro-batches. */
		const struct hspmd_stage *stage = i % 14 == 13 ? &base : &stages[i % 14];
		int micro_batch = i % 14 == 13 ? 2 : 1;
		struct hspmd_costs *fresh = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, 64, &err);
		struct hspmd_stage_cost before = cost_of(kept, &base, 1), alone = cost_of(fresh, stage, micro_batch),
		                        again = cost_of(kept, stage, micro_batch);
		assert_memory_equal(&before, &first, sizeof first);
		assert_memory_equal(&again, &alone, sizeof alone);
		assert_int_equal(memcmp(&first, &alone, sizeof alone) != 0, i % 14 != 0);
		hspmd_costs_destroy(fresh);
	}
	hspmd_costs_destroy(kept);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(m);
}

/* A context group gathers unequal parts in the form that the runtime takes: around a ring of GPUs the cheaper one, among CPUs directly. */
static void unequal_parts_are_gathered_as_in_the_runtime(void **state)
{
	(void)state;
	static const int devices[] = { 0, 1, 2, 3 };
	static const double equal[] = { 4e6, 4e6, 4e6, 4e6 }, near[] = { 5e6, 4e6, 4e6, 3e6 }, far[] = { 13e6, 1e6, 1e6, 1e6 };
	const double call = 1e-5, rate = 1e9;
	for (int rings = 0; rings < 2; rings++) {
		char text[512];
		snprintf(text, sizeof text,
		         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":{\"kind\":\"%s\",\"memory_bytes\":1000000000,"
		         "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":1}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"x\","
		         "\"count\":4}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":1}]}",
		         rings ? "cuda" : "cpu");
		struct hspmd_cluster *c = cluster_from(text);
		struct hspmd_costs costs = { .cluster = c };
		struct hspmd_error err = { "" };
		assert_float_equal(hspmd_costs_gather(&costs, devices, 1, 4, equal, &err), 3 * (call + 4e6 / rate), 1e-9);
		assert_float_equal(hspmd_costs_gather(&costs, devices, 1, 4, near, &err), 3 * (call + 5e6 / rate), 1e-9);
		assert_float_equal(hspmd_costs_gather(&costs, devices, 1, 4, far, &err),
		                   rings ? 4 * call + 16e6 / rate : 3 * (call + 13e6 / rate), 1e-9);
		hspmd_cluster_destroy(c);
	}
}

/* Two devices that divide a sequence in halves each send one half; in unequal parts, the larger one passes the link. */
static void the_larger_part_of_a_sequence_passes_the_link(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *m = small_gpt2(4, 64);
	struct hspmd_cluster *c =
	        cluster_from(CLUSTER("", "{\"scope\":\"node\",\"alpha_s\":0,\"gbytes_per_s\":1},{\"scope\":\"cluster\",\"alpha_s\":0,"
	                                 "\"gbytes_per_s\":1}"));
	struct hspmd_costs *costs = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, 64, &err);
	assert_non_null(costs);
	int devices[] = { 0, 1 };
	double halves[] = { 0.5, 0.5 }, quarters[] = { 0.75, 0.25 }, seconds[3];
	double *const ratios[] = { NULL, halves, quarters };
	for (int i = 0; i < 3; i++) {
		struct hspmd_stage stage = {
			.layers = { 0, 4 }, .devices = devices, .device_count = 2, .context = 2, .context_ratio = ratios[i]
		};
		struct hspmd_stage_cost cost;
		assert_int_equal(hspmd_costs_stage(costs, &stage, 1, &cost, &err), 0);
		seconds[i] = cost.group_comm;
	}
	assert_true(seconds[0] > 0);
	assert_float_equal(seconds[1] / seconds[0], 1, 1e-6);
	assert_float_equal(seconds[2] / seconds[0], 1.5, 1e-6);
	hspmd_costs_destroy(costs);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(m);
}

/* Groups in a hand-written plan are as many as its devices, far more than a search tries. Each gathers what all others have. */
static void many_groups_send_to_one_another(void **state)
{
	(void)state;
	enum { MOST = 256 };
	static const char cluster[] = "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"x\":" TYPE(
	        "cpu") "},\"nodes\":[{\"name\":\"n\",\"devices\":"
	               "[{\"type\":\"x\",\"count\":256}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":0,\"gbytes_per_s\":1}]}";
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *m = small_gpt2(4, MOST);
	struct hspmd_cluster *c = cluster_from(cluster);
	struct hspmd_costs *costs = hspmd_costs_new(c, m, NULL, HSPMD_PRECISION_FP32, MOST, &err);
	assert_non_null(costs);
	int devices[MOST];
	double ratio[MOST], seconds[2];
	for (int i = 0; i < MOST; i++)
		devices[i] = i;
	for (int i = 0; i < MOST; i++)
		ratio[i] = 1.0 / MOST;
	for (int unequal = 0; unequal < 2; unequal++) {
		struct hspmd_stage stage = { .layers = { 0, 4 }, .devices = devices, .device_count = MOST, .context = MOST };
		struct hspmd_stage_cost cost;
		stage.context_ratio = unequal ? ratio : NULL;
		assert_int_equal(hspmd_costs_stage(costs, &stage, 1, &cost, &err), 0);
		seconds[unequal] = cost.group_comm;
	}
	assert_true(seconds[0] > 0);
	assert_float_equal(seconds[1] / seconds[0], 1, 1e-6);
	hspmd_costs_destroy(costs);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_straggler_takes_as_much_longer_as_it_is_slower),
		cmocka_unit_test(a_pipeline_has_its_own_micro_batch),
		cmocka_unit_test(the_pipeline_that_differs_decides),
		cmocka_unit_test(groups_across_nodes_pay_what_is_longer_there),
		cmocka_unit_test(groups_that_were_not_measured_communicate),
		cmocka_unit_test(what_is_not_work_shrinks_on_cpus_alone),
		cmocka_unit_test(small_micro_batches_cost_more),
		cmocka_unit_test(backward_times_are_believed),
		cmocka_unit_test(interleaving_pays),
		cmocka_unit_test(gradients_hide_behind_the_passes_before),
		cmocka_unit_test(activations_in_flight_are_cut_as_the_sequence_is),
		cmocka_unit_test(sums_take_as_long_as_the_nodes_network),
		cmocka_unit_test(gradients_of_replicated_heads_are_summed),
		cmocka_unit_test(stages_cost_what_they_cost_alone),
		cmocka_unit_test(costs_are_kept_of_like_stages_alone),
		cmocka_unit_test(unequal_parts_are_gathered_as_in_the_runtime),
		cmocka_unit_test(the_larger_part_of_a_sequence_passes_the_link),
		cmocka_unit_test(many_groups_send_to_one_another),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
