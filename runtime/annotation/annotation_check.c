/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that an annotation is legal: its structure, and that it fits a tensor's shape. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "runtime/annotation/annotation.h"

/* Every device number is >= 0 and occurs once in the union. */
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
	hspmd_sort_if_needed(all, total, sizeof *all, hspmd_int_order);
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
			if (product <= group->device_count) /* beyond that, the product only says "too many" */
				product *= split->parts;
		}
		if (product != group->device_count)
			return hspmd_fail(err, "subgroup %d: %d devices, but its state has %s parts", g, group->device_count,
			                  product > group->device_count ? "more" : "fewer");
	}
	return 0;
}

/* Every cut leaves elements in every part. */
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
	int count = hspmd_annotation_local_shards(a, shape, NULL, NULL);
	int *devices = hspmd_calloc((size_t)count, sizeof *devices);
	struct hspmd_local_shard *shards = hspmd_calloc((size_t)count, sizeof *shards);
	int rc = 0;
	if (!devices || !shards) {
		rc = hspmd_fail_memory(err, "checking an annotation");
	} else {
		hspmd_annotation_local_shards(a, shape, devices, shards);
		for (int i = 0; i < count && rc == 0; i++)
			if (hspmd_box_empty(&shards[i].box))
				rc = hspmd_fail(err, "device %d (number %d of subgroup %d) would hold no element", devices[i],
				                shards[i].position, shards[i].group);
	}
	free(devices);
	free(shards);
	const struct hspmd_shape experts = { 1, { a->rows ? a->rows->count : 1 } };
	if (rc == 0 && a->rows && shape->rank < 2)
		return hspmd_fail(err, "rows of experts of a tensor of %d dimensions: expected 2 or more", shape->rank);
	return rc == 0 && a->rows ? hspmd_annotation_check(a->rows->experts, &experts, err) : rc;
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
		whole = hspmd_box_full(shape);
		strcpy(dims, " on tensor ");
		hspmd_box_text(&whole, dims + strlen(dims), sizeof dims - strlen(dims));
	}
	hspmd_error_prefix(err, "annotation %.600s%s", text ? text : "", dims);
	free(text);
	return -1;
}
