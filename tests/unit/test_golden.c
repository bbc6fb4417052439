/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch and transformers compute, from tests/data/golden: operators and their gradients, optimizers, every model type, and whole
 * trainings with their schedule and clipping. One test per file; a file's "kind" says how it is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>

#include "common/format/model.h"
#include "runtime/model/model.h"
#include "runtime/op/op.h"
#include "tests/unit/golden.h"
#include "tests/unit/op_case.h"

/* HSPMD_GOLDEN names another folder, which need not have all kinds and types (test_configs.py). */
static const char *other_folder(void)
{
	return getenv("HSPMD_GOLDEN");
}

static const char *folder(void)
{
	return other_folder() ? other_folder() : HSPMD_SRCDIR "/tests/data/golden";
}

#define FILES_MAX 256

static const struct {
	enum hspmd_dtype type;
	double tolerance;
} types[] = { { HSPMD_F32, 1e-5 }, { HSPMD_F64, 1e-12 } };
#define TYPES (sizeof types / sizeof *types)

/* ---- operators */

static void set_integers(const struct op_values *v, int t, const char *group)
{
	const struct hspmd_tensor *tensor = &v->g->tensors[t];
	int64_t length = tensor->shape.rank > 1 ? tensor->shape.dim[1] : 1, vocab = 11;
	char name[128];
	snprintf(name, sizeof name, "%s/%s", group, tensor->name);
	for (int64_t i = 0; i < hspmd_shape_elements(&tensor->shape); i++) {
		uint32_t bits = golden_bits(golden_name(name), i);
		int64_t at = i % length, value = bits % vocab;
		if (!strcmp(tensor->name, "targets") && bits / 256 % 7 == 0)
			value = -1;
		if (!strcmp(tensor->name, "segments"))
			value = (at > length / 3) + (at > length / 2);
		op_value_set(v->data[t], HSPMD_I32, i, (double)value);
	}
}

static void fill_values(void *data, const struct hspmd_tensor *tensor, const char *group)
{
	int64_t count = hspmd_shape_elements(&tensor->shape);
	golden_fill(data, tensor->dtype, count, group, tensor->name);
	for (int64_t i = 0; i < count; i++)
		op_value_set(data, tensor->dtype, i, op_case_value(tensor->name, op_value_get(data, tensor->dtype, i)));
}

/* Fills everything that no operator computes; fails the test if the file's tensors have other shapes. */
static void fill_inputs(const struct op_values *v, const char *group, const json_t *shapes)
{
	size_t found = 0;
	for (size_t t = 0; t < v->g->tensor_count; t++) {
		const struct hspmd_tensor *tensor = &v->g->tensors[t];
		if (tensor->role != HSPMD_TENSOR_INPUT && tensor->role != HSPMD_TENSOR_PARAMETER)
			continue;
		const json_t *shape = json_object_get(shapes, tensor->name);
		found += shape != NULL;
		if (shape)
			assert_int_equal(json_array_size(shape), tensor->shape.rank);
		for (int d = 0; shape && d < tensor->shape.rank; d++)
			assert_int_equal(json_integer_value(json_array_get(shape, (size_t)d)), tensor->shape.dim[d]);
		if (tensor->dtype == HSPMD_I32)
			set_integers(v, (int)t, group);
		else
			fill_values(v->data[t], tensor, group);
	}
	assert_int_equal(found, json_object_size(shapes));
}

static void check_operator(const struct op_case *c, const json_t *want, enum hspmd_dtype type, double tolerance)
{
	struct hspmd_graph *g = op_case_graph(c, type);
	const json_t *gradients = json_object_get(want, "gradients"), *loss = json_object_get(want, "loss");
	int seed = hspmd_graph_find(g, "seed");
	struct op_values v;
	size_t checked = 0;
	double losses = 0;
	op_values_open(&v, g, 2);
	fill_inputs(&v, c->name, json_object_get(want, "inputs"));
	op_values_run(&v, true);
	for (size_t t = 0; t < g->tensor_count; t++) {
		const struct hspmd_tensor *tensor = &g->tensors[t];
		int64_t count = hspmd_shape_elements(&tensor->shape);
		if (tensor->role == HSPMD_TENSOR_LOSS)
			losses += op_value_get(v.data[t], tensor->dtype, 0);
		else if (seed >= 0 && tensor->grad == seed && tensor->producer >= 0)
			golden_check(c->name, "result", json_object_get(want, "result"), v.data[t], type, count, tolerance);
		if (tensor->role != HSPMD_TENSOR_PARAMETER)
			continue;
		golden_check(c->name, tensor->name, json_object_get(gradients, tensor->name), v.data[tensor->grad],
		             g->tensors[tensor->grad].dtype, count, tolerance);
		checked++;
	}
	assert_int_equal(checked, json_object_size(gradients));
	if (loss)
		golden_check_number(c->name, 0, json_number_value(loss), losses, tolerance);
	op_values_close(&v);
	hspmd_graph_destroy(g);
}

static void golden_operators(const json_t *file)
{
	const json_t *cases = json_object_get(file, "cases");
	assert_int_equal(json_object_size(cases), op_case_count());
	for (size_t i = 0; i < op_case_count(); i++)
		for (size_t k = 0; k < TYPES; k++)
			check_operator(op_case_at(i), json_object_get(cases, op_case_at(i)->name), types[k].type, types[k].tolerance);
}

/* ---- the optimizer */

static double number(const json_t *object, const char *key)
{
	assert_true(json_is_number(json_object_get(object, key)));
	return json_number_value(json_object_get(object, key));
}

static struct hspmd_view row(void *data, enum hspmd_dtype type, int64_t count)
{
	return (struct hspmd_view){ .data = data, .dtype = type, .rank = 1, .shape = { count }, .full = { count } };
}

static void check_updates(enum hspmd_optimizer optimizer, const char *name, const json_t *want, enum hspmd_dtype type, double tolerance)
{
	enum { GRADIENT, PARAMETER, M, V, TENSORS };
	static const char *const results[] = { NULL, "parameter", "m", "v" };
	const json_t *how = json_object_get(want, "how");
	int64_t count = (int64_t)number(how, "elements"), steps = (int64_t)number(how, "steps");
	struct hspmd_graph *empty = hspmd_graph_create(hspmd_op_types);
	struct op_values v;
	struct hspmd_error err = { "" };
	void *data[TENSORS];
	double sum;
	struct hspmd_op_attr attr = { .scale = number(how, "scale") };
	const struct hspmd_optimizer_type *type_of = hspmd_optimizer_types[optimizer];
	double values[HSPMD_OPTIMIZER_KEYS] = { 0 };
	int tensors = M + type_of->moments;
	for (int k = 0; k < HSPMD_OPTIMIZER_KEYS && type_of->keys[k].name; k++)
		values[k] = number(how, type_of->keys[k].name);
	assert_non_null(empty);
	op_values_open(&v, empty, 2);
	for (int t = 0; t < tensors; t++) {
		size_t bytes = (size_t)count * hspmd_dtype_bytes(type);
		data[t] = v.dev->ops->allocate(v.dev, bytes, &err);
		assert_non_null(data[t]);
		memset(data[t], 0, bytes);
	}
	golden_fill(data[PARAMETER], type, count, type_of->name, "parameter");
	for (size_t step = 0; step < (size_t)steps; step++) {
		char gradient[32];
		attr.update = hspmd_optimizer_update(optimizer, values, number(how, "lr"), number(how, "weight_decay"), (int64_t)step + 1);
		snprintf(gradient, sizeof gradient, "gradient %zu", step);
		golden_fill(data[GRADIENT], type, count, type_of->name, gradient);
		struct hspmd_kernel_args norm = {
			.attr = &attr, .input_count = 1, .output_count = 1, .in = { row(data[GRADIENT], type, count) }
		};
		norm.out[0] = row(&sum, HSPMD_F64, 1);
		op_values_kernel(&v, HSPMD_OP_SUM_SQUARES, &norm);
		golden_check_number("sum of squares", (int64_t)step,
		                    json_number_value(json_array_get(json_object_get(want, "squares"), step)), sum, 1e-12);
		struct hspmd_kernel_args update = {
			.attr = &attr, .input_count = 1, .output_count = tensors - PARAMETER, .in = { norm.in[0] }
		};
		for (int t = PARAMETER; t < tensors; t++)
			update.out[t - PARAMETER] = row(data[t], type, count);
		op_values_kernel(&v, HSPMD_OP_UPDATE, &update);
	}
	for (int t = PARAMETER; t < tensors; t++)
		golden_check(name, results[t], json_object_get(json_object_get(want, "results"), results[t]), data[t], type, count,
		             tolerance);
	for (int t = 0; t < tensors; t++)
		v.dev->ops->release(v.dev, data[t]);
	op_values_close(&v);
	hspmd_graph_destroy(empty);
}

static void golden_optimizer(const json_t *file)
{
	const char *kind = json_string_value(json_object_get(file, "kind"));
	int optimizer = 0;
	while (strcmp(kind, hspmd_optimizer_names[optimizer]) != 0)
		optimizer++;
	const char *name;
	json_t *want;
	assert_true(json_object_size(json_object_get(file, "cases")) > 0);
	json_object_foreach(json_object_get(file, "cases"), name, want)
		for (size_t k = 0; k < TYPES; k++)
			check_updates((enum hspmd_optimizer)optimizer, name, want, types[k].type, types[k].tolerance);
}

/* ---- files */

static const struct {
	const char *kind;
	void (*check)(const json_t *file);
} kinds[] = {
#define KIND(NAME, name) { #name, golden_optimizer },
	HSPMD_OPTIMIZERS(KIND){ "operators", golden_operators },
	{ "model", golden_model },
	{ "training", golden_training },
};
#define KINDS (sizeof kinds / sizeof *kinds)

static json_t *read_file(const char *name)
{
	char path[512];
	json_error_t error;
	snprintf(path, sizeof path, "%s/%s", folder(), name);
	json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
	if (!file)
		fail_msg("%s:%d: %s", path, error.line, error.text);
	return file;
}

static size_t kind_of(const json_t *file)
{
	const char *name = json_string_value(json_object_get(file, "kind"));
	for (size_t k = 0; k < KINDS; k++)
		if (name && !strcmp(name, kinds[k].kind))
			return k;
	fail_msg("unknown kind");
	return 0;
}

static void test_file(void **state)
{
	json_t *file = read_file(*state);
	kinds[kind_of(file)].check(file);
	json_decref(file);
}

#define TYPES_MAX 64

static char *names[FILES_MAX];
static size_t name_count;

/* A file of each kind, and of each model type. */
static void test_all_there(void **state)
{
	(void)state;
	if (other_folder())
		return;
	bool kind_seen[KINDS] = { false }, type_seen[TYPES_MAX] = { false };
	for (size_t i = 0; i < name_count; i++) {
		json_t *file = read_file(names[i]);
		const char *type = json_string_value(json_object_get(json_object_get(file, "config"), "model_type"));
		size_t k = kind_of(file);
		kind_seen[k] = true;
		for (int t = 0; hspmd_model_type_name(t); t++)
			type_seen[t] |= type && !strcmp(kinds[k].kind, "model") && !strcmp(type, hspmd_model_type_name(t));
		json_decref(file);
	}
	for (size_t k = 0; k < KINDS; k++)
		if (!kind_seen[k])
			fail_msg("%s has no file of kind %s", folder(), kinds[k].kind);
	for (int t = 0; hspmd_model_type_name(t); t++)
		if (!type_seen[t])
			fail_msg("%s has no model of type %s", folder(), hspmd_model_type_name(t));
}

static int is_data(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);
	return length > 5 && !strcmp(entry->d_name + length - 5, ".json");
}

int main(void)
{
	struct dirent **entries;
	int count = scandir(folder(), &entries, is_data, alphasort);
	struct CMUnitTest tests[FILES_MAX + 1] = { cmocka_unit_test(test_all_there) };
	for (int i = 0; i < count && i < FILES_MAX; i++) {
		names[name_count] = entries[i]->d_name;
		tests[++name_count] = (struct CMUnitTest){ .name = entries[i]->d_name,
			                                   .test_func = test_file,
			                                   .teardown_func = golden_remove_folder,
			                                   .initial_state = entries[i]->d_name };
	}
	int status = _cmocka_run_group_tests("golden", tests, name_count + 1, NULL, NULL);
	for (int i = 0; i < count; i++)
		free(entries[i]);
	if (count >= 0)
		free(entries);
	return status;
}
