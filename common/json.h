/* SPDX-License-Identifier: Apache-2.0 */
/* Reading checked JSON: every value is asked for with its type and range, and what is wrong is told with file and JSON path
 * ("cluster.json: nodes[2].devices[0].count: expected 1..1024, got 0").
 *
 * A `struct hspmd_json` is a cursor: a borrowed json_t with the path that leads to it. Cursors live on the stack, point to
 * their parent, and are valid while it is. Reading marks a key as known; hspmd_json_done() complains about keys nobody asked for.
 * The first error wins and sticks in the document, so callers may read field after field and test once at the end.
 */
#ifndef HSPMD_COMMON_JSON_H
#define HSPMD_COMMON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct hspmd_json_doc {
	const char *file; /* name in messages; borrowed */
	json_t *root;     /* owned */
	struct hspmd_error *err;
	bool failed;
};

struct hspmd_json {
	struct hspmd_json_doc *doc;
	const struct hspmd_json *up; /* NULL at the root */
	const char *key;             /* member of an object, or NULL */
	size_t index;                /* element of an array, when key is NULL */
	json_t *value;               /* borrowed; NULL after an error or when an optional key is absent */
	uint64_t seen;               /* which of the object's first 64 members were asked for */
};

/* Open a file ("-" is standard input) or a text; 0 or -1. Size limit 256 MiB, depth limit jansson's; duplicate keys are errors. */
int hspmd_json_open(struct hspmd_json_doc *doc, const char *path, struct hspmd_error *err);
int hspmd_json_parse(struct hspmd_json_doc *doc, const char *name, const char *text, size_t length, struct hspmd_error *err);
/* A document over a value that the caller has; takes a reference of its own. */
int hspmd_json_wrap(struct hspmd_json_doc *doc, const char *name, json_t *value, struct hspmd_error *err);
void hspmd_json_close(struct hspmd_json_doc *doc);

struct hspmd_json hspmd_json_root(struct hspmd_json_doc *doc);

/* The root's "format" must be exactly `format`. */
int hspmd_json_format(struct hspmd_json *root, const char *format);

/* Members. The required forms fail when the key is absent; the optional ones return `absent` then. JSON null counts as absent.
 * After a failure they return 0 / NULL / a cursor with value NULL, on which every further call is harmless. */
bool hspmd_json_has(struct hspmd_json *obj, const char *key);
struct hspmd_json hspmd_json_object(struct hspmd_json *obj, const char *key);
struct hspmd_json hspmd_json_object_or_none(struct hspmd_json *obj, const char *key);
struct hspmd_json hspmd_json_array(struct hspmd_json *obj, const char *key, size_t min, size_t max);
struct hspmd_json hspmd_json_array_or_none(struct hspmd_json *obj, const char *key, size_t min, size_t max);
struct hspmd_json hspmd_json_any(struct hspmd_json *obj, const char *key); /* of any type; value NULL when absent */
int64_t hspmd_json_int(struct hspmd_json *obj, const char *key, int64_t min, int64_t max);
int64_t hspmd_json_int_or(struct hspmd_json *obj, const char *key, int64_t min, int64_t max, int64_t absent);
double hspmd_json_number(struct hspmd_json *obj, const char *key, double min, double max); /* NaN, infinities refused */
double hspmd_json_number_or(struct hspmd_json *obj, const char *key, double min, double max, double absent);
bool hspmd_json_bool_or(struct hspmd_json *obj, const char *key, bool absent);
const char *hspmd_json_string(struct hspmd_json *obj, const char *key);                 /* borrowed from the document; not empty */
const char *hspmd_json_string_or(struct hspmd_json *obj, const char *key, const char *absent);
/* One of the words of a NULL-terminated list; its index. */
int hspmd_json_word(struct hspmd_json *obj, const char *key, const char *const *words);
int hspmd_json_word_or(struct hspmd_json *obj, const char *key, const char *const *words, int absent);

/* Elements of an array cursor (length 0 when value is NULL), and the cursor's own value. */
size_t hspmd_json_length(const struct hspmd_json *array);
struct hspmd_json hspmd_json_at(const struct hspmd_json *array, size_t index);
int64_t hspmd_json_int_value(struct hspmd_json *at, int64_t min, int64_t max);
double hspmd_json_number_value(struct hspmd_json *at, double min, double max);
const char *hspmd_json_string_value(struct hspmd_json *at);
bool hspmd_json_is_null(const struct hspmd_json *at);
bool hspmd_json_expect_object(struct hspmd_json *at);
bool hspmd_json_expect_array(struct hspmd_json *at, size_t min, size_t max);

/* Member number `index` of an object in file order, for objects whose keys are data; false past the end. Marks it as known. */
bool hspmd_json_member(struct hspmd_json *obj, size_t index, const char **key, struct hspmd_json *member);

/* Fail when the object has a key that was not asked for (names the nearest known one when it looks like a slip). */
int hspmd_json_done(struct hspmd_json *obj);

/* Report an error at this place. Always returns -1. The first error of a document is the one kept. */
int hspmd_json_fail(const struct hspmd_json *at, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool hspmd_json_failed(const struct hspmd_json *at);

/* Write a value to a file durably (temporary file, fsync, rename, fsync of the folder), indented by 2, or to stdout for "-". */
int hspmd_json_save(const json_t *value, const char *path, struct hspmd_error *err);

#endif
