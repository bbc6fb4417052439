/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/alloc.h"
#include "runtime/model/fields.h"
#include "runtime/model/model_list.h"
#include "runtime/model/model_type.h"
#include "runtime/model/own_internal.h"

#define DECLARE(name) extern const struct hspmd_model_type hspmd_model_##name;
HSPMD_MODELS(DECLARE)

#define ENTRY(name) &hspmd_model_##name,
static const struct hspmd_model_type *const types[] = { HSPMD_MODELS(ENTRY) };

#define TYPES ((int)(sizeof types / sizeof *types))
#define NAMES ((int)(sizeof types[0]->names / sizeof *types[0]->names))

static const char *name_and_type(int index, const struct hspmd_model_type **type)
{
	for (int t = 0; t < TYPES; t++)
		for (int n = 0; n < NAMES && types[t]->names[n]; n++)
			if (index-- == 0) {
				*type = types[t];
				return types[t]->names[n];
			}
	return NULL;
}

const char *hspmd_model_type_name(int index)
{
	const struct hspmd_model_type *type;
	return name_and_type(index, &type);
}

/* NULL, and the document has failed: the model_type is missing or unknown. */
static const struct hspmd_model_type *type_of(struct hspmd_json *root)
{
	const char *names[NAMES * TYPES + 1];
	const struct hspmd_model_type *type = NULL;
	int count = 0;
	while ((names[count] = hspmd_model_type_name(count)))
		count++;
	name_and_type(hspmd_json_enum(root, "model_type", names), &type);
	return hspmd_json_failed(root) ? NULL : type;
}

/* Published models of gpt_oss and deepseek_v3 have quantised weights. */
static void refuse_quantised(struct hspmd_json *root)
{
	struct hspmd_json at = hspmd_json_any(root, "quantization_config");
	const char *method = json_string_value(json_object_get(at.value, "quant_method"));
	if (at.value)
		hspmd_json_fail(&at,
		                "weights quantised by %s%s%s are not supported; expected null. Transformers writes a model without: "
		                "from_pretrained(..., quantization_config=C(dequantize=True)) with the method's class C "
		                "(Mxfp4Config for mxfp4, FineGrainedFP8Config for fp8), then save_pretrained(FOLDER)",
		                method ? "\"" : "", method ? method : "any method", method ? "\"" : "");
}

static void refuse_common(struct hspmd_json *root)
{
	refuse_quantised(root);
	hspmd_refuse_unless(root, "add_cross_attention", false);
	hspmd_refuse_unless(root, "is_encoder_decoder", false);
	struct hspmd_json pruned = hspmd_json_object_or_none(root, "pruned_heads");
	if (json_object_size(pruned.value))
		hspmd_json_fail(&pruned, "not supported; expected no pruned heads");
}

/* Rates of dropout that the type has not read, other than those of heads that are not trained here. Transformers would ignore them. */
static void refuse_other_dropout(struct hspmd_json *root)
{
	static const char *const heads[] = { "classifier_dropout", "summary_first_dropout", "summary_last_dropout" };
	const char *key;
	json_t *value;
	json_object_foreach(root->value, key, value) {
		bool known = !strstr(key, "drop") || !json_is_number(value);
		for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
			known |= !strcmp(key, heads[i]);
		for (int i = 0; i < root->known_count; i++)
			known |= !strcmp(key, root->known[i]);
		if (!known)
			hspmd_refuse_number_unless(root, key, 0);
	}
}

/* The fields of the language model alone, if the config describes more: an object with the type's own name as its model_type. */
static int enter(struct hspmd_json *root, struct hspmd_model *m, struct hspmd_json *fields)
{
	*fields = *root;
	if (!m->type->inner || !hspmd_json_has(root, m->type->inner))
		return 0;
	*fields = hspmd_json_object(root, m->type->inner);
	json_t *copy = fields->value ? json_copy(fields->value) : NULL;
	if (hspmd_json_failed(root))
		return -1;
	if (!copy || json_object_set_new(copy, "model_type", json_string(m->type->names[0]))) {
		json_decref(copy);
		return hspmd_json_fail_memory(root);
	}
	json_decref(m->config);
	m->config = copy;
	return 0;
}

static int read_all(struct hspmd_json *root, struct hspmd_model *m)
{
	struct hspmd_json fields;
	if (!hspmd_json_expect_object(root))
		return -1;
	if (hspmd_own_is_description(root))
		return hspmd_own_read(root, m);
	if (!(m->type = type_of(root)))
		return -1;
	const char *name = json_string_value(json_object_get(root->value, "_name_or_path"));
	m->name = strdup(name && *name ? name : m->type->names[0]);
	if (!m->name)
		return hspmd_json_fail_memory(root);
	refuse_common(root);
	if (enter(root, m, &fields))
		return -1;
	m->vocab = hspmd_json_int(&fields, "vocab_size", 1, HSPMD_VOCAB_MAX);
	m->type->read(&fields, m);
	refuse_other_dropout(&fields);
	if (fields.value != root->value)
		refuse_other_dropout(root);
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
	if (hspmd_own_is_named(path))
		return hspmd_own_load(path, NULL, NULL, err);
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

struct hspmd_model *hspmd_model_read_job(const struct hspmd_job *j, void *program, struct hspmd_error *err)
{
	if (hspmd_own_is_named(j->model_path))
		return hspmd_own_load(j->model_path, j, program, err);
	if (!j->model_config)
		return hspmd_model_read(j->model_path, err);
	hspmd_fail(err, "%s: model_config is for models of one's own (model.so, model.c)", j->model_path);
	return NULL;
}

struct hspmd_model *hspmd_model_from_json(json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	hspmd_json_wrap(&doc, name, value, err);
	struct hspmd_model *m = from_doc(&doc);
	hspmd_json_close(&doc);
	return m;
}
