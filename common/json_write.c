/* SPDX-License-Identifier: Apache-2.0 */
/* JSON for people and programs. jansson prints every real with 17 digits and every element on its own line, which makes a measured curve
 * unreadable. These functions print the fewest digits that read back as the same value, and on one line what fits. */
#include "common/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"

#define LINE_MAX_BYTES 120
#define DEPTH_MAX 512

struct out {
	char *text;
	size_t length, capacity;
	int failed;
};

static void add(struct out *o, const char *text, size_t n)
{
	if (o->failed)
		return;
	if (o->capacity - o->length <= n) {
		size_t wanted = (o->length + n + 1) * 2;
		char *grown = realloc(o->text, wanted);
		if (!grown) {
			o->failed = 1;
			return;
		}
		o->text = grown;
		o->capacity = wanted;
	}
	memcpy(o->text + o->length, text, n);
	o->length += n;
	o->text[o->length] = '\0';
}

static void add_text(struct out *o, const char *text)
{
	add(o, text, strlen(text));
}

static void add_real(struct out *o, double value)
{
	char digits[40];
	if (value == floor(value) && fabs(value) < 1e15) { /* 3600.0, not 3.6e+03 */
		snprintf(digits, sizeof digits, "%.1f", value);
		add_text(o, digits);
		return;
	}
	for (int precision = 1; precision <= 17; precision++) {
		snprintf(digits, sizeof digits, "%.*g", precision, value);
		if (strtod(digits, NULL) == value)
			break;
	}
	add_text(o, digits);
	if (!strpbrk(digits, ".e")) /* else it would read back as an integer */
		add_text(o, ".0");
}

static void add_scalar(struct out *o, const json_t *value)
{
	if (json_is_real(value)) {
		add_real(o, json_real_value(value));
		return;
	}
	char *text = json_dumps(value, JSON_ENCODE_ANY);
	if (text)
		add_text(o, text);
	else
		o->failed = 1;
	free(text);
}

static void add_key(struct out *o, const char *key)
{
	json_t *name = json_string_nocheck(key);
	add_scalar(o, name);
	add_text(o, ": ");
	json_decref(name);
}

static void add_value(struct out *o, const json_t *value, int depth, int flat);

/* The start of an element: after the bracket or a comma, on a line of its own unless the container is flat. */
static void separate(struct out *o, int first, int depth, int flat)
{
	if (!first)
		add_text(o, flat ? ", " : ",");
	if (flat)
		return;
	add_text(o, "\n");
	for (int i = 0; i < depth; i++)
		add_text(o, "  ");
}

static void add_container(struct out *o, const json_t *value, int depth, int flat)
{
	int is_object = json_is_object(value), first = 1;
	add_text(o, is_object ? "{" : "[");
	if (is_object) {
		const char *key;
		json_t *member;
		json_object_foreach((json_t *)value, key, member) {
			separate(o, first, depth + 1, flat);
			add_key(o, key);
			add_value(o, member, depth + 1, flat);
			first = 0;
		}
	} else {
		for (size_t i = 0; i < json_array_size(value); i++) {
			separate(o, first, depth + 1, flat);
			add_value(o, json_array_get(value, i), depth + 1, flat);
			first = 0;
		}
	}
	if (!first && !flat) {
		add_text(o, "\n");
		for (int i = 0; i < depth; i++)
			add_text(o, "  ");
	}
	add_text(o, is_object ? "}" : "]");
}

/* A cheap lower bound of the bytes of a value on one line; stops counting beyond `budget`. */
static long narrow(const json_t *value, long budget)
{
	if (budget < 0 || !value)
		return budget;
	if (json_is_string(value))
		return budget - (long)json_string_length(value) - 2;
	if (json_is_array(value)) {
		for (size_t i = 0; i < json_array_size(value) && budget >= 0; i++)
			budget = narrow(json_array_get(value, i), budget - 2);
		return budget;
	}
	if (!json_is_object(value))
		return budget - 1;
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)value, key, member) {
		budget = narrow(member, budget - (long)strlen(key) - 4);
		if (budget < 0)
			break;
	}
	return budget;
}

static void add_value(struct out *o, const json_t *value, int depth, int flat)
{
	if (!json_is_object(value) && !json_is_array(value)) {
		add_scalar(o, value);
		return;
	}
	if (depth > DEPTH_MAX) {
		o->failed = 1;
		return;
	}
	size_t start = o->length;
	if (flat || narrow(value, LINE_MAX_BYTES - 2 * depth) >= 0) {
		add_container(o, value, depth, 1);
		if (flat || o->failed || o->length - start <= (size_t)(LINE_MAX_BYTES - 2 * depth))
			return;
		o->length = start;
	}
	add_container(o, value, depth, 0);
}

char *hspmd_json_text(const json_t *value)
{
	struct out o = { .text = NULL };
	if (!value)
		return NULL;
	add_value(&o, value, 0, 0);
	add_text(&o, "\n");
	if (!o.failed)
		return o.text;
	free(o.text);
	return NULL;
}

json_t *hspmd_json_real(double value)
{
	if (isnan(value))
		return json_null();
	if (value == floor(value) && fabs(value) < 9007199254740992.0 && !(value == 0 && signbit(value)))
		return json_integer((json_int_t)value);
	return json_real(value);
}

json_t *hspmd_json_unless_failed(int failed, json_t *value)
{
	if (!failed)
		return value;
	json_decref(value);
	return NULL;
}

int hspmd_json_save(const json_t *value, const char *path, struct hspmd_error *err)
{
	char *text = hspmd_json_text(value);
	if (!text)
		return hspmd_fail_memory(err, path);
	int rc = 0;
	if (!strcmp(path, "-")) {
		if (fputs(text, stdout) == EOF || fflush(stdout) == EOF)
			rc = hspmd_fail_errno(err, "standard output");
	} else {
		rc = hspmd_durable_write(path, text, strlen(text), err);
	}
	free(text);
	return rc;
}
