/* SPDX-License-Identifier: Apache-2.0 */
/* Products beside other operators in a program: which they are, that no instruction changes its place with one that it depends on, and that
 * instructions which run at the same time share no memory that one of them writes. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/model/model.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"
#include "tests/unit/trainer.h"

#define BLOCKS 3
#define MICRO_BATCHES 2

static struct hspmd_program *build(const char *model, const char *kind, const char *devices, const char *more, const char *plan_more,
                                   bool bf16)
{
	struct hspmd_error err = { "" };
	char cluster_text[1024], plan_text[1024];
	snprintf(cluster_text, sizeof cluster_text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"%s\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
	         "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"d\",\"count\":2}]}],\"links\":"
	         "[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}",
	         kind);
	snprintf(plan_text, sizeof plan_text,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\"%s,\"pipelines\":[{"
	         "\"micro_batches\":%d,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:%s\"]%s}]}]}",
	         plan_more, MICRO_BATCHES, BLOCKS + 2, devices, more);
	json_t *c = json_loads(cluster_text, 0, NULL), *p = json_loads(plan_text, 0, NULL), *m = json_loads(model, 0, NULL);
	struct hspmd_model *read = hspmd_model_from_json(m, "model", &err);
	struct hspmd_cluster *cluster = hspmd_cluster_from_json(c, "cluster", &err);
	struct hspmd_plan *plan = cluster ? hspmd_plan_from_json(p, "plan", cluster, BLOCKS + 2, &err) : NULL;
	struct hspmd_program *program = NULL;
	if (read && plan) {
		struct hspmd_graph_source source = hspmd_graph_source_model(read);
		source.precision = bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
		program = hspmd_program_build(&source, plan, cluster, 0, NULL, &err);
	}
	if (!program)
		fail_msg("%s", err.text);
	hspmd_plan_destroy(plan);
	hspmd_cluster_destroy(cluster);
	hspmd_model_destroy(read);
	json_decref(c);
	json_decref(p);
	json_decref(m);
	return program;
}

struct range {
	enum hspmd_arena_kind memory;
	size_t begin, end;
};

static struct range range_of(const struct hspmd_program *p, int slot)
{
	const struct hspmd_slot *s = &p->slots[slot];
	return (struct range){ s->memory, s->offset, s->offset + p->slot_types[s->slot_type].bytes };
}

static bool overlap(struct range a, struct range b)
{
	return a.memory == b.memory && a.begin < b.end && b.begin < a.end;
}

/* Returns true if `a` writes memory that `b` reads or writes. */
static bool writes_for(const struct hspmd_program *p, const struct hspmd_instruction *a, const struct hspmd_instruction *b)
{
	for (int o = 0; o < a->output_count; o++)
		for (int k = 0; a->out[o] >= 0 && k < b->input_count + b->output_count; k++) {
			int slot = k < b->input_count ? b->in[k] : b->out[k - b->input_count];
			if (slot >= 0 && overlap(range_of(p, a->out[o]), range_of(p, slot)))
				return true;
		}
	return false;
}

/* Checks the group that instruction `first` begins. Returns its last. */
static size_t check_group(const struct hspmd_program *p, size_t first)
{
	size_t last = hspmd_program_runs_until(p, first);
	const struct hspmd_instruction *end = &p->instructions[last];
	int64_t bytes = 0;
	assert_true(hspmd_op_types[end->opcode]->streams && !end->beside);
	for (size_t i = first; i <= last; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		assert_int_equal(in->kind, HSPMD_INSTRUCTION_RUN);
		assert_true(in->backward && in->layer == end->layer && in->micro_batch == end->micro_batch);
		assert_true(i == last || in->opcode == HSPMD_OP_LINEAR_GRAD_W);
		bytes += hspmd_program_bytes_beside(p, in);
		for (size_t k = first; k <= last; k++)
			if (k != i && writes_for(p, in, &p->instructions[k]))
				fail_msg("instructions %zu and %zu, which run at the same time, share memory", i, k);
	}
	double moved = hspmd_instruction_bytes(p, end);
	assert_true((double)bytes >= moved && (double)bytes <= moved + (double)(last - first));
	return last;
}

/* Returns the number of products beside others in groups that end with this operator; *groups: of these. */
static int check_groups(const struct hspmd_program *p, enum hspmd_opcode end, int *groups)
{
	int products = 0;
	*groups = 0;
	for (size_t i = 0; i < p->instruction_count; i++) {
		if (!p->instructions[i].beside)
			continue;
		size_t last = check_group(p, i);
		if (p->instructions[last].opcode == end) {
			products += (int)(last - i);
			++*groups;
		}
		i = last;
	}
	return products;
}

static bool is_same(const struct hspmd_instruction *a, const struct hspmd_instruction *b)
{
	return a->kind == b->kind && a->opcode == b->opcode && a->micro_batch == b->micro_batch && a->layer == b->layer &&
	       a->tag == b->tag && a->step == b->step && a->input_count == b->input_count && a->output_count == b->output_count &&
	       !memcmp(a->in, b->in, (size_t)a->input_count * sizeof *a->in) &&
	       !memcmp(a->out, b->out, (size_t)a->output_count * sizeof *a->out);
}

static bool share_slot(const struct hspmd_instruction *a, const struct hspmd_instruction *b)
{
	for (int o = 0; o < a->output_count; o++)
		if (a->out[o] >= 0 && hspmd_instruction_uses(b, a->out[o]))
			return true;
	for (int o = 0; o < b->output_count; o++)
		if (b->out[o] >= 0 && hspmd_instruction_uses(a, b->out[o]))
			return true;
	return false;
}

/* Every instruction of one program is in the other, and those of which one writes what the other uses are in the same order. */
static void check_order(const struct hspmd_program *apart, const struct hspmd_program *beside)
{
	assert_int_equal(apart->instruction_count, beside->instruction_count);
	size_t *place = calloc(apart->instruction_count, sizeof *place);
	bool *taken = calloc(apart->instruction_count, sizeof *taken);
	assert_true(place && taken);
	for (size_t i = 0; i < apart->instruction_count; i++) {
		size_t k = 0;
		while (k < beside->instruction_count && (taken[k] || !is_same(&apart->instructions[i], &beside->instructions[k])))
			k++;
		assert_true(k < beside->instruction_count);
		taken[k] = true;
		place[i] = k;
	}
	for (size_t i = 0; i < apart->instruction_count; i++)
		for (size_t k = i + 1; k < apart->instruction_count; k++)
			if (place[k] < place[i] && share_slot(&apart->instructions[i], &apart->instructions[k]))
				fail_msg("instructions %zu and %zu changed places", i, k);
	free(place);
	free(taken);
}

static struct hspmd_program *build_apart(const char *model, const char *devices, const char *more, const char *plan_more, bool bf16)
{
	setenv("HSPMD_CUDA_PRODUCTS_BESIDE", "0", 1);
	struct hspmd_program *p = build(model, "cuda", devices, more, plan_more, bf16);
	unsetenv("HSPMD_CUDA_PRODUCTS_BESIDE");
	return p;
}

static void check(const char *model, const char *devices, const char *more, const char *plan_more, enum hspmd_opcode end, int groups,
                  int products)
{
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct hspmd_program *apart = build_apart(model, devices, more, plan_more, bf16),
		                     *beside = build(model, "cuda", devices, more, plan_more, bf16);
		int found, of_products = check_groups(beside, end, &found);
		printf("%-32s %4s %s: %d groups of %s, %d products; arena %zu, apart %zu\n", *more || *plan_more ? more : "", devices,
		       bf16 ? "bf16" : "fp32", found, hspmd_opcode_names[end], of_products, beside->arena_bytes, apart->arena_bytes);
		assert_int_equal(found, groups * MICRO_BATCHES);
		assert_int_equal(of_products, products * MICRO_BATCHES);
		check_order(apart, beside);
		assert_true(beside->arena_bytes <= apart->arena_bytes);
		hspmd_program_destroy(apart);
		hspmd_program_destroy(beside);
	}
}

static void one_device(void **state)
{
	(void)state;
	/* Down's product beside the activation's gradient, as gate's and up's, and those of attention, beside the norms'. */
	check(trainer_llama, "0", "", "", HSPMD_OP_SWIGLU_GRAD, BLOCKS, BLOCKS);
	check(trainer_llama, "0", "", "", HSPMD_OP_RMSNORM_GRAD_ADD, 2 * BLOCKS, 6 * BLOCKS);
	check(trainer_gpt2, "0", "", "", HSPMD_OP_LAYERNORM_GRAD_ADD, 2 * BLOCKS, 4 * BLOCKS);
}

static void several_devices(void **state)
{
	(void)state;
	check(trainer_llama, "0-1", "", "", HSPMD_OP_SWIGLU_GRAD, BLOCKS, BLOCKS);
	check(trainer_llama, "0-1", ",\"context\":2", "", HSPMD_OP_SWIGLU_GRAD, BLOCKS, BLOCKS);
	check(trainer_llama, "0-1", "", ",\"zero_stage\":1", HSPMD_OP_SWIGLU_GRAD, BLOCKS, BLOCKS);
	check(trainer_llama, "0-1", "", ",\"zero_stage\":0", HSPMD_OP_SWIGLU_GRAD, BLOCKS, BLOCKS);
}

static void recomputed(void **state)
{
	(void)state;
	/* The arena is full where the last block's backward pass begins, which comes first: its groups would make it larger. */
	check(trainer_llama, "0", ",\"recompute\":\"full\"", "", HSPMD_OP_SWIGLU_GRAD, BLOCKS - 1, BLOCKS - 1);
	check(trainer_gpt2, "0", ",\"recompute\":\"selective\"", "", HSPMD_OP_LAYERNORM_GRAD_ADD, 2 * BLOCKS, 4 * BLOCKS);
}

/* Neither by what lives at one time, nor by gaps between that. */
static void no_arena_is_larger(void **state)
{
	(void)state;
	static const char *const models[] = { trainer_llama, trainer_gpt2 }, *const devices[] = { "0", "0-1" };
	static const char *const more[] = { "",
		                            ",\"recompute\":\"full\"",
		                            ",\"recompute\":\"selective\"",
		                            ",\"sequence_parallel\":true",
		                            ",\"context\":2",
		                            ",\"context\":2,\"recompute\":\"full\"",
		                            ",\"shard_ratio\":[0.7,0.3]" };
	static const char *const plan_more[] = { "", ",\"zero_stage\":2", ",\"zero_stage\":3", ",\"schedule\":\"zb-h1\"" };
	const size_t kinds = sizeof more / sizeof *more, cases = 8 * kinds * (sizeof plan_more / sizeof *plan_more);
	for (size_t i = 0; i < cases; i++) {
		size_t of = i / 8 % kinds, on = i / 2 % 2, zero = i / 8 / kinds;
		bool two = strstr(more[of], "context") || strstr(more[of], "shard") || strstr(more[of], "sequence");
		if (two && !on)
			continue;
		struct hspmd_program *apart = build_apart(models[i % 2], devices[on], more[of], plan_more[zero], i / 4 % 2),
		                     *beside = build(models[i % 2], "cuda", devices[on], more[of], plan_more[zero], i / 4 % 2);
		if (beside->arena_bytes > apart->arena_bytes)
			fail_msg("case %zu, on %s%s%s: an arena of %zu bytes, without groups %zu", i, devices[on], more[of],
			         plan_more[zero], beside->arena_bytes, apart->arena_bytes);
		hspmd_program_destroy(apart);
		hspmd_program_destroy(beside);
	}
}

/* Devices that cannot run operators beside each other have them in the order of the backward pass. */
static void none(void **state)
{
	(void)state;
	struct hspmd_program *cpu = build(trainer_llama, "cpu", "0", "", "", false);
	int groups;
	check_groups(cpu, HSPMD_OP_SWIGLU_GRAD, &groups);
	assert_int_equal(groups, 0);
	hspmd_program_destroy(cpu);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(one_device), cmocka_unit_test(several_devices), cmocka_unit_test(recomputed),
		                            cmocka_unit_test(no_arena_is_larger), cmocka_unit_test(none) };
	unsetenv("HSPMD_CUDA_PRODUCTS_BESIDE");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
