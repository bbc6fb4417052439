/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON with checks: a reader asks for every value with its type and range. An error names file and JSON path
 * ("cluster.json: nodes[2].devices[0].count: expected 1..1024, got 0").
 *
 * A `struct hspmd_json` is a cursor: a borrowed json_t and the path to it. Cursors live on the stack, point to their parent, and are
 * valid as long as the parent. Reading a key marks it as known; hspmd_json_check_keys() reports keys that nobody has read. The document
 * keeps its first error, so a caller may read field after field and test once at the end. A document with a `struct hspmd_mistakes`
 * continues after an error, and so reports all of them; its reader must expect 0 or NULL of each value, and make no complaint that only
 * follows from an earlier one (hspmd_json_mistakes). */
#ifndef HSPMD_COMMON_JSON_H
#define HSPMD_COMMON_JSON_H

#include <float.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/mistakes.h"

#define HSPMD_JSON_KEYS_MAX 48 /* known keys of one object; objects whose keys are data are read with hspmd_json_member */
#define HSPMD_JSON_MAX_BYTES ((size_t)256 << 20)

/* Bounds for the number readers: the least positive number (messages say "above 0"), and no upper bound. */
#define HSPMD_JSON_POSITIVE DBL_MIN
#define HSPMD_JSON_UNBOUNDED DBL_MAX

struct hspmd_json_doc {
	const char *file; /* name in messages; borrowed */
	json_t *root;     /* owned */
	struct hspmd_error *err;
	struct hspmd_mistakes *all; /* borrowed, set after opening; NULL: the first error ends reading */
	bool failed;                /* nothing more is read */
	bool rounded; /* an integer was too large: all numbers were read as reals */
};

struct hspmd_json {
	struct hspmd_json_doc *doc;
	const struct hspmd_json *up;            /* NULL at the root */
	const char *key;                        /* member of an object, or NULL */
	size_t index;                           /* element of an array, when key is NULL */
	json_t *value;                          /* borrowed; NULL after an error or if an optional key is absent */
	const char *known[HSPMD_JSON_KEYS_MAX]; /* keys that were read, borrowed */
	int known_count;
	bool open;       /* the object's keys are data: hspmd_json_member was used */
	void *iterator;  /* position of hspmd_json_member */
	size_t iterated; /* number of the member at that position */
};

/* Open a file ("-" is standard input) or a text; 0 or -1. Size limit 256 MiB, depth limit jansson's; duplicate keys are errors.
 * `path`, `name` and err are borrowed until hspmd_json_close. After a failure closing is not necessary, but harmless. */
int hspmd_json_open(struct hspmd_json_doc *doc, const char *path, struct hspmd_error *err);
int hspmd_json_parse(struct hspmd_json_doc *doc, const char *name, const char *text, size_t length, struct hspmd_error *err);
/* A document over a value of the caller; takes a reference of its own. */
int hspmd_json_wrap(struct hspmd_json_doc *doc, const char *name, json_t *value, struct hspmd_error *err);
void hspmd_json_close(struct hspmd_json_doc *doc);

struct hspmd_json hspmd_json_root(struct hspmd_json_doc *doc);

/* The root's "format" must be exactly `format`. */
int hspmd_json_format(struct hspmd_json *root, const char *format);

/* Members. If the key is absent, the required forms fail and the optional forms return `absent`. JSON null counts as absent.
 * After a failure they return 0 / NULL / a cursor with value NULL, on which every further call is harmless (an absent optional
 * object reads as one with no members: optional members give their `absent`, required ones 0 or NULL without an error). */
bool hspmd_json_has(struct hspmd_json *obj, const char *key);
struct hspmd_json hspmd_json_object(struct hspmd_json *obj, const char *key);
struct hspmd_json hspmd_json_object_or_none(struct hspmd_json *obj, const char *key);
struct hspmd_json hspmd_json_array(struct hspmd_json *obj, const char *key, size_t min, size_t max);
struct hspmd_json hspmd_json_array_or_none(struct hspmd_json *obj, const char *key, size_t min, size_t max);
struct hspmd_json hspmd_json_any(struct hspmd_json *obj, const char *key); /* any type; value NULL if absent */
/* A number without a fraction, such as 4e9. */
int64_t hspmd_json_int(struct hspmd_json *obj, const char *key, int64_t min, int64_t max);
int64_t hspmd_json_int_or(struct hspmd_json *obj, const char *key, int64_t min, int64_t max, int64_t absent);
double hspmd_json_number(struct hspmd_json *obj, const char *key, double min, double max); /* NaN, infinities refused */
double hspmd_json_number_or(struct hspmd_json *obj, const char *key, double min, double max, double absent);
bool hspmd_json_bool_or(struct hspmd_json *obj, const char *key, bool absent);
const char *hspmd_json_string(struct hspmd_json *obj, const char *key); /* borrowed from the document; not empty */
const char *hspmd_json_string_or(struct hspmd_json *obj, const char *key, const char *absent);
/* Index of the value in a NULL-terminated list of names. */
int hspmd_json_enum(struct hspmd_json *obj, const char *key, const char *const *names);
int hspmd_json_enum_or(struct hspmd_json *obj, const char *key, const char *const *names, int absent);

/* Elements of an array cursor (length 0 when value is NULL), and the cursor's value. */
size_t hspmd_json_length(const struct hspmd_json *array);
struct hspmd_json hspmd_json_at(const struct hspmd_json *array, size_t index);
int64_t hspmd_json_int_value(struct hspmd_json *at, int64_t min, int64_t max);
/* The same without an error: returns false if the value is no such integer. */
bool hspmd_json_int_within(const struct hspmd_json *at, int64_t min, int64_t max, int64_t *out);
double hspmd_json_number_value(struct hspmd_json *at, double min, double max);
const char *hspmd_json_string_value(struct hspmd_json *at);
bool hspmd_json_is_null(const struct hspmd_json *at);
bool hspmd_json_expect_object(struct hspmd_json *at);
bool hspmd_json_expect_array(struct hspmd_json *at, size_t min, size_t max);

/* Member number `index` of an object in file order, for objects whose keys are data; false past the end. All keys count as known. */
bool hspmd_json_member(struct hspmd_json *obj, size_t index, const char **key, struct hspmd_json *member);

/* Fails if the object has a key that was not read; the message names the nearest known key if the key looks like a misspelling.
 * -1 if the document has failed, now or before. */
int hspmd_json_check_keys(struct hspmd_json *obj);

/* Report an error at this place. Always returns -1. The document keeps its first error. */
int hspmd_json_fail(const struct hspmd_json *at, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "expected WHAT, got VALUE", or ", but it is missing". -1. */
int hspmd_json_fail_value(const struct hspmd_json *at, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for "out of memory". */
int hspmd_json_fail_memory(const struct hspmd_json *at);
bool hspmd_json_failed(const struct hspmd_json *at);
/* How many errors there were so far in the document, and in others with the same struct hspmd_mistakes. */
int hspmd_json_mistakes(const struct hspmd_json *at);

/* ---- writing (json_write.c) */

/* New reference to the shortest number: an integer if the value is integral, null for NaN. NULL: out of memory. */
json_t *hspmd_json_real(double value);
/* Returns `value`, or NULL (and drops the reference) if `failed`. json_object_set_new and json_array_append_new refuse NULL and always
 * take the reference, so building a value is a chain of `bad |= json_..._set_new(...)` that ends in
 * `return hspmd_json_unless_failed(bad, value)`. */
json_t *hspmd_json_unless_failed(int failed, json_t *value);
/* The text that hspmd_json_save writes: indented by 2, on one line what fits, every number in the fewest digits that read back as the
 * same value. malloc'd, ends in a newline; NULL: out of memory. */
char *hspmd_json_text(const json_t *value);
/* Write a value to a file durably (temporary file, fsync, rename, fsync of the folder), or to stdout for "-". */
int hspmd_json_save(const json_t *value, const char *path, struct hspmd_error *err);

#endif
