/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/graph/annotation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

static void *duplicate(const void *p, size_t n, size_t size)
{
	void *copy = hspmd_calloc(n, size);
	if (copy && n > 0)
		memcpy(copy, p, n * size);
	return copy;
}

static void group_clear(struct hspmd_subgroup *g)
{
	for (int s = 0; s < g->split_count; s++)
		free(g->splits[s].weights);
	free(g->splits);
	free(g->devices);
	*g = (struct hspmd_subgroup){ 0 };
}

void hspmd_annotation_destroy(struct hspmd_annotation *a)
{
	if (!a)
		return;
	int saved = errno;
	for (int g = 0; g < a->hsize; g++)
		group_clear(&a->groups[g]);
	free(a->groups);
	free(a->hweights);
	free(a);
	errno = saved;
}

/* An annotation of `hsize` subgroups without devices. */
static struct hspmd_annotation *blank(int hsize)
{
	struct hspmd_annotation *a = hspmd_calloc(1, sizeof *a);
	if (!a)
		return NULL;
	a->groups = hspmd_calloc((size_t)hsize, sizeof *a->groups);
	if (!a->groups) {
		free(a);
		return NULL;
	}
	a->hsize = hsize;
	a->hdim = HSPMD_DUPLICATE;
	a->hunit = 1;
	return a;
}

struct hspmd_annotation *hspmd_annotation_single(const int *devices, int count)
{
	struct hspmd_annotation *a = blank(1);
	if (!a)
		return NULL;
	a->groups[0].devices = duplicate(devices, (size_t)count, sizeof *devices);
	if (!a->groups[0].devices) {
		hspmd_annotation_destroy(a);
		return NULL;
	}
	a->groups[0].device_count = count;
	return a;
}

int hspmd_annotation_split(struct hspmd_annotation *a, int group, int dim, int parts, int64_t unit, const int64_t *weights)
{
	struct hspmd_subgroup *g = &a->groups[group];
	int64_t *w = NULL;
	if (weights) {
		w = duplicate(weights, (size_t)parts, sizeof *weights);
		if (!w)
			return -1;
	}
	struct hspmd_split *grown = realloc(g->splits, ((size_t)g->split_count + 1) * sizeof *grown);
	if (!grown) {
		free(w);
		return -1;
	}
	g->splits = grown;
	g->splits[g->split_count++] = (struct hspmd_split){ .dim = dim, .parts = parts, .unit = dim >= 0 ? unit : 1, .weights = w };
	return 0;
}

/* *to is blank. On failure what was copied so far is left for the owner's destroy. */
static int group_copy(struct hspmd_subgroup *to, const struct hspmd_subgroup *from)
{
	to->devices = duplicate(from->devices, (size_t)from->device_count, sizeof *from->devices);
	to->splits = hspmd_calloc((size_t)from->split_count, sizeof *to->splits);
	if (!to->devices || !to->splits)
		return -1;
	to->device_count = from->device_count;
	for (int s = 0; s < from->split_count; s++) {
		const struct hspmd_split *split = &from->splits[s];
		to->splits[s] = *split;
		to->splits[s].weights = NULL;
		to->split_count = s + 1;
		if (!split->weights)
			continue;
		to->splits[s].weights = duplicate(split->weights, (size_t)split->parts, sizeof *split->weights);
		if (!to->splits[s].weights)
			return -1;
	}
	return 0;
}

struct hspmd_annotation *hspmd_annotation_union(const struct hspmd_annotation *const *parts, int count, int hdim, int64_t hunit,
                                                const int64_t *hweights)
{
	int hsize = 0;
	for (int i = 0; i < count; i++)
		hsize += parts[i]->hsize;
	struct hspmd_annotation *a = blank(hsize);
	if (!a)
		return NULL;
	a->hdim = hsize > 1 ? hdim : HSPMD_DUPLICATE;
	a->hunit = a->hdim >= 0 ? hunit : 1;
	int at = 0;
	for (int i = 0; i < count; i++)
		for (int g = 0; g < parts[i]->hsize; g++)
			if (group_copy(&a->groups[at++], &parts[i]->groups[g]) != 0)
				goto failed;
	if (hweights && hsize > 1) {
		a->hweights = duplicate(hweights, (size_t)hsize, sizeof *hweights);
		if (!a->hweights)
			goto failed;
	}
	return a;
failed:
	hspmd_annotation_destroy(a);
	return NULL;
}

struct hspmd_annotation *hspmd_annotation_copy(const struct hspmd_annotation *a)
{
	return hspmd_annotation_union(&a, 1, a->hdim, a->hunit, a->hweights);
}

static int device_order(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

/* Every device number is >= 0 and occurs once in the whole union. */
static int check_devices(const struct hspmd_annotation *a, struct hspmd_error *err)
{
	size_t total = 0;
	for (int g = 0; g < a->hsize; g++) {
		if (a->groups[g].device_count < 1)
			return hspmd_fail(err, "subgroup %d has no device", g);
		total += (size_t)a->groups[g].device_count;
	}
	if (total > HSPMD_ANNOTATION_MAX_DEVICES)
		return hspmd_fail(err, "%zu devices: at most %d", total, HSPMD_ANNOTATION_MAX_DEVICES);
	int *all = hspmd_calloc(total, sizeof *all);
	if (!all)
		return hspmd_fail_memory(err, "checking an annotation");
	size_t at = 0;
	for (int g = 0; g < a->hsize; g++) {
		memcpy(all + at, a->groups[g].devices, (size_t)a->groups[g].device_count * sizeof *all);
		at += (size_t)a->groups[g].device_count;
	}
	qsort(all, total, sizeof *all, device_order);
	int rc = 0;
	if (all[0] < 0)
		rc = hspmd_fail(err, "device %d: device numbers start at 0", all[0]);
	for (size_t i = 1; i < total && rc == 0; i++)
		if (all[i] == all[i - 1])
			rc = hspmd_fail(err, "device %d occurs twice", all[i]);
	free(all);
	return rc;
}

static int check_cut(const char *what, int dim, int parts, int64_t unit, const int64_t *weights, struct hspmd_error *err)
{
	if (dim < HSPMD_PARTIAL || dim >= HSPMD_MAX_RANK)
		return hspmd_fail(err, "%s: dimension %d: expected %d..%d", what, dim, HSPMD_PARTIAL, HSPMD_MAX_RANK - 1);
	if (parts < 1)
		return hspmd_fail(err, "%s: %d parts of dimension %d: expected 1 or more", what, parts, dim);
	if (unit < 1)
		return hspmd_fail(err, "%s: unit %" PRId64 " of dimension %d: expected 1 or more", what, unit, dim);
	if (dim < 0 && (unit != 1 || weights))
		return hspmd_fail(err, "%s: dimension %d is not split, so it has neither unit nor weights", what, dim);
	int64_t total = 0;
	for (int i = 0; weights && i < parts; i++)
		if (weights[i] < 1 || __builtin_add_overflow(total, weights[i], &total))
			return hspmd_fail(err,
			                  "%s: weight %" PRId64 " of part %d of dimension %d: expected 1 or more, and a sum below 2^63",
			                  what, weights[i], i, dim);
	return 0;
}

static int check_structure(const struct hspmd_annotation *a, struct hspmd_error *err)
{
	if (a->hsize < 1)
		return hspmd_fail(err, "no subgroup");
	if (check_devices(a, err) != 0 || check_cut("hdim", a->hdim, a->hsize, a->hunit, a->hweights, err) != 0)
		return -1;
	if (a->hsize == 1 && a->hdim != HSPMD_DUPLICATE)
		return hspmd_fail(err, "one subgroup has hdim %d, not %d", HSPMD_DUPLICATE, a->hdim);
	for (int g = 0; g < a->hsize; g++) {
		const struct hspmd_subgroup *group = &a->groups[g];
		int64_t product = 1;
		for (int s = 0; s < group->split_count; s++) {
			char what[64];
			snprintf(what, sizeof what, "subgroup %d, entry %d", g, s);
			const struct hspmd_split *split = &group->splits[s];
			if (check_cut(what, split->dim, split->parts, split->unit, split->weights, err) != 0)
				return -1;
			if (product <= group->device_count) /* beyond that it only says "too many" */
				product *= split->parts;
		}
		if (product != group->device_count)
			return hspmd_fail(err, "subgroup %d: %d devices, but its state has %s parts", g, group->device_count,
			                  product > group->device_count ? "more" : "fewer");
	}
	return 0;
}

/* Every cut leaves something in every part. */
static int check_fit(const struct hspmd_annotation *a, const struct hspmd_shape *shape, struct hspmd_error *err)
{
	for (int d = 0; d < shape->rank; d++)
		if (shape->dim[d] < 1)
			return hspmd_fail(err, "dimension %d has no elements", d);
	if (a->hdim >= shape->rank)
		return hspmd_fail(err, "hdim %d: the tensor has %d dimensions", a->hdim, shape->rank);
	for (int g = 0; g < a->hsize; g++)
		for (int s = 0; s < a->groups[g].split_count; s++)
			if (a->groups[g].splits[s].dim >= shape->rank)
				return hspmd_fail(err, "subgroup %d, entry %d: dimension %d: the tensor has %d dimensions", g, s,
				                  a->groups[g].splits[s].dim, shape->rank);
	int count = hspmd_annotation_shares(a, shape, NULL, NULL);
	int *devices = hspmd_calloc((size_t)count, sizeof *devices);
	struct hspmd_share *shares = hspmd_calloc((size_t)count, sizeof *shares);
	int rc = 0;
	if (!devices || !shares) {
		rc = hspmd_fail_memory(err, "checking an annotation");
	} else {
		hspmd_annotation_shares(a, shape, devices, shares);
		for (int i = 0; i < count && rc == 0; i++)
			if (hspmd_box_empty(&shares[i].box))
				rc = hspmd_fail(err, "device %d (number %d of subgroup %d) is left with nothing", devices[i],
				                shares[i].position, shares[i].group);
	}
	free(devices);
	free(shares);
	return rc;
}

int hspmd_annotation_check(const struct hspmd_annotation *a, const struct hspmd_shape *shape, struct hspmd_error *err)
{
	if (check_structure(a, err) == 0 && (!shape || check_fit(a, shape, err) == 0))
		return 0;
	if (!err)
		return -1;
	char *text = hspmd_annotation_text(a);
	char dims[192] = "";
	struct hspmd_box whole = { 0 };
	if (shape) {
		whole = hspmd_box_whole(shape);
		strcpy(dims, " on tensor ");
		hspmd_box_text(&whole, dims + strlen(dims), sizeof dims - strlen(dims));
	}
	hspmd_error_prefix(err, "annotation %.600s%s", text ? text : "", dims);
	free(text);
	return -1;
}

bool hspmd_annotation_is_partial(const struct hspmd_annotation *a)
{
	bool partial = a->hdim == HSPMD_PARTIAL;
	for (int g = 0; g < a->hsize; g++)
		for (int s = 0; s < a->groups[g].split_count; s++)
			partial |= a->groups[g].splits[s].dim == HSPMD_PARTIAL && a->groups[g].splits[s].parts > 1;
	return partial;
}
