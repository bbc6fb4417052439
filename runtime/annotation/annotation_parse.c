/* SPDX-License-Identifier: Apache-2.0 */
/* Reads annotations from text; the grammar is in annotation_text.c. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/annotation/annotation.h"

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
	if (hspmd_array_grow(&n->value, &n->capacity, n->count, sizeof *n->value) != 0)
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

/* One subgroup as an annotation of its own; NULL: failed. */
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
		if (hspmd_array_grow(&groups->group, &groups->capacity, groups->count, sizeof *groups->group) != 0)
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
