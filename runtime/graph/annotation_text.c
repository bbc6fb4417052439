/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations as text:
 *
 *     annotation = "{" group { "|" group } "}" [ "h" dim cut ]
 *     group      = "[" run { "," run } "]" [ ":" { dim ":" parts cut } ]
 *     run        = device [ "-" device ]          inclusive, ascending
 *     cut        = [ "/" unit ] [ "(" weight { ":" weight } ")" ]
 *     dim        = a dimension, "-1" duplicate, "-2" partial
 *
 * Spaces may stand between words. What is left out: unit 1, even weights, hdim -1.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/graph/annotation.h"

/* ---- printing */

static void print_cut(FILE *f, int parts, int64_t unit, const int64_t *weights)
{
	if (unit != 1)
		fprintf(f, "/%" PRId64, unit);
	for (int i = 0; weights && i < parts; i++)
		fprintf(f, "%s%" PRId64, i ? ":" : "(", weights[i]);
	if (weights)
		fputc(')', f);
}

static void print_group(FILE *f, const struct hspmd_subgroup *g)
{
	for (int i = 0; i < g->device_count;) {
		int end = i + 1;
		while (end < g->device_count && g->devices[end] == g->devices[end - 1] + 1)
			end++;
		fprintf(f, "%s%d", i ? "," : "[", g->devices[i]);
		if (end - i > 2)
			fprintf(f, "-%d", g->devices[end - 1]);
		else
			end = i + 1;
		i = end;
	}
	fputs(g->split_count ? "]:" : "]", f);
	for (int s = 0; s < g->split_count; s++) {
		fprintf(f, " %d:%d", g->splits[s].dim, g->splits[s].parts);
		print_cut(f, g->splits[s].parts, g->splits[s].unit, g->splits[s].weights);
	}
}

char *hspmd_annotation_text(const struct hspmd_annotation *a)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	for (int g = 0; g < a->hsize; g++) {
		fputs(g ? " | " : "{", f);
		print_group(f, &a->groups[g]);
	}
	fputc('}', f);
	if (a->hdim != HSPMD_DUPLICATE) {
		fprintf(f, " h%d", a->hdim);
		print_cut(f, a->hsize, a->hunit, a->hweights);
	}
	bool failed = ferror(f);
	if (fclose(f) != 0 || failed) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- parsing */

struct parser {
	const char *text, *at;
	int64_t device_count; /* of all subgroups so far: bounds memory before the check */
	struct hspmd_error *err;
};

static int expected(const struct parser *p, const char *what)
{
	return hspmd_fail(p->err, "annotation '%.200s': column %td: expected %s", p->text, p->at - p->text + 1, what);
}

static void skip_spaces(struct parser *p)
{
	while (*p->at == ' ' || *p->at == '\t')
		p->at++;
}

static bool accept(struct parser *p, char c)
{
	skip_spaces(p);
	if (*p->at != c)
		return false;
	p->at++;
	return true;
}

static int number(struct parser *p, int64_t low, int64_t high, const char *what, int64_t *value)
{
	skip_spaces(p);
	const char *digits = p->at + (*p->at == '-');
	if (*digits < '0' || *digits > '9')
		return expected(p, what);
	char *end;
	errno = 0;
	long long v = strtoll(p->at, &end, 10);
	if (errno == ERANGE || v < low || v > high)
		return expected(p, what);
	*value = v;
	p->at = end;
	return 0;
}

struct numbers {
	int64_t *value;
	size_t count, capacity;
};

static int numbers_add(struct parser *p, struct numbers *n, int64_t value)
{
	if (hspmd_grow(&n->value, &n->capacity, n->count, sizeof *n->value) != 0)
		return hspmd_fail_memory(p->err, "reading an annotation");
	n->value[n->count++] = value;
	return 0;
}

static int parse_weights(struct parser *p, struct numbers *weights)
{
	do {
		int64_t w;
		if (number(p, 1, INT64_MAX, "a weight of 1 or more", &w) != 0 || numbers_add(p, weights, w) != 0)
			return -1;
	} while (accept(p, ':'));
	return accept(p, ')') ? 0 : expected(p, "':' or ')'");
}

static int parse_cut(struct parser *p, int64_t parts, int64_t *unit, struct numbers *weights)
{
	*unit = 1;
	weights->count = 0;
	if (accept(p, '/') && number(p, 1, INT64_MAX, "a unit of 1 or more", unit) != 0)
		return -1;
	if (!accept(p, '('))
		return 0;
	if (parse_weights(p, weights) != 0)
		return -1;
	return (int64_t)weights->count == parts ? 0 : expected(p, "as many weights as parts");
}

static int parse_devices(struct parser *p, struct numbers *devices)
{
	if (!accept(p, '['))
		return expected(p, "'['");
	do {
		int64_t first, last;
		if (number(p, 0, INT_MAX, "a device number", &first) != 0)
			return -1;
		last = first;
		if (accept(p, '-') && number(p, first, INT_MAX, "a device number that is not below the first", &last) != 0)
			return -1;
		p->device_count += last - first + 1;
		if (p->device_count > HSPMD_ANNOTATION_MAX_DEVICES)
			return expected(p, "fewer devices");
		for (int64_t d = first; d <= last; d++)
			if (numbers_add(p, devices, d) != 0)
				return -1;
	} while (accept(p, ','));
	return accept(p, ']') ? 0 : expected(p, "',' or ']'");
}

static int parse_splits(struct parser *p, struct hspmd_annotation *group, struct numbers *weights)
{
	for (;;) {
		skip_spaces(p);
		if (*p->at != '-' && (*p->at < '0' || *p->at > '9'))
			return 0;
		int64_t dim, parts, unit;
		if (number(p, HSPMD_PARTIAL, HSPMD_MAX_RANK - 1, "a dimension", &dim) != 0)
			return -1;
		if (!accept(p, ':'))
			return expected(p, "':'");
		if (number(p, 1, HSPMD_ANNOTATION_MAX_DEVICES, "a number of parts", &parts) != 0 ||
		    parse_cut(p, parts, &unit, weights) != 0)
			return -1;
		if (dim < 0 && (unit != 1 || weights->count))
			return expected(p, "no unit and no weights for what is not split");
		if (hspmd_annotation_split(group, 0, (int)dim, (int)parts, unit, weights->count ? weights->value : NULL) != 0)
			return hspmd_fail_memory(p->err, "reading an annotation");
	}
}

/* One subgroup, as an annotation of its own; NULL: failed. */
static struct hspmd_annotation *parse_group(struct parser *p, struct numbers *scratch)
{
	scratch->count = 0;
	if (parse_devices(p, scratch) != 0)
		return NULL;
	int *devices = hspmd_calloc(scratch->count, sizeof *devices);
	struct hspmd_annotation *group = NULL;
	if (devices) {
		for (size_t i = 0; i < scratch->count; i++)
			devices[i] = (int)scratch->value[i];
		group = hspmd_annotation_single(devices, (int)scratch->count);
		free(devices);
	}
	if (!group) {
		hspmd_fail_memory(p->err, "reading an annotation");
		return NULL;
	}
	if (accept(p, ':') && parse_splits(p, group, scratch) != 0) {
		hspmd_annotation_destroy(group);
		return NULL;
	}
	return group;
}

struct groups {
	struct hspmd_annotation **group;
	size_t count, capacity;
};

static int parse_groups(struct parser *p, struct groups *groups, struct numbers *scratch)
{
	if (!accept(p, '{'))
		return expected(p, "'{'");
	do {
		if (hspmd_grow(&groups->group, &groups->capacity, groups->count, sizeof *groups->group) != 0)
			return hspmd_fail_memory(p->err, "reading an annotation");
		struct hspmd_annotation *group = parse_group(p, scratch);
		if (!group)
			return -1;
		groups->group[groups->count++] = group;
	} while (accept(p, '|'));
	return accept(p, '}') ? 0 : expected(p, "an entry, '|' or '}'");
}

static struct hspmd_annotation *parse_union(struct parser *p, struct groups *groups, struct numbers *scratch)
{
	if (parse_groups(p, groups, scratch) != 0)
		return NULL;
	int64_t hdim = HSPMD_DUPLICATE, hunit = 1;
	scratch->count = 0;
	if (accept(p, 'h') && (number(p, HSPMD_PARTIAL, HSPMD_MAX_RANK - 1, "a dimension", &hdim) != 0 ||
	                       parse_cut(p, (int64_t)groups->count, &hunit, scratch) != 0))
		return NULL;
	skip_spaces(p);
	if (*p->at) {
		expected(p, "the end");
		return NULL;
	}
	if (hdim != HSPMD_DUPLICATE && groups->count == 1) {
		expected(p, "hdim -1, as there is one subgroup");
		return NULL;
	}
	if (hdim < 0 && (hunit != 1 || scratch->count)) {
		expected(p, "no unit and no weights for what is not split");
		return NULL;
	}
	struct hspmd_annotation *a = hspmd_annotation_union((const struct hspmd_annotation *const *)groups->group, (int)groups->count,
	                                                    (int)hdim, hunit, scratch->count ? scratch->value : NULL);
	if (!a)
		hspmd_fail_memory(p->err, "reading an annotation");
	return a;
}

struct hspmd_annotation *hspmd_annotation_parse(const char *text, struct hspmd_error *err)
{
	struct parser p = { .text = text, .at = text, .err = err };
	struct groups groups = { 0 };
	struct numbers scratch = { 0 };
	struct hspmd_annotation *a = parse_union(&p, &groups, &scratch);
	for (size_t i = 0; i < groups.count; i++)
		hspmd_annotation_destroy(groups.group[i]);
	free(groups.group);
	free(scratch.value);
	if (a && hspmd_annotation_check(a, NULL, err) != 0) {
		hspmd_annotation_destroy(a);
		a = NULL;
	}
	return a;
}
