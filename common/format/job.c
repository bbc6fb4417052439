/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, checking and writing hspmd-job-1. job_files.c checks the files that the job names. */
#include "common/format/job.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/format/job_command.h"
#include "common/format/job_optimizer.h"
#include "common/format/job_samples.h"
#include "common/json.h"

#define SEQ_LEN_MAX (1 << 26)
#define GLOBAL_BATCH_MAX (1 << 30)
#define LENGTHS_MAX 64
#define FILES_MAX 65536
#define WEIGHTED_MAX 4096
#define WEIGHT_MIN 1e-9
#define WEIGHT_MAX 1e9
#define NODES_MAX 65536

const char *const hspmd_data_kind_names[] = { "bytes", "uint16", "uint32", "megatron", "own", NULL };
const char *const hspmd_rounding_names[] = { "nearest", "stochastic", NULL };

static const char *const all_batches[] = { "all", NULL };
static const char *const precision_names[] = { "fp32", "bf16", "tf32", "fp8", NULL };
static const enum hspmd_precision precisions[] = { HSPMD_PRECISION_FP32, HSPMD_PRECISION_BF16, HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP8 };

/* ---- paths */

/* The folder of an absolute path, with its last '/'. */
static int folder_length(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? (int)(slash - path) + 1 : 0;
}

static bool is_absolute(const char *path)
{
	return *path == '/' || !strncmp(path, "$HOME", 5) || !strncmp(path, "${HOME}", 7);
}

/* Put the path `text`, made absolute, into *out. */
static void set_path(struct hspmd_job *j, const struct hspmd_json *at, const char *text, char **out)
{
	if (!text || hspmd_json_failed(at))
		return;
	*out = is_absolute(text) ? strdup(text) : hspmd_asprintf("%.*s%s", folder_length(j->file), j->file, text);
	if (!*out)
		hspmd_json_fail_memory(at);
}

static char *absolute(const char *path)
{
	if (*path == '/')
		return strdup(path);
	char *here = getcwd(NULL, 0);
	char *whole = here ? hspmd_asprintf("%s/%s", here, path) : NULL;
	free(here);
	return whole;
}

/* ---- parts of the file */

static int read_paths(struct hspmd_job *j, struct hspmd_json *all, char ***out, int *count)
{
	size_t n = hspmd_json_length(all);
	if (!n)
		return 0;
	*out = hspmd_calloc(n, sizeof **out);
	if (!*out)
		return hspmd_json_fail_memory(all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(all, i);
		set_path(j, &one, hspmd_json_string_value(&one), &(*out)[i]);
		++*count;
	}
	return hspmd_json_failed(all) ? -1 : 0;
}

/* A file of data.train is a name, or an object with its name and weight. */
static int read_weighted(struct hspmd_job *j, struct hspmd_json *all)
{
	size_t n = hspmd_json_length(all);
	bool weighted = false;
	j->train = hspmd_calloc(n, sizeof *j->train);
	j->train_weights = hspmd_calloc(n, sizeof *j->train_weights);
	if (!j->train || !j->train_weights)
		return hspmd_json_fail_memory(all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(all, i);
		j->train_count++;
		j->train_weights[i] = 1;
		if (!json_is_object(one.value)) {
			set_path(j, &one, hspmd_json_string_value(&one), &j->train[i]);
			continue;
		}
		struct hspmd_json path = hspmd_json_any(&one, "path");
		set_path(j, &path, hspmd_json_string(&one, "path"), &j->train[i]);
		weighted |= hspmd_json_has(&one, "weight");
		j->train_weights[i] = hspmd_json_number_or(&one, "weight", WEIGHT_MIN, WEIGHT_MAX, 1);
		if (hspmd_json_check_keys(&one))
			return -1;
	}
	if (weighted && n > WEIGHTED_MAX)
		hspmd_json_fail(all, "expected at most %d files if one has a weight, got %zu", WEIGHTED_MAX, n);
	if (!weighted) {
		free(j->train_weights);
		j->train_weights = NULL;
	}
	return hspmd_json_failed(all) ? -1 : 0;
}

/* Adds seq_len unless it is listed. */
static int read_list_of_lengths(struct hspmd_job *j, const struct hspmd_json *data, struct hspmd_json *all)
{
	size_t n = hspmd_json_length(all);
	j->lengths = hspmd_calloc(n + 1, sizeof *j->lengths);
	if (!j->lengths)
		return hspmd_json_fail_memory(data);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(all, i);
		int64_t before = i ? j->lengths[i - 1] : 0, length;
		/* Mistakes in those after it may only follow from it. */
		if (before == j->seq_len)
			return hspmd_json_fail_value(&one, "no length behind that of seq_len, %" PRId64, before);
		if (!hspmd_json_int_within(&one, before + 1, j->seq_len, &length))
			return hspmd_json_fail_value(&one, "%" PRId64 "..%" PRId64 " (lengths ascend, up to seq_len)", before + 1,
			                             j->seq_len);
		j->lengths[j->length_count++] = length;
	}
	if (j->lengths[j->length_count - 1] != j->seq_len)
		j->lengths[j->length_count++] = j->seq_len;
	return 0;
}

/* Reads nothing if seq_len is wrong. */
static int read_lengths(struct hspmd_job *j, struct hspmd_json *data)
{
	struct hspmd_json all = hspmd_json_any(data, "lengths"), mix = hspmd_json_any(data, "mix_lengths");
	size_t n = json_array_size(all.value);
	j->mix_lengths = hspmd_json_bool_or(data, "mix_lengths", false);
	if (j->mix_lengths && !all.value)
		return hspmd_json_fail(&mix, "expected lengths beside it: those that a step mixes");
	if (!all.value || hspmd_json_failed(data))
		return hspmd_json_failed(data) ? -1 : 0;
	j->lengths_auto = json_is_string(all.value) && !strcmp(json_string_value(all.value), "auto");
	if (!j->lengths_auto && (n < 1 || n > LENGTHS_MAX))
		return hspmd_json_fail_value(&all, "\"auto\", or an array of 1..%d lengths, ascending and up to seq_len", LENGTHS_MAX);
	if (!j->documents)
		return hspmd_json_fail(&all, "expected document_end or documents beside it: documents are grouped by length");
	return j->lengths_auto || !j->seq_len ? 0 : read_list_of_lengths(j, data, &all);
}

/* `kind` is false if data.kind is wrong. */
static void read_documents(struct hspmd_job *j, struct hspmd_json *data, bool kind)
{
	int before = hspmd_json_mistakes(data);
	struct hspmd_json documents = hspmd_json_any(data, "documents"), end = hspmd_json_any(data, "document_end"),
	                  reset = hspmd_json_any(data, "reset_positions");
	bool indexed = hspmd_json_bool_or(data, "documents", false);
	j->documents = indexed || end.value;
	j->document_end = -1;
	if (end.value)
		j->document_end = hspmd_json_int(data, "document_end", 0, INT32_MAX);
	if (indexed && end.value)
		hspmd_json_fail(&documents, "expected no document_end beside it: documents are those of the index");
	if (indexed && kind && j->data_kind != HSPMD_DATA_MEGATRON)
		hspmd_json_fail(&documents, "expected kind \"megatron\", whose files have an index, or document_end instead");
	j->reset_positions = hspmd_json_bool_or(data, "reset_positions", false);
	if (hspmd_json_mistakes(data) > before) {
		j->documents = true; /* whatever is wrong with them, they were asked for */
		return;
	}
	if (j->reset_positions && !j->documents)
		hspmd_json_fail(&reset, "expected documents or document_end beside it: where documents begin");
}

static int read_data(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json data = hspmd_json_object(root, "data");
	static const char *const not_own[] = { "document_end", "documents", "reset_positions", "mask", "lengths", "mix_lengths" };
	int before = hspmd_json_mistakes(root);
	j->data_kind = (enum hspmd_data_kind)hspmd_json_enum(&data, "kind", hspmd_data_kind_names);
	bool known = hspmd_json_mistakes(root) == before;
	struct hspmd_json train = hspmd_json_array(&data, "train", known && j->data_kind != HSPMD_DATA_OWN, FILES_MAX);
	struct hspmd_json valid = hspmd_json_array_or_none(&data, "valid", 0, FILES_MAX), kind = hspmd_json_any(&data, "kind");
	struct hspmd_json every = hspmd_json_any(&data, "valid_every_steps");
	j->valid_every = hspmd_json_int_or(&data, "valid_every_steps", 1, HSPMD_JOB_STEPS_MAX, 100);
	bool none = !hspmd_json_has(&data, "valid") || (valid.value && !hspmd_json_length(&valid));
	if (every.value && none)
		hspmd_json_fail(&every, "expected valid beside it: which files are measured");
	struct hspmd_json batches = hspmd_json_any(&data, "valid_batches");
	if (batches.value && none)
		hspmd_json_fail(&batches, "expected valid beside it: which files are measured");
	j->valid_batches = -1;
	if (!json_is_string(batches.value))
		j->valid_batches = hspmd_json_int_or(&data, "valid_batches", 1, HSPMD_JOB_STEPS_MAX, 4);
	else
		hspmd_json_enum(&data, "valid_batches", all_batches);
	j->mask = hspmd_json_bool_or(&data, "mask", false);
	bool refused = false;
	for (size_t i = 0; known && j->data_kind == HSPMD_DATA_OWN && i < sizeof not_own / sizeof *not_own; i++)
		if (hspmd_json_has(&data, not_own[i])) {
			refused = true;
			hspmd_json_fail(&kind, "expected no %s beside \"own\": the model finds its samples itself", not_own[i]);
		}
	if (read_weighted(j, &train) || read_paths(j, &valid, &j->valid, &j->valid_count))
		return -1;
	if (!refused) {
		read_documents(j, &data, known);
		read_lengths(j, &data);
	}
	return hspmd_json_check_keys(&data);
}

static int read_elastic(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json o = hspmd_json_object_or_none(root, "elastic");
	int before = hspmd_json_mistakes(root);
	j->elastic.min_nodes = (int)hspmd_json_int_or(&o, "min_nodes", 1, NODES_MAX, 1);
	j->elastic.max_nodes = (int)hspmd_json_int_or(&o, "max_nodes", 1, NODES_MAX, INT_MAX);
	const char *policy = hspmd_json_string_or(&o, "policy", "default");
	struct hspmd_json max = hspmd_json_any(&o, "max_nodes");
	if (hspmd_json_mistakes(root) == before && j->elastic.max_nodes < j->elastic.min_nodes)
		hspmd_json_fail(&max, "expected at least min_nodes, %d, got %d", j->elastic.min_nodes, j->elastic.max_nodes);
	if (hspmd_json_check_keys(&o))
		return -1;
	if (policy && !(j->elastic.policy = strdup(policy)))
		return hspmd_json_fail_memory(&o);
	return 0;
}

/* A checkpoint folder may contain variables; they are checked now so that a mistake is reported at submission. */
static void read_folder(struct hspmd_job *j, struct hspmd_json *o, const char *key, char **out)
{
	const char *text = hspmd_json_string_or(o, key, NULL);
	struct hspmd_json at = hspmd_json_any(o, key);
	struct hspmd_error why;
	set_path(j, &at, text, out);
	if (!*out)
		return;
	char *expanded = hspmd_job_expand_path(*out, NULL, &why);
	if (!expanded)
		hspmd_json_fail(&at, "%s", why.text);
	else if (*expanded != '/')
		hspmd_json_fail(&at, "\"%s\" is not absolute once its variables are filled in", expanded);
	free(expanded);
}

static void read_checkpoint(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json o = hspmd_json_object_or_none(root, "checkpoint");
	read_folder(j, &o, "local", &j->checkpoint.local);
	read_folder(j, &o, "shared", &j->checkpoint.shared);
	j->checkpoint.every_s = hspmd_json_number_or(&o, "every_s", 0, 1e9, 0);
	j->checkpoint.shared_every_s = hspmd_json_number_or(&o, "shared_every_s", 0, 1e9, 0);
	j->checkpoint.every_steps = hspmd_json_int_or(&o, "every_steps", 0, HSPMD_JOB_STEPS_MAX, 0);
	j->checkpoint.replicas = (int)hspmd_json_int_or(&o, "replicas", 0, 16, 1);
	j->checkpoint.keep = (int)hspmd_json_int_or(&o, "keep", 1, 1000, 2);
	j->checkpoint.memory = hspmd_json_bool_or(&o, "memory", true);
	hspmd_json_check_keys(&o);
}

static void read_trace(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json o = hspmd_json_object_or_none(root, "trace");
	if (!hspmd_json_has(root, "trace"))
		return;
	struct hspmd_json steps = hspmd_json_array(&o, "steps", 2, 2), first = hspmd_json_at(&steps, 0), end = hspmd_json_at(&steps, 1);
	int before = hspmd_json_mistakes(root);
	j->trace_first = hspmd_json_int_value(&first, 0, HSPMD_JOB_STEPS_MAX);
	j->trace_end = hspmd_json_int_value(&end, 1, HSPMD_JOB_STEPS_MAX + HSPMD_JOB_TRACE_MAX);
	int64_t steps_count = j->trace_end - j->trace_first;
	if (hspmd_json_mistakes(root) == before && (steps_count < 1 || steps_count > HSPMD_JOB_TRACE_MAX))
		hspmd_json_fail(&steps, "expected [FIRST, END], where END is 1 to %d above FIRST, got [%" PRId64 ", %" PRId64 "]",
		                HSPMD_JOB_TRACE_MAX, j->trace_first, j->trace_end);
	hspmd_json_check_keys(&o);
}

static void read_sources(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json model = hspmd_json_any(root, "model"), init = hspmd_json_any(root, "init");
	set_path(j, &model, hspmd_json_string(root, "model"), &j->model_path);
	if (hspmd_json_has(root, "model_config"))
		j->model_config = json_incref(hspmd_json_object(root, "model_config").value);
	const char *from = hspmd_json_string_or(root, "init", "random");
	if (from && strcmp(from, "random"))
		set_path(j, &init, from, &j->init);
}

static void read_precision(struct hspmd_job *j, struct hspmd_json *root)
{
	struct hspmd_json at = hspmd_json_any(root, "rounding");
	int before = hspmd_json_mistakes(root);
	j->precision = precisions[hspmd_json_enum_or(root, "precision", precision_names, 0)];
	j->rounding = (enum hspmd_rounding)hspmd_json_enum_or(root, "rounding", hspmd_rounding_names, HSPMD_ROUNDING_NEAREST);
	if (hspmd_json_mistakes(root) == before && j->rounding == HSPMD_ROUNDING_STOCHASTIC && j->precision != HSPMD_PRECISION_BF16)
		hspmd_json_fail(&at, "expected \"nearest\" with precision \"%s\": only of \"bf16\" parameters are rounded stochastically",
		                hspmd_precision_names[j->precision]);
}

/* The command's own checkpoints are in one folder. */
static int read_command_job(struct hspmd_job *j, struct hspmd_json *root)
{
	if (hspmd_job_command_read(j, root) || read_elastic(j, root))
		return -1;
	read_checkpoint(j, root);
	struct hspmd_json o = hspmd_json_any(root, "checkpoint");
	if (j->checkpoint.local && j->checkpoint.shared)
		hspmd_json_fail(&o, "expected one folder, local or shared: a command has one");
	j->checkpoint.memory = false;
	return hspmd_json_check_keys(root);
}

static int read_all(struct hspmd_job *j, struct hspmd_json *root)
{
	if (hspmd_json_format(root, HSPMD_JOB_FORMAT))
		return -1;
	if (hspmd_json_has(root, "command"))
		return read_command_job(j, root);
	read_sources(j, root);
	j->seq_len = hspmd_json_int(root, "seq_len", 1, SEQ_LEN_MAX);
	if (read_data(j, root))
		return -1;
	j->global_batch = hspmd_json_int(root, "global_batch", 1, GLOBAL_BATCH_MAX);
	j->steps = hspmd_json_int(root, "steps", 1, HSPMD_JOB_STEPS_MAX);
	j->seed = (uint64_t)hspmd_json_int_or(root, "seed", 0, INT64_MAX, 1);
	read_precision(j, root);
	j->any_order = !hspmd_json_bool_or(root, "deterministic", true);
	if (hspmd_job_optimizer_read(j, root) || read_elastic(j, root))
		return -1;
	read_checkpoint(j, root);
	hspmd_job_samples_read(j, root);
	read_trace(j, root);
	return hspmd_json_check_keys(root);
}

/* ---- the whole */

static struct hspmd_job *from_doc(struct hspmd_json_doc *doc, const char *path)
{
	struct hspmd_json root = hspmd_json_root(doc);
	int before = hspmd_json_mistakes(&root);
	struct hspmd_job *j = calloc(1, sizeof *j);
	if (j)
		j->file = absolute(path);
	if (!j || !j->file)
		hspmd_json_fail_memory(&root);
	else if (!read_all(j, &root) && hspmd_json_mistakes(&root) == before)
		return j;
	hspmd_job_destroy(j);
	return NULL;
}

struct hspmd_job *hspmd_job_read(const char *path, struct hspmd_mistakes *all, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_open(&doc, path, err))
		return NULL;
	doc.all = all;
	struct hspmd_job *j = from_doc(&doc, path);
	hspmd_json_close(&doc);
	return j;
}

struct hspmd_job *hspmd_job_from_json(const json_t *value, const char *path, struct hspmd_mistakes *all, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	hspmd_json_wrap(&doc, path, (json_t *)value, err);
	doc.all = all;
	struct hspmd_job *j = from_doc(&doc, path);
	hspmd_json_close(&doc);
	return j;
}

static void destroy_paths(char **paths, int count)
{
	for (int i = 0; i < count; i++)
		free(paths[i]);
	free(paths);
}

void hspmd_job_destroy(struct hspmd_job *j)
{
	if (!j)
		return;
	destroy_paths(j->train, j->train_count);
	destroy_paths(j->valid, j->valid_count);
	free(j->file);
	free(j->model_path);
	json_decref(j->model_config);
	free(j->init);
	free(j->lengths);
	free(j->train_weights);
	free(j->elastic.policy);
	free(j->checkpoint.local);
	free(j->checkpoint.shared);
	hspmd_job_optimizer_clear(j);
	hspmd_job_samples_clear(j);
	hspmd_job_command_clear(j);
	free(j);
}

struct hspmd_job *hspmd_job_from_command(char *const *argv, int count, const char *name, struct hspmd_error *err)
{
	json_t *all = json_array();
	int bad = !all;
	for (int i = 0; i < count; i++)
		if (json_array_append_new(all, json_string(argv[i]))) {
			json_decref(all);
			hspmd_fail(err, "%s: argument %d is not UTF-8", name, i);
			return NULL;
		}
	if (!count)
		bad |= json_array_append_new(all, json_string("?"));
	json_t *v = bad ? NULL : json_pack("{s:s, s:O}", "format", HSPMD_JOB_FORMAT, "command", all);
	struct hspmd_job *j = v ? hspmd_job_from_json(v, name, NULL, err) : NULL;
	if (!v)
		hspmd_fail_memory(err, "reading the command");
	json_decref(v);
	json_decref(all);
	if (!j)
		return NULL;
	free(j->file);
	if (!(j->file = strdup(name))) {
		hspmd_fail_memory(err, "reading the command");
		hspmd_job_destroy(j);
		return NULL;
	}
	return j;
}

/* ---- writing: helpers return a new reference, or NULL when memory is short */

static json_t *paths_json(char *const *paths, int count)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(a, json_string(paths[i]));
	return hspmd_json_unless_failed(bad, a);
}

static json_t *train_json(const struct hspmd_job *j)
{
	if (!j->train_weights)
		return paths_json(j->train, j->train_count);
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < j->train_count; i++)
		bad |= json_array_append_new(a, json_pack("{ss,so}", "path", j->train[i], "weight", hspmd_json_real(j->train_weights[i])));
	return hspmd_json_unless_failed(bad, a);
}

static json_t *data_json(const struct hspmd_job *j)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "train", train_json(j));
	bad |= json_object_set_new(o, "kind", json_string(hspmd_data_kind_names[j->data_kind]));
	if (j->documents)
		bad |= j->document_end < 0 ? json_object_set_new(o, "documents", json_true())
		                           : json_object_set_new(o, "document_end", json_integer(j->document_end));
	if (j->reset_positions)
		bad |= json_object_set_new(o, "reset_positions", json_true());
	if (j->mask)
		bad |= json_object_set_new(o, "mask", json_true());
	if (j->length_count) {
		json_t *lengths = json_array();
		for (int i = 0; i < j->length_count; i++)
			bad |= json_array_append_new(lengths, json_integer(j->lengths[i]));
		bad |= json_object_set_new(o, "lengths", lengths);
	} else if (j->lengths_auto) {
		bad |= json_object_set_new(o, "lengths", json_string("auto"));
	}
	if (j->mix_lengths)
		bad |= json_object_set_new(o, "mix_lengths", json_true());
	if (j->valid_count) {
		bad |= json_object_set_new(o, "valid", paths_json(j->valid, j->valid_count));
		bad |= json_object_set_new(o, "valid_every_steps", json_integer(j->valid_every));
		bad |= json_object_set_new(o, "valid_batches", j->valid_batches < 0 ? json_string("all") : json_integer(j->valid_batches));
	}
	return hspmd_json_unless_failed(bad, o);
}

static json_t *elastic_json(const struct hspmd_job *j)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "min_nodes", json_integer(j->elastic.min_nodes));
	if (j->elastic.max_nodes != INT_MAX)
		bad |= json_object_set_new(o, "max_nodes", json_integer(j->elastic.max_nodes));
	bad |= json_object_set_new(o, "policy", json_string(j->elastic.policy));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *checkpoint_json(const struct hspmd_job *j)
{
	json_t *o = json_object();
	int bad = !o;
	if (j->checkpoint.local)
		bad |= json_object_set_new(o, "local", json_string(j->checkpoint.local));
	if (j->checkpoint.shared)
		bad |= json_object_set_new(o, "shared", json_string(j->checkpoint.shared));
	bad |= json_object_set_new(o, "every_s", hspmd_json_real(j->checkpoint.every_s));
	bad |= json_object_set_new(o, "shared_every_s", hspmd_json_real(j->checkpoint.shared_every_s));
	bad |= json_object_set_new(o, "every_steps", json_integer(j->checkpoint.every_steps));
	bad |= json_object_set_new(o, "replicas", json_integer(j->checkpoint.replicas));
	bad |= json_object_set_new(o, "keep", json_integer(j->checkpoint.keep));
	bad |= json_object_set_new(o, "memory", json_boolean(j->checkpoint.memory));
	return hspmd_json_unless_failed(bad, o);
}

json_t *hspmd_job_to_json(const struct hspmd_job *j)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "format", json_string(HSPMD_JOB_FORMAT));
	if (j->command.argc) {
		bad |= hspmd_job_command_write(j, o);
		bad |= json_object_set_new(o, "elastic", elastic_json(j));
		bad |= json_object_set_new(o, "checkpoint", checkpoint_json(j));
		return hspmd_json_unless_failed(bad, o);
	}
	bad |= json_object_set_new(o, "model", json_string(j->model_path));
	if (j->model_config)
		bad |= json_object_set(o, "model_config", j->model_config);
	bad |= json_object_set_new(o, "init", json_string(j->init ? j->init : "random"));
	bad |= json_object_set_new(o, "data", data_json(j));
	bad |= json_object_set_new(o, "seq_len", json_integer(j->seq_len));
	bad |= json_object_set_new(o, "global_batch", json_integer(j->global_batch));
	bad |= json_object_set_new(o, "steps", json_integer(j->steps));
	bad |= json_object_set_new(o, "seed", json_integer((json_int_t)j->seed));
	bad |= json_object_set_new(o, "optimizer", hspmd_job_optimizer_json(j));
	bad |= json_object_set_new(o, "precision", json_string(hspmd_precision_names[j->precision]));
	bad |= json_object_set_new(o, "rounding", json_string(hspmd_rounding_names[j->rounding]));
	bad |= json_object_set_new(o, "deterministic", json_boolean(!j->any_order));
	bad |= json_object_set_new(o, "elastic", elastic_json(j));
	bad |= json_object_set_new(o, "checkpoint", checkpoint_json(j));
	if (j->samples.every_steps)
		bad |= json_object_set_new(o, "samples", hspmd_job_samples_json(j));
	if (j->trace_end > j->trace_first)
		bad |= json_object_set_new(o, "trace",
		                           json_pack("{s:[I,I]}", "steps", (json_int_t)j->trace_first, (json_int_t)j->trace_end));
	return hspmd_json_unless_failed(bad, o);
}
