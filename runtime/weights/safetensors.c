/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/weights/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/json.h"

static const struct {
	const char *word;
	size_t bytes;
} dtypes[] = {
	{ "F64", 8 }, { "F32", 4 }, { "F16", 2 }, { "BF16", 2 }, { "I64", 8 },  { "I32", 4 },     { "I16", 2 },     { "I8", 1 },
	{ "U64", 8 }, { "U32", 4 }, { "U16", 2 }, { "U8", 1 },   { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
};

size_t hspmd_safetensors_element(const char *dtype)
{
	for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
		if (!strcmp(dtype, dtypes[i].word))
			return dtypes[i].bytes;
	return 0;
}

static int read_shape(struct hspmd_json *at, struct hspmd_shape *shape, uint64_t *elements)
{
	struct hspmd_json list = hspmd_json_array(at, "shape", 0, HSPMD_MAX_RANK);
	shape->rank = (int)hspmd_json_length(&list);
	*elements = 1;
	for (int d = 0; d < shape->rank; d++) {
		struct hspmd_json one = hspmd_json_at(&list, (size_t)d);
		shape->dim[d] = hspmd_json_int_value(&one, 0, INT64_C(1) << 40);
		if (*elements && (uint64_t)shape->dim[d] > (UINT64_C(1) << 52) / *elements)
			return hspmd_json_fail(&list, "too many elements");
		*elements *= (uint64_t)shape->dim[d];
	}
	return hspmd_json_failed(at) ? -1 : 0;
}

static int read_tensor(struct hspmd_json *at, struct hspmd_safetensor *t, uint64_t data_start, uint64_t data_bytes)
{
	uint64_t elements;
	if (!hspmd_json_expect_object(at))
		return -1;
	const char *dtype = hspmd_json_string(at, "dtype");
	struct hspmd_json ends = hspmd_json_array(at, "data_offsets", 2, 2);
	if (read_shape(at, &t->shape, &elements) || !dtype)
		return -1;
	size_t element = hspmd_safetensors_element(dtype);
	if (!element)
		return hspmd_json_fail(at, "unknown dtype \"%s\"", dtype);
	struct hspmd_json first = hspmd_json_at(&ends, 0), last = hspmd_json_at(&ends, 1);
	uint64_t lo = (uint64_t)hspmd_json_int_value(&first, 0, INT64_C(1) << 52),
	         hi = (uint64_t)hspmd_json_int_value(&last, 0, INT64_C(1) << 52);
	if (hspmd_json_check_keys(at))
		return -1;
	if (lo > hi || hi > data_bytes || hi - lo != elements * element)
		return hspmd_json_fail(&ends, "[%" PRIu64 ", %" PRIu64 ") does not fit its shape or the file's %" PRIu64 " bytes of data",
		                       lo, hi, data_bytes);
	snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
	t->offset = data_start + lo;
	t->bytes = hi - lo;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct hspmd_safetensor *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int read_all(struct hspmd_json *root, struct hspmd_safetensors *s, uint64_t data_start, uint64_t data_bytes)
{
	const char *key;
	struct hspmd_json member;
	if (!hspmd_json_expect_object(root))
		return -1;
	s->tensors = hspmd_calloc(json_object_size(root->value), sizeof *s->tensors);
	if (!s->tensors)
		return hspmd_json_fail_memory(root);
	for (size_t i = 0; hspmd_json_member(root, i, &key, &member); i++) {
		if (!strcmp(key, "__metadata__")) {
			if (!hspmd_json_expect_object(&member))
				return -1;
			s->metadata = json_incref(member.value);
			continue;
		}
		struct hspmd_safetensor *t = &s->tensors[s->count++];
		t->name = strdup(key);
		if (!t->name)
			return hspmd_json_fail_memory(&member);
		if (read_tensor(&member, t, data_start, data_bytes))
			return -1;
	}
	qsort(s->tensors, s->count, sizeof *s->tensors, by_offset);
	uint64_t at = data_start;
	for (size_t i = 0; i < s->count; i++) {
		if (s->tensors[i].offset != at)
			return hspmd_json_fail(root, "\"%s\" %s", s->tensors[i].name,
			                       s->tensors[i].offset < at ? "overlaps another tensor" : "comes after a gap");
		at += s->tensors[i].bytes;
	}
	if (at != data_start + data_bytes)
		return hspmd_json_fail(root, "the file has %" PRIu64 " bytes of data, but its tensors have %" PRIu64, data_bytes,
		                       at - data_start);
	return 0;
}

struct hspmd_safetensors *hspmd_safetensors_parse(const char *text, size_t bytes, uint64_t file_bytes, const char *name,
                                                  struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (bytes > HSPMD_SAFETENSORS_HEADER_MAX || file_bytes < 8 || bytes > file_bytes - 8) {
		hspmd_fail(err, "%s: not a safetensors file (a header of %zu bytes in a file of %" PRIu64 ")", name, bytes, file_bytes);
		return NULL;
	}
	if (hspmd_json_parse(&doc, name, text, bytes, err))
		return NULL;
	struct hspmd_safetensors *s = hspmd_calloc(1, sizeof *s);
	struct hspmd_json root = hspmd_json_root(&doc);
	int rv = s ? read_all(&root, s, 8 + bytes, file_bytes - 8 - bytes) : hspmd_json_fail_memory(&root);
	hspmd_json_close(&doc);
	if (rv) {
		hspmd_safetensors_destroy(s);
		return NULL;
	}
	return s;
}

char *hspmd_safetensors_read_header(int fd, const char *name, size_t *bytes, uint64_t *file_bytes, struct hspmd_error *err)
{
	unsigned char length[8];
	struct stat st;
	uint64_t json = 0;
	if (fstat(fd, &st) || hspmd_read_at(fd, length, sizeof length, 0)) {
		hspmd_fail_errno(err, "%s: reading the header", name);
		return NULL;
	}
	for (int i = 0; i < 8; i++)
		json |= (uint64_t)length[i] << 8 * i;
	if (json > HSPMD_SAFETENSORS_HEADER_MAX || json > (uint64_t)st.st_size) {
		hspmd_fail(err, "%s: not a safetensors file (a header of %" PRIu64 " bytes in a file of %jd)", name, json,
		           (intmax_t)st.st_size);
		return NULL;
	}
	char *head = malloc(sizeof length + json);
	if (!head) {
		hspmd_fail_memory(err, name);
		return NULL;
	}
	memcpy(head, length, sizeof length);
	if (hspmd_read_at(fd, head + sizeof length, json, sizeof length)) {
		hspmd_fail_errno(err, "%s: reading the header", name);
		free(head);
		return NULL;
	}
	*bytes = sizeof length + json;
	*file_bytes = (uint64_t)st.st_size;
	return head;
}

struct hspmd_safetensors *hspmd_safetensors_read(int fd, const char *name, struct hspmd_error *err)
{
	size_t bytes;
	uint64_t file_bytes;
	char *head = hspmd_safetensors_read_header(fd, name, &bytes, &file_bytes, err);
	struct hspmd_safetensors *s = head ? hspmd_safetensors_parse(head + 8, bytes - 8, file_bytes, name, err) : NULL;
	free(head);
	return s;
}

const struct hspmd_safetensor *hspmd_safetensors_find(const struct hspmd_safetensors *s, const char *name)
{
	for (size_t i = 0; i < s->count; i++)
		if (!strcmp(s->tensors[i].name, name))
			return &s->tensors[i];
	return NULL;
}

void hspmd_safetensors_destroy(struct hspmd_safetensors *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->count; i++)
		free(s->tensors[i].name);
	free(s->tensors);
	json_decref(s->metadata);
	free(s);
}

/* ---- writing */

static json_t *tensor_json(const struct hspmd_safetensor *t)
{
	json_t *shape = json_array(), *o = json_object();
	int bad = !shape || !o;
	for (int d = 0; d < t->shape.rank; d++)
		bad |= json_array_append_new(shape, json_integer(t->shape.dim[d]));
	bad |= json_object_set_new(o, "dtype", json_string(t->dtype));
	bad |= json_object_set(o, "shape", shape);
	bad |= json_object_set_new(o, "data_offsets", json_pack("[II]", (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes)));
	json_decref(shape);
	return hspmd_json_unless_failed(bad, o);
}

char *hspmd_safetensors_header(const struct hspmd_safetensor *tensors, size_t count, const json_t *metadata, size_t align, size_t *bytes,
                               struct hspmd_error *err)
{
	json_t *o = json_object();
	int bad = !o;
	if (metadata)
		bad |= json_object_set(o, "__metadata__", (json_t *)(uintptr_t)metadata);
	for (size_t i = 0; i < count; i++)
		bad |= json_object_set_new(o, tensors[i].name, tensor_json(&tensors[i]));
	char *text = bad ? NULL : json_dumps(o, JSON_COMPACT), *head = NULL;
	size_t length = text ? strlen(text) : 0, whole = (8 + length + align - 1) / align * align;
	json_decref(o);
	if (text)
		head = malloc(whole);
	if (head) {
		for (int i = 0; i < 8; i++)
			head[i] = (char)((whole - 8) >> 8 * i);
		memcpy(head + 8, text, length);
		memset(head + 8 + length, ' ', whole - 8 - length);
		*bytes = whole;
	} else {
		hspmd_fail_memory(err, "writing a safetensors header");
	}
	free(text);
	return head;
}
