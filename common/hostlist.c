/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hostlist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define NUMBER_DIGITS_MAX 15 /* fits int64_t, and is beyond any node number */
#define NAME_MAX_BYTES 255   /* of a host name */
#define SHOWN_MAX 60         /* bytes of an expression that a message shows */

static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
static const char digit_chars[] = "0123456789";

/* ---- expanding */

struct out {
	const char *all; /* the whole expression, for messages */
	char **names;    /* NULL while only counting */
	int64_t count;
	int max;
	struct hspmd_error *err;
};

static int bad(const struct out *o, const char *what)
{
	return hspmd_fail(o->err, "host list \"%.*s\": %s", SHOWN_MAX, o->all, what);
}

/* A number at *text; its width is the number of digits to which its run is padded. */
static int read_number(const struct out *o, const char **text, int64_t *value, int *width)
{
	size_t n = strspn(*text, digit_chars);
	if (!n)
		return bad(o, "a number is missing inside brackets");
	if (n > NUMBER_DIGITS_MAX)
		return bad(o, "a number inside brackets is too long");
	*value = 0;
	for (size_t i = 0; i < n; i++)
		*value = *value * 10 + ((*text)[i] - '0');
	*width = (int)n;
	*text += n;
	return 0;
}

/* One run "lo" or "lo-hi" at *text. */
static int read_run(const struct out *o, const char **text, int64_t *lo, int64_t *hi, int *width)
{
	int hi_width;
	if (read_number(o, text, lo, width))
		return -1;
	*hi = *lo;
	if (**text == '-') {
		++*text;
		if (read_number(o, text, hi, &hi_width))
			return -1;
	}
	if (*hi < *lo)
		return bad(o, "a range runs backwards");
	if (**text != ',' && **text != ']')
		return bad(o, **text ? "unexpected character inside brackets" : "missing ]");
	return 0;
}

/* Number of names that the bracket group after '[' stands for; moves *text behind its ']'. */
static int count_group(const struct out *o, const char **text, int64_t *count)
{
	*count = 0;
	for (;;) {
		int64_t lo, hi;
		int width;
		if (read_run(o, text, &lo, &hi, &width))
			return -1;
		*count += hi - lo + 1;
		if (*count > o->max)
			return hspmd_fail(o->err, "host list \"%.*s\": more than %d names", SHOWN_MAX, o->all, o->max);
		if (*(*text)++ == ']')
			return 0;
	}
}

/* Check one item (up to a comma outside brackets, or the end) and count its names, without making any. */
static int count_item(const struct out *o, const char **text, int64_t *total)
{
	*total = 1;
	if (!**text || **text == ',')
		return bad(o, "a name is missing");
	while (**text && **text != ',') {
		int64_t group = 1;
		if (**text == '[') {
			++*text;
			if (count_group(o, text, &group))
				return -1;
		} else {
			size_t n = strspn(*text, name_chars);
			if (!n)
				return bad(o, "only letters, digits, '.', '_', '-', brackets and commas can stand here");
			*text += n;
		}
		*total *= group; /* both are at most max, an int */
		if (*total > o->max)
			return hspmd_fail(o->err, "host list \"%.*s\": more than %d names", SHOWN_MAX, o->all, o->max);
	}
	return 0;
}

/* Make the names of the item at `text`, which has been checked, after the first `length` bytes of name[]. */
static int make_names(struct out *o, const char *text, char *name, size_t length)
{
	size_t n = strspn(text, name_chars);
	if (length + n > NAME_MAX_BYTES)
		return bad(o, "a name is too long");
	memcpy(name + length, text, n);
	length += n;
	name[length] = '\0';
	text += n;
	if (*text != '[') {
		char *copy = strdup(name);
		if (!copy)
			return hspmd_fail_memory(o->err, "expanding a host list");
		o->names[o->count++] = copy;
		return 0;
	}
	const char *end = strchr(text, ']') + 1;
	do {
		int64_t lo, hi;
		int width;
		text++;
		if (read_run(o, &text, &lo, &hi, &width))
			return -1;
		for (int64_t i = lo; i <= hi; i++) {
			int wrote = snprintf(name + length, NAME_MAX_BYTES + 1 - length, "%0*lld", width, (long long)i);
			if (length + (size_t)wrote > NAME_MAX_BYTES)
				return bad(o, "a name is too long");
			if (make_names(o, end, name, length + (size_t)wrote))
				return -1;
		}
	} while (*text == ',');
	return 0;
}

/* Check the whole expression and count its names. */
static int64_t count_names(const struct out *o)
{
	int64_t total = 0;
	for (const char *p = o->all;; p++) {
		int64_t n;
		if (count_item(o, &p, &n))
			return -1;
		total += n;
		if (total > o->max)
			return hspmd_fail(o->err, "host list \"%.*s\": more than %d names", SHOWN_MAX, o->all, o->max);
		if (!*p)
			return total;
	}
}

/* The next item's first byte, or NULL behind the last. */
static const char *next_item(const char *p)
{
	for (int depth = 0; *p; p++) {
		depth += (*p == '[') - (*p == ']');
		if (*p == ',' && !depth)
			return p + 1;
	}
	return NULL;
}

int hspmd_hostlist_expand(const char *text, int max, char ***names, struct hspmd_error *err)
{
	struct out o = { .all = text, .max = max, .err = err };
	int64_t total = count_names(&o);
	if (total < 0)
		return -1;
	o.names = hspmd_calloc((size_t)total, sizeof *o.names);
	if (!o.names)
		return hspmd_fail_memory(err, "expanding a host list");
	char name[NAME_MAX_BYTES + 1];
	for (const char *p = text; p; p = next_item(p)) {
		if (make_names(&o, p, name, 0)) {
			hspmd_hostlist_free(o.names, (int)o.count);
			return -1;
		}
	}
	*names = o.names;
	return (int)o.count;
}

void hspmd_hostlist_free(char **names, int count)
{
	for (int i = 0; names && i < count; i++)
		free(names[i]);
	free(names);
}

/* ---- folding */

/* A name as prefix, number and suffix; the number is the last run of digits. */
struct split {
	const char *name, *suffix;
	size_t prefix; /* bytes before the number */
	int width;     /* digits; 0: the name has no number that could run */
	int64_t number;
};

static struct split split_name(const char *name)
{
	struct split s = { .name = name };
	size_t end = strlen(name);
	while (end && !strchr(digit_chars, name[end - 1]))
		end--;
	s.suffix = name + end;
	while (end && strchr(digit_chars, name[end - 1]))
		end--;
	s.prefix = end;
	size_t width = (size_t)(s.suffix - name) - end;
	if (!width || width > NUMBER_DIGITS_MAX)
		return s;
	s.width = (int)width;
	for (size_t i = 0; i < width; i++)
		s.number = s.number * 10 + (name[end + i] - '0');
	return s;
}

static int same_group(const struct split *a, const struct split *b)
{
	return a->width && b->width && a->prefix == b->prefix && !memcmp(a->name, b->name, a->prefix) && !strcmp(a->suffix, b->suffix);
}

/* Returns true if b comes right after a in a run that is padded as `first` is. */
static int follows(const struct split *first, const struct split *a, const struct split *b)
{
	char expected[32];
	int n = snprintf(expected, sizeof expected, "%0*lld", first->width, (long long)a->number + 1);
	return n == b->width && b->number == a->number + 1;
}

/* The last name of the run that starts at names[i], within a group that ends before names[end]. */
static int run_end(char *const *names, int i, int end)
{
	struct split first = split_name(names[i]), last = first;
	for (; i + 1 < end; i++) {
		struct split next = split_name(names[i + 1]);
		if (!follows(&first, &last, &next))
			break;
		last = next;
	}
	return i;
}

static void fold_group(FILE *f, char *const *names, int start, int end)
{
	struct split head = split_name(names[start]);
	if (end - start == 1) {
		fputs(names[start], f);
		return;
	}
	fprintf(f, "%.*s[", (int)head.prefix, head.name);
	for (int i = start; i < end; i++) {
		struct split first = split_name(names[i]);
		int last_at = run_end(names, i, end);
		fprintf(f, "%s%.*s", i > start ? "," : "", first.width, first.name + first.prefix);
		if (last_at > i) {
			struct split last = split_name(names[last_at]);
			fprintf(f, "-%.*s", last.width, last.name + last.prefix);
		}
		i = last_at;
	}
	fprintf(f, "]%s", head.suffix);
}

char *hspmd_hostlist_fold(char *const *names, int count)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	for (int i = 0; i < count;) {
		struct split head = split_name(names[i]);
		int end = i + 1;
		for (; end < count; end++) {
			struct split next = split_name(names[end]);
			if (!same_group(&head, &next))
				break;
		}
		fprintf(f, "%s", i ? "," : "");
		fold_group(f, names, i, end);
		i = end;
	}
	int failed = ferror(f);
	if (fclose(f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
