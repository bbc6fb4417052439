/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/own.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/model/fields.h"
#include "runtime/model/own_internal.h"

const struct hspmd_model_type hspmd_own_type = { .graph = hspmd_own_graph, .names = { "own" } };

bool hspmd_model_is_own(const struct hspmd_model *m)
{
	return m && m->type == &hspmd_own_type;
}

const void *hspmd_own_object(const struct hspmd_model *m, size_t *size)
{
	*size = hspmd_model_is_own(m) ? hspmd_own_of(m)->size : 0;
	return *size ? hspmd_own_of(m)->object : NULL;
}

const char *hspmd_own_config(const struct hspmd_model *m)
{
	return hspmd_own_of(m)->config;
}

const char *hspmd_own_name_of_file(const struct hspmd_model *m)
{
	return hspmd_own_of(m)->path;
}

static void release(void *own)
{
	struct hspmd_own *o = own;
	for (int i = 0; i < HSPMD_OWN_KEPT; i++) {
		free(o->kept[i].request);
		json_decref(o->kept[i].answer);
	}
	pthread_mutex_destroy(&o->lock);
	free(o->path);
	free(o->program);
	free(o->object);
	free(o->config);
	free(o);
}

static struct hspmd_own *create(const char *path, const char *program, const json_t *config)
{
	struct hspmd_own *o = calloc(1, sizeof *o);
	if (!o)
		return NULL;
	pthread_mutex_init(&o->lock, NULL);
	o->path = strdup(path);
	o->program = program ? strdup(program) : NULL;
	o->config = config ? json_dumps(config, JSON_COMPACT) : strdup("{}");
	if (o->path && o->config && (o->program || !program))
		return o;
	release(o);
	return NULL;
}

/* ---- its description */

/* The fields of a description; `config` of the model is set. */
static int read_fields(struct hspmd_json *root, struct hspmd_model *m)
{
	const char *name = hspmd_json_string(root, "name");
	m->block_count = (int)hspmd_json_int(root, "layers", 1, HSPMD_OWN_LAYERS_MAX) - 2;
	m->vocab = hspmd_json_int_or(root, "vocabulary", 0, HSPMD_VOCAB_MAX, 0);
	m->max_positions = hspmd_json_int_or(root, "max_length", 1, HSPMD_POSITIONS_MAX, HSPMD_POSITIONS_MAX);
	m->learnt_positions = hspmd_json_has(root, "max_length");
	m->reads_samples = hspmd_json_bool_or(root, "reads_samples", false);
	m->only_own_samples = hspmd_json_bool_or(root, "only_own_samples", false);
	m->name = name ? strdup(name) : NULL;
	m->type = &hspmd_own_type;
	m->release = release;
	return !m->name && !hspmd_json_failed(root) ? hspmd_json_fail_memory(root) : hspmd_json_failed(root) ? -1 : 0;
}

bool hspmd_own_is_description(struct hspmd_json *root)
{
	const char *format = json_string_value(json_object_get(root->value, "format"));
	return format && !strcmp(format, HSPMD_OWN_FORMAT);
}

int hspmd_own_read(struct hspmd_json *root, struct hspmd_model *m)
{
	const char *path = hspmd_json_string(root, "path");
	json_t *config = hspmd_json_object_or_none(root, "model_config").value;
	if (hspmd_json_failed(root))
		return -1;
	if (!(m->own = create(path, NULL, config)))
		return hspmd_json_fail_memory(root);
	return read_fields(root, m);
}

/* What the process that answers must know of the job, to try out the model's own reader. */
static json_t *question(const struct hspmd_job *j)
{
	json_t *request = json_pack("{s:s}", "question", HSPMD_OWN_DESCRIBE);
	int bad = !request || (j && json_object_set_new(request, "job", hspmd_job_to_json(j)));
	return hspmd_json_unless_failed(bad, request);
}

/* The description with what the object does not know itself. */
static json_t *describe(struct hspmd_own *o, const struct hspmd_job *j, struct hspmd_error *err)
{
	json_t *request = question(j), *answer = request ? hspmd_own_ask(o, request, err) : NULL;
	int bad = 0;
	if (!request)
		hspmd_fail_memory(err, "asking for a model's description");
	json_decref(request);
	if (!answer)
		return NULL;
	bad |= json_object_set_new(answer, "format", json_string(HSPMD_OWN_FORMAT));
	bad |= json_object_set_new(answer, "path", json_string(o->path));
	bad |= json_object_set_new(answer, "model_config", json_loads(o->config, 0, NULL));
	if (!bad)
		return answer;
	hspmd_fail_memory(err, "describing a model");
	json_decref(answer);
	return NULL;
}

struct hspmd_model *hspmd_own_load(const char *path, const struct hspmd_job *j, const char *program, struct hspmd_error *err)
{
	char *whole = realpath(path, NULL);
	struct hspmd_own *o = whole ? create(whole, program, j ? j->model_config : NULL) : NULL;
	struct hspmd_model *m = o ? calloc(1, sizeof *m) : NULL;
	struct hspmd_json_doc doc;
	if (!whole)
		hspmd_fail_errno(err, "%s", path);
	else if (!m)
		hspmd_fail_memory(err, path);
	free(whole);
	if (!m) {
		if (o)
			release(o);
		return NULL;
	}
	m->own = o;
	m->release = release;
	m->config = hspmd_own_fetch(o, err) ? NULL : describe(o, j, err);
	int failed = !m->config;
	if (m->config) {
		hspmd_json_wrap(&doc, o->path, m->config, err);
		struct hspmd_json root = hspmd_json_root(&doc);
		failed = read_fields(&root, m);
		hspmd_json_close(&doc);
	}
	if (!failed)
		return m;
	hspmd_model_destroy(m);
	return NULL;
}
