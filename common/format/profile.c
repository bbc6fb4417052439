/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, checking and writing hspmd-profile-1. */
#include "common/format/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"

#define LAYERS_MAX 65536
#define TIMES_MAX 65536
#define TP_MAX 65536
#define MICRO_BATCH_MAX (1 << 20)
#define SEQ_LEN_MAX (1 << 26)
#define ELEMENTS_MAX 1e18
#define SECONDS_MAX 1e9

/* ---- head and layers */

static void read_dtype(struct hspmd_json *root, struct hspmd_profile *p)
{
	struct hspmd_json at = hspmd_json_any(root, "dtype_bytes");
	if (!json_is_object(at.value)) {
		double all = hspmd_json_number(root, "dtype_bytes", HSPMD_JSON_POSITIVE, 64);
		p->params_bytes = p->grads_bytes = p->activation_bytes = all;
		return;
	}
	p->params_bytes = hspmd_json_number(&at, "params", HSPMD_JSON_POSITIVE, 64);
	p->grads_bytes = hspmd_json_number(&at, "grads", HSPMD_JSON_POSITIVE, 64);
	p->activation_bytes = hspmd_json_number(&at, "activations", HSPMD_JSON_POSITIVE, 64);
	hspmd_json_check_keys(&at);
}

static int read_layer(struct hspmd_json *at, struct hspmd_profile_layer *l)
{
	const char *name = hspmd_json_string(at, "name");
	if (!name)
		return -1;
	l->name = strdup(name);
	if (!l->name)
		return hspmd_json_fail_memory(at);
	l->params = hspmd_json_number(at, "params", 0, ELEMENTS_MAX);
	l->output_elems = hspmd_json_number(at, "output_elems", 0, ELEMENTS_MAX);
	l->activation_bytes = hspmd_json_number_or(at, "activation_bytes", 0, ELEMENTS_MAX, NAN);
	return hspmd_json_check_keys(at);
}

static int read_layers(struct hspmd_json *root, struct hspmd_profile *p)
{
	struct hspmd_json all = hspmd_json_array(root, "layers", 2, LAYERS_MAX);
	size_t n = hspmd_json_length(&all);
	if (hspmd_json_failed(root))
		return -1;
	p->layers = hspmd_calloc(n, sizeof *p->layers);
	if (!p->layers)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		p->layer_count++;
		if (read_layer(&at, &p->layers[i]))
			return -1;
	}
	return 0;
}

static int read_tied(struct hspmd_json *root, struct hspmd_profile *p)
{
	struct hspmd_json all = hspmd_json_array_or_none(root, "tied", 0, LAYERS_MAX);
	size_t n = hspmd_json_length(&all);
	if (!n)
		return hspmd_json_failed(root) ? -1 : 0;
	p->tied = hspmd_calloc(n, sizeof *p->tied);
	if (!p->tied)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json pair = hspmd_json_at(&all, i);
		if (!hspmd_json_expect_array(&pair, 2, 2))
			return -1;
		struct hspmd_json a = hspmd_json_at(&pair, 0), b = hspmd_json_at(&pair, 1);
		p->tied[i][0] = (int)hspmd_json_int_value(&a, 0, p->layer_count - 1);
		p->tied[i][1] = (int)hspmd_json_int_value(&b, 0, p->layer_count - 1);
		if (!hspmd_json_failed(root) && p->tied[i][0] == p->tied[i][1])
			return hspmd_json_fail(&pair, "a layer cannot be tied to itself");
		p->tied_count++;
	}
	return hspmd_json_failed(root) ? -1 : 0;
}

/* ---- times */

/* One number per layer, into *out. `required`: the array and each number must exist; otherwise null is NaN, and an absent array leaves
 * NULL. */
static int read_seconds(struct hspmd_json *at, const char *key, int layers, bool required, double **out)
{
	size_t n = (size_t)layers;
	struct hspmd_json all = required ? hspmd_json_array(at, key, n, n) : hspmd_json_array_or_none(at, key, n, n);
	double sum = 0;
	if (!all.value)
		return hspmd_json_failed(at) ? -1 : 0;
	*out = hspmd_calloc(n, sizeof **out);
	if (!*out)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json one = hspmd_json_at(&all, i);
		bool missing = !required && hspmd_json_is_null(&one);
		(*out)[i] = missing ? NAN : hspmd_json_number_value(&one, 0, SECONDS_MAX);
		sum += (*out)[i];
	}
	if (required && !hspmd_json_failed(at) && !(sum > 0))
		return hspmd_json_fail(&all, "no layer takes any time");
	return hspmd_json_failed(at) ? -1 : 0;
}

static int read_time(struct hspmd_json *at, int layers, struct hspmd_profile_times *t)
{
	const char *type = hspmd_json_string(at, "device_type");
	if (!type)
		return -1;
	t->device_type = strdup(type);
	if (!t->device_type)
		return hspmd_json_fail_memory(at);
	t->tp = (int)hspmd_json_int(at, "tp", 1, TP_MAX);
	t->micro_batch = (int)hspmd_json_int(at, "micro_batch", 1, MICRO_BATCH_MAX);
	if (read_seconds(at, "forward_s", layers, true, &t->forward_s) || read_seconds(at, "backward_s", layers, false, &t->backward_s) ||
	    read_seconds(at, "optimizer_s", layers, false, &t->optimizer_s))
		return -1;
	return hspmd_json_check_keys(at);
}

static int compare_times(const void *pa, const void *pb)
{
	const struct hspmd_profile_times *a = *(const struct hspmd_profile_times *const *)pa;
	const struct hspmd_profile_times *b = *(const struct hspmd_profile_times *const *)pb;
	int c = strcmp(a->device_type, b->device_type);
	c = c ? c : (a->tp > b->tp) - (a->tp < b->tp);
	return c ? c : (a->micro_batch > b->micro_batch) - (a->micro_batch < b->micro_batch);
}

static int check_repeated_times(const struct hspmd_json *all, const struct hspmd_profile *p)
{
	const struct hspmd_profile_times **sorted = hspmd_calloc((size_t)p->times_count, sizeof *sorted);
	if (!sorted)
		return hspmd_json_fail_memory(all);
	for (int i = 0; i < p->times_count; i++)
		sorted[i] = &p->times[i];
	qsort(sorted, (size_t)p->times_count, sizeof *sorted, compare_times);
	int rc = 0;
	for (int i = 1; i < p->times_count && !rc; i++) {
		const struct hspmd_profile_times *t = sorted[i];
		if (!compare_times(&sorted[i - 1], &sorted[i]))
			rc = hspmd_json_fail(all, "there are two entries for %s with tp %d and micro_batch %d", t->device_type, t->tp,
			                     t->micro_batch);
	}
	free(sorted);
	return rc;
}

static int read_times(struct hspmd_json *root, struct hspmd_profile *p)
{
	struct hspmd_json all = hspmd_json_array(root, "times", 1, TIMES_MAX);
	size_t n = hspmd_json_length(&all);
	if (hspmd_json_failed(root))
		return -1;
	p->times = hspmd_calloc(n, sizeof *p->times);
	if (!p->times)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		p->times_count++;
		if (read_time(&at, p->layer_count, &p->times[i]))
			return -1;
	}
	return check_repeated_times(&all, p);
}

/* ---- the whole */

static int read_all(struct hspmd_json *root, struct hspmd_profile *p)
{
	if (hspmd_json_format(root, HSPMD_PROFILE_FORMAT))
		return -1;
	const char *model = hspmd_json_string(root, "model");
	if (!model)
		return -1;
	p->model = strdup(model);
	if (!p->model)
		return hspmd_json_fail_memory(root);
	p->seq_len = hspmd_json_int(root, "seq_len", 1, SEQ_LEN_MAX);
	read_dtype(root, p);
	if (read_layers(root, p) || read_tied(root, p) || read_times(root, p))
		return -1;
	return hspmd_json_check_keys(root);
}

static struct hspmd_profile *from_doc(struct hspmd_json_doc *doc)
{
	struct hspmd_json root = hspmd_json_root(doc);
	struct hspmd_profile *p = calloc(1, sizeof *p);
	if (!p) {
		hspmd_json_fail_memory(&root);
		return NULL;
	}
	if (!read_all(&root, p))
		return p;
	hspmd_profile_destroy(p);
	return NULL;
}

struct hspmd_profile *hspmd_profile_read(const char *path, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_open(&doc, path, err))
		return NULL;
	struct hspmd_profile *p = from_doc(&doc);
	hspmd_json_close(&doc);
	return p;
}

struct hspmd_profile *hspmd_profile_from_json(const json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	hspmd_json_wrap(&doc, name, (json_t *)value, err);
	struct hspmd_profile *p = from_doc(&doc);
	hspmd_json_close(&doc);
	return p;
}

void hspmd_profile_destroy(struct hspmd_profile *p)
{
	if (!p)
		return;
	for (int i = 0; i < p->layer_count; i++)
		free(p->layers[i].name);
	for (int i = 0; i < p->times_count; i++) {
		free(p->times[i].device_type);
		free(p->times[i].forward_s);
		free(p->times[i].backward_s);
		free(p->times[i].optimizer_s);
	}
	free(p->model);
	free(p->layers);
	free(p->times);
	free(p->tied);
	free(p);
}

/* ---- writing: helpers return a new reference, or NULL when memory is short */

static json_t *dtype_json(const struct hspmd_profile *p)
{
	if (p->params_bytes == p->grads_bytes && p->params_bytes == p->activation_bytes)
		return hspmd_json_real(p->params_bytes);
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "params", hspmd_json_real(p->params_bytes));
	bad |= json_object_set_new(o, "grads", hspmd_json_real(p->grads_bytes));
	bad |= json_object_set_new(o, "activations", hspmd_json_real(p->activation_bytes));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *seconds_json(const double *values, int count)
{
	if (!values)
		return json_null();
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(a, hspmd_json_real(values[i]));
	return hspmd_json_unless_failed(bad, a);
}

static json_t *layer_json(const struct hspmd_profile_layer *l)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "name", json_string(l->name));
	bad |= json_object_set_new(o, "params", hspmd_json_real(l->params));
	bad |= json_object_set_new(o, "output_elems", hspmd_json_real(l->output_elems));
	bad |= json_object_set_new(o, "activation_bytes", hspmd_json_real(l->activation_bytes));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *time_json(const struct hspmd_profile_times *t, int layers)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "device_type", json_string(t->device_type));
	bad |= json_object_set_new(o, "tp", json_integer(t->tp));
	bad |= json_object_set_new(o, "micro_batch", json_integer(t->micro_batch));
	bad |= json_object_set_new(o, "forward_s", seconds_json(t->forward_s, layers));
	bad |= json_object_set_new(o, "backward_s", seconds_json(t->backward_s, layers));
	bad |= json_object_set_new(o, "optimizer_s", seconds_json(t->optimizer_s, layers));
	return hspmd_json_unless_failed(bad, o);
}

json_t *hspmd_profile_to_json(const struct hspmd_profile *p)
{
	json_t *o = json_object(), *layers = json_array(), *times = json_array(), *tied = json_array();
	int bad = !o || !layers || !times || !tied;
	for (int i = 0; i < p->layer_count; i++)
		bad |= json_array_append_new(layers, layer_json(&p->layers[i]));
	for (int i = 0; i < p->times_count; i++)
		bad |= json_array_append_new(times, time_json(&p->times[i], p->layer_count));
	for (int i = 0; i < p->tied_count; i++)
		bad |= json_array_append_new(tied, json_pack("[ii]", p->tied[i][0], p->tied[i][1]));
	bad |= json_object_set_new(o, "format", json_string(HSPMD_PROFILE_FORMAT));
	bad |= json_object_set_new(o, "model", json_string(p->model));
	bad |= json_object_set_new(o, "seq_len", json_integer(p->seq_len));
	bad |= json_object_set_new(o, "dtype_bytes", dtype_json(p));
	bad |= json_object_set_new(o, "layers", layers);
	if (p->tied_count)
		bad |= json_object_set(o, "tied", tied);
	bad |= json_object_set_new(o, "times", times);
	json_decref(tied);
	return hspmd_json_unless_failed(bad, o);
}
