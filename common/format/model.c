/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a Hugging Face config.json. Sizes must be there; what a published config may leave out has the default of that model type's
 * configuration class in Transformers. A config has many keys that do not concern training here; they are passed over, except those that
 * change the arithmetic into something we do not do. */
#include "common/format/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/alloc.h"
#include "common/json.h"

#define HIDDEN_MAX (1 << 20)
#define BLOCKS_MAX 16384
#define HEADS_MAX 65536
#define FFN_MAX (1 << 24)
#define VOCAB_MAX (1 << 28)
#define POSITIONS_MAX (1 << 30)
#define EXPERTS_MAX 4096
#define PARAMS_MAX 1e16 /* sums and products of sizes stay exact in int64_t */

const char *const hspmd_model_type_names[] = { "gpt2", "llama", "mistral", "qwen2", "mixtral", NULL };

static const char *const gelu_names[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", NULL };
static const char *const silu_names[] = { "silu", "swish", NULL };

/* Defaults in which the rotary-embedding model types differ. */
struct defaults {
	int64_t kv_heads; /* 0: as many as heads */
	int64_t max_positions;
	int64_t sliding_window; /* 0: none */
	double norm_eps, rope_theta;
};

static const struct defaults defaults_of[HSPMD_MODEL_TYPE_COUNT] = {
	[HSPMD_MODEL_LLAMA] = { 0, 2048, 0, 1e-6, 1e4 },
	[HSPMD_MODEL_MISTRAL] = { 8, 131072, 4096, 1e-6, 1e4 },
	[HSPMD_MODEL_QWEN2] = { 32, 32768, 0, 1e-6, 1e4 },
	[HSPMD_MODEL_MIXTRAL] = { 8, 131072, 0, 1e-5, 1e6 },
};

/* ---- unsupported features */

static void refuse_set(struct hspmd_json *root, const char *key)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (at.value)
		hspmd_json_fail(&at, "not supported; expected null");
}

static void refuse_unless(struct hspmd_json *root, const char *key, bool wanted)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (hspmd_json_bool_or(root, key, wanted) != wanted)
		hspmd_json_fail(&at, "not supported; expected %s", wanted ? "true" : "false");
}

static void refuse_number_unless(struct hspmd_json *root, const char *key, double wanted)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (hspmd_json_number_or(root, key, -HSPMD_JSON_UNBOUNDED, HSPMD_JSON_UNBOUNDED, wanted) != wanted)
		hspmd_json_fail(&at, "not supported; expected %g", wanted);
}

static void refuse_common(struct hspmd_json *root)
{
	refuse_set(root, "quantization_config");
	refuse_set(root, "attn_logit_softcapping");
	refuse_set(root, "final_logit_softcapping");
	refuse_unless(root, "add_cross_attention", false);
	refuse_unless(root, "is_encoder_decoder", false);
	struct hspmd_json pruned = hspmd_json_object_or_none(root, "pruned_heads");
	if (json_object_size(pruned.value))
		hspmd_json_fail(&pruned, "not supported; expected no pruned heads");
}

/* Every rope_type other than plain rotation scales positions in its own way. */
static void refuse_scaled_rope(struct hspmd_json *rope)
{
	static const char *const keys[] = { "rope_type", "type" };
	for (int i = 0; i < 2; i++) {
		struct hspmd_json at = hspmd_json_any(rope, keys[i]);
		const char *type = hspmd_json_string_or(rope, keys[i], "default");
		if (type && strcmp(type, "default"))
			hspmd_json_fail(&at, "not supported; expected \"default\" rotary positions");
	}
	refuse_number_unless(rope, "factor", 1);
	refuse_number_unless(rope, "partial_rotary_factor", 1);
}

static void refuse_mixed_layers(struct hspmd_json *root, const char *wanted)
{
	struct hspmd_json types = hspmd_json_array_or_none(root, "layer_types", 0, BLOCKS_MAX);
	for (size_t i = 0; i < hspmd_json_length(&types); i++) {
		struct hspmd_json at = hspmd_json_at(&types, i);
		const char *type = hspmd_json_string_value(&at);
		if (type && strcmp(type, wanted))
			hspmd_json_fail(&at, "not supported; expected \"%s\"", wanted);
	}
}

/* ---- reading */

/* "key: 5 does not divide the hidden size, 768" unless it does. */
static void check_divides(struct hspmd_json *root, const char *key, int64_t by, const char *what, int64_t whole)
{
	struct hspmd_json at = hspmd_json_any(root, key);
	if (whole % by)
		hspmd_json_fail(&at, "%lld does not divide the %s, %lld", (long long)by, what, (long long)whole);
}

/* An integer under the model type's own key, or under the key that all model types share. */
static int64_t size_of(struct hspmd_json *root, const char *key, const char *shared, int64_t max)
{
	bool other = !hspmd_json_has(root, key) && hspmd_json_has(root, shared);
	return hspmd_json_int(root, other ? shared : key, 1, max);
}

static bool any_dropout(struct hspmd_json *root)
{
	static const char *const keys[] = { "resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout" };
	bool any = false;
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		any |= hspmd_json_number_or(root, keys[i], 0, 1, i < 3 ? 0.1 : 0) > 0;
	return any;
}

static void read_gpt2(struct hspmd_json *root, struct hspmd_model *m)
{
	m->hidden = size_of(root, "n_embd", "hidden_size", HIDDEN_MAX);
	m->block_count = (int)size_of(root, "n_layer", "num_hidden_layers", BLOCKS_MAX);
	m->heads = m->kv_heads = size_of(root, "n_head", "num_attention_heads", HEADS_MAX);
	m->ffn = hspmd_json_int_or(root, "n_inner", 1, FFN_MAX, 4 * m->hidden);
	const char *other_name = hspmd_json_has(root, "n_ctx") ? "n_ctx" : "max_position_embeddings";
	m->max_positions = size_of(root, "n_positions", other_name, POSITIONS_MAX);
	int act = hspmd_json_enum_or(root, "activation_function", gelu_names, 0);
	m->gelu_exact = act == 3;
	m->norm_eps = hspmd_json_number_or(root, "layer_norm_epsilon", HSPMD_JSON_POSITIVE, 1, 1e-5);
	m->tied = hspmd_json_bool_or(root, "tie_word_embeddings", true);
	m->qkv_bias = m->out_bias = m->mlp_bias = true;
	m->dropout = any_dropout(root);
	refuse_unless(root, "scale_attn_by_inverse_layer_idx", false);
	refuse_unless(root, "scale_attn_weights", true);
	if (hspmd_json_failed(root))
		return;
	m->head_dim = m->hidden / m->heads;
	check_divides(root, hspmd_json_has(root, "n_head") ? "n_head" : "num_attention_heads", m->heads, "hidden size", m->hidden);
}

/* Key absent: the default; null: none. */
static int64_t window_of(struct hspmd_json *root, int64_t absent)
{
	if (json_is_null(json_object_get(root->value, "sliding_window")))
		absent = 0;
	return hspmd_json_int_or(root, "sliding_window", 1, POSITIONS_MAX, absent);
}

static void read_window(struct hspmd_json *root, struct hspmd_model *m, const struct defaults *d)
{
	if (m->type == HSPMD_MODEL_QWEN2)
		refuse_unless(root, "use_sliding_window", false);
	else if (m->type != HSPMD_MODEL_LLAMA)
		m->sliding_window = window_of(root, d->sliding_window);
	refuse_mixed_layers(root, m->sliding_window ? "sliding_attention" : "full_attention");
}

static void read_rope(struct hspmd_json *root, struct hspmd_model *m, const struct defaults *d)
{
	struct hspmd_json scaling = hspmd_json_object_or_none(root, "rope_scaling");
	struct hspmd_json parameters = hspmd_json_object_or_none(root, "rope_parameters");
	m->rope_theta = hspmd_json_number_or(root, "rope_theta", HSPMD_JSON_POSITIVE, 1e18, d->rope_theta);
	m->rope_theta = hspmd_json_number_or(&parameters, "rope_theta", HSPMD_JSON_POSITIVE, 1e18, m->rope_theta);
	refuse_scaled_rope(&scaling);
	refuse_scaled_rope(&parameters);
	refuse_number_unless(root, "partial_rotary_factor", 1);
}

static void read_biases(struct hspmd_json *root, struct hspmd_model *m)
{
	if (m->type == HSPMD_MODEL_LLAMA) {
		m->qkv_bias = m->out_bias = hspmd_json_bool_or(root, "attention_bias", false);
		m->mlp_bias = hspmd_json_bool_or(root, "mlp_bias", false);
	} else {
		m->qkv_bias = m->type == HSPMD_MODEL_QWEN2;
		refuse_unless(root, "mlp_bias", false);
		refuse_unless(root, "attention_bias", m->qkv_bias);
	}
}

static void read_experts(struct hspmd_json *root, struct hspmd_model *m)
{
	m->experts = (int)hspmd_json_int_or(root, "num_local_experts", 1, EXPERTS_MAX, 8);
	m->experts_per_token = (int)hspmd_json_int_or(root, "num_experts_per_tok", 1, EXPERTS_MAX, 2);
	m->router_aux_coef = hspmd_json_number_or(root, "router_aux_loss_coef", 0, 1e6, 0.001);
	refuse_number_unless(root, "router_jitter_noise", 0);
	struct hspmd_json at = hspmd_json_any(root, "num_experts_per_tok");
	if (!hspmd_json_failed(root) && m->experts_per_token > m->experts)
		hspmd_json_fail(&at, "%d is more than the %d experts there are", m->experts_per_token, m->experts);
}

static void read_rotary(struct hspmd_json *root, struct hspmd_model *m)
{
	const struct defaults *d = &defaults_of[m->type];
	m->hidden = hspmd_json_int(root, "hidden_size", 1, HIDDEN_MAX);
	m->block_count = (int)hspmd_json_int(root, "num_hidden_layers", 1, BLOCKS_MAX);
	m->heads = hspmd_json_int(root, "num_attention_heads", 1, HEADS_MAX);
	bool null_kv = json_is_null(json_object_get(root->value, "num_key_value_heads"));
	m->kv_heads = hspmd_json_int_or(root, "num_key_value_heads", 1, HEADS_MAX, d->kv_heads && !null_kv ? d->kv_heads : m->heads);
	m->ffn = hspmd_json_int(root, "intermediate_size", 1, FFN_MAX);
	m->max_positions = hspmd_json_int_or(root, "max_position_embeddings", 1, POSITIONS_MAX, d->max_positions);
	m->norm_eps = hspmd_json_number_or(root, "rms_norm_eps", HSPMD_JSON_POSITIVE, 1, d->norm_eps);
	m->tied = hspmd_json_bool_or(root, "tie_word_embeddings", false);
	m->rms_norm = m->gated = true;
	m->dropout = hspmd_json_number_or(root, "attention_dropout", 0, 1, 0) > 0;
	hspmd_json_enum_or(root, "hidden_act", silu_names, 0);
	read_rope(root, m, d);
	read_window(root, m, d);
	read_biases(root, m);
	if (m->type == HSPMD_MODEL_MIXTRAL)
		read_experts(root, m);
	m->head_dim = hspmd_json_int_or(root, "head_dim", 1, HIDDEN_MAX, m->heads ? m->hidden / m->heads : 1);
	if (hspmd_json_failed(root))
		return;
	if (!hspmd_json_has(root, "head_dim"))
		check_divides(root, "num_attention_heads", m->heads, "hidden size", m->hidden);
	check_divides(root, "num_key_value_heads", m->kv_heads, "number of heads", m->heads);
	if (m->head_dim % 2)
		hspmd_json_fail(root, "heads of %lld elements cannot be rotated in pairs", (long long)m->head_dim);
}

/* An upper bound in floating point, computed before any integer product of sizes. */
static double params_bound(const struct hspmd_model *m)
{
	double h = (double)m->hidden, wide = (double)m->heads * (double)m->head_dim;
	double attention = 4 * (h + 1) * wide, mlp = 3 * (h + 1) * (double)m->ffn * (m->experts ? m->experts : 1);
	return m->block_count * (attention + mlp + h * (m->experts + 4)) + h * (2 * (double)m->vocab + (double)m->max_positions);
}

static int read_all(struct hspmd_json *root, struct hspmd_model *m)
{
	if (!hspmd_json_expect_object(root))
		return -1;
	m->type = (enum hspmd_model_type)hspmd_json_enum(root, "model_type", hspmd_model_type_names);
	const char *name = json_string_value(json_object_get(root->value, "_name_or_path"));
	m->name = strdup(name && *name ? name : hspmd_model_type_names[m->type]);
	if (!m->name)
		return hspmd_json_fail_memory(root);
	m->vocab = hspmd_json_int(root, "vocab_size", 1, VOCAB_MAX);
	m->init_range = hspmd_json_number_or(root, "initializer_range", 0, 10, 0.02);
	if (m->type == HSPMD_MODEL_GPT2)
		read_gpt2(root, m);
	else
		read_rotary(root, m);
	refuse_common(root);
	if (!hspmd_json_failed(root) && params_bound(m) > PARAMS_MAX)
		hspmd_json_fail(root, "these sizes make about %.0e parameters; at most %.0e can be handled", params_bound(m), PARAMS_MAX);
	return hspmd_json_failed(root) ? -1 : 0;
}

static struct hspmd_model *from_doc(struct hspmd_json_doc *doc)
{
	struct hspmd_json root = hspmd_json_root(doc);
	struct hspmd_model *m = calloc(1, sizeof *m);
	if (!m) {
		hspmd_json_fail_memory(&root);
		return NULL;
	}
	m->config = json_incref(doc->root);
	int rc = read_all(&root, m);
	if (!rc && doc->rounded) /* an integer of an ignored key, which is copied to exported models */
		rc = hspmd_json_fail(&root, "an integer is too large");
	if (!rc)
		return m;
	hspmd_model_destroy(m);
	return NULL;
}

struct hspmd_model *hspmd_model_read(const char *path, struct hspmd_error *err)
{
	struct stat st;
	bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
	char *file = folder ? hspmd_asprintf("%s/config.json", path) : strdup(path);
	struct hspmd_json_doc doc;
	struct hspmd_model *m = NULL;
	if (!file)
		hspmd_fail_memory(err, path);
	else if (!hspmd_json_open(&doc, file, err)) {
		m = from_doc(&doc);
		hspmd_json_close(&doc);
	}
	free(file);
	return m;
}

struct hspmd_model *hspmd_model_from_json(json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	hspmd_json_wrap(&doc, name, value, err);
	struct hspmd_model *m = from_doc(&doc);
	hspmd_json_close(&doc);
	return m;
}

void hspmd_model_destroy(struct hspmd_model *m)
{
	if (!m)
		return;
	json_decref(m->config);
	free(m->name);
	free(m);
}

int hspmd_model_layers(const struct hspmd_model *m)
{
	return m->block_count + 2;
}
