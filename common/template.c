/* SPDX-License-Identifier: Apache-2.0 */
#include "common/template.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define DEPTH_MAX 50 /* of parentheses and signs */

struct expression {
	const char *at, *text; /* next character; the expression, for messages */
	int length, depth;
	const struct hspmd_template_values *v;
	enum hspmd_template_result result;
	struct hspmd_error *err;
};

/* Notes the first failure. Returns 0, as the value of what failed. */
static int64_t fail(struct expression *x, enum hspmd_template_result result, const char *why)
{
	if (!x->result)
		hspmd_fail(x->err, "%.*s: %s", x->length < 200 ? x->length : 200, x->text, why);
	if (!x->result)
		x->result = result;
	return 0;
}

static char next(struct expression *x)
{
	while (*x->at == ' ')
		x->at++;
	return *x->at;
}

/* The path of this name of n characters; NULL: there is none. */
static const char *path_named(const char *name, size_t n, const struct hspmd_template_values *v)
{
	const struct {
		const char *name, *path;
	} paths[] = { { "latest", v->latest }, { "checkpoint", v->checkpoint } };
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		if (strlen(paths[i].name) == n && !memcmp(paths[i].name, name, n))
			return paths[i].path ? paths[i].path : "";
	return NULL;
}

static int64_t sum(struct expression *x);

static int64_t named(struct expression *x)
{
	const struct {
		const char *name;
		int64_t value;
	} names[] = { { "world", x->v->world }, { "nodes", x->v->nodes }, { "rank", x->v->rank }, { "local_rank", x->v->local_rank } };
	size_t n = 0;
	char why[160];
	while (isalnum((unsigned char)x->at[n]) || x->at[n] == '_')
		n++;
	const char *name = x->at;
	x->at += n;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i].name) == n && !memcmp(names[i].name, name, n))
			return names[i].value;
	const int shown = (int)(n < 40 ? n : 40);
	if (path_named(name, n, x->v))
		snprintf(why, sizeof why, "%.*s is a path, and stands alone: {%.*s}", shown, name, shown, name);
	else
		snprintf(why, sizeof why,
		         "unknown name \"%.*s\"; expected world, nodes, rank, local_rank, latest or checkpoint ({{ is a plain {)", shown,
		         name);
	return fail(x, HSPMD_TEMPLATE_WRONG, why);
}

static int64_t number(struct expression *x)
{
	int64_t value = 0;
	for (; isdigit((unsigned char)*x->at); x->at++)
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *x->at - '0', &value))
			return fail(x, HSPMD_TEMPLATE_WRONG, "the number is too large");
	return value;
}

static int64_t factor(struct expression *x)
{
	char c = next(x);
	int64_t value = 0;
	if (x->result)
		return 0;
	if (++x->depth > DEPTH_MAX)
		return fail(x, HSPMD_TEMPLATE_WRONG, "too many parentheses");
	if (c == '(') {
		x->at++;
		value = sum(x);
		if (next(x) != ')')
			return fail(x, HSPMD_TEMPLATE_WRONG, "expected )");
		x->at++;
	} else if (c == '+' || c == '-') {
		x->at++;
		value = factor(x);
		if (c == '-' && __builtin_sub_overflow((int64_t)0, value, &value))
			return fail(x, HSPMD_TEMPLATE_WRONG, "the number is too large");
	} else if (isdigit((unsigned char)c)) {
		value = number(x);
	} else if (isalpha((unsigned char)c)) {
		value = named(x);
	} else {
		return fail(x, HSPMD_TEMPLATE_WRONG, "expected a number, a name or (");
	}
	x->depth--;
	return value;
}

static int64_t divide(struct expression *x, int64_t a, char c, int64_t b)
{
	char why[96];
	if (x->result)
		return 0;
	if (!b)
		return fail(x, HSPMD_TEMPLATE_UNEVEN, "division by zero");
	if (b == -1)
		return c == '%'                                    ? 0
		       : __builtin_sub_overflow((int64_t)0, a, &a) ? fail(x, HSPMD_TEMPLATE_WRONG, "the number is too large")
		                                                   : a;
	if (c == '%')
		return a % b;
	if (!(a % b))
		return a / b;
	snprintf(why, sizeof why, "%" PRId64 " does not divide %" PRId64, b, a);
	return fail(x, HSPMD_TEMPLATE_UNEVEN, why);
}

static int64_t product(struct expression *x)
{
	int64_t value = factor(x);
	for (char c; !x->result && ((c = next(x)) == '*' || c == '/' || c == '%');) {
		x->at++;
		int64_t by = factor(x);
		if (c != '*')
			value = divide(x, value, c, by);
		else if (__builtin_mul_overflow(value, by, &value))
			return fail(x, HSPMD_TEMPLATE_WRONG, "the number is too large");
	}
	return value;
}

static int64_t sum(struct expression *x)
{
	int64_t value = product(x);
	for (char c; !x->result && ((c = next(x)) == '+' || c == '-');) {
		x->at++;
		int64_t more = product(x);
		if (c == '+' ? __builtin_add_overflow(value, more, &value) : __builtin_sub_overflow(value, more, &value))
			return fail(x, HSPMD_TEMPLATE_WRONG, "the number is too large");
	}
	return value;
}

/* The path that is all of the expression; NULL: it is something else. */
static const char *path_alone(struct expression *x)
{
	next(x);
	size_t n = strspn(x->at, "abcdefghijklmnopqrstuvwxyz");
	return x->at[n + strspn(x->at + n, " ")] == '}' ? path_named(x->at, n, x->v) : NULL;
}

/* Writes the value of the expression that begins at `text` ("{..."), and sets *end after its "}". */
static enum hspmd_template_result evaluate(const char *text, const struct hspmd_template_values *v, FILE *out, const char **end,
                                           struct hspmd_error *err)
{
	const char *brace = strchr(text, '}');
	struct expression x = {
		.at = text + 1, .text = text, .length = brace ? (int)(brace - text) + 1 : (int)strlen(text), .v = v, .err = err
	};
	if (!brace)
		fail(&x, HSPMD_TEMPLATE_WRONG, "expected } ({{ is a plain {)");
	const char *path = brace ? path_alone(&x) : NULL;
	if (path) {
		fputs(path, out);
		*end = brace + 1;
		return HSPMD_TEMPLATE_DONE;
	}
	int64_t value = sum(&x);
	if (!x.result && next(&x) != '}')
		fail(&x, HSPMD_TEMPLATE_WRONG, "expected an operator or }");
	fprintf(out, "%" PRId64, value);
	*end = x.at + 1;
	return x.result;
}

static bool begins_expression(char c)
{
	return isalnum((unsigned char)c) || c == '(' || c == '+' || c == '-' || c == ' ';
}

enum hspmd_template_result hspmd_template_expand(const char *text, const struct hspmd_template_values *v, char **out,
                                                 struct hspmd_error *err)
{
	enum hspmd_template_result result = HSPMD_TEMPLATE_DONE;
	char *made = NULL;
	size_t size;
	FILE *f = open_memstream(&made, &size);
	if (out)
		*out = NULL;
	if (!f)
		return hspmd_fail_memory(err, "filling in an argument");
	while (!result && *text) {
		if (text[0] == '{' && text[1] == '{' && begins_expression(text[2])) {
			fputc('{', f);
			text += 2;
		} else if (text[0] == '{' && begins_expression(text[1])) {
			result = evaluate(text, v, f, &text, err);
		} else {
			fputc(*text++, f);
		}
	}
	if (fclose(f) && !result)
		result = hspmd_fail_memory(err, "filling in an argument");
	if (result || !out)
		free(made);
	else
		*out = made;
	return result;
}
