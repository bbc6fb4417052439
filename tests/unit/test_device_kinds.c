/* SPDX-License-Identifier: Apache-2.0 */
/* A kind of device that hspmd does not know, added by a folder (tests/pretend) and one line: it trains, also with CPU devices. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/format/plan_precision.h"
#include "runtime/exec/update_groups.h"
#include "runtime/model/model.h"
#include "runtime/program/program.h"
#include "tests/pretend/pretend.h"
#include "tests/unit/trainer.h"

#define STEPS 12

/* Device 0 is a share of the CPU, the others are make-believe accelerators, with a slow link. */
static const char cluster[] = "{\"format\":\"hspmd-cluster-1\",\"device_types\":{"
                              "\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.01}},"
                              "\"p\":{\"kind\":\"pretend\",\"memory_bytes\":200000000,\"gbytes_per_s\":100,"
                              "\"peak_tflops\":{\"fp32\":0.1,\"bf16\":0.2},\"host\":{\"memory_bytes\":1000000000,\"gbytes_per_s\":1}}},"
                              "\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":1},{\"type\":\"p\",\"count\":2}]}],"
                              "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-3,\"gbytes_per_s\":0.1}]}";
#define PLAN(pipelines)                                                                                                                    \
	"{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"         \
	"\"pipelines\":[" pipelines "]}"
static const char on_cpu[] = PLAN("{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}");
static const char on_pretend[] = PLAN("{\"micro_batches\":8,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:1\"]}]}");
static const char in_a_row[] =
        PLAN("{\"micro_batches\":8,\"stages\":[{\"layers\":[0,2],\"devices\":[\"n:0\"]},{\"layers\":[2,5],\"devices\":[\"n:1\"]}]}");
static const char side_by_side[] = PLAN("{\"micro_batches\":3,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]},"
                                        "{\"micro_batches\":5,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:1-2\"]}]}");

static void train(const char *plan, bool bf16, double *losses)
{
	struct hspmd_error err = { "" };
	struct trainer_options o = { .model = trainer_llama, .plan = plan, .devices = 3, .steps = STEPS, .cluster = cluster, .bf16 = bf16 };
	if (trainer_train(&o, losses, &err))
		fail_msg("%s", err.text);
}

static void assert_near(const double *a, const double *b, double relative)
{
	for (int s = 0; s < STEPS; s++)
		if (!(fabs(a[s] - b[s]) <= relative * fabs(b[s])))
			fail_msg("step %d: %.9g where %.9g was expected", s, a[s], b[s]);
}

static void test_mixed(void **state)
{
	(void)state;
	double cpu[STEPS], other[STEPS];
	train(on_cpu, false, cpu);
	assert_int_equal(pretend_copies(), 0);
	assert_true(cpu[STEPS - 1] < cpu[0]);
	const char *const plans[] = { on_pretend, in_a_row, side_by_side };
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		train(plans[i], false, other);
		assert_near(other, cpu, 1e-6);
	}
	assert_true(pretend_copies() > 0);
}

/* All devices of a plan compute in one precision, and the plan says which, and why. */
static void test_precision(void **state)
{
	(void)state;
	double fp32[STEPS], bf16[STEPS], mixed[STEPS];
	train(on_pretend, false, fp32);
	train(on_pretend, true, bf16);
	assert_near(bf16, fp32, 2e-3);
	assert_true(memcmp(bf16, fp32, sizeof bf16) != 0);
	train(in_a_row, false, fp32);
	train(in_a_row, true, mixed);
	assert_memory_equal(mixed, fp32, sizeof mixed);

	struct hspmd_error err;
	json_t *c_json = json_loads(cluster, 0, NULL), *p_json = json_loads(in_a_row, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(c_json, "cluster", &err);
	struct hspmd_plan *p = hspmd_plan_from_json(p_json, "plan", c, 5, &err);
	char why[400];
	assert_true(hspmd_plan_precision_differs(p, c, HSPMD_PRECISION_BF16, why, sizeof why));
	assert_non_null(strstr(why, "fp32 instead of bf16"));
	assert_non_null(strstr(why, "(n:0)"));
	assert_int_equal(hspmd_plan_precision(p, c, HSPMD_PRECISION_TF32), HSPMD_PRECISION_FP32);
	assert_int_equal(hspmd_plan_precision(p, c, HSPMD_PRECISION_FP16), HSPMD_PRECISION_FP16); /* only predicted, never computed */
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	json_decref(p_json);
	json_decref(c_json);
}

/* A plan of two pipelines on the make-believe accelerators, with `more` in both stages. The caller frees it. */
static char *two_pipelines(int zero, const char *more)
{
	static const char plan[] = "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":1,\"seq_len\":16,\"zero_stage\":%d,"
	                           "\"pipelines\":[{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:1\"]%s}]},"
	                           "{\"micro_batches\":4,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:2\"]%s}]}]}";
	char *text = NULL;
	assert_true(asprintf(&text, plan, zero, more, more) > 0);
	return text;
}

/* The optimizer's state in the host's memory changes no bit. In fp32 it is the moments, in bf16 also the weights that are not rounded. */
static void test_offload(void **state)
{
	(void)state;
	for (int bf16 = 0; bf16 < 2; bf16++)
		for (int zero = 0; zero <= HSPMD_ZERO_MAX; zero++) {
			double kept[STEPS], offloaded[STEPS];
			char *with = two_pipelines(zero, ",\"offload\":\"optimizer\""), *without = two_pipelines(zero, "");
			size_t before = pretend_host_bytes();
			train(without, bf16, kept);
			assert_int_equal(pretend_host_bytes(), before);
			train(with, bf16, offloaded);
			assert_memory_equal(offloaded, kept, sizeof kept);
			assert_true(pretend_host_bytes() > before);
			free(with);
			free(without);
		}
}

/* A plan of one device with so many micro-batches in a schedule, and `more` in its only stage. The caller frees it. */
static char *one_device(const char *schedule, int micro_batches, const char *more)
{
	char *text = NULL;
	assert_true(
	        asprintf(&text,
	                 "{\"format\":\"hspmd-plan-1\",\"global_batch\":8,\"micro_batch\":%d,\"seq_len\":16,\"schedule\":\"%s\","
	                 "\"zero_stage\":0,\"pipelines\":[{\"micro_batches\":%d,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:1\"]%s}]}]}",
	                 8 / micro_batches, schedule, micro_batches, more) > 0);
	return text;
}

/* What a program is built from. */
struct parts {
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_model *model;
};

static struct parts read_parts(const char *plan, struct hspmd_error *err)
{
	json_t *c = json_loads(cluster, 0, NULL), *p = json_loads(plan, 0, NULL), *m = json_loads(trainer_llama, 0, NULL);
	struct parts parts = { .cluster = hspmd_cluster_from_json(c, "cluster", err), .model = hspmd_model_from_json(m, "model", err) };
	parts.plan = hspmd_plan_from_json(p, "plan", parts.cluster, 5, err);
	json_decref(c);
	json_decref(p);
	json_decref(m);
	return parts;
}

static void free_parts(const struct parts *parts)
{
	hspmd_model_destroy(parts->model);
	hspmd_plan_destroy(parts->plan);
	hspmd_cluster_destroy(parts->cluster);
}

static struct hspmd_program *program_of(const char *plan, struct hspmd_error *err)
{
	struct parts parts = read_parts(plan, err);
	struct hspmd_graph_source source = hspmd_graph_source_model(parts.model);
	struct hspmd_program *program = parts.plan ? hspmd_program_build(&source, parts.plan, parts.cluster, 1, NULL, err) : NULL;
	free_parts(&parts);
	return program;
}

/* What is copied to the host's memory changes no bit, and its place on the device is free in between: with every schedule the arena is
 * smaller, most of all where many micro-batches wait for their backward passes. A list offloads less than all. */
static void test_offload_activations(void **state)
{
	(void)state;
	static const struct {
		const char *schedule;
		int micro_batches;
		double most; /* of the arena without, with all offloaded */
	} cases[] = { { "1f1b", 1, 0.95 }, { "1f1b", 4, 0.95 }, { "gpipe", 8, 0.5 }, { "zb-h1", 4, 0.95 } };
	static const char *const what[] = { "", ",\"offload_activations\":[\"swiglu\",\"mlp.up_proj\"]", ",\"offload_activations\":\"all\"",
		                            ",\"recompute\":\"full\",\"offload_activations\":\"all\"" };
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hspmd_error err = { "" };
		double kept[STEPS], offloaded[STEPS];
		size_t arena[4], saved[4];
		for (int k = 0; k < 4; k++) {
			char *plan = one_device(cases[i].schedule, cases[i].micro_batches, what[k]);
			struct hspmd_program *program = program_of(plan, &err);
			if (!program)
				fail_msg("%s", err.text);
			arena[k] = program->arena_bytes;
			saved[k] = program->saved_bytes;
			hspmd_program_destroy(program);
			size_t before = pretend_offloaded_bytes();
			train(plan, true, k ? offloaded : kept);
			assert_true((pretend_offloaded_bytes() > before) == (saved[k] > 0));
			if (k)
				assert_memory_equal(offloaded, kept, sizeof kept);
			free(plan);
		}
		print_message("%s, %d micro-batches: arena %zu, %zu, %zu, %zu; in the host's memory %zu, %zu, %zu, %zu\n",
		              cases[i].schedule, cases[i].micro_batches, arena[0], arena[1], arena[2], arena[3], saved[0], saved[1],
		              saved[2], saved[3]);
		assert_true(!saved[0] && saved[1] > 0 && saved[1] < saved[2] && saved[3] < saved[2]);
		assert_true(arena[1] < arena[0] && (double)arena[2] < cases[i].most * (double)arena[0]);
	}
	char *plan = one_device("1f1b", 1, ",\"offload_activations\":[\"silo\"]");
	struct hspmd_error err = { "" };
	assert_null(program_of(plan, &err));
	assert_non_null(strstr(err.text, "offload_activations: the model has no operator \"silo\" that a stage can list; it has "));
	free(plan);
}

static int never(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count, int group,
                 struct hspmd_error *err)
{
	(void)dev, (void)op, (void)args, (void)count, (void)group;
	return hspmd_fail(err, "nothing runs here");
}

/* What `hspmd plan --program` prints says what is in the host's memory: of the update, and in total. Such updates, too, can run beside the
 * next step. */
static void test_program_text(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	char *plan = two_pipelines(0, ",\"offload\":\"optimizer\"");
	const struct hspmd_device_ops beside_ops = { .run_beside = never };
	const struct hspmd_device beside = { &beside_ops };
	struct parts parts = read_parts(plan, &err);
	assert_true(parts.cluster && parts.plan && parts.model);
	struct hspmd_graph_source source = hspmd_graph_source_model(parts.model);
	for (int bf16 = 0; bf16 < 2; bf16++) {
		source.precision = bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
		struct hspmd_program *program = hspmd_program_build(&source, parts.plan, parts.cluster, 1, NULL, &err);
		if (!program)
			fail_msg("%s", err.text);
		char *text = hspmd_program_text(program, parts.cluster), *update = strstr(text, " adamw "),
		     *out = update ? strstr(update, " -> ") : NULL;
		size_t bytes = 0;
		for (int i = 0; i < program->state_count; i++)
			for (int k = 0; program->states[i].param >= 0 && k < 2 + bf16; k++)
				bytes += (program->slot_types[program->slots[program->states[i].param].slot_type].bytes + 63) / 64 * 64;
		char line[80];
		snprintf(line, sizeof line, "host memory: %zu bytes (optimizer)\n", bytes);
		assert_non_null(strstr(text, line));
		/* The weight, two moments and, in bf16, the rounded weight. */
		char at[5] = "";
		for (int k = 0; out && k < 3 + bf16 && (out = strchr(out, '@')) != NULL; k++)
			at[k] = *++out;
		assert_string_equal(at, bf16 ? "hhhf" : "fhh");
		struct hspmd_update_groups *groups = hspmd_update_groups_build(program, &beside);
		assert_non_null(groups);
		hspmd_update_groups_destroy(groups);
		free(text);
		hspmd_program_destroy(program);
	}
	free_parts(&parts);
	free(plan);
}

/* What its table says must be what is known of it. */
static void test_tables(void **state)
{
	(void)state;
	struct hspmd_error err;
	for (int kind = 0; kind < HSPMD_DEVICE_KIND_COUNT; kind++) {
		const struct hspmd_device_ops *ops = hspmd_device_find(hspmd_device_kind_names[kind], &err);
		if (!ops)
			continue; /* a module that was not built */
		assert_string_equal(ops->name, hspmd_device_traits((enum hspmd_device_kind)kind)->name);
		assert_int_equal(ops->host_memory, hspmd_device_traits((enum hspmd_device_kind)kind)->host_memory);
	}
	/* Nodes report cores and NVIDIA's GPUs; the make-believe kind is in cluster files only. */
	assert_string_equal(hspmd_device_name_of_cores(), "cpu");
	assert_int_equal(hspmd_device_kind_of(HSPMD_ORIGIN_NVIDIA), hspmd_device_kind_named("cuda"));
	assert_int_equal(hspmd_device_kind_of(HSPMD_ORIGIN_NONE), -1);
	assert_int_equal(hspmd_device_kind_named("pretend"), HSPMD_DEVICE_KIND_COUNT);
	assert_int_equal(hspmd_device_kind_named("abacus"), -1);
	assert_null(hspmd_device_find("abacus", &err));
	assert_string_equal(err.text, "no device kind 'abacus'; there are: cpu, cuda, pretend");
	struct hspmd_device_traits lie = pretend_traits;
	lie.host_memory = true;
	assert_int_equal(hspmd_device_add(&pretend_ops, &lie), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_mixed),        cmocka_unit_test(test_precision),
		                            cmocka_unit_test(test_offload),      cmocka_unit_test(test_offload_activations),
		                            cmocka_unit_test(test_program_text), cmocka_unit_test(test_tables) };
	if (hspmd_device_add(&pretend_ops, &pretend_traits) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
