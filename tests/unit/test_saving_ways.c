/* SPDX-License-Identifier: Apache-2.0 */
/* What the solver does where memory is short: lists of operators that are computed again, optimizer state and activations in the host's
 * memory, and sequence parallelism, each only where it is needed or faster; and the plan says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/recompute_sets.h"
#include "controller/solver/search/search_internal.h"
#include "controller/solver/sim/evaluate.h"
#include "controller/solver/solver.h"
#include "tests/unit/only.h"
#include "tests/unit/solver_inputs.h"

#define LLAMA                                                                                                                              \
	"{\"model_type\":\"llama\",\"hidden_size\":1024,\"intermediate_size\":2816,\"num_hidden_layers\":6,\"num_attention_heads\":16,"    \
	"\"num_key_value_heads\":4,\"max_position_embeddings\":512,\"vocab_size\":32000,\"tie_word_embeddings\":false,"                    \
	"\"rms_norm_eps\":1e-5}"

static struct hspmd_cluster *one_gpu(double memory, double host)
{
	char text[500];
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cuda\",\"memory_bytes\":%.0f,\"gbytes_per_s\":1000,"
	         "\"peak_tflops\":{\"fp32\":50,\"bf16\":500},\"host\":{\"memory_bytes\":%.0f,\"gbytes_per_s\":20}}},\"nodes\":[{\"name\":"
	         "\"n\",\"devices\":[{\"type\":\"d\",\"count\":1}]}],\"links\":[]}",
	         memory, host);
	return cluster_from(text);
}

/* Optimizer state and activations go to the host's memory if all that is recomputed is not enough, if there is room for them, and only
 * then; and the plan says why. */
static void offload_is_chosen_where_memory_is_short(void **unused)
{
	(void)unused;
	struct hspmd_error err = { "" };
	struct hspmd_model *m = model_from(LLAMA);
	struct hspmd_model_facts *f = facts_of(m, 512);
	struct hspmd_solve_request r = { .global_batch = 16, .micro_batch = 8, .seq_len = 512, .precision = HSPMD_PRECISION_BF16 };
	struct hspmd_cluster *large = one_gpu(64e9, 64e9);
	struct hspmd_plan *p = hspmd_solve(large, f, NULL, &r, NULL, &err);
	if (!p)
		fail_msg("%s", err.text);
	struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	double step_s[2][2], bytes[2][2], host[2][2]; /* [optimizer][activations] */
	assert_int_equal(stage->offload, HSPMD_OFFLOAD_NONE);
	assert_int_equal(stage->offload_activations, 0);
	assert_int_equal(p->pipelines[0].stage_count, 1);
	stage->recompute = HSPMD_RECOMPUTE_FULL;
	for (int i = 0; i < 4; i++) {
		stage->offload = (enum hspmd_offload)(i / 2);
		stage->offload_activations = i % 2 ? HSPMD_OFFLOAD_ALL : 0;
		assert_int_equal(hspmd_evaluate(large, f, NULL, HSPMD_PRECISION_BF16, p, NULL, &err), 0);
		step_s[i / 2][i % 2] = p->predicted.step_s;
		bytes[i / 2][i % 2] = p->predicted.memory_bytes[0];
		struct hspmd_costs *costs = hspmd_costs_of_plan(large, f, NULL, HSPMD_PRECISION_BF16, p, &err);
		host[i / 2][i % 2] = costs ? hspmd_plan_host_memory(costs, p, 0, 0, 0) : NAN;
		hspmd_costs_destroy(costs);
	}
	double state = 12 * f->params; /* weights in fp32 and two moments */
	assert_true(fabs(bytes[0][0] - bytes[1][0] - state) < 0.01 * state);
	/* Over the link, but what the device itself does meanwhile counts, too. */
	assert_true(step_s[1][0] - step_s[0][0] < state / 20e9 && step_s[1][0] - step_s[0][0] > 0.8 * state / 20e9);
	assert_true(bytes[0][1] < bytes[0][0] && host[0][1] > 0.9 * (bytes[0][0] - bytes[0][1]) && step_s[0][1] >= step_s[0][0]);
	hspmd_cluster_destroy(large);
	for (int enough = 0; enough < 2; enough++) { /* of the host's memory, for the plan that offloads both */
		struct hspmd_cluster *c = one_gpu(bytes[1][1] * 1.001, (0.999 + 0.002 * enough) * host[1][1]);
		struct hspmd_costs *costs = hspmd_costs_of_plan(c, f, NULL, HSPMD_PRECISION_BF16, p, &err);
		struct hspmd_solve_report report = { 0 };
		assert_non_null(costs);
		assert_true(hspmd_plan_fits(costs, p) == enough);
		assert_int_equal(hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_BF16, p, &report, &err), 0);
		assert_int_equal(report.shortage_count, !enough);
		assert_true(enough || (report.shortages[0].host && report.shortages[0].have_bytes < report.shortages[0].need_bytes));
		hspmd_solve_report_clear(&report);
		hspmd_costs_destroy(costs);
		hspmd_cluster_destroy(c);
	}
	hspmd_plan_destroy(p);
	double between = (bytes[0][0] + bytes[0][1]) / 2; /* drafts estimate memory a little higher */
	const struct {
		double memory, host;
		int offload, activations; /* -1: no plan */
	} cases[] = {
		{ bytes[0][0] * 1.2, 64e9, 0, 0 },
		{ bytes[0][0] * 0.999, 64e9, 0, 1 },
		{ between, 1.001 * host[0][1], 0, 1 },
		{ between, 0.999 * host[0][1], -1, -1 },
		{ bytes[0][1] * 0.999, 64e9, 1, 0 },
		{ (bytes[1][0] + bytes[1][1]) / 2, 1.001 * host[1][1], 1, 1 },
		{ bytes[0][1] * 0.999, 2.9 * state, -1, -1 },
		{ bytes[1][1] * 0.999, 64e9, -1, -1 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_cluster *c = one_gpu(cases[i].memory, cases[i].host);
		p = hspmd_solve(c, f, NULL, &r, NULL, &err);
		int offload = p ? (int)p->pipelines[0].stages[0].offload : -1,
		    activations = p ? p->pipelines[0].stages[0].offload_activations : -1;
		if (offload != cases[i].offload || activations != cases[i].activations)
			fail_msg("%zu: %g bytes, %g of the host: offload is %d, of activations %d", i, cases[i].memory, cases[i].host,
			         offload, activations);
		char *why = p ? hspmd_plan_explain(c, f, NULL, HSPMD_PRECISION_BF16, NULL, p) : NULL;
		assert_true(!p || (offload > 0) == (strstr(why, "keeps the optimizer's state in the host's memory") != NULL));
		assert_true(!p || (activations > 0) == (strstr(why, "keeps what forward passes save in the host's memory") != NULL));
		if ((offload > 0 || activations > 0) && !(strstr(why, "over 20 GB/s") && strstr(why, "without, the device would need")))
			fail_msg("%s", why);
		free(why);
		hspmd_plan_destroy(p);
		hspmd_cluster_destroy(c);
	}
	struct hspmd_cluster *c = one_gpu(bytes[1][1] * 1.02, 2 * state);
	r.micro_batch = 1;
	assert_null(hspmd_solve(c, f, NULL, &r, NULL, &err));
	if (!strstr(err.text, "with 2 times the host's memory for what devices offload there is a plan"))
		fail_msg("%s", err.text);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* Two GPUs, the second with less memory and `speed` as fast, whose hosts are reached at `rate` GB/s. */
static struct hspmd_cluster *two_gpus(double large, double small, double speed, double rate)
{
	char text[900];
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"l\":{\"kind\":\"cuda\",\"memory_bytes\":%.0f,\"gbytes_per_s\":1000,"
	         "\"peak_tflops\":{\"fp32\":50,\"bf16\":500},\"host\":{\"memory_bytes\":64000000000,\"gbytes_per_s\":%g}},\"s\":{\"kind\":"
	         "\"cuda\",\"memory_bytes\":%.0f,\"gbytes_per_s\":1000,\"peak_tflops\":{\"fp32\":50,\"bf16\":%g},\"host\":{\"memory_"
	         "bytes\":"
	         "64000000000,\"gbytes_per_s\":%g}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"l\",\"count\":1},{\"type\":\"s\","
	         "\"count\":1}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":50}]}",
	         large, rate, small, 500 * speed, rate);
	return cluster_from(text);
}

/* Fails if the plan is faster with the optimizer's state of one stage elsewhere, and any recomputation that there is in the stage; or if it
 * would fit as well on the device. */
static void check_offload(const struct hspmd_cluster *c, const struct hspmd_model_facts *f, const struct hspmd_plan *p, const char *name)
{
	struct hspmd_error err = { "" };
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count / p->virtual_stages; s++)
			for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++) {
				struct hspmd_plan *other = hspmd_plan_copy(p);
				struct hspmd_stage *stage = &other->pipelines[i].stages[s];
				bool offload = !stage->offload;
				struct hspmd_costs *costs = hspmd_costs_of_plan(c, f, NULL, HSPMD_PRECISION_BF16, p, &err);
				for (; stage < other->pipelines[i].stages + p->pipelines[i].stage_count;
				     stage += p->pipelines[i].stage_count / p->virtual_stages) { /* of each chunk */
					stage->offload = offload ? HSPMD_OFFLOAD_OPTIMIZER : HSPMD_OFFLOAD_NONE;
					stage->recompute = (enum hspmd_recompute)k;
				}
				assert_non_null(costs);
				if (!offload && k <= (int)p->pipelines[i].stages[s].recompute && hspmd_plan_fits(costs, other))
					fail_msg("%s: stage %d of pipeline %d offloads for nothing", name, s, i);
				if ((hspmd_recompute_kinds(f->recompute_sets) & 1u << k) && hspmd_plan_fits(costs, other)) {
					assert_int_equal(hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_BF16, other, NULL, &err), 0);
					if (other->predicted.step_s < p->predicted.step_s * (1 - 1e-6))
						fail_msg("%s, %s: %g s, but %g s if stage %d of pipeline %d %s and recomputes %s", name,
						         hspmd_schedule_names[p->schedule], p->predicted.step_s, other->predicted.step_s, s,
						         i, offload ? "offloads" : "does not offload", hspmd_recompute_names[k]);
				}
				hspmd_costs_destroy(costs);
				hspmd_plan_destroy(other);
			}
}

/* The same of activations. */
static void check_activations(const struct hspmd_cluster *c, const struct hspmd_model_facts *f, const struct hspmd_plan *p,
                              const char *name)
{
	struct hspmd_error err = { "" };
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++) {
				struct hspmd_plan *other = hspmd_plan_copy(p);
				struct hspmd_stage *stage = &other->pipelines[i].stages[s];
				struct hspmd_costs *costs = hspmd_costs_of_plan(c, f, NULL, HSPMD_PRECISION_BF16, p, &err);
				bool offloads = stage->offload_activations;
				stage->offload_activations = offloads ? 0 : HSPMD_OFFLOAD_ALL;
				stage->recompute = (enum hspmd_recompute)k;
				assert_non_null(costs);
				if ((hspmd_recompute_kinds(f->recompute_sets) & 1u << k) && hspmd_plan_fits(costs, other)) {
					if (offloads && k <= (int)p->pipelines[i].stages[s].recompute)
						fail_msg("%s: stage %d of pipeline %d offloads activations for nothing", name, s, i);
					assert_int_equal(hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_BF16, other, NULL, &err), 0);
					if (other->predicted.step_s < p->predicted.step_s * (1 - 1e-6))
						fail_msg("%s: %g s, but %g s if stage %d of pipeline %d %s activations and recomputes %s",
						         name, p->predicted.step_s, other->predicted.step_s, s, i,
						         offloads ? "keeps" : "offloads", hspmd_recompute_names[k]);
				}
				hspmd_costs_destroy(costs);
				hspmd_plan_destroy(other);
			}
}

/* Each stage offloads or not as is best for it: where recomputation would take longer, and where nothing else fits. */
static void stages_offload_one_by_one(void **unused)
{
	(void)unused;
	struct hspmd_error err = { "" };
	struct hspmd_model *m = model_from(LLAMA);
	struct hspmd_model_facts *f = facts_of(m, 512);
	int activations = 0, count[3] = { 0 }; /* plans in which no stage offloads, one of several, all */
	for (int i = 0; i < 48; i++) {
		char name[100];
		double large = 2.4e9 + 0.3e9 * (i % 8), small = 1.9e9 + 0.1e9 * (i % 3), rate = i % 2 ? 20 : 0.2;
		struct hspmd_cluster *c = two_gpus(large, small, i < 24 ? 1 : 0.2, rate);
		struct hspmd_solve_request r = { .global_batch = i / 8 % 3 == 2 ? 256 : 32,
			                         .micro_batch = 2 << i / 8 % 3,
			                         .seq_len = 512,
			                         .precision = HSPMD_PRECISION_BF16 };
		struct hspmd_plan *p = hspmd_solve(c, f, NULL, &r, NULL, &err);
		snprintf(name, sizeof name, "%g and %g GB, %g GB/s, micro-batches of %d", large / 1e9, small / 1e9, rate, r.micro_batch);
		if (p) {
			check_offload(c, f, p, name);
			check_activations(c, f, p, name);
		}
		int offload = 0, stages = 0;
		for (int q = 0; p && q < p->pipeline_count; q++)
			for (int s = 0; s < p->pipelines[q].stage_count; s++, stages++) {
				offload += p->pipelines[q].stages[s].offload;
				activations += p->pipelines[q].stages[s].offload_activations;
			}
		if (p)
			count[!offload ? 0 : offload == stages ? 2 : 1]++;
		hspmd_plan_destroy(p);
		hspmd_cluster_destroy(c);
	}
	print_message("%d plans offload no optimizer, %d one of two stages, %d all; %d stages offload activations\n", count[0], count[1],
	              count[2], activations);
	assert_true(count[1] > 0 && count[2] > 0 && activations > 0);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* A stage recomputes the first of the lists with which it fits, in their order, and says so. */
static void lists_are_chosen_where_less_does_not_fit(void **unused)
{
	(void)unused;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c = cluster_from(
	        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cpu\",\"memory_bytes\":68719476736,\"gbytes_per_s\":"
	        "20,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"d\",\"count\":1}]}],\"links\":[]"
	        "}");
	struct hspmd_model *m = model_from(LLAMA);
	struct hspmd_model_facts *f = facts_of(m, 512);
	struct hspmd_solve_request r = { .global_batch = 16, .micro_batch = 8, .seq_len = 512 };
	unsigned kinds = hspmd_recompute_kinds(f->recompute_sets);
	double before = INFINITY, before_s = 0;
	struct hspmd_plan *p = hspmd_solve(c, f, NULL, &r, NULL, &err);
	if (!p)
		fail_msg("%s", err.text);
	assert_true(json_array_size(f->recompute_sets) > 1);
	for (int k = HSPMD_RECOMPUTE_NONE; k < HSPMD_RECOMPUTE_FULL; k++) {
		if (!(kinds & 1u << k))
			continue;
		p->pipelines[0].stages[0].recompute = (enum hspmd_recompute)k;
		assert_int_equal(hspmd_evaluate(c, f, NULL, HSPMD_PRECISION_FP32, p, NULL, &err), 0);
		double need = p->predicted.memory_bytes[0], all = (double)c->types[0].memory_bytes;
		if (!(need < before && p->predicted.step_s > before_s))
			fail_msg("%s: %g bytes after %g, %g s after %g", hspmd_recompute_names[k], need, before, p->predicted.step_s,
			         before_s);
		before_s = p->predicted.step_s;
		c->types[0].memory_bytes = (int64_t)(k ? before * 0.9999 : need * 1.0001); /* too little for the kind before */
		before = need;
		struct hspmd_plan *found = hspmd_solve(c, f, NULL, &r, NULL, &err);
		if (!found)
			fail_msg("%s: %s", hspmd_recompute_names[k], err.text);
		assert_int_equal(found->pipelines[0].stages[0].recompute, k);
		char *names =
		        k >= HSPMD_RECOMPUTE_SET ? hspmd_recompute_set_text(hspmd_recompute_set(f->recompute_sets, k)) : strdup("cheap");
		char *why = hspmd_plan_explain(c, f, NULL, HSPMD_PRECISION_FP32, NULL, found);
		if (k &&
		    !(strstr(why, names) && strstr(why, "again before a block's backward pass") && strstr(why, "with less to do again")))
			fail_msg("%s is explained by: %s", names, why);
		assert_true(k || !strstr(why, "again before"));
		free(names);
		free(why);
		hspmd_plan_destroy(found);
		c->types[0].memory_bytes = (int64_t)all;
	}
	hspmd_plan_destroy(p);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
	hspmd_cluster_destroy(c);
}

/* Four GPUs that have one sample for each step, which only tensor parallelism makes shorter. */
static struct hspmd_cluster *four_gpus(double memory)
{
	char text[600];
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cuda\",\"memory_bytes\":%.0f,\"gbytes_per_s\":500,"
	         "\"peak_tflops\":{\"fp32\":50,\"bf16\":100}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"d\",\"count\":4}]}],"
	         "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":400}]}",
	         memory);
	return cluster_from(text);
}

/* Sequence parallelism is chosen where a step is shorter with it, and where nothing fits without; and the plan says so. */
static void sequence_parallelism_is_chosen(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_model *m =
	        model_from("{\"model_type\":\"llama\",\"hidden_size\":1024,\"intermediate_size\":2816,\"num_hidden_layers\":6,"
	                   "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"max_position_embeddings\":4096,"
	                   "\"vocab_size\":8000,\"tie_word_embeddings\":false}");
	struct hspmd_model_facts *f = facts_of(m, 4096);
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	struct hspmd_solve_request r = { .global_batch = 1, .seq_len = 4096, .precision = HSPMD_PRECISION_BF16, .caps = &caps };
	struct hspmd_cluster *c = four_gpus(64e9);
	struct hspmd_plan *p = hspmd_solve(c, f, NULL, &r, NULL, &err);
	if (!p)
		fail_msg("%s", err.text);
	struct hspmd_stage *stage = &p->pipelines[0].stages[0];
	assert_int_equal(stage->device_count, 4);
	assert_true(stage->sequence_parallel);
	char *why = hspmd_plan_explain(c, f, NULL, r.precision, NULL, p);
	assert_non_null(strstr(why, "Stage 0 of pipeline 0 has sequence parallelism: it keeps "));
	free(why);
	double with_s = p->predicted.step_s, with_bytes = p->predicted.memory_bytes[0];
	stage->sequence_parallel = false;
	assert_int_equal(hspmd_evaluate(c, f, NULL, r.precision, p, NULL, &err), 0);
	assert_true(p->predicted.step_s > with_s && p->predicted.memory_bytes[0] > with_bytes);
	hspmd_plan_destroy(p);
	caps.sequence_parallel = false;
	p = hspmd_solve(c, f, NULL, &r, NULL, &err);
	assert_true(p && !p->pipelines[0].stages[0].sequence_parallel && p->predicted.step_s > with_s);
	/* Less memory than all recomputation needs without it. Drafts estimate memory a little higher. */
	double bytes[2];
	stage = &p->pipelines[0].stages[0];
	stage->recompute = HSPMD_RECOMPUTE_FULL;
	for (int sequence = 0; sequence < 2; sequence++) {
		stage->sequence_parallel = sequence;
		assert_int_equal(hspmd_evaluate(c, f, NULL, r.precision, p, NULL, &err), 0);
		bytes[sequence] = p->predicted.memory_bytes[0];
	}
	print_message("%.4g GB without, %.4g GB with sequence parallelism\n", bytes[0] / 1e9, bytes[1] / 1e9);
	struct hspmd_cluster *little = four_gpus(bytes[1] + 0.9 * (bytes[0] - bytes[1]));
	assert_null(hspmd_solve(little, f, NULL, &r, NULL, &err));
	caps.sequence_parallel = true;
	struct hspmd_plan *found = hspmd_solve(little, f, NULL, &r, NULL, &err);
	if (!found)
		fail_msg("%s", err.text);
	bool any = false;
	for (int s = 0; s < found->pipelines[0].stage_count; s++)
		any = any || found->pipelines[0].stages[s].sequence_parallel;
	assert_true(any);
	hspmd_plan_destroy(found);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(little);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* Least memory of each device with which a draft of one stage on all four fits. */
static double least_of_draft(struct hspmd_submesh_tables *t, int submesh)
{
	const struct hspmd_stage_sequence one = { .stages = 1, .submesh = { (unsigned char)submesh } };
	const struct hspmd_layer_copies alone = { .pipelines = 1 };
	double low = 0, high = 64e9;
	while (high - low > 1e-4 * high) {
		t->submeshes[submesh].usable_bytes = (low + high) / 2;
		memset(t->rooms, 0, HSPMD_ROOMS * sizeof *t->rooms); /* what was found with other memory */
		*(hspmd_partition_fits(t, &one, &alone, 1) ? &high : &low) = (low + high) / 2;
	}
	return high;
}

/* Whatever a stage recomputes, with and without sequence parallelism, a draft needs little more than the plan that becomes of it, and no
 * less. */
static void drafts_need_what_plans_need(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	bool allowed[1] = { true };
	struct hspmd_model *m = model_from(LLAMA);
	struct hspmd_model_facts *f = facts_of(m, 512);
	struct hspmd_cluster *c = four_gpus(64e9);
	struct hspmd_costs *costs = hspmd_costs_new(c, f, NULL, HSPMD_PRECISION_BF16, 512, &err);
	struct hspmd_device_classes *classes = hspmd_device_classes_new(c, allowed, &err);
	struct hspmd_solve_request r = { .global_batch = 16, .micro_batch = 16, .seq_len = 512, .precision = HSPMD_PRECISION_BF16 };
	struct hspmd_plan *p = hspmd_solve(c, f, NULL, &r, NULL, &err);
	assert_true(costs && classes && p && p->pipelines[0].stages[0].device_count == 4);
	for (int i = 0; i < 2 * HSPMD_RECOMPUTE_KINDS; i++) {
		struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
		int recompute = i / 2, four = 0;
		if (!(hspmd_recompute_kinds(f->recompute_sets) & 1u << recompute))
			continue;
		caps.recompute = 1u << recompute;
		caps.sequence_parallel = i % 2;
		struct hspmd_submesh_tables *t = hspmd_submesh_tables_new(costs, classes, &caps, 16, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
		assert_non_null(t);
		while (t->submeshes[four].tp != 4)
			four++;
		p->pipelines[0].stages[0].recompute = (enum hspmd_recompute)recompute;
		p->pipelines[0].stages[0].sequence_parallel = t->submeshes[four].sequence[recompute];
		double draft = hspmd_device_bytes(costs, &c->types[0], least_of_draft(t, four)),
		       plan = hspmd_plan_memory(costs, p, 0, 0, 0);
		if (draft < plan || draft > 1.03 * plan)
			fail_msg("%s: %g GB in the draft, %g in the plan", hspmd_recompute_names[recompute], draft / 1e9, plan / 1e9);
		hspmd_submesh_tables_destroy(t);
	}
	hspmd_plan_destroy(p);
	hspmd_device_classes_destroy(classes);
	hspmd_costs_destroy(costs);
	hspmd_cluster_destroy(c);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drafts_need_what_plans_need),
		cmocka_unit_test(lists_are_chosen_where_less_does_not_fit),
		cmocka_unit_test(offload_is_chosen_where_memory_is_short),
		cmocka_unit_test(stages_offload_one_by_one),
		cmocka_unit_test(sequence_parallelism_is_chosen),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
