/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: what strict parsing accepts and rejects; weights in Hugging Face's format, imported and exported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "runtime/state/export.h"
#include "runtime/weights/safetensors.h"

static char root[64];

static int setup(void **state)
{
	(void)state;
	snprintf(root, sizeof root, "/tmp/hspmd-weights-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return hspmd_remove_tree(root, NULL);
}

static const char *in_root(const char *name)
{
	static char texts[8][256];
	static int next;
	char *buf = texts[next++ % 8];
	snprintf(buf, sizeof texts[0], "%s/%s", root, name);
	return buf;
}

static void must(int rv, const struct hspmd_error *err)
{
	if (rv)
		print_error("%s\n", err->text);
	assert_int_equal(rv, 0);
}

/* ---- rejected files */

static struct hspmd_safetensors *parse(const char *text, uint64_t file_bytes, struct hspmd_error *err)
{
	return hspmd_safetensors_parse(text, strlen(text), file_bytes, "x", err);
}

static void refused(const char *text, uint64_t data_bytes, const char *why)
{
	struct hspmd_error err = { "" };
	struct hspmd_safetensors *s = parse(text, 8 + strlen(text) + data_bytes, &err);
	if (s || !strstr(err.text, why))
		print_error("%s: %s\n", text, err.text);
	assert_null(s);
	assert_non_null(strstr(err.text, why));
}

static void test_refused(void **state)
{
	(void)state;
	struct hspmd_error err;
	const char *good = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_"
	                   "offsets\":[0,4]},"
	                   "\"__metadata__\":{\"k\":\"v\"}}";
	struct hspmd_safetensors *s = parse(good, 8 + strlen(good) + 12, &err);
	assert_non_null(s);
	assert_int_equal(s->count, 2);
	assert_string_equal(s->tensors[0].name, "a");
	assert_int_equal(hspmd_safetensors_find(s, "b")->offset, 8 + strlen(good) + 4);
	assert_null(hspmd_safetensors_find(s, "c"));
	hspmd_safetensors_destroy(s);
	refused(good, 11, "does not fit");
	refused(good, 13, "bytes of data");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "does not fit");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "does not fit");
	refused("{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":["
	        "2,6]}}",
	        6, "overlaps");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":["
	        "8,12]}}",
	        12, "gap");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1099511627776,1099511627776],\"data_offsets\":[0,0]}}", 0, "too many");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "more");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":["
	        "4,8]}}",
	        8, "a");
	refused("[]", 0, "object");
	refused("{", 0, "x");
	assert_null(hspmd_safetensors_parse("{}", 2, 9, "x", &err));
	char huge[8] = { 0, 0, 0, 0, 0, 0, 0, 0x7f };
	must(hspmd_durable_write(in_root("huge"), huge, sizeof huge, &err), &err);
	assert_null(hspmd_weights_open(in_root("huge"), &err));
	assert_non_null(strstr(err.text, "not a safetensors file"));
	must(hspmd_durable_write(in_root("short"), huge, 3, &err), &err);
	assert_null(hspmd_weights_open(in_root("short"), &err));
	assert_null(hspmd_weights_open(in_root("nowhere"), &err));
	assert_null(hspmd_weights_open(root, &err));
	assert_non_null(strstr(err.text, "model.safetensors"));
}

/* ---- reading */

static void write_file(const char *path, struct hspmd_safetensor *t, size_t count, const void *const *data)
{
	struct hspmd_error err = { "" };
	size_t head_bytes, bytes = 0, at = 0;
	for (size_t i = 0; i < count; i++) {
		t[i].offset = bytes;
		bytes += t[i].bytes;
	}
	char *head = hspmd_safetensors_header(t, count, NULL, 8, &head_bytes, &err);
	char *whole = malloc(head_bytes + bytes);
	memcpy(whole, head, head_bytes);
	for (size_t i = 0; i < count; i++) {
		memcpy(whole + head_bytes + at, data[i], t[i].bytes);
		at += t[i].bytes;
	}
	must(hspmd_durable_write(path, whole, head_bytes + at, &err), &err);
	free(head);
	free(whole);
}

static struct hspmd_safetensor tensor(const char *name, const char *dtype, struct hspmd_shape shape)
{
	struct hspmd_safetensor t = { .name = (char *)(uintptr_t)name, .shape = shape };
	snprintf(t.dtype, sizeof t.dtype, "%s", dtype);
	t.bytes = (uint64_t)hspmd_shape_elements(&shape) * hspmd_safetensors_element(dtype);
	return t;
}

static void test_types(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_shape five = { 1, { 5 } };
	struct hspmd_box all = hspmd_box_full(&five), part = { 1, { 1 }, { 3 } };
	float f32[5] = { 1, -2, 0.5f, 1e30f, -0.0f }, out[5];
	double f64[5] = { 1, -2, 0.5, 3, 4 };
	uint16_t bf16[5] = { 0x3f80, 0xc000, 0x3f00, 0x7f80, 0x8000 }, f16[5] = { 0x3c00, 0xc000, 0x3800, 0x0001, 0x7bff };
	int64_t i64[5] = { 0 };
	static const char *const both[] = { "transformer.", "model.", NULL };
	const struct hspmd_file_map plain = { .prefixes = both };
	struct hspmd_safetensor t[] = { tensor("transformer.a", "F32", five), tensor("b", "F64", five), tensor("c", "BF16", five),
		                        tensor("d", "F16", five), tensor("e", "I64", five) };
	write_file(in_root("w"), t, 5, (const void *[]){ f32, f64, bf16, f16, i64 });
	struct hspmd_weights *w = hspmd_weights_open(in_root("w"), &err);
	must(!w, &err);
	must(hspmd_weights_read(w, &plain, "transformer.a", &five, &all, out, &err), &err);
	assert_memory_equal(out, f32, sizeof f32);
	must(hspmd_weights_read(w, &plain, "a", &five, &part, out, &err), &err);
	assert_memory_equal(out, f32 + 1, 2 * sizeof *f32);
	must(hspmd_weights_read(w, &plain, "model.b", &five, &all, out, &err), &err);
	assert_true(out[4] == 4);
	must(hspmd_weights_read(w, &plain, "c", &five, &all, out, &err), &err);
	assert_true(out[1] == -2 && out[2] == 0.5f && isinf(out[3]) && out[4] == 0 && signbit(out[4]));
	must(hspmd_weights_read(w, &plain, "d", &five, &all, out, &err), &err);
	assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0.5f && out[3] == 0x1p-24f && out[4] == 65504);
	assert_int_equal(hspmd_weights_read(w, &plain, "e", &five, &all, out, &err), -1);
	assert_non_null(strstr(err.text, "I64"));
	assert_int_equal(hspmd_weights_read(w, &plain, "f", &five, &all, out, &err), -1);
	assert_non_null(strstr(err.text, "f is not there"));
	struct hspmd_shape six = { 1, { 6 } };
	assert_int_equal(hspmd_weights_read(w, &plain, "a", &six, &all, out, &err), -1);
	assert_non_null(strstr(err.text, "has shape [5], the model's is [6]"));
	hspmd_weights_destroy(w);
}

/* A model with a matrix, a vector, a stack of experts, and parts of tensors of the file. Our tensors' elements are their indices. */
static const struct hspmd_import_tensor model[] = {
	{ "model.embed_tokens.weight", { 2, { 30, 7 } } },
	{ "model.layers.0.block_sparse_moe.experts.w1.weight", { 3, { 3, 4, 5 } } },
	{ "model.norm.weight", { 1, { 7 } } },
	{ "h.0.attn.c_attn.weight", { 3, { 4, 3, 5 } } },
	{ "h.0.k.weight", { 2, { 6, 5 } } },
	{ "h.0.q.weight", { 2, { 6, 5 } } },
	{ "h.0.up.weight", { 3, { 2, 4, 3 } } },
};
enum { MODEL = 7, FILE_TENSORS = 8 };

/* Rows 2 n and 2 n + 1 of q and of k take turns in the file; `up` is transposed there, in every second column. */
static bool piece_of(const void *context, const char *tensor, const struct hspmd_shape *shape, int64_t index,
                     struct hspmd_file_piece *piece)
{
	const char *stack = strstr(tensor, ".experts.w1");
	(void)context;
	hspmd_file_map_piece(NULL, tensor, shape, 0, piece);
	if (stack) {
		piece->shape = (struct hspmd_shape){ 2, { 4, 5 } };
		piece->box.lo[0] = index;
		piece->box.hi[0] = index + 1;
		snprintf(piece->name, sizeof piece->name, "model.layers.0.block_sparse_moe.experts.%d.w1.weight", (int)index);
	} else if (strstr(tensor, "c_attn"))
		piece->shape = (struct hspmd_shape){ 2, { 4, 15 } };
	else if (strstr(tensor, "h.0.k") || strstr(tensor, "h.0.q")) {
		piece->shape = (struct hspmd_shape){ 2, { 12, 5 } };
		piece->block = 2;
		piece->block_stride = 20;
		piece->first = strstr(tensor, "h.0.k") ? 10 : 0;
		snprintf(piece->name, sizeof piece->name, "h.0.qk.weight");
	} else if (strstr(tensor, "up")) {
		piece->shape = (struct hspmd_shape){ 3, { 2, 3, 8 } };
		piece->first = 1;
		piece->stride[0] = 24;
		piece->stride[1] = 2;
		piece->stride[2] = 8;
	}
	return index < (stack ? shape->dim[0] : 1);
}

static const char *const prefixes[] = { "transformer.", "model.", NULL };
static const struct hspmd_file_map map = { .piece = piece_of, .prefixes = prefixes };

static void make_model_file(void)
{
	float numbers[30 * 7], turns[60], up[48] = { 0 };
	for (int i = 0; i < 30 * 7; i++)
		numbers[i] = (float)i + 0.25f;
	for (int row = 0; row < 12; row++)
		for (int i = 0; i < 5; i++)
			turns[row * 5 + i] = (float)((row / 4 * 2 + row % 2) * 5 + i) + 0.25f;
	for (int i = 0; i < 24; i++)
		up[i / 12 * 24 + i % 3 * 8 + i / 3 % 4 * 2 + 1] = (float)i + 0.25f;
	struct hspmd_shape one = { 2, { 4, 5 } };
	struct hspmd_safetensor t[] = {
		tensor("model.embed_tokens.weight", "F32", model[0].shape),
		tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight", "F32", one),
		tensor("model.layers.0.block_sparse_moe.experts.1.w1.weight", "F32", one),
		tensor("model.layers.0.block_sparse_moe.experts.2.w1.weight", "F32", one),
		tensor("model.norm.weight", "F32", model[2].shape),
		tensor("transformer.h.0.attn.c_attn.weight", "F32", (struct hspmd_shape){ 2, { 4, 15 } }),
		tensor("h.0.qk.weight", "F32", (struct hspmd_shape){ 2, { 12, 5 } }),
		tensor("h.0.up.weight", "F32", (struct hspmd_shape){ 3, { 2, 3, 8 } }),
	};
	write_file(in_root("hf"), t, FILE_TENSORS,
	           (const void *[]){ numbers, numbers, numbers + 20, numbers + 40, numbers, numbers, turns, up });
}

static void check_model(struct hspmd_weights *w)
{
	struct hspmd_error err = { "" };
	for (int m = 0; m < MODEL; m++) {
		struct hspmd_box box = hspmd_box_full(&model[m].shape);
		float out[30 * 7];
		must(hspmd_weights_read(w, &map, model[m].name, &model[m].shape, &box, out, &err), &err);
		for (int i = 0; i < hspmd_shape_elements(&model[m].shape); i++)
			assert_true(out[i] == (float)i + 0.25f);
	}
	struct hspmd_box box = { 3, { 1, 2, 1 }, { 3, 4, 3 } };
	float part[8];
	must(hspmd_weights_read(w, &map, model[1].name, &model[1].shape, &box, part, &err), &err);
	for (int i = 0; i < 8; i++)
		assert_true(part[i] == (float)((1 + i / 4) * 20 + (2 + i / 2 % 2) * 5 + 1 + i % 2) + 0.25f);
	box = (struct hspmd_box){ 2, { 1, 2 }, { 5, 4 } };
	must(hspmd_weights_read(w, &map, model[4].name, &model[4].shape, &box, part, &err), &err);
	for (int i = 0; i < 8; i++)
		assert_true(part[i] == (float)((1 + i / 2) * 5 + 2 + i % 2) + 0.25f);
	box = (struct hspmd_box){ 3, { 1, 0, 1 }, { 2, 4, 3 } };
	must(hspmd_weights_read(w, &map, model[6].name, &model[6].shape, &box, part, &err), &err);
	for (int i = 0; i < 8; i++)
		assert_true(part[i] == (float)(12 + i / 2 * 3 + 1 + i % 2) + 0.25f);
}

static void export_and_check(const struct hspmd_manifest *m, const struct hspmd_export_options *how, bool exact)
{
	struct hspmd_error err = { "" };
	char name[64], folder[256];
	snprintf(folder, sizeof folder, "%s/place/%s", root, hspmd_checkpoint_name(0, 0, name, sizeof name));
	const char *folders[] = { folder };
	struct hspmd_reader *r = hspmd_reader_create(m, NULL, folders, 1, &err);
	must(!r, &err);
	must(hspmd_weights_export(r, how, &err), &err);
	hspmd_reader_destroy(r);
	struct hspmd_weights *w = hspmd_weights_open(how->folder, &err);
	must(!w, &err);
	if (exact)
		check_model(w);
	hspmd_weights_destroy(w);
}

static void test_import_export(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	make_model_file();
	struct hspmd_weights *w = hspmd_weights_open(in_root("hf"), &err);
	must(!w, &err);
	check_model(w);
	json_t *config = json_pack("{s:s}", "model_type", "mixtral"), *job = json_pack("{s:O}", "model", config);
	must(hspmd_weights_import(w, &map, model, MODEL, job, in_root("place"), &err), &err);
	hspmd_weights_destroy(w);
	struct hspmd_listed_checkpoint *found;
	assert_int_equal(hspmd_checkpoint_list(in_root("place"), HSPMD_LOCATION_DEPTH, &found, &err), 1);
	assert_int_equal(found[0].manifest->extent_count, 3 * MODEL);
	struct hspmd_export_options how = { .folder = in_root("one"), .config = config, .map = &map };
	export_and_check(found[0].manifest, &how, true);
	assert_int_equal(access(in_root("one/config.json"), F_OK), 0);
	assert_int_equal(access(in_root("one/model.safetensors"), F_OK), 0);
	/* Split: no file has more than one tensor then. */
	how = (struct hspmd_export_options){ .folder = in_root("many"), .config = config, .map = &map, .max_bytes = 100 };
	export_and_check(found[0].manifest, &how, true);
	assert_int_equal(access(in_root("many/model-00008-of-00008.safetensors"), F_OK), 0);
	assert_int_equal(access(in_root("many/model.safetensors.index.json"), F_OK), 0);
	how = (struct hspmd_export_options){ .folder = in_root("half"), .map = &map, .bf16 = true };
	export_and_check(found[0].manifest, &how, false);
	w = hspmd_weights_open(how.folder, &err);
	float out[7];
	struct hspmd_box box = hspmd_box_full(&model[2].shape);
	must(hspmd_weights_read(w, &map, "norm.weight", &model[2].shape, &box, out, &err), &err);
	assert_true(out[0] == 0.25f && out[6] == 6.25f);
	hspmd_weights_destroy(w);
	hspmd_checkpoint_list_free(found, 1);
	json_decref(job);
	json_decref(config);
}

/* An index may only name files in its own folder. */
static void test_index(void **state)
{
	(void)state;
	struct hspmd_error err;
	const char *bad = "{\"weight_map\":{\"a\":\"../hf\"}}", *missing = "{\"weight_map\":{\"a\":\"gone.safetensors\"}}";
	must(hspmd_durable_write(in_root("model.safetensors.index.json"), bad, strlen(bad), &err), &err);
	assert_null(hspmd_weights_open(root, &err));
	assert_non_null(strstr(err.text, "beside"));
	must(hspmd_durable_write(in_root("model.safetensors.index.json"), missing, strlen(missing), &err), &err);
	assert_null(hspmd_weights_open(root, &err));
	assert_non_null(strstr(err.text, "gone.safetensors"));
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_refused),
		IN_FOLDER(test_types),
		IN_FOLDER(test_import_export),
		IN_FOLDER(test_index),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
