/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: known parameter counts, defaults of absent keys, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"
#include "common/json.h"
#include "edit.h"
#include "runtime/model/decoder.h"
#include "runtime/model/build.h"
#include "runtime/model/model.h"

#define DATA HSPMD_SRCDIR "/tests/data/model/"

static struct hspmd_error err;

static struct hspmd_model *read_model(const char *name)
{
	char path[256];
	snprintf(path, sizeof path, DATA "%s.json", name);
	struct hspmd_model *m = hspmd_model_read(path, &err);
	if (!m)
		fail_msg("%s", err.text);
	return m;
}

static struct hspmd_model *from_text(const char *text)
{
	struct hspmd_json_doc doc;
	err.text[0] = '\0';
	if (hspmd_json_parse(&doc, "config.json", text, strlen(text), &err))
		return NULL;
	struct hspmd_model *m = hspmd_model_from_json(doc.root, "config.json", &err);
	hspmd_json_close(&doc);
	return m;
}

static void reads_gpt2(void **state)
{
	(void)state;
	struct hspmd_model *m = read_model("gpt2");
	assert_string_equal(m->name, "gpt2");
	assert_int_equal(m->block_count, 12);
	assert_int_equal(hspmd_model_layers(m), 14);
	assert_int_equal(hspmd_decoder_of(m)->head_dim, 64);
	assert_int_equal(hspmd_decoder_of(m)->ffn, 3072);
	assert_int_equal(m->max_positions, 1024);
	assert_true(hspmd_decoder_of(m)->norm_eps == 1e-5 && m->learnt_positions && hspmd_decoder_of(m)->init_range == 0.02);
	assert_true(hspmd_decoder_of(m)->layer_norm && hspmd_decoder_of(m)->activation == HSPMD_GELU_TANH &&
	            hspmd_decoder_of(m)->qkv_bias && hspmd_decoder_of(m)->out_bias && hspmd_decoder_of(m)->mlp_bias && m->tied &&
	            m->dropout);
	assert_int_equal(json_integer_value(json_object_get(m->config, "bos_token_id")), 50256);
	hspmd_model_destroy(m);
}

static void reads_the_others(void **state)
{
	(void)state;
	struct hspmd_model *m = read_model("llama");
	assert_string_equal(m->name, "llama-7b");
	assert_true(!hspmd_decoder_of(m)->layer_norm && !hspmd_decoder_of(m)->qkv_bias && !m->tied && !m->dropout &&
	            hspmd_decoder_of(m)->rope[0].theta == 1e4);
	assert_int_equal(hspmd_decoder_of(m)->window, 0);
	hspmd_model_destroy(m);
	m = read_model("mistral");
	assert_int_equal(hspmd_decoder_of(m)->window, 4096);
	assert_int_equal(hspmd_decoder_of(m)->kv_heads, 8);
	hspmd_model_destroy(m);
	m = read_model("qwen2");
	assert_true(hspmd_decoder_of(m)->qkv_bias && !hspmd_decoder_of(m)->out_bias && m->tied &&
	            hspmd_decoder_of(m)->rope[0].theta == 1e6);
	assert_int_equal(hspmd_decoder_of(m)->window, 0);
	hspmd_model_destroy(m);
	m = read_model("mixtral");
	assert_int_equal(hspmd_decoder_of(m)->experts.count, 8);
	assert_int_equal(hspmd_decoder_of(m)->experts.per_token, 2);
	assert_int_equal(hspmd_decoder_of(m)->window, 0);
	assert_true(hspmd_decoder_of(m)->experts.aux_coef == 0.02);
	hspmd_model_destroy(m);
}

#define SIZES "\"vocab_size\": 100, \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 32, \"intermediate_size\": 96"

static void defaults_of_absent_keys(void **state)
{
	(void)state;
	struct hspmd_model *m = from_text("{\"model_type\": \"llama\", " SIZES "}");
	assert_true(hspmd_decoder_of(m)->kv_heads == 32 && m->max_positions == 2048 && hspmd_decoder_of(m)->head_dim == 2 &&
	            hspmd_decoder_of(m)->rope[0].theta == 1e4 && hspmd_decoder_of(m)->norm_eps == 1e-6);
	assert_true(!m->tied && !hspmd_decoder_of(m)->qkv_bias && !hspmd_decoder_of(m)->mlp_bias &&
	            hspmd_decoder_of(m)->init_range == 0.02);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"mistral\", " SIZES "}");
	assert_true(hspmd_decoder_of(m)->kv_heads == 8 && m->max_positions == 131072 && hspmd_decoder_of(m)->window == 4096 &&
	            hspmd_decoder_of(m)->norm_eps == 1e-6);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"mistral\", \"sliding_window\": null, \"num_key_value_heads\": null, \"head_dim\": 6, " SIZES "}");
	assert_true(hspmd_decoder_of(m)->kv_heads == 32 && hspmd_decoder_of(m)->window == 0 && hspmd_decoder_of(m)->head_dim == 6);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"qwen2\", " SIZES "}");
	assert_true(hspmd_decoder_of(m)->kv_heads == 32 && m->max_positions == 32768 && hspmd_decoder_of(m)->qkv_bias &&
	            hspmd_decoder_of(m)->rope[0].theta == 1e4);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"mixtral\", " SIZES "}");
	assert_true(hspmd_decoder_of(m)->kv_heads == 8 && hspmd_decoder_of(m)->norm_eps == 1e-5 &&
	            hspmd_decoder_of(m)->rope[0].theta == 1e6 && hspmd_decoder_of(m)->experts.count == 8 &&
	            hspmd_decoder_of(m)->experts.per_token == 2);
	assert_true(hspmd_decoder_of(m)->experts.aux_coef == 0.001);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, \"rope_parameters\": {\"rope_type\": "
	              "\"default\","
	              " \"rope_theta\": 5e5}, \"attention_dropout\": 0.1, \"tie_word_embeddings\": true, " SIZES "}");
	assert_true(hspmd_decoder_of(m)->qkv_bias && hspmd_decoder_of(m)->out_bias && hspmd_decoder_of(m)->mlp_bias &&
	            hspmd_decoder_of(m)->rope[0].theta == 5e5 && m->dropout && m->tied);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 8, \"n_head\": 2, \"n_layer\": 1, \"n_ctx\": 32, "
	              "\"n_inner\": null,"
	              " \"activation_function\": \"gelu\", \"tie_word_embeddings\": false}");
	assert_true(hspmd_decoder_of(m)->ffn == 32 && m->max_positions == 32 && hspmd_decoder_of(m)->activation == HSPMD_GELU_ERF &&
	            !m->tied && hspmd_decoder_of(m)->norm_eps == 1e-5 && m->dropout);
	hspmd_model_destroy(m);
}

#define GPT2_SIZES "\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 8, \"n_head\": 2, \"n_layer\": 1, \"n_positions\": 32"

static const struct edit wrong[] = {
	{ "{}", "",
	  "config.json: model_type: expected \"deepseek_v2\", \"deepseek_v3\", \"gemma2\", \"gemma3_text\", \"gemma3\", \"gpt2\", " },
	{ "{\"model_type\": \"bert\"}", "", "\"qwen3_moe\" or \"smollm3\", got \"bert\"" },
	{ "[]", "", "config.json: expected an object, got an empty array" },
	{ "{\"model_type\": \"gpt2\", \"vocab_size\": 9}", "",
	  "config.json: n_embd: expected an integer in 1..1048576, but it is missing" },
	{ "{" GPT2_SIZES ", \"n_inner\": 0}", "", "config.json: n_inner: expected 1..16777216, got 0" },
	{ "{" GPT2_SIZES ", \"activation_function\": \"relu\"}", "", "config.json: activation_function: expected \"gelu_new\"" },
	{ "{" GPT2_SIZES ", \"scale_attn_by_inverse_layer_idx\": true}", "",
	  "scale_attn_by_inverse_layer_idx: not supported; expected false" },
	{ "{" GPT2_SIZES ", \"scale_attn_weights\": false}", "", "config.json: scale_attn_weights: not supported; expected true" },
	{ "{" GPT2_SIZES ", \"add_cross_attention\": true}", "", "config.json: add_cross_attention: not supported; expected false" },
	{ "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 8, \"n_head\": 3, \"n_layer\": 1, \"n_positions\": 32}", "",
	  "config.json: n_head: 3 does not divide the hidden size, 8" },
	{ "{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}, " SIZES "}", "",
	  "config.json: rope_scaling.low_freq_factor: expected a number" },
	{ "{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"mrope\"}, " SIZES "}", "",
	  "config.json: rope_scaling.rope_type: expected \"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\"" },
	{ "{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2], \"long_factor\": [1]}, " SIZES
	  "}",
	  "", "config.json: rope_scaling.short_factor: " },
	{ "{\"model_type\": \"llama\", \"rope_scaling\": {\"factor\": 8}, " SIZES "}", "",
	  "rope_scaling.factor: not supported; expected 1" },
	{ "{\"model_type\": \"llama\", \"hidden_act\": \"relu\", " SIZES "}", "",
	  "config.json: hidden_act: expected \"silu\", \"swish\", \"gelu_pytorch_tanh\"" },
	{ "{\"model_type\": \"llama\", \"quantization_config\": {}, " SIZES "}", "",
	  "config.json: quantization_config: weights quantised by any method are not supported; expected null" },
	{ "{\"model_type\": \"gpt_oss\", \"quantization_config\": {\"quant_method\": \"mxfp4\"}, " SIZES "}", "",
	  "quantization_config: weights quantised by \"mxfp4\" are not supported; expected null. Transformers writes a model without: "
	  "from_pretrained(" },
	{ "{\"model_type\": \"llama\", \"attn_logit_softcapping\": 50, " SIZES "}", "",
	  "attn_logit_softcapping: not supported; expected null" },
	{ "{\"model_type\": \"gemma3_text\", \"attn_logit_softcapping\": 50, " SIZES "}", "",
	  "attn_logit_softcapping: not supported; expected null" },
	{ "{\"model_type\": \"llama\", \"num_key_value_heads\": 5, " SIZES "}", "",
	  "config.json: num_key_value_heads: 5 does not divide the number of heads, 32" },
	{ "{\"model_type\": \"llama\", \"head_dim\": 3, " SIZES "}", "", "config.json: heads of 3 elements cannot be rotated in pairs" },
	{ "{\"model_type\": \"mistral\", \"layer_types\": [\"sliding_attention\", \"full_attention\"], " SIZES "}", "",
	  "config.json: layer_types[1]: not supported; expected \"sliding_attention\"" },
	{ "{\"model_type\": \"qwen3\", \"layer_types\": [\"chunked_attention\", \"full_attention\"], " SIZES "}", "",
	  "config.json: layer_types[0]: not supported; expected \"full_attention\" or \"sliding_attention\"" },
	{ "{\"model_type\": \"phi3\", \"embd_pdrop\": 0.1, " SIZES "}", "", "embd_pdrop: not supported; expected 0" },
	{ "{\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\"], " SIZES "}", "",
	  "config.json: layer_types: expected an array of 2 elements, got an array of 1" },
	{ "{\"model_type\": \"qwen3_moe\", \"mlp_only_layers\": [2], " SIZES "}", "",
	  "config.json: mlp_only_layers[0]: expected 0..1, got 2" },
	{ "{\"model_type\": \"qwen3_moe\", \"decoder_sparse_step\": 0, " SIZES "}", "",
	  "config.json: decoder_sparse_step: expected 1..16384, got 0" },
	{ "{\"model_type\": \"gemma3\", \"text_config\": {\"vocab_size\": 9}}", "",
	  "config.json: text_config.hidden_size: expected an integer" },
	{ "{\"model_type\": \"smollm3\", \"no_rope_layers\": [1], " SIZES "}", "", "config.json: no_rope_layers: expected" },
	{ "{\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\", \"sliding_attention\"], " SIZES "}", "",
	  "config.json: layer_types[1]: not supported; expected \"full_attention\"" },
	{ "{\"model_type\": \"mixtral\", \"num_experts_per_tok\": 9, " SIZES "}", "",
	  "config.json: num_experts_per_tok: 9 is more than the 8 experts there are" },
	{ "{\"model_type\": \"mixtral\", \"router_jitter_noise\": 0.1, " SIZES "}", "", "router_jitter_noise: not supported; expected 0" },
	{ "{\"model_type\": \"mixtral\", \"vocab_size\": 1, \"hidden_size\": 1048576, \"num_hidden_layers\": 16384, "
	  "\"num_attention_heads\": 32,"
	  " \"intermediate_size\": 16777216, \"num_local_experts\": 4096}",
	  "", "config.json: these sizes make about 4e+21 parameters; at most 1e+16 can be handled" },
};

static void refuses(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct hspmd_model *m = from_text(wrong[i].find);
		if (m || !strstr(err.text, wrong[i].error))
			fail_msg("%s: got \"%s\"", wrong[i].find, err.text);
	}
	assert_null(hspmd_model_read("/nowhere", &err));
	assert_string_equal(err.text, "/nowhere: No such file or directory");
	assert_null(hspmd_model_read(DATA, &err));
	assert_non_null(strstr(err.text, "config.json: No such file or directory"));
}

/* Layers that differ from one another. */
static void reads_layers(void **state)
{
	(void)state;
	struct hspmd_model *m = from_text(
	        "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 7, \"max_window_layers\": 1, " SIZES "}");
	const struct hspmd_decoder *d = hspmd_decoder_of(m);
	assert_true(d->window == 7 && !d->layers[0].slides && d->layers[1].slides);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"smollm3\", \"no_rope_layer_interval\": 2, " SIZES "}");
	d = hspmd_decoder_of(m);
	assert_true(d->layers[0].rotation == HSPMD_ROTATION && d->layers[1].rotation == HSPMD_ROTATION_NONE && m->tied);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"gemma3\", \"text_config\": {\"sliding_window_pattern\": 2, " SIZES "}}");
	d = hspmd_decoder_of(m);
	assert_true(d->layers[0].rotation == HSPMD_ROTATION_LOCAL && d->layers[1].rotation == HSPMD_ROTATION && d->head_dim == 256);
	assert_string_equal(json_string_value(json_object_get(m->config, "model_type")), "gemma3_text");
	hspmd_model_destroy(m);
	m = from_text(
	        "{\"model_type\": \"qwen2_moe\", \"use_sliding_window\": true, \"max_window_layers\": 1, \"mlp_only_layers\": [0], " SIZES
	        "}");
	d = hspmd_decoder_of(m);
	assert_true(d->window == 4096 && d->layers[0].slides && !d->layers[1].slides && d->layers[0].is_dense && !d->layers[1].is_dense);
	assert_true(d->qkv_bias && !d->out_bias && d->experts.count == 60 && d->experts.ffn == 1408 && d->experts.shared_ffn == 5632);
	hspmd_model_destroy(m);
	m = from_text("{\"model_type\": \"qwen3_moe\", \"num_experts\": 16, \"decoder_sparse_step\": 2, " SIZES "}");
	d = hspmd_decoder_of(m);
	assert_true(d->layers[0].is_dense && !d->layers[1].is_dense && d->experts.router == HSPMD_ROUTER_ALL && d->experts.aux_coef == 0);
	hspmd_model_destroy(m);
}

/* What the configurations of Transformers say of dropout, by type: applied ('a'), refused ('r'), or of heads that are not trained ('h'). */
static const struct {
	const char *type, *key;
	char what;
} rates[] = {
	{ "gpt2", "embd_pdrop", 'a' },
	{ "gpt2", "resid_pdrop", 'a' },
	{ "gpt2", "attn_pdrop", 'a' },
	{ "gpt2", "attention_dropout", 'r' },
	{ "gpt2", "summary_first_dropout", 'h' },
	{ "gpt2", "summary_last_dropout", 'h' },
	{ "gpt_neox", "hidden_dropout", 'a' },
	{ "gpt_neox", "classifier_dropout", 'h' },
	{ "phi3", "resid_pdrop", 'a' },
	{ "phi3", "embd_pdrop", 'r' },
	{ "mixtral", "router_jitter_noise", 'r' },
	/* Of every type: */
	{ NULL, "attention_dropout", 'a' },
	{ NULL, "hidden_dropout_prob", 'r' },
	{ NULL, "attention_probs_dropout_prob", 'r' },
	{ NULL, "layerdrop", 'r' },
};

/* How many operators of the graph drop elements. */
static int dropping_operators(const struct hspmd_model *m)
{
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = 4, .vocab_parts = 1, .loss_scale = 1 };
	struct hspmd_graph *g = hspmd_model_graph(m, &how, &err);
	int count = 0;
	if (!g)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < g->op_count; i++)
		count += g->ops[i].attr.rate > 0;
	hspmd_graph_destroy(g);
	return count;
}

/* A model whose only dropout is this rate, among the language model's fields. `more`: other members of the config. */
static void try_rate(const char *type, size_t row, const char *more)
{
	char text[512];
	const char *off = !strcmp(type, "gpt2")           ? "\"embd_pdrop\": 0, \"resid_pdrop\": 0, \"attn_pdrop\": 0, "
	                  : !strncmp(type, "deepseek", 8) ? "\"n_routed_experts\": 4, \"moe_intermediate_size\": 8, "
	                                                    "\"kv_lora_rank\": 4, \"num_experts_per_tok\": 2, \"q_lora_rank\": null, "
	                                                    "\"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, \"v_head_dim\": 4, "
	                                                    "\"n_group\": 1, \"topk_group\": 1, "
	                                                  : "";
	json_t *value;
	snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s%s\"max_position_embeddings\": 64, " SIZES "}", type, more, off);
	assert_non_null(value = json_loads(text, 0, NULL));
	json_t *fields = json_object_get(value, "text_config");
	json_object_set_new(fields ? fields : value, rates[row].key, json_real(0.1));
	struct hspmd_model *m = hspmd_model_from_json(value, "config.json", &err);
	if (rates[row].what == 'r' ? m || !strstr(err.text, rates[row].key) || !strstr(err.text, "not supported; expected 0")
	                           : !m || (dropping_operators(m) > 0) != (rates[row].what == 'a'))
		fail_msg("%s: got \"%s\"", json_dumps(value, JSON_COMPACT), m ? "a model" : err.text);
	hspmd_model_destroy(m);
	json_decref(value);
}

static void applies_or_refuses_dropout(void **state)
{
	(void)state;
	for (size_t row = 0; row < sizeof rates / sizeof *rates; row++)
		for (int i = 0; hspmd_model_type_name(i); i++) {
			const char *type = hspmd_model_type_name(i);
			if (rates[row].type ? strcmp(type, rates[row].type) : !strcmp(type, "gpt2") && rates[row].what == 'a')
				continue;
			try_rate(type, row, "");
			if (!strcmp(type, "gemma3"))
				try_rate(type, row, "\"text_config\": {" SIZES "}, \"vision_config\": {\"attention_dropout\": 0.3}, ");
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_gpt2), cmocka_unit_test(reads_the_others), cmocka_unit_test(defaults_of_absent_keys),
		cmocka_unit_test(refuses),    cmocka_unit_test(reads_layers),     cmocka_unit_test(applies_or_refuses_dropout),
	};
	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
