/* SPDX-License-Identifier: Apache-2.0 */
/* Fused operators in a program: which pairs are fused, where, and that no other instruction reads a value that is gone; none are fused
 * if the device has no such kernels or if they are disabled. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/resharding/regions.h" /* included with program.h, to show that one file can include both */
#include "runtime/model/model.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"
#include "runtime/program/program_set.h"
#include "runtime/program/seq_len.h"
#include "tests/unit/trainer.h"

#define BLOCKS 3
#define MICRO_BATCHES 2

/* Count the fused pairs of one micro-batch by opcode. */
struct expected {
	enum hspmd_opcode opcode;
	int count;
};

/* At another length a table has as many positions as its readers. */
static void check_shorter(const struct hspmd_program *p, const struct hspmd_graph_source *source)
{
	struct hspmd_error err = { "" };
	struct hspmd_program *shorter = hspmd_program_at_length(p, source, 8, NULL, &err);
	if (!shorter)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < shorter->instruction_count; i++) {
		const struct hspmd_instruction *in = &shorter->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_RUN || in->opcode != HSPMD_OP_ROPE || in->input_count < 2)
			continue;
		struct hspmd_view x = hspmd_program_slot_view(shorter, in->in[0], NULL),
		                  table = hspmd_program_slot_view(shorter, in->in[1], NULL);
		assert_int_equal(x.shape[1], 8);
		assert_int_equal(table.shape[1], x.shape[1]);
		assert_int_equal(table.start[1], x.start[1]);
	}
	hspmd_program_destroy(shorter);
}

static const char *schedule = "1f1b";

static int by_turns(void *context, int64_t number)
{
	(void)context;
	return (int)(number % 2);
}

/* In a step that mixes lengths every micro-batch has tables of its own, of as many positions as its samples. */
static void check_mixed(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster)
{
	struct hspmd_error err = { "" };
	struct hspmd_step_lengths lengths = { .lengths = (int64_t[]){ 8, 16 }, .count = 2, .mixed = true };
	int seen[2] = { 0 };
	if (plan->schedule == HSPMD_SCHEDULE_GPIPE)
		return;
	struct hspmd_program_set *set = hspmd_program_set_build(source, plan, cluster, 0, NULL, &lengths, &err);
	const struct hspmd_program *p = set ? hspmd_program_set_for_step(set, 0, by_turns, NULL, &err) : NULL;
	if (!p)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_RUN || in->opcode != HSPMD_OP_ROPE)
			continue;
		struct hspmd_view x = hspmd_program_slot_view(p, in->in[0], NULL);
		seen[x.shape[1] > 8]++;
		if (in->input_count < 2)
			continue;
		struct hspmd_view table = hspmd_program_slot_view(p, in->in[1], NULL);
		assert_int_equal(p->slots[in->in[1]].micro_batch, in->micro_batch);
		assert_int_equal(table.shape[0], 1);
		assert_int_equal(table.shape[1], x.shape[1]);
		assert_int_equal(table.start[1], x.start[1]);
	}
	assert_true(!seen[0] == !seen[1]); /* both lengths, if the model has such operators */
	hspmd_program_set_destroy(set);
}

static struct hspmd_program *build(const char *model, const char *kind, const char *devices, const char *more, bool bf16)
{
	struct hspmd_error err = { "" };
	char cluster_text[1024], plan_text[1024];
	snprintf(cluster_text, sizeof cluster_text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"%s\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
	         "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"d\",\"count\":2}]}],\"links\":"
	         "[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}",
	         kind);
	snprintf(plan_text, sizeof plan_text,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"%s\",\"pipelines\":[{"
	         "\"micro_batches\":%d,"
	         "\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:%s\"]%s}]}]}",
	         schedule, MICRO_BATCHES, BLOCKS + 2, devices, more);
	json_t *c = json_loads(cluster_text, 0, NULL), *p = json_loads(plan_text, 0, NULL), *m = json_loads(model, 0, NULL);
	struct hspmd_model *read = hspmd_model_from_json(m, "model", &err);
	struct hspmd_cluster *cluster = hspmd_cluster_from_json(c, "cluster", &err);
	struct hspmd_plan *plan = cluster ? hspmd_plan_from_json(p, "plan", cluster, BLOCKS + 2, &err) : NULL;
	struct hspmd_program *program = NULL;
	if (read && plan) {
		struct hspmd_graph_source source = hspmd_graph_source_model(read);
		source.precision = bf16 ? HSPMD_PRECISION_BF16 : HSPMD_PRECISION_FP32;
		program = hspmd_program_build(&source, plan, cluster, 0, NULL, &err);
		if (program) {
			check_shorter(program, &source);
			check_mixed(&source, plan, cluster);
		}
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

static int count(const struct hspmd_program *p, enum hspmd_opcode opcode)
{
	int n = 0;
	for (size_t i = 0; i < p->instruction_count; i++)
		n += p->instructions[i].kind == HSPMD_INSTRUCTION_RUN && p->instructions[i].opcode == opcode;
	return n;
}

static int count_pairs(const struct hspmd_program *p)
{
	int n = 0;
	for (int o = 0; o < HSPMD_OP_COUNT; o++)
		n += hspmd_op_types[(enum hspmd_opcode)o]->pair.is_pair ? count(p, (enum hspmd_opcode)o) : 0;
	return n;
}

/* Check that everything in the transient arena is written before it is read. */
static void check_order(const struct hspmd_program *p)
{
	bool *written = calloc(p->slot_count + 1, sizeof *written);
	assert_non_null(written);
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		for (int k = 0; k < in->input_count; k++)
			if (in->in[k] >= 0 && p->slots[in->in[k]].memory == HSPMD_ARENA_TRANSIENT && !written[in->in[k]])
				fail_msg("instruction %zu reads slot %d, which nobody wrote", i, in->in[k]);
		for (int k = 0; k < in->output_count; k++)
			if (in->out[k] >= 0)
				written[in->out[k]] = true;
	}
	free(written);
}

static void expect(const char *model, const char *devices, const char *more, const struct expected *want, size_t kinds)
{
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct hspmd_program *p = build(model, "cuda", devices, more, bf16);
		int all = 0;
		check_order(p);
		for (size_t k = 0; k < kinds; k++) {
			if (count(p, want[k].opcode) != want[k].count * MICRO_BATCHES)
				fail_msg("%d of %s, expected %d", count(p, want[k].opcode), hspmd_opcode_names[want[k].opcode],
				         want[k].count * MICRO_BATCHES);
			all += want[k].count * MICRO_BATCHES;
		}
		assert_int_equal(count_pairs(p), all);
		hspmd_program_destroy(p);
	}
}

#define EXPECT(model, devices, more, ...)                                                                                                  \
	expect(model, devices, more, (const struct expected[]){ __VA_ARGS__ },                                                             \
	       sizeof((const struct expected[]){ __VA_ARGS__ }) / sizeof(struct expected))

static void one_device(void **state)
{
	(void)state;
	/* Both additions of a block follow a matrix product; the gradient of every norm but the last is added to the incoming gradient. */
	EXPECT(trainer_gpt2, "0", "", { HSPMD_OP_LINEAR_ADD, 2 * BLOCKS }, { HSPMD_OP_LINEAR_GELU, BLOCKS },
	       { HSPMD_OP_LINEAR_GRAD_X_GELU, BLOCKS }, { HSPMD_OP_LAYERNORM_GRAD_ADD, 2 * BLOCKS });
	/* q, k and v have one summed gradient, and so do gate and up; those of q and k are turned back where they are computed */
	EXPECT(trainer_llama, "0", "", { HSPMD_OP_LINEAR_ADD, 2 * BLOCKS }, { HSPMD_OP_LINEAR_GRAD_X_ADD, 3 * BLOCKS },
	       { HSPMD_OP_RMSNORM_GRAD_ADD, 2 * BLOCKS }, { HSPMD_OP_ATTENTION_GRAD_ROPE, BLOCKS });
}

static void a_sum_between(void **state)
{
	(void)state;
	EXPECT(trainer_gpt2, "0-1", "", { HSPMD_OP_ADD_LAYERNORM, 2 * BLOCKS }, { HSPMD_OP_LINEAR_GELU, BLOCKS },
	       { HSPMD_OP_LINEAR_GRAD_X_GELU, BLOCKS }, { HSPMD_OP_LAYERNORM_GRAD_ADD, 2 * BLOCKS });
	EXPECT(trainer_llama, "0-1", "", { HSPMD_OP_ADD_RMSNORM, 2 * BLOCKS }, { HSPMD_OP_LINEAR_GRAD_X_ADD, 3 * BLOCKS },
	       { HSPMD_OP_RMSNORM_GRAD_ADD, 2 * BLOCKS }, { HSPMD_OP_ATTENTION_GRAD_ROPE, BLOCKS });
}

/* A fused pair that is recomputed does not keep its intermediate value in the first run. */
static void recomputed(void **state)
{
	(void)state;
	struct hspmd_program *p = build(trainer_gpt2, "cuda", "0", ",\"recompute\":\"full\"", false);
	int first = 0, again = 0;
	check_order(p);
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind == HSPMD_INSTRUCTION_RUN && in->opcode == HSPMD_OP_LINEAR_GELU)
			*(in->out[1] < 0 ? &first : &again) += 1;
	}
	assert_true(first > 0 && again > 0);
	hspmd_program_destroy(p);
}

/* CPUs have kernels for sums of gradients alone. */
static void sums(void **state)
{
	(void)state;
	struct hspmd_program *llama = build(trainer_llama, "cpu", "0", "", false), *gpt2 = build(trainer_gpt2, "cpu", "0", "", false);
	check_order(llama);
	check_order(gpt2);
	assert_int_equal(count(llama, HSPMD_OP_LINEAR_GRAD_X_ADD), 3 * BLOCKS * MICRO_BATCHES);
	assert_int_equal(count(llama, HSPMD_OP_RMSNORM_GRAD_ADD), 2 * BLOCKS * MICRO_BATCHES);
	assert_int_equal(count_pairs(llama), 5 * BLOCKS * MICRO_BATCHES);
	assert_int_equal(count(gpt2, HSPMD_OP_LAYERNORM_GRAD_ADD), 2 * BLOCKS * MICRO_BATCHES);
	assert_int_equal(count_pairs(gpt2), 2 * BLOCKS * MICRO_BATCHES);
	hspmd_program_destroy(llama);
	hspmd_program_destroy(gpt2);
}

static void none(void **state)
{
	(void)state;
	struct hspmd_program *fused = build(trainer_llama, "cuda", "0", "", false);
	setenv("HSPMD_UNFUSED", "all", 1);
	struct hspmd_program *apart = build(trainer_llama, "cuda", "0", "", false), *cpu = build(trainer_llama, "cpu", "0", "", false);
	setenv("HSPMD_UNFUSED", "linear_grad_x_add,linear_add", 1);
	struct hspmd_program *some = build(trainer_llama, "cuda", "0", "", false);
	setenv("HSPMD_UNFUSED", "rope_table", 1);
	struct hspmd_program *pairs_alone = build(trainer_llama, "cuda", "0", "", false);
	unsetenv("HSPMD_UNFUSED");
	assert_int_equal(count_pairs(cpu) + count(cpu, HSPMD_OP_ROPE_TABLE), 0);
	assert_int_equal(count_pairs(apart) + count(apart, HSPMD_OP_ROPE_TABLE), 0);
	assert_int_equal(count(fused, HSPMD_OP_ROPE_TABLE), 1);
	assert_int_equal(count(some, HSPMD_OP_LINEAR_ADD) + count(some, HSPMD_OP_LINEAR_GRAD_X_ADD), 0);
	assert_int_equal(count(some, HSPMD_OP_ADD_RMSNORM), 2 * BLOCKS * MICRO_BATCHES);
	assert_int_equal(count(pairs_alone, HSPMD_OP_ROPE_TABLE), 0);
	assert_true(pairs_alone->arena_bytes <= apart->arena_bytes);
	assert_true(fused->instruction_count < apart->instruction_count);
	hspmd_program_destroy(cpu);
	hspmd_program_destroy(fused);
	hspmd_program_destroy(apart);
	hspmd_program_destroy(some);
	hspmd_program_destroy(pairs_alone);
}

/* ---- losses and padded rows */

static int count_apart(const struct hspmd_program *p)
{
	return count(p, HSPMD_OP_VOCAB_STATS) + count(p, HSPMD_OP_LOSS_GRAD);
}

/* A loss and its gradient are one operator on every device, if the vocabulary is whole; it needs no memory that the two did not need. */
static void losses(void **state)
{
	(void)state;
	static const char *const kinds[] = { "cpu", "cuda" }, *const models[] = { trainer_gpt2, trainer_llama };
	static const char *const recompute[] = { "", ",\"recompute\":\"full\"" };
	for (int i = 0; i < 8; i++) {
		const char *kind = kinds[i & 1], *model = models[i >> 1 & 1], *more = recompute[i >> 2];
		struct hspmd_program *both = build(model, kind, "0", more, false);
		setenv("HSPMD_UNFUSED", "cross_entropy", 1);
		struct hspmd_program *apart = build(model, kind, "0", more, false);
		unsetenv("HSPMD_UNFUSED");
		check_order(both);
		assert_int_equal(count(both, HSPMD_OP_CROSS_ENTROPY), MICRO_BATCHES);
		assert_int_equal(count(both, HSPMD_OP_LOSS), MICRO_BATCHES);
		assert_int_equal(count_apart(both), 0);
		assert_int_equal(count(apart, HSPMD_OP_CROSS_ENTROPY), 0);
		assert_int_equal(count_apart(apart), 2 * MICRO_BATCHES);
		assert_true(both->arena_bytes <= apart->arena_bytes);
		hspmd_program_destroy(both);
		hspmd_program_destroy(apart);
		struct hspmd_program *divided = build(model, kind, "0-1", more, false);
		assert_int_equal(count(divided, HSPMD_OP_CROSS_ENTROPY), 0);
		assert_int_equal(count_apart(divided), 2 * MICRO_BATCHES);
		hspmd_program_destroy(divided);
	}
}

static const char gemma2[] =
        "{\"model_type\":\"gemma2\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"head_dim\":6,\"intermediate_size\":40,\"max_position_embeddings\":64,\"vocab_size\":259,\"rms_norm_eps\":1e-6,"
        "\"query_pre_attn_scalar\":6,\"sliding_window\":8,\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0,"
        "\"hidden_activation\":\"gelu_pytorch_tanh\"}";

/* Capped logits, which the backward pass reads again, are left alone: the solver predicts such programs' memory without fusion. */
static void losses_of_capped_logits(void **state)
{
	(void)state;
	struct hspmd_program *at_once = build(gemma2, "cpu", "0", "", false);
	schedule = "gpipe";
	struct hspmd_program *later = build(gemma2, "cpu", "0", "", false);
	schedule = "1f1b";
	assert_int_equal(count(at_once, HSPMD_OP_CROSS_ENTROPY), 0);
	assert_int_equal(count(later, HSPMD_OP_CROSS_ENTROPY), 0);
	check_order(at_once);
	check_order(later);
	hspmd_program_destroy(at_once);
	hspmd_program_destroy(later);
}

/* With other micro-batches between a forward pass and its backward pass, the gradient takes the place of the logits right away. */
static void losses_of_all_forward_passes(void **state)
{
	(void)state;
	schedule = "gpipe";
	struct hspmd_program *p = build(trainer_gpt2, "cpu", "0", "", false);
	schedule = "1f1b";
	int found = 0;
	check_order(p);
	for (size_t i = 0; i < p->vote && !p->instructions[i].backward; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_RUN || in->opcode != HSPMD_OP_CROSS_ENTROPY)
			continue;
		assert_int_equal(p->slots[in->in[0]].offset, p->slots[in->out[0]].offset);
		found++;
	}
	assert_int_equal(found, MICRO_BATCHES);
	hspmd_program_destroy(p);
}

static const char odd[] = "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":3,\"n_head\":4,\"n_positions\":32,"
                          "\"vocab_size\":2051,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

static const char odd_width[] = "{\"model_type\":\"gpt2\",\"n_embd\":1026,\"n_layer\":3,\"n_head\":2,\"n_positions\":32,"
                                "\"vocab_size\":2051,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

/* Slots whose rows are `stride` apart, of those that have `width` elements in a row. */
static int count_padded(const struct hspmd_program *p, int64_t width, int64_t stride)
{
	int n = 0;
	for (size_t s = 0; s < p->slot_count; s++) {
		const struct hspmd_slot_type *t = &p->slot_types[p->slots[s].slot_type];
		int last = t->box.rank - 1;
		if (!t->row_stride)
			continue;
		assert_int_equal(t->box.hi[last] - t->box.lo[last], width);
		assert_int_equal(t->row_stride, stride);
		assert_int_equal(t->bytes, hspmd_box_elements(&t->box) / width * stride * (int64_t)hspmd_dtype_bytes(t->dtype));
		n++;
	}
	return n;
}

/* Logits and their gradients of a vocabulary that no 16 bytes divide are padded to 128 bytes where a device wants that, and nothing else
 * is: the rows of a table are those of its other dimension, and a short row is not worth it. */
static void padded_rows(void **state)
{
	(void)state;
	struct hspmd_program *p = build(odd, "cuda", "0", "", true), *wide = build(odd, "cuda", "0", "", false),
	                     *cpu = build(odd, "cpu", "0", "", false), *halves = build(odd, "cuda", "0-1", "", true),
	                     *wide_rows = build(odd_width, "cuda", "0", "", true), *narrow = build(trainer_gpt2, "cuda", "0", "", true);
	setenv("HSPMD_UNFUSED", "pad_rows", 1);
	struct hspmd_program *packed = build(odd, "cuda", "0", "", true);
	unsetenv("HSPMD_UNFUSED");
	assert_int_equal(count_padded(p, 2051, 2112), 2 * MICRO_BATCHES);
	assert_int_equal(count_padded(wide, 2051, 2080), 2 * MICRO_BATCHES);
	assert_int_equal(count_padded(wide_rows, 2051, 2112), 2 * MICRO_BATCHES);
	assert_int_equal(count_padded(cpu, 0, 0), 0);
	assert_int_equal(count_padded(narrow, 0, 0), 0);
	assert_int_equal(count_padded(packed, 0, 0), 0);
	assert_int_equal(count_padded(halves, 1026, 1088), 2 * MICRO_BATCHES);
	for (size_t i = 0; i < p->vote; i++)
		if (p->instructions[i].kind == HSPMD_INSTRUCTION_RUN && p->instructions[i].opcode == HSPMD_OP_CROSS_ENTROPY)
			assert_int_equal(p->slots[p->instructions[i].in[0]].offset, p->slots[p->instructions[i].out[0]].offset);
	hspmd_program_destroy(p);
	hspmd_program_destroy(wide);
	hspmd_program_destroy(cpu);
	hspmd_program_destroy(halves);
	hspmd_program_destroy(wide_rows);
	hspmd_program_destroy(narrow);
	hspmd_program_destroy(packed);
}

/* To the bit, on the CPU device; tests/gpu/test_cuda_rows: on CUDA. */
static void the_same_losses(void **state)
{
	(void)state;
	static const char plan[] =
	        "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"
	        "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,5],\"devices\":[\"n:0\"]}]}]}";
	for (int masked = 0; masked < 2; masked++) {
		struct hspmd_error err = { "" };
		double both[4], apart[4];
		int (*run)(const char *, const char *, int, int, double *, struct hspmd_error *) = masked ? trainer_masked : trainer_run;
		assert_int_equal(run(trainer_gpt2, plan, 1, 4, both, &err), 0);
		setenv("HSPMD_UNFUSED", "cross_entropy", 1);
		assert_int_equal(run(trainer_gpt2, plan, 1, 4, apart, &err), 0);
		unsetenv("HSPMD_UNFUSED");
		assert_memory_equal(both, apart, sizeof both);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(one_device),
		                            cmocka_unit_test(a_sum_between),
		                            cmocka_unit_test(recomputed),
		                            cmocka_unit_test(sums),
		                            cmocka_unit_test(none),
		                            cmocka_unit_test(losses),
		                            cmocka_unit_test(losses_of_all_forward_passes),
		                            cmocka_unit_test(losses_of_capped_logits),
		                            cmocka_unit_test(padded_rows),
		                            cmocka_unit_test(the_same_losses) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
