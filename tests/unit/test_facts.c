/* SPDX-License-Identifier: Apache-2.0 */
/* The facts that the solver gets about a model's layers: counted by hand from the published sizes and formulas, and compared with the
 * memory plans of whole programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/recompute_sets.h"
#include "runtime/facts/facts_internal.h"
#include "runtime/model/model_internal.h"
#include "runtime/op/op.h"
#include "runtime/tensor/fp8.h"

#define DATA HSPMD_SRCDIR "/tests/data/model/"

static struct hspmd_model *read_model(const char *name)
{
	struct hspmd_error err = { "" };
	char path[512];
	snprintf(path, sizeof path, DATA "%s.json", name);
	struct hspmd_model *m = hspmd_model_read(path, &err);
	if (!m)
		fail_msg("%s", err.text);
	return m;
}

static struct hspmd_model *from_text(const char *text)
{
	struct hspmd_error err = { "" };
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_model *m = value ? hspmd_model_from_json(value, "model", &err) : NULL;
	if (!m)
		fail_msg("%s", err.text);
	json_decref(value);
	return m;
}

static struct hspmd_model_facts *facts_of(const struct hspmd_model *m, int seq_len)
{
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *f = hspmd_model_facts_of(m, seq_len, &err);
	if (!f)
		fail_msg("%s", err.text);
	return f;
}

static double all(const struct hspmd_facts_work *w)
{
	return w->replicated + w->sharded;
}

/* Published numbers of parameters of the models with these configs. */
static void counts_parameters(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		double params;
		int parts; /* heads of keys and values, and experts */
		int even;  /* heads of keys and values */
		int heads; /* of queries */
	} known[] = {
		{ "gpt2", 124439808, 12, 12, 12 }, { "llama", 6738415616, 32, 32, 32 },  { "mistral", 7241732096, 8, 8, 32 },
		{ "qwen2", 494032768, 2, 2, 14 },  { "mixtral", 46702792704, 8, 8, 32 }, { "qwen2_moe", 14315784192, 4, 16, 16 },
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		struct hspmd_model *m = read_model(known[i].name);
		struct hspmd_model_facts *f = facts_of(m, 64);
		double sum = 0;
		assert_int_equal(f->layer_count, hspmd_model_layers(m));
		for (int l = 0; l < f->layer_count; l++)
			sum += all(&hspmd_model_layer_facts(f, l)->params);
		assert_true(sum == known[i].params);
		assert_true(f->params == known[i].params);
		assert_int_equal(f->parts, known[i].parts);
		assert_int_equal(f->even_parts, known[i].even);
		assert_int_equal(f->wide ? f->wide->even_parts : f->even_parts, known[i].heads);
		assert_int_equal(f->ties[f->layer_count - 1].owner, m->tied ? 0 : -1);
		assert_true(f->ties[f->layer_count - 1].params == (m->tied ? (double)(m->vocab * m->hidden) : 0));
		hspmd_model_facts_destroy(f);
		hspmd_model_destroy(m);
	}
	hspmd_model_facts_destroy(NULL);
}

#define SIZES                                                                                                                              \
	"\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"max_position_embeddings\":32,"    \
	"\"vocab_size\":40,\"rms_norm_eps\":1e-5"

/* Operations of matrix products by the usual formula, two for each multiplication with addition; causal attention has half of the pairs.
 * The operators on single elements are given as operations per token. */
static void expect_flops(const struct hspmd_layer_facts *f, double products, double elementwise)
{
	for (int width = 0; width < HSPMD_FACTS_WIDTHS; width++)
		assert_float_equal(all(&f->forward[width].flops), products + elementwise, 1e-6 * products);
}

static double messages_of(const struct hspmd_facts_messages *m, enum hspmd_facts_message kind)
{
	double count = 0;
	for (int i = 0; i < m->count; i++)
		count += m->of[i].kind == kind ? m->of[i].count : 0;
	return count;
}

/* Messages within a group: so many of each kind, all of tensors of `bytes`. */
static void expect_tensors(const struct hspmd_facts_messages *m, const int count[HSPMD_FACTS_MESSAGES], double bytes)
{
	for (int kind = 0; kind < HSPMD_FACTS_MESSAGES; kind++) {
		assert_true(messages_of(m, (enum hspmd_facts_message)kind) == count[kind]);
		assert_true(hspmd_facts_messages_bytes(m, (enum hspmd_facts_message)kind) == count[kind] * bytes);
	}
}

static void counts_operations(void **state)
{
	(void)state;
	const double t = 32;
	struct hspmd_model *m =
	        from_text("{\"model_type\":\"gpt2\",\"vocab_size\":40,\"n_embd\":64,\"n_head\":8,\"n_layer\":3,\"n_positions\":32}");
	struct hspmd_model_facts *f = facts_of(m, 32);
	const struct hspmd_layer_facts *block = hspmd_model_layer_facts(f, 1), *head = hspmd_model_layer_facts(f, 4);
	/* 24 t h^2 + 2 t^2 h for a block of GPT-2; two norms of 8, two additions of 1 and GELU of 4 h elements of 12 */
	expect_flops(block, 24 * t * 64 * 64 + 2 * t * t * 64, t * 64 * (16 + 2 + 4 * 12));
	expect_flops(head, 2 * t * 64 * 40, t * (8 * 64 + 12 * 40 + 20 * 3));
	/* two products for each product, and in attention five for two */
	double backward = all(&block->backward[HSPMD_FACTS_FP32].flops), products = 48 * t * 64 * 64 + 5 * t * t * 64;
	assert_true(backward > products && backward < 1.1 * products);
	assert_true(block->params.replicated == 2 * 2 * 64 + 64 + 64); /* norms, and the biases of the outputs */
	assert_true(block->params.sharded == 12 * 64 * 64 + 3 * 64 + 4 * 64);
	assert_true(block->output_elements == t * 64 && head->output_elements == 1);
	/* Norms and residuals are done by each device, or, with sequence parallelism, for its part of the sequence. */
	const struct hspmd_layer_pass *pass = &block->forward[HSPMD_FACTS_FP32];
	assert_float_equal(pass->flops.replicated, t * 64 * (16 + 2), 1);
	assert_float_equal(pass->parted_flops.replicated, 0, 1);
	assert_float_equal(all(&pass->parted_flops), all(&pass->flops), 1);
	/* Megatron's two all-reduces of the hidden state each way, and one each way for the embedding and the head */
	const struct hspmd_facts_messages *ahead = block->forward[HSPMD_FACTS_FP32].messages,
	                                  *back = block->backward[HSPMD_FACTS_BF16].messages;
	expect_tensors(&ahead[0], (int[]){ 2, 0, 0 }, t * 64 * 4);
	expect_tensors(&back[0], (int[]){ 2, 0, 0 }, t * 64 * 2);
	/* With sequence parallelism a gathering and the half of a sum in place of each (arXiv 2205.05198) */
	expect_tensors(&ahead[1], (int[]){ 0, 2, 2 }, t * 64 * 4);
	expect_tensors(&back[1], (int[]){ 0, 2, 2 }, t * 64 * 2);
	expect_tensors(&hspmd_model_layer_facts(f, 0)->forward[HSPMD_FACTS_FP32].messages[0], (int[]){ 1, 0, 0 }, t * 64 * 4);
	assert_true(hspmd_facts_messages_bytes(&head->forward[HSPMD_FACTS_FP32].messages[0], HSPMD_FACTS_REDUCED) == 0 &&
	            hspmd_facts_messages_bytes(&head->backward[HSPMD_FACTS_FP32].messages[0], HSPMD_FACTS_REDUCED) == t * 64 * 4);
	assert_true(block->recomputable && !head->recomputable && !hspmd_model_layer_facts(f, 0)->recomputable);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);

	m = from_text("{\"model_type\":\"llama\",\"num_key_value_heads\":2," SIZES "}");
	f = facts_of(m, 32);
	block = hspmd_model_layer_facts(f, 1);
	double projections = 2 * t * 64 * (2 * 64 + 2 * 16), mlp = 2 * t * 64 * 96 * 3, attention = 2 * t * t * 64;
	double swiglu = all(&block->forward[HSPMD_FACTS_FP32].flops) - projections - mlp - attention - t * 64 * (16 + 2);
	assert_true(swiglu > 0 && swiglu < 0.05 * mlp); /* and the rotation */
	assert_true(all(&block->params) == 2 * 64 + 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96);
	/* keys and values, both ways */
	assert_true(hspmd_facts_messages_bytes(&block->forward[HSPMD_FACTS_FP32].context, HSPMD_FACTS_GATHERED) == 2 * t * 16 * 4);
	assert_true(hspmd_facts_messages_bytes(&block->backward[HSPMD_FACTS_BF16].context, HSPMD_FACTS_SCATTERED) == 2 * t * 16 * 2);
	assert_true(block->params.replicated == 2 * 64);
	assert_true(messages_of(&block->backward[HSPMD_FACTS_FP32].messages[0], HSPMD_FACTS_REDUCED) == 2);
	/* In larger groups each device projects all keys and values, and the gradients of these projections are summed. */
	const struct hspmd_layer_facts *wide = hspmd_model_layer_facts(f->wide, 1);
	double both = all(&block->forward[HSPMD_FACTS_FP32].flops), kv = 2 * 2 * t * 64 * 16;
	assert_true(all(&wide->params) == all(&block->params) && wide->params.replicated == 2 * 64 + 2 * 64 * 16);
	assert_float_equal(all(&wide->forward[HSPMD_FACTS_FP32].flops), both, 1e-6 * both);
	assert_true(wide->forward[HSPMD_FACTS_FP32].flops.replicated - block->forward[HSPMD_FACTS_FP32].flops.replicated >= kv);
	assert_true(block->partial_params == 0 && wide->partial_params == 2 * 64 * 16);
	assert_true(messages_of(&wide->backward[HSPMD_FACTS_FP32].messages[0], HSPMD_FACTS_REDUCED) == 2);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);

	/* Two of eight experts for each token; a window of 8 of 32 positions. */
	m = from_text("{\"model_type\":\"mixtral\",\"num_key_value_heads\":8,\"num_local_experts\":8,\"num_experts_per_tok\":2,"
	              "\"sliding_window\":8," SIZES "}");
	f = facts_of(m, 32);
	block = hspmd_model_layer_facts(f, 1);
	double dense = 2 * t * 64 * 4 * 64 + 2 * t * 64 * 8 + 2 * mlp, flops = all(&block->forward[HSPMD_FACTS_FP32].flops);
	assert_true(flops > dense && flops < 1.15 * dense);
	assert_true(all(&block->params) == 2 * 64 + 4 * 64 * 64 + 64 * 8 + 8 * 3 * 64 * 96);
	assert_true(block->params.replicated == 2 * 64 + 64 * 8);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* What four devices with sequence parallelism do of a layer, which the facts are not made from, is what their program does. */
static void work_is_divided_along_the_sequence(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_model *m = from_text("{\"model_type\":\"llama\",\"num_key_value_heads\":4," SIZES "}");
	struct hspmd_model_facts *f = facts_of(m, 32);
	const struct hspmd_graph_source source = hspmd_graph_source_model(m);
	const struct hspmd_probe_layout four = { .tp = 4, .context = 1, .sequence_parallel = true, .samples = 1 };
	struct hspmd_probe probe;
	struct hspmd_probe_pass(*passes)[2] = calloc((size_t)f->layer_count, sizeof *passes);
	assert_non_null(passes);
	if (hspmd_probe_open(&probe, &source, &four, HSPMD_FACTS_PARTS_FP32, 32, &err))
		fail_msg("%s", err.text);
	if (hspmd_probe_work(probe.program, &(struct hspmd_probe_others){ 0 }, passes, &err))
		fail_msg("%s", err.text);
	for (int l = 0; l + 1 < f->layer_count; l++) /* what the loss takes depends on the number of devices */
		for (int backward = 0; backward < 2; backward++) {
			const struct hspmd_layer_facts *layer = hspmd_model_layer_facts(f, l);
			const struct hspmd_layer_pass *pass =
			        backward ? &layer->backward[HSPMD_FACTS_FP32] : &layer->forward[HSPMD_FACTS_FP32];
			double flops = pass->parted_flops.replicated + pass->parted_flops.sharded / 4,
			       bytes = pass->parted_bytes.replicated + pass->weights.replicated +
			               (pass->parted_bytes.sharded + pass->weights.sharded) / 4;
			if (!(fabs(flops - passes[l][backward].flops) <= 0.01 * flops &&
			      fabs(bytes - passes[l][backward].bytes) <= 0.01 * bytes))
				fail_msg("layer %d: %g operations and %g bytes instead of %g and %g", l, flops, bytes,
				         passes[l][backward].flops, passes[l][backward].bytes);
		}
	hspmd_probe_close(&probe);
	free(passes);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* Equal layers are of one kind, however many; the first and the last are kinds of their own. */
/* In FP8 the four products of a block, in both passes, and no others; amax histories are parameters of each device. */
static void products_in_fp8(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	const double t = 32, products = 24 * t * 64 * 64, histories = 4 * 3 * HSPMD_AMAX_BINS;
	struct hspmd_model *m =
	        from_text("{\"model_type\":\"gpt2\",\"vocab_size\":40,\"n_embd\":64,\"n_head\":8,\"n_layer\":3,\"n_positions\":32}");
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	source.precision = HSPMD_PRECISION_FP8;
	struct hspmd_model_facts *plain = facts_of(m, 32), *f = hspmd_model_facts_build(&source, "gpt2", 32, &err);
	if (!f)
		fail_msg("%s", err.text);
	assert_int_equal(f->kind_count, plain->kind_count);
	for (int k = 0; k < f->kind_count; k++)
		for (int width = 0; width < HSPMD_FACTS_WIDTHS; width++) {
			const struct hspmd_layer_facts *is = &f->kinds[k], *was = &plain->kinds[k];
			bool block = k == f->kind_of_layer[1];
			assert_float_equal(all(&is->forward[width].fp8), block ? products : 0, 1e-6);
			assert_float_equal(all(&is->backward[width].fp8), block ? 2 * products : 0, 1e-6);
			assert_float_equal(all(&was->forward[width].fp8) + all(&was->backward[width].fp8), 0, 0);
			assert_float_equal(all(&is->forward[width].flops), all(&was->forward[width].flops), 1e-6);
			assert_true(messages_of(&is->backward[width].messages[0], HSPMD_FACTS_REDUCED) ==
			            messages_of(&was->backward[width].messages[0], HSPMD_FACTS_REDUCED));
			assert_float_equal(all(&is->params), all(&was->params) + (block ? histories : 0), 0);
		}
	hspmd_model_facts_destroy(plain);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

/* Products of attention's linear layers and of experts are of FP8 units; backward experts compute gate and up again. */
static void experts_in_fp8(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	const double t = 32, h = 64, f = 48, attention = 2 * 4 * t * h * h, experts = 2 * 2 * 3 * t * h * f,
	             histories = (4 * 3 + HSPMD_EXPERTS_OPERANDS) * HSPMD_AMAX_BINS;
	struct hspmd_model *m =
	        from_text("{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":8,"
	                  "\"num_key_value_heads\":8,\"intermediate_size\":48,\"max_position_embeddings\":32,"
	                  "\"vocab_size\":40,\"num_local_experts\":4,\"num_experts_per_tok\":2}");
	struct hspmd_graph_source source = hspmd_graph_source_model(m);
	source.precision = HSPMD_PRECISION_FP8;
	struct hspmd_model_facts *plain = facts_of(m, 32), *facts = hspmd_model_facts_build(&source, "mixtral", 32, &err);
	if (!facts)
		fail_msg("%s", err.text);
	const struct hspmd_layer_facts *is = &facts->kinds[facts->kind_of_layer[1]], *was = &plain->kinds[plain->kind_of_layer[1]];
	for (int width = 0; width < HSPMD_FACTS_WIDTHS; width++) {
		assert_float_equal(all(&is->forward[width].fp8), attention + experts, 1e-3);
		assert_float_equal(all(&is->backward[width].fp8), 2 * attention + experts * 8 / 3, 1e-3);
		assert_float_equal(all(&is->forward[width].flops), all(&was->forward[width].flops), 1e-3);
	}
	assert_float_equal(all(&is->params), all(&was->params) + histories, 0);
	/* Rounded matrices take the same memory for any number of samples: two of all experts in BF16, and the largest of one in F32. */
	const struct hspmd_facts_amount *gpus = &is->workspace[HSPMD_FACTS_GATHERED_BF16][HSPMD_WORKSPACE_WEIGHTS],
	                                *cpus = &is->workspace[HSPMD_FACTS_PARTS_FP32][HSPMD_WORKSPACE_WEIGHTS];
	assert_float_equal(hspmd_facts_amount_at(gpus, 1, 1), 2 * 2 * 4 * h * f, 1e-6);
	assert_float_equal(hspmd_facts_amount_at(gpus, 1, 0.5), 2 * 2 * 4 * h * f, 1e-6);
	assert_float_equal(hspmd_facts_amount_at(cpus, 1, 1), 4 * h * h, 1e-6);
	/* The rows of experts that are not in FP8 are as wide as their elements. */
	double narrow = hspmd_facts_amount_at(&was->workspace[HSPMD_FACTS_GATHERED_BF16][HSPMD_WORKSPACE_SAMPLES], 1, 1),
	       wide = hspmd_facts_amount_at(&was->workspace[HSPMD_FACTS_GATHERED_FP32][HSPMD_WORKSPACE_SAMPLES], 1, 1);
	assert_true(narrow > 0 && wide > 1.5 * narrow);
	hspmd_model_facts_destroy(plain);
	hspmd_model_facts_destroy(facts);
	hspmd_model_destroy(m);
}

static void equal_layers_count_once(void **state)
{
	(void)state;
	struct hspmd_model *m = from_text("{\"model_type\":\"llama\"," SIZES "}"), *deep = read_model("llama");
	struct hspmd_model_facts *f = facts_of(m, 32), *many = facts_of(deep, 32);
	assert_int_equal(f->kind_count, 3);
	assert_int_equal(many->kind_count, 3);
	for (int l = 0; l < many->layer_count; l++)
		assert_int_equal(many->kind_of_layer[l], l == 0 ? 0 : l + 1 < many->layer_count ? 1 : 2);
	hspmd_model_facts_destroy(f);
	hspmd_model_facts_destroy(many);
	hspmd_model_destroy(m);
	hspmd_model_destroy(deep);
}

/* A net whose inner layers are of two kinds by turns: widths 24 and 40 between layers of width 16. */
static struct hspmd_graph *build_net(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	(void)context;
	(void)err;
	struct hspmd_graph *g = hspmd_graph_create(hspmd_op_types);
	g->compute_dtype = how->bf16 ? HSPMD_BF16 : HSPMD_F32;
	int tokens = hspmd_graph_input(g, HSPMD_TENSOR_TOKENS, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), 0);
	int targets = hspmd_graph_input(g, HSPMD_TENSOR_TARGETS, HSPMD_I32, HSPMD_SHAPE(how->batch, how->seq_len), 6);
	int table = hspmd_graph_parameter(g, "table", HSPMD_SHAPE(32, 16), 0, 0, 1, true, 0, 1);
	int x = hspmd_graph_append(g, HSPMD_OP_EMBED, NULL, 0, (int[]){ tokens, table }, 2, NULL);
	for (int l = 1; l < 6; l++) {
		char name[16];
		int64_t wide = l % 2 ? 24 : 40;
		snprintf(name, sizeof name, "up%d", l);
		int up = hspmd_graph_parameter(g, name, HSPMD_SHAPE(wide, 16), l, 0, 1, true, 0, 1);
		snprintf(name, sizeof name, "down%d", l);
		int down = hspmd_graph_parameter(g, name, HSPMD_SHAPE(16, wide), l, 0, 1, true, 1, 1);
		int y = hspmd_graph_append(g, HSPMD_OP_LINEAR, NULL, l, (int[]){ x, up }, 2, NULL);
		y = hspmd_graph_append(g, HSPMD_OP_GELU, NULL, l, &y, 1, NULL);
		x = hspmd_graph_append(g, HSPMD_OP_LINEAR, NULL, l, (int[]){ y, down }, 2, NULL);
	}
	struct hspmd_op_attr attr = { .parts = how->vocab_parts, .scale = how->loss_scale };
	int logits = hspmd_graph_append(g, HSPMD_OP_LINEAR, NULL, 6, (int[]){ x, table }, 2, NULL);
	int stats = hspmd_graph_append(g, HSPMD_OP_VOCAB_STATS, &attr, 6, (int[]){ logits, targets }, 2, NULL);
	hspmd_graph_append(g, HSPMD_OP_LOSS, &attr, 6, (int[]){ stats, targets }, 2, NULL);
	return g;
}

static void a_net_of_ones_own(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_graph_source source = { .build = build_net, .layers = 7 };
	source.optimizer = HSPMD_OPTIMIZER_LION;
	struct hspmd_model_facts *f = hspmd_model_facts_build(&source, "net", 8, &err);
	if (!f)
		fail_msg("%s", err.text);
	static const int kinds[] = { 0, 1, 2, 1, 2, 1, 3 };
	assert_int_equal(f->kind_count, 4);
	assert_memory_equal(f->kind_of_layer, kinds, sizeof kinds);
	assert_true(f->params == 32 * 16 + 3 * 2 * 24 * 16 + 2 * 2 * 40 * 16);
	assert_int_equal(f->ties[6].owner, 0);
	assert_int_equal(f->moments, 1);
	assert_true(f->ties[6].params == 32 * 16 && f->parts == 0 && f->even_parts == 0);
	/* saved: the input, and what GELU gets and gives */
	const struct hspmd_layer_memory *m = &f->kinds[2].memory[HSPMD_FACTS_GATHERED_FP32][0][0][HSPMD_RECOMPUTE_NONE];
	assert_float_equal(hspmd_facts_amount_at(&m->saved, 1, 1), 4 * 8 * (16 + 40 + 40), 0);
	assert_float_equal(hspmd_facts_amount_at(&m->saved, 0.25, 1), 4 * 8 * (16 + 10 + 10), 0);
	m = &f->kinds[2].memory[HSPMD_FACTS_GATHERED_FP32][1][0][HSPMD_RECOMPUTE_NONE];
	assert_float_equal(hspmd_facts_amount_at(&m->saved, 0.25, 0.5), 4 * 4 * (16 + 10 + 10), 0);
	m = &f->kinds[2].memory[HSPMD_FACTS_GATHERED_BF16][0][0][HSPMD_RECOMPUTE_FULL];
	assert_float_equal(hspmd_facts_amount_at(&m->saved, 0.5, 1), 2 * 8 * 16, 0);
	hspmd_model_facts_destroy(f);
	source.layers = 7;
}

/* Each list has all of the one before, saves more, and takes longer; those that save most for their time come first. */
static void operators_worth_recomputing(void **state)
{
	(void)state;
	struct hspmd_model *m = from_text("{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":704,\"num_hidden_layers\":4,"
	                                  "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"max_position_embeddings\":2048,"
	                                  "\"vocab_size\":512,\"rms_norm_eps\":1e-5}");
	struct hspmd_error err = { "" };
	struct hspmd_model_facts *f = hspmd_model_facts_of(m, 128, &err);
	if (!f)
		fail_msg("%s", err.text);
	const struct hspmd_layer_facts *block = hspmd_model_layer_facts(f, 2);
	const struct hspmd_layer_memory *memory = block->memory[HSPMD_FACTS_GATHERED_FP32][0][0];
	int sets = (int)json_array_size(f->recompute_sets);
	double saved = hspmd_facts_amount_at(&memory[HSPMD_RECOMPUTE_SELECTIVE].saved, 1, 1), worth = INFINITY,
	       flops = block->again[HSPMD_RECOMPUTE_SELECTIVE][0].flops.replicated +
	               block->again[HSPMD_RECOMPUTE_SELECTIVE][0].flops.sharded;
	assert_true(sets >= 2);
	assert_true(block->vectors.replicated == 2 * 256 && block->vectors.sharded == 0); /* two norms */
	for (int k = 0; k < sets; k++) {
		int kind = HSPMD_RECOMPUTE_SET + k;
		double now = hspmd_facts_amount_at(&memory[kind].saved, 1, 1),
		       again = block->again[kind][0].flops.replicated + block->again[kind][0].flops.sharded;
		char *names = hspmd_recompute_set_text(json_array_get(f->recompute_sets, (size_t)k));
		if (!(now < saved && again > flops && (saved - now) / (again - flops) < 1.01 * worth))
			fail_msg("list %d, %s: %g bytes after %g, %g operations after %g", k, names, now, saved, again, flops);
		if (!strstr(names, "rmsnorm") || !strstr(names, "swiglu"))
			fail_msg("list %d lacks cheap operators: %s", k, names);
		worth = (saved - now) / (again - flops);
		saved = now;
		flops = again;
		free(names);
	}
	/* Attention over few positions costs least for what it gives. */
	char *first = json_dumps(json_array_get(f->recompute_sets, 0), 0);
	if (!strstr(first, "\"attention\"") || strstr(first, "\"linear\""))
		fail_msg("the first list is %s", first);
	free(first);
	char *last = json_dumps(json_array_get(f->recompute_sets, (size_t)sets - 1), 0);
	if (strstr(last, "\"linear\"") || strstr(last, "o_proj") || strstr(last, "down_proj"))
		fail_msg("the last list is %s", last);
	free(last);
	/* The last list keeps the block's input and the projection of attention's results, which a tensor-parallel group sums. */
	assert_float_equal(saved, 2 * hspmd_facts_amount_at(&memory[HSPMD_RECOMPUTE_FULL].saved, 1, 1), 0);
	hspmd_model_facts_destroy(f);
	hspmd_model_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts_parameters),
		cmocka_unit_test(counts_operations),
		cmocka_unit_test(products_in_fp8),
		cmocka_unit_test(experts_in_fp8),
		cmocka_unit_test(equal_layers_count_once),
		cmocka_unit_test(a_net_of_ones_own),
		cmocka_unit_test(operators_worth_recomputing),
		cmocka_unit_test(work_is_divided_along_the_sequence),
	};
	return cmocka_run_group_tests_name("facts", tests, NULL, NULL);
}
