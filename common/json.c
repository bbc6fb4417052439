/* SPDX-License-Identifier: Apache-2.0 */
#include "common/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"

#define SHOWN_MAX 80                     /* bytes of a wrong value that a message shows */
#define SLIP_MAX 63                      /* longest key for which a similar known key is searched */
#define EXACT_INTEGER 9007199254740992.0 /* 2^53: above it a double may stand for several integers */

/* ---- documents */

/* As some editors write it: U+FEFF in UTF-8 or UTF-16. */
static bool has_byte_order_mark(const char *text, size_t length)
{
	return (length >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) ||
	       (length >= 2 && (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2)));
}

/* Fails with what jansson says, where its words are those of its own interface, in words for the file's author. */
static int fail_parsed(struct hspmd_json_doc *doc, const json_error_t *why)
{
	const char *text = why->text;
	switch (json_error_code(why)) {
	case json_error_out_of_memory:
		return hspmd_fail_memory(doc->err, doc->file);
	case json_error_end_of_input_expected:
		text = "something follows, though its JSON is complete";
		break;
	case json_error_null_character:
	case json_error_null_byte_in_key:
		text = "a text may not have the character \\u0000";
		break;
	default: /* whatever jansson expected there */
		if (json_error_code(why) == json_error_premature_end_of_input || strstr(text, " near end of file"))
			return hspmd_fail(doc->err, "%s: it ends in line %d, before its JSON is complete", doc->file, why->line);
	}
	return hspmd_fail(doc->err, "%s: line %d, column %d: %s", doc->file, why->line, why->column, text);
}

int hspmd_json_parse(struct hspmd_json_doc *doc, const char *name, const char *text, size_t length, struct hspmd_error *err)
{
	*doc = (struct hspmd_json_doc){ .file = name, .err = err };
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
	json_error_t why = { .line = 0 };
	doc->root = json_loadb(text, length, flags, &why);
	/* An integer too large for any field is an error of that field, whose message has a path. */
	doc->rounded = !doc->root && json_error_code(&why) == json_error_numeric_overflow;
	if (doc->rounded)
		doc->root = json_loadb(text, length, flags | JSON_DECODE_INT_AS_REAL, &why);
	doc->failed = !doc->root;
	if (doc->failed && has_byte_order_mark(text, length))
		return hspmd_fail(doc->err, "%s: it begins with a byte order mark: expected UTF-8 without one", name);
	return doc->failed ? fail_parsed(doc, &why) : 0;
}

int hspmd_json_open(struct hspmd_json_doc *doc, const char *path, struct hspmd_error *err)
{
	*doc = (struct hspmd_json_doc){ .file = strcmp(path, "-") ? path : "standard input", .err = err, .failed = true };
	size_t size = 0;
	char *text = hspmd_read_file(path, HSPMD_JSON_MAX_BYTES, &size, err);
	if (!text)
		return -1;
	int rc = hspmd_json_parse(doc, doc->file, text, size, err);
	free(text);
	return rc;
}

int hspmd_json_wrap(struct hspmd_json_doc *doc, const char *name, json_t *value, struct hspmd_error *err)
{
	*doc = (struct hspmd_json_doc){ .file = name, .root = json_incref(value), .err = err };
	return 0;
}

void hspmd_json_close(struct hspmd_json_doc *doc)
{
	json_decref(doc->root);
	doc->root = NULL;
}

struct hspmd_json hspmd_json_root(struct hspmd_json_doc *doc)
{
	return (struct hspmd_json){ .doc = doc, .value = doc->failed ? NULL : doc->root };
}

/* ---- messages */

struct text {
	char *at;
	size_t left;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(t->at, t->left, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	size_t used = (size_t)n < t->left ? (size_t)n : t->left - 1;
	t->at += used;
	t->left -= used;
}

static bool plain_key(const char *key)
{
	return *key && strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(key);
}

/* A key or value as JSON, so that a message always is one line; long values are cut. */
static void put_quoted(struct text *t, const json_t *value)
{
	char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
	if (!dumped)
		put(t, "something else");
	else if (strlen(dumped) > SHOWN_MAX)
		put(t, "%.*s...", SHOWN_MAX, dumped);
	else
		put(t, "%s", dumped);
	free(dumped);
}

static void put_key(struct text *t, const char *key, bool first)
{
	if (plain_key(key)) {
		put(t, first ? "%s" : ".%s", key);
		return;
	}
	json_t *quoted = json_string_nocheck(key);
	put(t, "[");
	put_quoted(t, quoted);
	put(t, "]");
	json_decref(quoted);
}

static void put_path(struct text *t, const struct hspmd_json *at)
{
	if (!at->up)
		return;
	put_path(t, at->up);
	if (at->key)
		put_key(t, at->key, !at->up->up);
	else
		put(t, "[%zu]", at->index);
}

static int fail_at(const struct hspmd_json *at, const char *key, const char *message)
{
	struct hspmd_json_doc *doc = at->doc;
	if (doc->failed)
		return -1;
	char path[HSPMD_ERROR_MAX] = "";
	struct text t = { path, sizeof path };
	put_path(&t, at);
	if (key)
		put_key(&t, key, !at->up);
	struct hspmd_error e;
	hspmd_fail(&e, "%s: %s%s%s", doc->file, path, *path ? ": " : "", message);
	doc->failed = !hspmd_mistakes_add(doc->all, doc->err, doc->file, e.text);
	return -1;
}

int hspmd_json_fail(const struct hspmd_json *at, const char *fmt, ...)
{
	char message[HSPMD_ERROR_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	return fail_at(at, NULL, message);
}

int hspmd_json_fail_memory(const struct hspmd_json *at)
{
	fail_at(at, NULL, "out of memory");
	at->doc->failed = true;
	return -1;
}

bool hspmd_json_failed(const struct hspmd_json *at)
{
	return at->doc->failed;
}

int hspmd_json_mistakes(const struct hspmd_json *at)
{
	return at->doc->all ? at->doc->all->count : at->doc->failed;
}

/* "expected X, got Y" at a cursor, or at a member that is not there when value is NULL. */
static void expected(const struct hspmd_json *at, const char *what)
{
	char message[HSPMD_ERROR_MAX];
	struct text t = { message, sizeof message };
	put(&t, "expected %s", what);
	if (!at->value) {
		put(&t, ", but it is missing");
	} else if (json_is_object(at->value)) {
		put(&t, ", got an object");
	} else if (json_is_array(at->value) && !json_array_size(at->value)) {
		put(&t, ", got an empty array");
	} else if (json_is_array(at->value)) {
		put(&t, ", got an array of %zu", json_array_size(at->value));
	} else {
		put(&t, ", got ");
		put_quoted(&t, at->value);
	}
	fail_at(at, NULL, message);
}

int hspmd_json_fail_value(const struct hspmd_json *at, const char *fmt, ...)
{
	char what[HSPMD_ERROR_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	expected(at, what);
	return -1;
}

/* ---- members */

static void know(struct hspmd_json *obj, const char *key)
{
	for (int i = 0; i < obj->known_count; i++)
		if (!strcmp(obj->known[i], key))
			return;
	if (obj->known_count < HSPMD_JSON_KEYS_MAX)
		obj->known[obj->known_count++] = key;
}

/* Returns true if an object exists that could have the member; if not, asking for the member is no further error. */
static bool there(const struct hspmd_json *obj)
{
	return obj->value && !obj->doc->failed;
}

/* A cursor to a member; value NULL if the member is absent or null, or if there is no object. */
static struct hspmd_json member(struct hspmd_json *obj, const char *key)
{
	struct hspmd_json at = { .doc = obj->doc, .up = obj, .key = key };
	if (!there(obj) || !hspmd_json_expect_object(obj))
		return at;
	know(obj, key);
	at.value = json_object_get(obj->value, key);
	if (json_is_null(at.value))
		at.value = NULL;
	return at;
}

bool hspmd_json_has(struct hspmd_json *obj, const char *key)
{
	return member(obj, key).value != NULL;
}

struct hspmd_json hspmd_json_any(struct hspmd_json *obj, const char *key)
{
	return member(obj, key);
}

bool hspmd_json_expect_object(struct hspmd_json *at)
{
	if (json_is_object(at->value))
		return true;
	expected(at, "an object");
	at->value = NULL;
	return false;
}

struct hspmd_json hspmd_json_object(struct hspmd_json *obj, const char *key)
{
	struct hspmd_json at = member(obj, key);
	if (there(obj))
		hspmd_json_expect_object(&at);
	return at;
}

struct hspmd_json hspmd_json_object_or_none(struct hspmd_json *obj, const char *key)
{
	struct hspmd_json at = member(obj, key);
	if (at.value)
		hspmd_json_expect_object(&at);
	return at;
}

bool hspmd_json_expect_array(struct hspmd_json *at, size_t min, size_t max)
{
	size_t n = json_array_size(at->value);
	if (json_is_array(at->value) && n >= min && n <= max)
		return true;
	char what[96];
	if (min == max)
		snprintf(what, sizeof what, "an array of %zu element%s", min, min == 1 ? "" : "s");
	else if (max == SIZE_MAX && min)
		snprintf(what, sizeof what, "an array of at least %zu element%s", min, min == 1 ? "" : "s");
	else if (max == SIZE_MAX)
		snprintf(what, sizeof what, "an array");
	else
		snprintf(what, sizeof what, "an array of %zu..%zu elements", min, max);
	expected(at, what);
	at->value = NULL;
	return false;
}

struct hspmd_json hspmd_json_array(struct hspmd_json *obj, const char *key, size_t min, size_t max)
{
	struct hspmd_json at = member(obj, key);
	if (there(obj))
		hspmd_json_expect_array(&at, min, max);
	return at;
}

struct hspmd_json hspmd_json_array_or_none(struct hspmd_json *obj, const char *key, size_t min, size_t max)
{
	struct hspmd_json at = member(obj, key);
	if (at.value)
		hspmd_json_expect_array(&at, min, max);
	return at;
}

/* ---- scalars */

static bool whole(const json_t *value, int64_t *out)
{
	if (json_is_integer(value)) {
		*out = json_integer_value(value);
		return true;
	}
	double real = json_is_real(value) ? json_real_value(value) : NAN;
	if (!(fabs(real) <= EXACT_INTEGER) || real != floor(real))
		return false;
	*out = (int64_t)real;
	return true;
}

bool hspmd_json_int_within(const struct hspmd_json *at, int64_t min, int64_t max, int64_t *out)
{
	return at->value && whole(at->value, out) && *out >= min && *out <= max;
}

int64_t hspmd_json_int_value(struct hspmd_json *at, int64_t min, int64_t max)
{
	int64_t got = 0;
	if (at->doc->failed)
		return 0;
	if (hspmd_json_int_within(at, min, max, &got))
		return got;
	char what[96];
	bool number = json_is_number(at->value);
	if (max == INT64_MAX)
		snprintf(what, sizeof what, "an integer of at least %" PRId64, min);
	else
		snprintf(what, sizeof what, "%s%" PRId64 "..%" PRId64, number && whole(at->value, &got) ? "" : "an integer in ", min, max);
	expected(at, what);
	return 0;
}

int64_t hspmd_json_int(struct hspmd_json *obj, const char *key, int64_t min, int64_t max)
{
	struct hspmd_json at = member(obj, key);
	return there(obj) ? hspmd_json_int_value(&at, min, max) : 0;
}

int64_t hspmd_json_int_or(struct hspmd_json *obj, const char *key, int64_t min, int64_t max, int64_t absent)
{
	struct hspmd_json at = member(obj, key);
	return at.value ? hspmd_json_int_value(&at, min, max) : absent;
}

double hspmd_json_number_value(struct hspmd_json *at, double min, double max)
{
	if (at->doc->failed)
		return 0;
	double got = json_is_number(at->value) ? json_number_value(at->value) : NAN;
	if (isfinite(got) && got >= min && got <= max)
		return got;
	char low[48], what[128];
	if (min == HSPMD_JSON_POSITIVE)
		snprintf(low, sizeof low, "above 0");
	else
		snprintf(low, sizeof low, "of at least %.9g", min);
	if (min == -HSPMD_JSON_UNBOUNDED && max == HSPMD_JSON_UNBOUNDED)
		snprintf(what, sizeof what, "a number");
	else if (max == HSPMD_JSON_UNBOUNDED)
		snprintf(what, sizeof what, "a number %s", low);
	else
		snprintf(what, sizeof what, "a number %s and at most %.9g", low, max);
	expected(at, what);
	return 0;
}

double hspmd_json_number(struct hspmd_json *obj, const char *key, double min, double max)
{
	struct hspmd_json at = member(obj, key);
	return there(obj) ? hspmd_json_number_value(&at, min, max) : 0;
}

double hspmd_json_number_or(struct hspmd_json *obj, const char *key, double min, double max, double absent)
{
	struct hspmd_json at = member(obj, key);
	return at.value ? hspmd_json_number_value(&at, min, max) : absent;
}

bool hspmd_json_bool_or(struct hspmd_json *obj, const char *key, bool absent)
{
	struct hspmd_json at = member(obj, key);
	if (!at.value)
		return absent;
	if (!json_is_boolean(at.value))
		expected(&at, "true or false");
	return json_is_true(at.value);
}

const char *hspmd_json_string_value(struct hspmd_json *at)
{
	if (at->doc->failed)
		return NULL;
	if (json_is_string(at->value) && json_string_length(at->value))
		return json_string_value(at->value);
	expected(at, "a string that is not empty");
	return NULL;
}

const char *hspmd_json_string(struct hspmd_json *obj, const char *key)
{
	struct hspmd_json at = member(obj, key);
	return there(obj) ? hspmd_json_string_value(&at) : NULL;
}

const char *hspmd_json_string_or(struct hspmd_json *obj, const char *key, const char *absent)
{
	struct hspmd_json at = member(obj, key);
	return at.value ? hspmd_json_string_value(&at) : absent;
}

static int enum_value(struct hspmd_json *at, const char *const *names)
{
	const char *got = json_string_value(at->value);
	for (int i = 0; got && names[i]; i++)
		if (!strcmp(got, names[i]))
			return i;
	char what[HSPMD_ERROR_MAX];
	struct text t = { what, sizeof what };
	for (int i = 0; names[i]; i++)
		put(&t, "%s\"%s\"", !i ? "" : names[i + 1] ? ", " : " or ", names[i]);
	expected(at, what);
	return 0;
}

int hspmd_json_enum(struct hspmd_json *obj, const char *key, const char *const *names)
{
	struct hspmd_json at = member(obj, key);
	return there(obj) ? enum_value(&at, names) : 0;
}

int hspmd_json_enum_or(struct hspmd_json *obj, const char *key, const char *const *names, int absent)
{
	struct hspmd_json at = member(obj, key);
	return at.value ? enum_value(&at, names) : absent;
}

int hspmd_json_format(struct hspmd_json *root, const char *format)
{
	if (root->doc->failed || !hspmd_json_expect_object(root))
		return -1;
	struct hspmd_json at = member(root, "format");
	if (json_is_string(at.value) && !strcmp(json_string_value(at.value), format))
		return 0;
	char what[96];
	snprintf(what, sizeof what, "\"%s\"", format);
	expected(&at, what);
	return -1;
}

/* ---- elements */

size_t hspmd_json_length(const struct hspmd_json *array)
{
	return array->doc->failed ? 0 : json_array_size(array->value);
}

struct hspmd_json hspmd_json_at(const struct hspmd_json *array, size_t index)
{
	return (struct hspmd_json){ .doc = array->doc, .up = array, .index = index, .value = json_array_get(array->value, index) };
}

bool hspmd_json_is_null(const struct hspmd_json *at)
{
	return json_is_null(at->value);
}

bool hspmd_json_member(struct hspmd_json *obj, size_t index, const char **key, struct hspmd_json *at)
{
	if (!there(obj) || !hspmd_json_expect_object(obj))
		return false;
	obj->open = true;
	if (!obj->iterator || index < obj->iterated) {
		obj->iterator = json_object_iter(obj->value);
		obj->iterated = 0;
	}
	while (obj->iterator && obj->iterated < index) {
		obj->iterator = json_object_iter_next(obj->value, obj->iterator);
		obj->iterated++;
	}
	if (!obj->iterator)
		return false;
	*key = json_object_iter_key(obj->iterator);
	*at = (struct hspmd_json){ .doc = obj->doc, .up = obj, .key = *key, .value = json_object_iter_value(obj->iterator) };
	return true;
}

/* ---- unknown keys */

static int least(int a, int b, int c)
{
	int m = a < b ? a : b;
	return m < c ? m : c;
}

/* Edit distance with neighbours swapped as one edit (optimal string alignment). Both at most SLIP_MAX long. */
static int distance(const char *a, const char *b)
{
	int n = (int)strlen(b), rows[3][SLIP_MAX + 1];
	int *before = rows[0], *last = rows[1], *row = rows[2];
	for (int j = 0; j <= n; j++)
		last[j] = j;
	for (int i = 1; a[i - 1]; i++) {
		row[0] = i;
		for (int j = 1; j <= n; j++) {
			row[j] = least(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least(row[j], before[j - 2] + 1, row[j]);
		}
		int *spare = before;
		before = last;
		last = row;
		row = spare;
	}
	return last[n];
}

static const char *nearest(const struct hspmd_json *obj, const char *key)
{
	const char *best = NULL;
	int length = (int)strnlen(key, SLIP_MAX + 1);
	int best_distance = length > SLIP_MAX ? 0 : length / 3 + 2;
	for (int i = 0; i < obj->known_count; i++) {
		if (strlen(obj->known[i]) > SLIP_MAX || best_distance == 0)
			continue;
		int d = distance(key, obj->known[i]);
		if (d < best_distance) {
			best = obj->known[i];
			best_distance = d;
		}
	}
	return best;
}

static bool is_known(const struct hspmd_json *obj, const char *key)
{
	for (int i = 0; i < obj->known_count; i++)
		if (!strcmp(obj->known[i], key))
			return true;
	return false;
}

static void unknown(const struct hspmd_json *obj, const char *key)
{
	char message[HSPMD_ERROR_MAX];
	struct text t = { message, sizeof message };
	const char *near = nearest(obj, key);
	put(&t, "unknown key");
	if (near) {
		put(&t, "; did you mean \"%s\"?", near);
	} else {
		put(&t, "; known here:");
		for (int i = 0; i < obj->known_count; i++)
			put(&t, "%s %s", i ? "," : "", obj->known[i]);
	}
	fail_at(obj, key, message);
}

int hspmd_json_check_keys(struct hspmd_json *obj)
{
	if (obj->doc->failed)
		return -1;
	if (!obj->value || obj->open)
		return 0;
	const char *key;
	json_t *value;
	json_object_foreach(obj->value, key, value)
		if (!is_known(obj, key))
			unknown(obj, key);
	return obj->doc->failed ? -1 : 0;
}
